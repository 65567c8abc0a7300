# SPDX-License-Identifier: Apache-2.0
"""Recordings that are cut, empty, of one moment, hostile, or of graph pools; and small windows."""

import gzip
import json
import pathlib
import pickle
import re
import tempfile

import browser
from browser import Keys, PageTest


class Files(PageTest):
    def test_a_recording_that_was_cut_says_what_is_missing(self):
        self.open("cut")
        warnings = " ".join(e.text for e in self.find_all(".warning"))
        self.assertIn("Incomplete: the file ends within an event, at byte 1,234", warnings)
        self.assertIn("17 events came too fast", warnings)
        self.assertIn("16 blocks", self.text(".head .facts"))
        self.screenshot("cut")

    def test_an_empty_recording_says_so(self):
        self.open("empty")
        self.assertEqual(self.text(".plot .empty"), "Nothing was allocated in this recording.")
        self.assertIn("0 blocks", self.text(".head .facts"))
        self.press("+", "-", "j", "k", ".", ",", "n", "p", "0", "c")
        self.click(300, 100)
        self.screenshot("empty")

    def test_a_snapshot_is_one_moment_with_blocks_and_pages(self):
        self.open("moment")
        self.assertIn("One moment only", self.text(".warning"))
        self.assertIn("most live 48 MiB", self.text(".head .facts"))
        self.assertIn("48 MiB in use", self.text(".pages .facts"))
        self.press("+", "j")
        self.assertIn("Model::step", self.text("#story"))
        self.screenshot("moment")

    def test_pages_that_a_graph_pool_lends_are_named_and_hatched(self):
        self.open("driver")
        self.js("const c = weirPage.charts[0]; c.setMoment(c.recording.stepTime.length - 1)")
        self.assertIn("Lent scratch, hatched over its blocks: 16 MiB of graph pool 6.", self.text(".pages .facts"))
        self.js("document.querySelector('canvas.map').focus()")
        told = []
        for _ in range(self.js("return weirPage.charts[0].map.boxes.length")):
            self.press(Keys.ARROW_RIGHT)
            told.append(self.text(".pages .about"))
        self.assertEqual([each for each in told if "scratch that graph pool 6 lends" in each],
                         [each for each in told if each.startswith("Page 1: ")])
        same = self.js("""
            const {map} = weirPage.charts[0];
            const drawn = map.canvas.toDataURL();
            map.boxes.find(({page}) => page.id === 1).page.lender = 0;
            map.draw();
            return drawn === map.canvas.toDataURL();""")
        self.assertFalse(same, "it is not hatched")

    def test_all_streams_are_named_in_words_and_are_no_choice(self):
        self.open("context")
        self.js("weirPage.follow(weirPage.charts[0], 3)")
        self.assertIn("by all streams at", self.text("#story"))
        self.assertEqual([option.text for option in self.find_all("#stream option")],
                         ["all", "0", "1", "2"])

    def test_texts_of_a_recording_stay_texts(self):
        self.open("hostile")
        self.fill("#find", "</script>")
        self.wait_for("return document.getElementById('result').textContent === '32 blocks, up to 21 MiB'")
        self.press("j")
        self.assertIn("</script><script>window.hurt = 1</script>", self.text("#story"))
        self.hover(*self.point_of(3))
        self.assertIn("</script>", self.text("#tip"))
        self.assertIsNone(self.js("return window.hurt ?? null"))
        self.assertEqual(self.find_all("img"), [])
        self.assertEqual(len(self.find_all("script")), 4)
        self.assertIn("<script>hurt = 1;<img", self.driver.title)
        self.screenshot("hostile")

    def test_the_file_names_no_other_place(self):
        text = (browser.FOLDER / "hostile.html").read_text(encoding="utf-8")
        head = text[:text.index('<script type="text/plain"')]
        self.assertNotRegex(head, r"(src|href)=(?!\"data:)")
        self.assertNotRegex(head, r"@import|url\(")
        data = re.findall(r'class="recording">([^<]*)</script>', text)
        self.assertEqual(len(data), 1)
        self.assertRegex(data[0], r"^[A-Za-z0-9+/]+=*$")
        self.open("hostile")

    def test_graph_pools_have_colours_and_filters(self):
        self.open("pools")
        self.choose("#colour", "pool")
        self.settle()
        self.assertIn("no pool", self.text("#legend"))
        pools = self.js("return weirPage.recordings[0].pools")
        self.assertNotEqual(pools, [])
        self.screenshot("pools")
        matching = []
        for pool in ["", *pools]:
            self.choose("#pool", f"={pool}")
            matching.append(
                self.js("return weirPage.charts[0].selection.matches.reduce((a, b) => a + b)"))
        self.assertEqual(sum(matching), 1003)
        self.assertGreater(sum(matching[1:]), 0)

    def test_a_file_that_begins_after_its_peak_claims_none_and_calls_only_what_stays_weights(self):
        self.open("before")
        self.assertEqual(self.text(".title h2"), "At the beginning: 300 MiB in 2 blocks")
        self.assertEqual(self.text(".answer"), "66.7 % of it was from before the recording. "
                                               "33.3 % of it was there before the recording began.")
        self.assertEqual([row.text for row in self.find_all(".uses .name")], ["unknown", "weights"])
        self.assertIn("PyTorch held without a block at this moment", self.text(".held"))
        self.assertIn("expandable_segments", self.text(".advice"))
        self.assertEqual(self.text(".peak text"), "most 300 MiB at 0 µs")
        self.assertNotIn("`", self.find("body").text)
        self.screenshot("before")

    def test_the_commands_page_shows_both_of_its_files(self):
        self.open("command")
        names = [e.text.split()[0] for e in self.find_all(".head h1")]
        self.assertEqual(names, ["gnn.trace.gz", "gnn7.trace.gz"])
        self.screenshot("gnn")

    def test_a_small_window_needs_no_sideways_scrolling(self):
        size = self.driver.get_window_size()
        self.driver.set_window_size(600, 900)
        try:
            self.open("two")
            self.assertLessEqual(self.js("return document.documentElement.scrollWidth"),
                                 self.js("return window.innerWidth"))
            left, right = self.find_all(".chart")
            self.assertGreater(right.location["y"], left.location["y"])
            self.screenshot("two-narrow")
            self.open("training")
            boxes = [self.find(css).rect for css in (".peak text", "text.other", ".head h1", "header")]
            for one, other in (boxes[:2], boxes[2:]):
                self.assertTrue(any(a[at] + a[size] <= b[at] + 4 for at, size in (("x", "width"), ("y", "height"))
                                    for a, b in ((one, other), (other, one))), boxes)
            self.screenshot("training-narrow")
        finally:
            self.driver.set_window_size(size["width"], size["height"])


