"""`wavessm explore [FOLDERS…]`: frames, operators, memories and runs on a page in the browser."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
from pathlib import Path

from tyro.conf import Positional

from wavessm.cli.parse import parse
from wavessm.errors import OptionError


@dataclasses.dataclass(frozen=True)
class ExploreOptions:
    """Show frames, operators, memories and runs on a page in the browser, served to this machine alone."""

    folders: Positional[tuple[Path, ...]] = ()
    """Folders with runs, signals and atoms, or single files, that the page may read; default runs/, if it is there."""
    port: int = 8050
    """Port on this machine; 0 chooses a free one."""
    open: bool = False
    """Open the page in the browser."""


def main(arguments: list[str]) -> int:
    """Run `wavessm explore`; returns the exit status."""
    given = parse(ExploreOptions, arguments, "wavessm explore")
    one_thread()
    server = make_server(given)
    address = f"http://127.0.0.1:{server.port}/"
    print(f"wavessm explore: {address}  (Ctrl-C stops it)", flush=True)
    if given.open:
        import webbrowser

        webbrowser.open(address)
    try:
        server.serve_forever()
    finally:
        server.server_close()
    return 0


def one_thread() -> None:
    """Use one thread: products of matrices this small take twice as long on two that wait for each other."""
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    threadpool_limits(1)


def make_server(given: ExploreOptions):  # type: ignore[no-untyped-def]
    """Return a server that listens on the loopback address, ready to serve."""
    folders = given.folders or tuple(path for path in (Path("runs"),) if path.is_dir())
    for folder in folders:
        if not folder.exists():
            raise OptionError(f"{folder}: no such file or folder; give those with runs or signals, or none.")
    if not 0 <= given.port <= 65535:
        raise OptionError(f"port is {given.port}, expected 0 to 65535.")
    from wavessm_lab.explore.allowed import AllowedFiles
    from wavessm_lab.explore.app import make_app  # says which extra is missing, if one is

    app = make_app(AllowedFiles(folders))
    from werkzeug.serving import WSGIRequestHandler
    from werkzeug.serving import make_server as listen

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # not every request
    handler = type("Handler", (WSGIRequestHandler,), {"protocol_version": "HTTP/1.1"})  # a connection, many requests
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # werkzeug has more to say about a port in use
            return listen("127.0.0.1", given.port, app.server, threaded=True, request_handler=handler)
    except (OSError, SystemExit) as reason:
        raise OptionError(f"port {given.port} is in use; choose another with --port, or 0 for a free one.") from reason
