"""The page of `wavessm explore` in a headless Chromium: open, choose, drag, play, files, come back by a link, look."""

import json
import shutil
import threading
import time
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("dash", reason="needs wavessm-lab and its dash")
pytest.importorskip("selenium", reason="needs Selenium, of the extra dev")

from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.chrome.service import Service

from wavessm_lab.cli.explore import ExploreOptions, make_server

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
PATIENCE = 60

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs Debian's chromium and chromium-driver")


class Page:
    """A browser on the page, and the few things a visitor does."""

    def __init__(self, driver, address):
        self.driver, self.address = driver, address

    def open(self, search=""):
        self.driver.get(self.address + search)
        self.until(lambda: self.find("#main"), "the page")
        self.settle()

    def find(self, selector):
        found = self.driver.find_elements("css selector", selector)
        return found[0] if found else None

    def text(self, selector):
        return self.driver.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def until(self, reached, what):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = reached()
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"{what}: not within {PATIENCE} s; messages: {self.messages()}")

    def settle(self):
        """Until no callback is under way."""
        quiet = "return !document.querySelector('[data-dash-is-loading=true]') && !!document.querySelector('.main-svg')"
        self.until(lambda: self.driver.execute_script(quiet), "quiet")
        time.sleep(0.3)
        self.until(lambda: self.driver.execute_script(quiet), "quiet")

    def choose(self, control, value):
        self.find(f"#{control}").click()
        search = self.until(
            lambda: self.find(".dash-dropdown-content input[type=search], .dash-dropdown-search"), "list"
        )
        search.send_keys(value)
        options = lambda: [o for o in self.driver.find_elements("css selector", ".dash-dropdown-option")  # noqa: E731
                           if o.text.strip() == value]  # fmt: skip
        self.until(options, f"the option {value}")[0].click()
        if self.find(".dash-dropdown-content"):
            ActionChains(self.driver).send_keys(Keys.ESCAPE).perform()

    def drag(self, control, by, which=0):
        handle = self.driver.find_elements("css selector", f"#{control} [role=slider]")[which]
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", handle)
        ActionChains(self.driver).click_and_hold(handle).move_by_offset(by, 0).pause(0.1).release().perform()
        return float(handle.get_attribute("aria-valuenow"))

    def trace(self, graph, index, axis="y"):
        """Numbers of a drawn line, as the browser has them."""
        script = """
        const trace = document.querySelector(`#${arguments[0]} .js-plotly-plot`)?._fullData?.[arguments[1]];
        return trace && trace[arguments[2]] ? Array.from(trace[arguments[2]]) : null;"""
        return self.driver.execute_script(script, graph, index, axis)

    def messages(self):
        return [m.text for m in self.driver.find_elements("css selector", ".message") if m.text]

    def link(self):
        return {name: value[0] for name, value in parse_qs(urlsplit(self.driver.current_url).query).items()}


@pytest.fixture(scope="module")
def driver():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(DRIVER))
    browser.set_window_size(1280, 1100)
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def page(driver, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    server = make_server(ExploreOptions((folder,), port=0))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    found = Page(driver, f"http://127.0.0.1:{server.port}/")
    found.folder = folder
    yield found
    severe = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    asked = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    server.shutdown()
    thread.join()
    server.server_close()
    assert severe == [], "errors on the browser's console"
    sent = [part["params"]["request"]["url"] for part in asked if part["method"] == "Network.requestWillBeSent"]
    hosts = {urlsplit(url).netloc for url in sent if not url.startswith(("data:", "blob:"))}
    assert hosts == {urlsplit(found.address).netloc}, "a request left this machine"


def test_open_choose_and_drag(page, tmp_path):
    page.open()
    assert page.text("#title-left") == "morlet, N = 64, scaled"
    assert "κ before tightening" in page.text("#numbers-left")
    page.choose("family", "db6")
    page.until(lambda: page.text("#title-left").startswith("db6, N = 64"), "db6")
    n = page.drag("n", 60)
    assert n > 64
    page.until(lambda: page.text("#title-left") == f"db6, N = {n:.0f}, scaled", "the new N")
    page.until(lambda: page.link() == {"family": "db6", "n": f"{n:.0f}"}, "the link in the address")
    page.choose("other", "legendre")
    page.until(lambda: page.text("#title-right").startswith("legendre"), "the second family")
    left, right = (page.find(f"#side-{side}").rect for side in ("left", "right"))
    assert left["y"] == right["y"], "side by side"
    assert left["x"] + left["width"] < right["x"]
    page.settle()
    page.driver.save_screenshot(str(tmp_path / "frame.png"))
    assert colours(tmp_path / "frame.png") > 100


def colours(path):
    """How many colours a picture has: a page without its plots has a few dozen shades of grey."""
    with Image.open(path) as image:
        small = np.asarray(image.convert("RGB"))[::2, ::2].reshape(-1, 3) // 8
    return len(np.unique(small, axis=0))


def test_time_is_dragged_and_played_without_the_server(page):
    page.open("?view=memory&signal=blocks&n=32&time=0.5")
    page.until(lambda: page.trace("held-left", 1, "x"), "the held line")
    assert "after 528 of 1024 samples" in page.text("#moment-left")
    asked = len(requests(page))
    time_now = page.drag("time", -150)
    assert time_now < 0.5
    page.until(lambda: "after 528" not in page.text("#moment-left"), "another moment")
    assert page.trace("held-left", 1, "x")[-1] == pytest.approx(time_now * 1024, abs=30)
    page.find("#play").click()
    page.until(lambda: float(page.link().get("time", 1)) > time_now + 0.05, "the time runs")
    assert page.text("#play") == "Pause"
    page.find("#play").click()
    page.until(lambda: page.text("#play") == "Play", "it stands")
    new = [url for url in requests(page)[asked:] if "update-component" in url]
    assert new == [], "moving through time asks the server for nothing"


def requests(page):
    return page.driver.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)")