class Dropped(PageTest):
    """The empty page reads a file by itself, and sees what weir's own page sees of it."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(dir=browser.FOLDER)
        self.addCleanup(self.folder.cleanup)
        self.driver.get_log("browser")
        self.driver.get((browser.FOLDER / "drop.html").resolve().as_uri())
        self.wait_for("return document.querySelector('input[type=file]') !== null")

    def file(self, name, content):
        path = pathlib.Path(self.folder.name, name)
        path.write_bytes(content)
        return path

    def give(self, path):
        self.find("input[type=file]").send_keys(str(path.resolve()))

    def take(self, path):
        self.give(path)
        self.wait_for("return typeof weirPage !== 'undefined' && !document.getElementById('loading')")
        self.settle()

    def blocks(self):
        return self.js("""
            const r = weirPage.recordings[0];
            return [...r.bytes].map((bytes, b) => [bytes, r.addressOf(b), r.isLiveAtEnd(b)]);""")

    def test_a_device_without_segments_is_said_to_be_one(self):
        snapshot = self.snapshot()
        snapshot["segments"] = []
        self.take(self.file("events.json", json.dumps(snapshot).encode()))
        self.assertIn("The file lacks segments of device 0: what PyTorch held is not known.", self.text(".verdict"))
        self.assertIn("Out of memory: a request of 250 MiB failed", self.text(".failure"))
        self.assertNotIn("-1", self.text(".facts"))

    def test_segments_of_a_device_without_a_history_are_shown(self):
        snapshot = self.snapshot()
        snapshot["device_traces"] = []
        snapshot["segments"][0] |= {"device": 1, "total_size": 4 << 30, "blocks": [{"size": 2 << 20, "state": "active_allocated"}]}
        self.take(self.file("device.json", json.dumps(snapshot).encode()))
        self.assertIn("device 1 of 2", self.find("body").text)
        self.assertEqual(self.blocks()[0][0], 2 << 20)

    def snapshot(self):
        return json.loads((browser.FOLDER / "pytorch.snapshot.json").read_text())

    def test_a_pickle_json_and_compressed_ones_are_the_same(self):
        snapshot = self.snapshot()
        files = {f"protocol{protocol}.pickle": pickle.dumps(snapshot, protocol=protocol) for protocol in (2, 4, 5)}
        files["snapshot.json"] = json.dumps(snapshot).encode()
        files["snapshot.pickle.gz"] = gzip.compress(files["protocol4.pickle"])
        seen = []
        for name, content in files.items():
            self.setUp()
            self.take(self.file(name, content))
            seen.append(self.blocks())
            self.assertEqual(self.text(".title h2"), "When the request failed: 1,000 MiB in 5 blocks", name)
            self.assertIn("Out of memory: a request of 250 MiB failed in train_step (train.py:20)", self.text(".failure"))
            self.assertIn("most reserved 1.37 GiB", self.text(".facts"))  # PyTorch's own
        self.screenshot("dropped")
        for other in seen[1:]:
            self.assertEqual(other, seen[0])
        self.open("pytorch")
        self.assertEqual(self.blocks(), seen[0])

    def test_a_trace_is_what_it_is_elsewhere(self):
        trace = browser.FOLDER / "small.trace"
        self.take(trace)
        mine = self.js("const r = weirPage.recordings[0]; return [r.count, r.peakLive, [...r.live]]")
        self.open("small")
        self.assertEqual(self.js("const r = weirPage.recordings[0]; return [r.count, r.peakLive, [...r.live]]"), mine)

    def test_odd_values_are_named_and_the_rest_is_read_as_the_command_reads_it(self):
        def odd(change):
            snapshot = self.snapshot()
            for segment in snapshot["segments"]:
                segment["blocks"] = [{"size": segment["total_size"], "state": "inactive"}]
            change(snapshot["segments"][0], snapshot["device_traces"][0][3])
            return pickle.dumps(snapshot, protocol=4)

        for change, which in ((lambda segment, _: segment.update(total_size=-1), "segments[0].total_size"),
                              (lambda segment, _: segment["blocks"][0].update(size="2 MiB"), "segments[0].blocks[0].size"),
                              (lambda segment, _: segment["blocks"][0].update(state=None), "segments[0].blocks[0].state"),
                              (lambda segment, _: segment.update(blocks=[]), "segments[0].blocks"),
                              (lambda _, event: event.update(time_us=float("nan")), "device_traces[0][3].time_us"),
                              (lambda _, event: event.update(size=-5), "device_traces[0][3].size")):
            self.setUp()
            self.take(self.file("odd.pickle", odd(change)))
            self.assertEqual(self.text(".warning"), f"Incomplete: 1 value can't be read: {which}")
            self.assertIn("Out of memory: a request of 250 MiB failed", self.text(".failure"))

    def test_what_cannot_be_read_is_said_and_another_file_is_taken(self):
        whole = pickle.dumps(self.snapshot(), protocol=4)
        for name, content, why in (("cut.pickle", whole[:len(whole) // 2], "cut off or damaged at byte"),
                                   ("code.pickle", pickle.dumps(print, protocol=4), "may run code"),
                                   ("list.pickle", pickle.dumps([1, 2]), "no memory snapshot of PyTorch's"),
                                   ("text.txt", b"hello", "neither a snapshot of PyTorch's nor a trace")):
            self.give(self.file(name, content))
            self.wait_for(f"return document.querySelector('[role=alert]').textContent.startsWith('{name}: ')")
            self.assertIn(why, self.text("[role=alert]"))
            self.assertIn(f"_dump_snapshot() writes what can be read here; weir look {name} reads", self.text("#loading"))
        self.take(self.file("whole.pickle", whole))


if __name__ == "__main__":
    browser.run()
