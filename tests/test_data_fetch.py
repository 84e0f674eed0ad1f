"""Downloads from a server on this machine that cuts, corrupts, stalls, forgets ranges and changes its files."""

import hashlib
import http.server
import io
import re
import tarfile
import threading
import time
import zipfile

import numpy as np
import pytest

from wavessm.cli import main
from wavessm.data import fetch, fetch_set
from wavessm.data.download import Patience, download
from wavessm.data.fetch import OFFICIAL, Official
from wavessm.errors import DataError

FILE = np.random.default_rng(0).integers(0, 256, 700_000, dtype=np.uint8).tobytes()
SUM = hashlib.sha256(FILE).hexdigest()
QUICK = Patience(timeout=0.4, tries=3, pause=0.01)


class Server:
    """Serves `content`; `trouble` is a list of what goes wrong with the next requests."""

    def __init__(self):
        self.content, self.etag, self.ranges, self.trouble, self.asked = FILE, '"v1"', True, [], []
        self.closed = threading.Event()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                server.answer(self)

            def log_message(self, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/set.tar.gz"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def answer(self, request):
        asked = request.headers.get("Range")
        self.asked.append(asked)
        trouble = self.trouble.pop(0) if self.trouble else ""
        request.close_connection = True
        if trouble.isdigit():
            request.send_error(int(trouble))
            return
        start, body = 0, self.content
        same = request.headers.get("If-Range") == self.etag
        if asked and self.ranges and same:
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
            if start >= len(body):
                request.send_error(416)
                return
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            request.send_response(200)
        if trouble == "corrupt":
            body = body[:-5] + b"12345"
        request.send_header("Content-Length", str(len(body) - start))
        request.send_header("ETag", self.etag)
        request.end_headers()
        rest = body[start:]
        if trouble in ("cut", "stall"):
            request.wfile.write(rest[: len(rest) // 2])
            request.wfile.flush()
            if trouble == "stall":
                self.closed.wait(30)
            return
        if trouble == "mute":
            self.closed.wait(30)
            return
        request.wfile.write(rest)

    def close(self):
        self.closed.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


def test_a_whole_file_arrives_with_its_sum_and_leaves_nothing_else(server, tmp_path):
    seen = []
    assert download(server.url, tmp_path / "f", SUM, QUICK, lambda done, total: seen.append((done, total))) == SUM
    assert (tmp_path / "f").read_bytes() == FILE
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert seen[0] == (0, 700_000)
    assert seen[-1] == (700_000, 700_000)


def test_a_cut_connection_goes_on_where_it_ended(server, tmp_path):
    server.trouble = ["cut", "cut", "cut"]
    download(server.url, tmp_path / "f", SUM, QUICK)
    assert (tmp_path / "f").read_bytes() == FILE
    assert server.asked == [None, "bytes=350000-", "bytes=525000-", "bytes=612500-"]


def test_a_server_that_stalls_is_asked_again(server, tmp_path):
    server.trouble = ["stall", "mute"]
    began = time.monotonic()
    download(server.url, tmp_path / "f", SUM, QUICK)
    assert (tmp_path / "f").read_bytes() == FILE
    assert time.monotonic() - began < 5
    assert server.asked[1].startswith("bytes=")


def test_giving_up_keeps_the_part_and_a_later_call_goes_on(server, tmp_path):
    server.trouble = ["cut", "503", "503", "503"]
    with pytest.raises(DataError, match=r"503 Service Unavailable; gave up after 3 tries .* 350,000 bytes are kept"):
        download(server.url, tmp_path / "f", SUM, QUICK)
    assert not (tmp_path / "f").exists()
    server.asked.clear()
    download(server.url, tmp_path / "f", SUM, QUICK)
    assert server.asked == ["bytes=350000-"]
    assert (tmp_path / "f").read_bytes() == FILE


def test_a_corrupt_file_is_fetched_once_more_then_refused(server, tmp_path):
    server.trouble = ["corrupt"]
    download(server.url, tmp_path / "f", SUM, QUICK)
    assert (tmp_path / "f").read_bytes() == FILE
    (tmp_path / "f").unlink()
    server.trouble = ["corrupt", "corrupt"]
    with pytest.raises(DataError, match=f"SHA-256 is [0-9a-f]{{64}}, expected {SUM}"):
        download(server.url, tmp_path / "f", SUM, QUICK)
    assert list(tmp_path.iterdir()) == []


def test_a_server_without_ranges_starts_over(server, tmp_path):
    server.ranges = False
    server.trouble = ["cut"]
    download(server.url, tmp_path / "f", SUM, QUICK)
    assert (tmp_path / "f").read_bytes() == FILE


def test_halves_of_different_files_are_not_joined(server, tmp_path):
    server.trouble = ["cut", "503", "503", "503"]
    with pytest.raises(DataError):
        download(server.url, tmp_path / "f", None, QUICK)
    server.content, server.etag = FILE[::-1], '"v2"'
    download(server.url, tmp_path / "f", None, QUICK)
    assert (tmp_path / "f").read_bytes() == FILE[::-1]


def test_a_part_longer_than_the_file_begins_again(server, tmp_path):
    (tmp_path / "f.partial").write_bytes(FILE + b"more")
    (tmp_path / "f.partial.json").write_text(f'{{"url": "{server.url}", "mark": "\\"v1\\""}}')
    download(server.url, tmp_path / "f", SUM, QUICK)
    assert (tmp_path / "f").read_bytes() == FILE


def test_refusals_are_not_tried_again(server, tmp_path):
    server.trouble = ["403"]
    with pytest.raises(DataError, match="the server says 403 Forbidden"):
        download(server.url, tmp_path / "f", SUM, QUICK)
    assert len(server.asked) == 1


def test_a_full_disk_is_seen_before_anything_is_written(server, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(DataError, match="700,000 bytes are to come, 1,000 are free"):
        download(server.url, tmp_path / "f", SUM, QUICK)


# -- sets -----------------------------------------------------------------------------------------------------------


def tar_of(members):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture
def listed(server, monkeypatch):
    """A set of the catalogue that this server publishes: folder `inner` of an archive, to become `place`."""
    server.content = tar_of(
        {
            "release/inner/a/1.txt": b"one",
            "release/inner/b.txt": b"two",
            "release/inner/link": None,
            "release/inner/../../escaped": b"no",
            "release/other/c.txt": b"three",
        }
    )
    digest = hashlib.sha256(server.content).hexdigest()
    entry = Official("CC0", "https://example.org", server.url, "place", "inner", digest)
    monkeypatch.setitem(OFFICIAL, "toy", entry)
    return entry


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_set_is_unpacked_where_it_belongs(listed, tmp_path):
    root = tmp_path / "data"
    fetched = fetch_set(root, "toy", QUICK)
    assert fetched == (root / "place", listed.sha256)
    assert files_in(tmp_path) == ["data/place/a/1.txt", "data/place/b.txt"]
    assert fetch_set(root, "toy", QUICK) == (root / "place", None)


def test_an_archive_put_there_by_hand_needs_no_network(listed, server, tmp_path):
    (tmp_path / ".downloads").mkdir()
    (tmp_path / ".downloads" / "set.tar.gz").write_bytes(server.content)
    fetch_set(tmp_path, "toy", QUICK, keep=True)
    assert server.asked == []
    assert files_in(tmp_path) == [".downloads/set.tar.gz", "place/a/1.txt", "place/b.txt"]


def test_a_damaged_archive_leaves_no_half_set(server, monkeypatch, tmp_path):
    server.content = tar_of({"inner/a": FILE})[:300_000]
    monkeypatch.setitem(OFFICIAL, "toy", Official("CC0", "https://example.org", server.url, "place", "inner"))
    with pytest.raises(DataError, match="damaged"):
        fetch_set(tmp_path, "toy", QUICK)
    assert files_in(tmp_path) == []
    assert not (tmp_path / "place").exists()
    server.content = tar_of({"elsewhere/a": b"1"})
    with pytest.raises(DataError, match="no inner in it"):
        fetch_set(tmp_path, "toy", QUICK)


def test_zip_archives_and_single_files(server, monkeypatch, tmp_path):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("release-1.0/a.csv", "1")
        archive.writestr("../b.csv", "2")
    server.content = packed.getvalue()
    url = server.url.replace("set.tar.gz", "set.zip")
    monkeypatch.setitem(OFFICIAL, "toy", Official("CC0", "https://example.org", url, "toy", "release-1.0"))
    fetch_set(tmp_path / "zip", "toy", QUICK)
    assert files_in(tmp_path / "zip") == ["toy/a.csv"]
    server.content = b"date,OT\n"
    url = server.url.replace("set.tar.gz", "ETT.csv")
    monkeypatch.setitem(OFFICIAL, "toy", Official("CC0", "https://example.org", url, "forecasting/ETT.csv"))
    fetch_set(tmp_path / "csv", "toy", QUICK)
    assert files_in(tmp_path / "csv") == ["forecasting/ETT.csv"]


def test_every_listed_set_has_a_source_or_says_what_to_do(tmp_path):
    from wavessm.data.catalogue import ENTRIES

    assert set(OFFICIAL) == set(ENTRIES) - {"ptbxl-500"}  # in one archive with ptbxl
    for name, official in OFFICIAL.items():
        assert official.licence
        assert official.page.startswith("https://")
        if official.url:
            assert official.url.startswith("https://")
            assert official.place
            assert official.sha256 is None or re.fullmatch("[0-9a-f]{64}", official.sha256)
        else:
            with pytest.raises(DataError, match="cannot be fetched: its publisher keeps it on a shared drive"):
                fetch_set(tmp_path, name)


# -- the command ----------------------------------------------------------------------------------------------------


def test_the_command_shows_licence_source_progress_and_sum(listed, tmp_path, capsys):
    assert main(["data", "fetch", "toy", "--root", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "licence: CC0" in said.out
    assert listed.url in said.out
    assert f"SHA-256: {listed.sha256} (as published)" in said.out
    assert "toy 100 %" in said.err
    assert main(["data", "fetch", "toy", "--root", str(tmp_path)]) == 0
    assert "is there already" in capsys.readouterr().out


def test_without_a_network_there_is_one_clear_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(fetch, "OFFICIAL", OFFICIAL)
    for url in ("http://nowhere.invalid/x.tar.gz", "http://127.0.0.1:9/x.tar.gz"):
        monkeypatch.setitem(OFFICIAL, "toy", Official("CC0", "https://example.org", url, "place", "inner"))
        assert main(["data", "fetch", "toy", "--root", str(tmp_path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("wavessm data: toy: cannot reach ")
        assert "is there a network?" in line
        assert str(tmp_path / ".downloads" / "x.tar.gz") in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fetch"], "fetch needs the name of a set"),
        (["fetch", "imdb"], "unknown data set 'imdb'"),
        (["generate", "text"], "unknown generated set 'text'"),
        (["generate", "listops", "--count", "-3"], "count is -3"),
        (["fetch", "text", "--tries", "0"], "tries 0"),
    ],
)
def test_mistakes_are_one_line(words, said, tmp_path, capsys):
    assert main(["data", *words, "--root", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