def test_masked_coordinates_take_their_stretch_with_them(page, tmp_path):
    page.open("?view=memory&signal=blocks&n=64")
    page.until(lambda: page.trace("held-left", 1), "the held line")
    page.drag("mask", 110, which=1)
    page.until(lambda: "without the masked coordinates" in page.text("#moment-left"), "the mask")
    page.settle()
    lost = np.array(page.trace("held-left", 3))
    assert lost[:20].mean() > 0.7, "the oldest coordinates hold the oldest stretch"
    assert lost[-60:].mean() < 0.1
    first, last = (float(part) for part in page.link()["mask"].split("-"))
    assert first == 0
    assert 20 < last < 80
    page.driver.save_screenshot(str(tmp_path / "memory.png"))
    assert colours(tmp_path / "memory.png") > 100
    dot = page.driver.find_elements("css selector", "#lights-left .scatterlayer .point")[40]
    page.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", dot)
    ActionChains(page.driver).move_to_element(dot).pause(0.3).click().perform()
    page.until(lambda: page.link().get("also") == "40", "the clicked coordinate")


def test_files_good_and_bad(page):
    s = np.linspace(0, 1, 300)
    np.save(page.folder / "bumps.npy", [np.exp(-(((s - c) / 0.07) ** 2)) for c in np.linspace(0, 1, 10)])
    (page.folder / "wave.csv").write_text("\n".join(str(np.sin(k / 12)) for k in range(500)))
    (page.folder / "words.csv").write_text("a,b\nnot,numbers\n" * 20)
    page.open("?view=memory")
    page.choose("family", str(page.folder / "bumps.npy")[-60:])
    page.until(lambda: "bumps.npy, N = 10" in page.text("#title-left"), "the atoms of a file")
    page.choose("signal", str(page.folder / "wave.csv")[-60:])
    page.until(lambda: "of 500 samples" in page.text("#moment-left"), "the signal of a file")
    link = page.driver.current_url
    page.choose("signal", str(page.folder / "words.csv")[-60:])
    page.until(lambda: any("words.csv" in message for message in page.messages()), "a message")
    page.driver.get("about:blank")
    page.driver.get(link)
    page.until(lambda: "bumps.npy, N = 10" in page.text("#title-left"), "the atoms from the link")
    page.until(lambda: "of 500 samples" in page.text("#moment-left"), "the signal from the link")


def test_every_view_has_a_link_that_brings_it_back_and_lines_of_python(page):
    for view, sign in (
        ("frame", "tighten()"),
        ("operator", "jacobian("),
        ("memory", "memory.push"),
        ("runs", "run"),
    ):
        link = f"?view={view}&family=mexhat&n=24&measure=translated&low=1&high=6"
        page.open(link)
        given = {name: value[0] for name, value in parse_qs(link[1:]).items() if (name, value) != ("view", ["frame"])}
        page.until(lambda: page.link() == given, f"the link of {view}")  # noqa: B023
        assert page.find(f"#view input[value={view}], #view label:has(input:checked)")
        page.find("#lines-button").click()
        page.until(lambda: sign in page.text("#lines"), f"the lines of {view}")  # noqa: B023
        if view != "runs":
            assert "ws.make_frame('mexhat', n=24, f_min=1.0, f_max=6.0)" in page.text("#lines")


def test_a_mistake_leaves_no_old_picture_behind(page):
    page.open("?view=memory&n=32")
    page.until(lambda: page.trace("held-left", 1), "the held line")
    page.driver.execute_script("dash_clientside.set_props('family', {value: 'morle'})")
    page.until(lambda: any("did you mean 'morlet'" in message for message in page.messages()), "the message")
    page.until(lambda: page.trace("held-left", 1) is None, "an empty picture")
    page.driver.execute_script("dash_clientside.set_props('family', {value: 'db6'})")
    page.until(lambda: page.trace("held-left", 1), "the next picture")
    assert page.messages() == []


def test_nothing_is_cut_off_on_a_narrow_screen(page):
    page.driver.set_window_size(500, 900)
    try:
        for view in ("frame", "operator", "memory"):
            page.open(f"?view={view}&other=fourier&n=16")
            wide = page.driver.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0, f"{view} is {wide} pixels too wide"
    finally:
        page.driver.set_window_size(1280, 1100)
