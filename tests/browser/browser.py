# SPDX-License-Identifier: Apache-2.0
"""Weir's pages in headless Chromium, for tests.

A test module is run as `python3 NAME.py FOLDER`; FOLDER has the pages, and gets the screenshots.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
import unittest

SKIPPED = 77  # what ctest takes for "skipped"


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


try:
    from selenium import webdriver
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.support.ui import Select
except ImportError:
    skip("Selenium for Python is not installed (Debian: python3-selenium)")

FOLDER = pathlib.Path(".")

# Chromium and its driver leave folders in the system's temporary folder; in this one they go with
# the test, when both have ended.
TEMPORARY = tempfile.TemporaryDirectory(prefix="weir-browser-", ignore_cleanup_errors=True)


def open_browser(width=1500, height=1000, dark=False, more_arguments=()):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        skip("Chromium and its driver are not installed (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    arguments = ["--headless=new", f"--window-size={width},{height}", "--hide-scrollbars",
                 "--no-first-run", "--disable-background-networking", "--force-device-scale-factor=1",
                 *more_arguments]
    if dark:
        arguments.append("--force-dark-mode")
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")  # Chromium's sandbox refuses root
    for argument in arguments:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = Service(driver, env={**os.environ, "TMPDIR": TEMPORARY.name})
    return webdriver.Chrome(service=service, options=options)


class PageTest(unittest.TestCase):
    """A browser for all tests of a class, and the page that `open` opened."""

    @classmethod
    def setUpClass(cls):
        cls.driver = open_browser()

    @classmethod
    def tearDownClass(cls):
        cls.driver.quit()

    def open(self, name):
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get((FOLDER / f"{name}.html").resolve().as_uri())
        self.wait_for("return typeof weirPage !== 'undefined' && !document.getElementById('loading')")
        self.settle()

    def tearDown(self):
        """Whatever a test did: no errors, and nothing asked of a network."""
        errors = [e for e in self.driver.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]
        self.assertEqual(errors, [])
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                self.assertRegex(url, r"^(file|data|blob|about):", "the page asked a network")

    def report(self, name):
        """What `weir report` says of the page's first recording."""
        return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait_for(self, condition, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = self.js(condition)
            if value:
                return value
            time.sleep(0.02)
        return self.fail(f"never true within {seconds} s: {condition}")

    def settle(self):
        """Waits until everything in view is drawn."""
        self.wait_for("return weirPage.charts.every((c) => c.finished && !c.waiting)")

    def screenshot(self, name):
        self.settle()
        self.wait_for("return weirPage.charts.every((c) => c.labels && !c.waiting)")
        self.driver.save_screenshot(str(FOLDER / f"{name}.png"))

    def find(self, css):
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def find_all(self, css):
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def text(self, css):
        return self.find(css).text

    def press(self, *keys):
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def fill(self, css, text):
        field = self.find(css)
        field.clear()
        field.send_keys(text + Keys.TAB)

    def choose(self, css, value):
        Select(self.find(css)).select_by_value(value)

    def choose_middle(self):
        """Makes the middle of the recording the chosen moment, about which keys zoom."""
        self.js("""
            const {view, charts} = weirPage;
            for (const c of charts) c.setMoment(c.all.stepAt(view.duration / 2), view.duration / 2);""")

    def view(self):
        return self.js("const v = weirPage.view; return [v.from, v.to, v.bottom, v.top]")

    def pixels(self, chart=0):
        """How many pixels of a chart have each colour, `#rrggbb`."""
        return self.js("""
            const {canvas} = weirPage.charts[arguments[0]];
            const copy = new OffscreenCanvas(canvas.width, canvas.height)
                .getContext("2d", {willReadFrequently: true});
            copy.drawImage(canvas, 0, 0);
            const {data} = copy.getImageData(0, 0, canvas.width, canvas.height);
            const count = {};
            for (let i = 0; i < data.length; i += 4) {
              if (data[i + 3] === 0) continue;
              const name = "#" + [0, 1, 2].map((j) => data[i + j].toString(16).padStart(2, "0")).join("");
              count[name] = (count[name] || 0) + 1;
            }
            return count;""", chart)

    def point_of(self, block, chart=0):
        """The middle of a block in the chart, from the canvas's corner, in CSS pixels."""
        return self.js("""
            const chart = weirPage.charts[arguments[0]];
            const block = arguments[1];
            const {begin, end, duration} = chart.recording;
            const time = (begin[block] + Math.min(end[block], duration)) / 2;
            chart.stack.moveTo(chart.selection.stepAt(time));
            let middle = null;
            chart.stack.visit((b, from, to) => { if (b === block) middle = (from + to) / 2; });
            const {view} = chart;
            return [(time - view.from) / view.span * chart.width,
                    (1 - (middle - view.bottom) / view.height) * chart.canvas.clientHeight];
            """, chart, block)

    def click(self, x, y, chart=0, double=False):
        canvas = self.find(f"canvas[data-chart='{chart}']")
        actions = self._move(ActionChains(self.driver), canvas, x, y)
        (actions.double_click() if double else actions.click()).perform()

    def hover(self, x, y, chart=0):
        self._move(ActionChains(self.driver), self.find(f"canvas[data-chart='{chart}']"), x, y).perform()

    def drag(self, css, start, end):
        element = self.find(css)
        actions = self._move(ActionChains(self.driver), element, *start).click_and_hold()
        self._move(actions, element, *end).release().perform()

    def _move(self, actions, element, x, y):
        self.js("arguments[0].scrollIntoView({block: 'nearest'})", element)
        size = element.size  # Selenium counts from the middle
        return actions.move_to_element_with_offset(
            element, int(x - size["width"] / 2), int(y - size["height"] / 2))


def run():
    global FOLDER
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    FOLDER = pathlib.Path(sys.argv.pop(1))
    if not (FOLDER / "small.html").exists():
        skip(f"there are no pages in {FOLDER}: make_pages writes them, where D3 is installed")
    unittest.main(module="__main__", verbosity=2)
