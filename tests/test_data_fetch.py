"""Downloads from a server on this machine that fails, cuts and corrupts; archives unpacked where they belong."""

import hashlib
import http.server
import io
import re
import tarfile
import threading
import zipfile

import pytest

from wavessm.cli import main
from wavessm.data import Published, check_set, fetch_set
from wavessm.data.datasets import speech
from wavessm.data.published import published
from wavessm.errors import DataError, UnknownNameError


class Server:
    """Serves `content`; `trouble` is a list of what goes wrong with the next requests."""

    def __init__(self):
        self.content, self.trouble, self.asked = b"", [], 0
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                server.asked += 1
                trouble = server.trouble.pop(0) if server.trouble else ""
                if trouble.isdigit():
                    self.send_error(int(trouble))
                    return
                body = server.content[::-1] if trouble == "corrupt" else server.content
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if trouble == "cut" else body)

            def log_message(self, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/set.tar.gz"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # pooch waits between tries
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


def tar_of(files):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture
def publish(monkeypatch):
    """Adds the set "toy"; folder `inside` of its archive becomes `place`."""

    def add(url, place="place", inside="release/inner", sha256=None):
        known = Published("CC0", "https://example.org", None, url=url, place=place, inside=inside, sha256=sha256)
        monkeypatch.setitem(speech.PUBLISHED, "toy", known)
        return known

    return add


@pytest.fixture
def listed(server, publish):
    server.content = tar_of(
        {
            "release/inner/a/1.txt": b"one",
            "release/inner/b.txt": b"two",
            "release/other/c.txt": b"three",
        }
    )
    return publish(server.url, sha256=hashlib.sha256(server.content).hexdigest())


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("trouble", [[], ["503"], ["cut", "503"], ["corrupt"]])
def test_a_set_is_unpacked_where_it_belongs_after_a_few_tries(listed, server, tmp_path, trouble):
    root, shown = tmp_path / "data", []
    server.trouble = list(trouble)
    fetched = fetch_set(root, "toy", show=lambda done, total: shown.append((done, total)))
    assert fetched == (root / "place", listed.sha256)
    assert files_in(tmp_path) == ["data/place/a/1.txt", "data/place/b.txt"]
    assert shown[-1] == (len(server.content), len(server.content))
    assert fetch_set(root, "toy") == (root / "place", None)
    assert server.asked == len(trouble) + 1


@pytest.mark.parametrize(
    ("trouble", "message"),
    [("404", "cannot download from 127.0.0.1:.*404"), ("corrupt", "the SHA-256 of .* is not .* changed by its"),
     ("cut", "cannot download from 127.0.0.1")],
)  # fmt: skip
def test_a_download_that_keeps_failing_leaves_nothing(listed, server, tmp_path, trouble, message):
    server.trouble = [trouble] * 6
    with pytest.raises(DataError, match=message):
        fetch_set(tmp_path, "toy")
    assert files_in(tmp_path) == []


def test_an_archive_put_there_by_hand_needs_no_network(listed, server, tmp_path):
    (tmp_path / ".downloads").mkdir()
    (tmp_path / ".downloads" / "set.tar.gz").write_bytes(server.content)
    fetch_set(tmp_path, "toy")
    assert server.asked == 0
    assert files_in(tmp_path) == ["place/a/1.txt", "place/b.txt"]


def test_a_damaged_archive_leaves_no_half_set(server, publish, tmp_path):
    server.content = tar_of({"release/inner/a": bytes(range(256)) * 99, "release/inner/b": b"more"})[:200]
    publish(server.url)
    with pytest.raises(DataError, match="damaged"):
        fetch_set(tmp_path, "toy")
    assert files_in(tmp_path) == []
    assert not (tmp_path / "place").exists()
    for name, content in (("release/inner/../../../escaped", b"no"), ("release/inner/link", None)):
        server.content = tar_of({"release/inner/a": b"1", name: content})
        with pytest.raises(DataError, match="damaged"):
            fetch_set(tmp_path, "toy")
    assert files_in(tmp_path) == []
    server.content = tar_of({"elsewhere/a": b"1"})
    with pytest.raises(DataError, match="no release/inner in it"):
        fetch_set(tmp_path, "toy")


def test_zip_archives_and_single_files(server, publish, tmp_path):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("release-1.0/a.csv", "1")
        archive.writestr("../b.csv", "2")
    server.content = packed.getvalue()
    publish(server.url.replace("set.tar.gz", "set.zip"), "toy", "release-1.0")
    fetch_set(tmp_path / "zip", "toy")
    assert files_in(tmp_path / "zip") == ["toy/a.csv"]
    server.content = b"date,OT\n"
    publish(server.url.replace("set.tar.gz", "ETT.csv"), "forecasting/ETT.csv")
    fetch_set(tmp_path / "csv", "toy")
    assert files_in(tmp_path / "csv") == ["forecasting/ETT.csv"]


def test_every_published_set_has_a_source_or_says_what_to_do(tmp_path):
    for name, known in published().items():
        assert known.licence
        assert known.homepage.startswith("https://")
        assert check_set(tmp_path, name)[0].level == "problem"
        if known.url:
            assert known.url.startswith("https://")
            assert known.place
            assert known.sha256 is None or re.fullmatch("[0-9a-f]{64}", known.sha256)
        else:
            with pytest.raises(DataError, match=r"cannot be fetched: .*(its publisher keeps it|lra_release.gz)"):
                fetch_set(tmp_path, name)
    with pytest.raises(UnknownNameError, match="did you mean 'speech'"):
        fetch_set(tmp_path, "speach")


def test_the_command_shows_licence_source_progress_and_sum(listed, tmp_path, capsys):
    assert main(["data", "fetch", "toy", "--root", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "licence: CC0" in said.out
    assert listed.url in said.out
    assert f"SHA-256: {listed.sha256} (as published)" in said.out
    assert "100" in said.err
    assert main(["data", "fetch", "toy", "--root", str(tmp_path)]) == 0
    assert "is there already" in capsys.readouterr().out


def test_without_a_network_there_is_one_clear_line(publish, tmp_path, capsys):
    publish("http://127.0.0.1:9/x.tar.gz")
    assert main(["data", "fetch", "toy", "--root", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("wavessm data fetch: toy: cannot download from 127.0.0.1")
    assert "is there a network?" in line
    assert str(tmp_path / ".downloads" / "x.tar.gz") in line
