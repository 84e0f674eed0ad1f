"""How soon the page of `wavessm explore` shows a change: the server's answer, and the picture in a browser.

    python benchmarks/explore.py --out results/explore

`server.csv`: every change of a control at N = 64 and 128, answered from nothing (all caches of frames, operators and
streams emptied before each) and once more. Both the elapsed and the processor's milliseconds: medians of `--repeats`.
`browser.csv` (with Chromium and Selenium): from setting the control to the last plot drawn, in headless Chromium, with
the processor's milliseconds of the page's main thread and of the server. Where nothing else runs, elapsed and
processor's time are about the same; the load average is in the table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from common import report
from wavessm import frames, operators
from wavessm_lab.cli.explore import Options, make_server, one_thread
from wavessm_lab.explore import stream, study
from wavessm_lab.explore.allowed import AllowedFiles
from wavessm_lab.explore.app import make_app, values_of
from wavessm_lab.explore.state import State

FAMILIES = ("morlet", "gauss", "mexhat", "dpss", "db6", "legendre", "fourier")
VIEWS = ("frame", "operator", "memory")
SIZES = (64, 128)


def forget() -> None:
    """Empty every cache that a change could profit from."""
    for cached in (frames._build, operators._of_frame, study.study, stream._stream):
        cached.cache_clear()


class Caller:
    """Asks the application what a browser would ask it."""

    def __init__(self, folder: Path) -> None:
        self.app = make_app(AllowedFiles((folder,), folder / "keep"))
        self.client = self.app.server.test_client()
        self.key = next(key for key in self.app.callback_map if "moving-left" in key and "coverage-left" in key)
        self.about = self.app.callback_map[self.key]

    def ask(self, state: State) -> int:
        """The bytes of an answer."""
        values = values_of(state)
        outputs = [
            dict(zip(("id", "property"), part.rsplit(".", 1), strict=True)) for part in self.key[2:-2].split("...")
        ]
        inputs = [{**part, "value": values[part["id"]]} for part in self.about["inputs"]]
        body = {"output": self.key, "outputs": outputs, "inputs": inputs, "state": [], "changedPropIds": []}
        answer = self.client.post("/_dash-update-component", json=body, base_url="http://127.0.0.1")
        if answer.status_code != 200 or json.loads(answer.data)["response"]["message-left"]["children"]:
            raise SystemExit(f"{state}: {answer.status_code} {answer.data[:300]!r}, no time reported.")
        return len(answer.data)


def timed(work: Any) -> tuple[float, float]:
    """Elapsed and processor milliseconds."""
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return 1e3 * (time.perf_counter() - clock), 1e3 * (time.process_time() - processor)


def server_rows(repeats: int) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        caller = Caller(Path(folder))
        caller.ask(State(n=16))
        for view in VIEWS:
            for measure in operators.MEASURES:
                for family in FAMILIES:
                    for n in SIZES:
                        state = State(view=view, family=family, n=n, measure=measure)
                        cold, warm = [], []
                        for _ in range(repeats):
                            forget()
                            cold.append(timed(lambda: caller.ask(state)))  # noqa: B023
                            warm.append(timed(lambda: caller.ask(state)))  # noqa: B023
                        elapsed, processor = (statistics.median(part) for part in zip(*cold, strict=True))
                        rows.append(
                            {
                                "view": view,
                                "measure": measure,
                                "family": family,
                                "n": n,
                                "cold_ms": elapsed,
                                "cold_processor_ms": processor,
                                "warm_ms": statistics.median(part[0] for part in warm),
                                "kib": caller.ask(state) / 1024,
                                "load_average": os.getloadavg()[0],
                            }
                        )
    return rows


CHANGES = (
    ("frame", "n", 128),
    ("frame", "family", "db6"),
    ("operator", "n", 128),
    ("operator", "family", "legendre"),
    ("memory", "n", 128),
    ("memory", "family", "legendre"),
    ("memory", "mask", [30, 45]),
    ("memory", "signal", "blocks"),
    ("memory", "time", 0.5),
)
GRAPHS = {"frame": "coverage-left", "operator": "jacobian-left", "memory": "held-left"}
SCRIPT = """
const [control, value, graph, done] = arguments;
const plot = document.querySelector(`#${graph} .js-plotly-plot`);
const start = performance.now();
plot.once("plotly_afterplot", () => done(performance.now() - start));
dash_clientside.set_props(control, {value: value});
"""


def busy(driver: Any) -> float:
    """Milliseconds the page's main thread has computed so far."""
    found = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return 1e3 * next(part["value"] for part in found if part["name"] == "TaskDuration")


def settle(driver: Any) -> None:
    """Wait until the page has nothing left to do."""
    time.sleep(2)
    before = busy(driver)
    while True:
        time.sleep(0.5)
        now = busy(driver)
        if now - before < 10:
            return
        before = now


def browser_rows(repeats: int) -> list[dict[str, Any]]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,1000"):
        options.add_argument(argument)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        server = make_server(Options((Path(folder),), port=0, keep=Path(folder) / "keep"))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        driver.set_script_timeout(20)
        driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        try:
            for view, control, value in CHANGES:
                found = []
                for _ in range(repeats):
                    driver.get(f"http://127.0.0.1:{server.port}/?view={view}&n={64 if control == 'n' else 128}")
                    settle(driver)
                    if control in ("n", "family"):  # else what is there already may help, as it would a user
                        forget()
                    before, served = busy(driver), time.process_time()
                    elapsed = driver.execute_async_script(SCRIPT, control, value, GRAPHS[view])
                    found.append((elapsed, busy(driver) - before, 1e3 * (time.process_time() - served)))
                shown, page, answered = (statistics.median(part) for part in zip(*found, strict=True))
                rows.append(
                    {
                        "view": view,
                        "change": f"{control} = {value}",
                        "shown_ms": shown,
                        "page_processor_ms": page,
                        "server_processor_ms": answered,
                        "load_average": os.getloadavg()[0],
                    }
                )
        finally:
            driver.quit()
            server.shutdown()
    return rows


def main() -> None:
    one_thread()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/explore"))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    report(server_rows(options.repeats), options.out / "server.csv", "explore.py")
    if Path("/usr/bin/chromium").exists():
        report(browser_rows(options.repeats), options.out / "browser.csv", "explore.py")


if __name__ == "__main__":
    main()
