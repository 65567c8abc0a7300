# SPDX-License-Identifier: Apache-2.0
"""Recordings that are cut, empty, of one moment, hostile, or of graph pools; and small windows."""

import re

import browser
from browser import PageTest


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
        self.assertEqual(len(self.find_all("script")), 3)
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

    def test_the_commands_page_shows_both_of_its_files(self):
        self.open("command")
        names = [e.text.split()[0] for e in self.find_all(".head h1")]
        self.assertEqual(names, ["gnn.trace.gz", "gnn7.trace.gz"])
        self.assertIn("reserved / live 1.0111", self.find_all(".head .facts")[0].text)
        self.assertIn("reserved / live 1.0047", self.find_all(".head .facts")[1].text)
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


if __name__ == "__main__":
    browser.run()
