# SPDX-License-Identifier: Apache-2.0
"""Two recordings side by side."""

import browser
from browser import Keys, PageTest


class Compared(PageTest):
    def test_both_are_shown_on_one_scale(self):
        self.open("two")
        self.assertEqual([e.text.split()[0] for e in self.find_all(".head h1")], ["small", "cut"])
        left, right = self.find_all(".chart")
        self.assertEqual(left.location["y"], right.location["y"])
        self.assertLess(left.location["x"] + left.size["width"], right.location["x"] + 1)
        scales = self.js("return weirPage.charts.map((c) => [c.scale.time, c.scale.bytes])")
        self.assertEqual(scales[0], scales[1])
        tops = [e.location["y"] for e in self.find_all("canvas[data-chart]")]
        self.assertEqual(tops[0], tops[1])  # also where one has warnings
        self.screenshot("two")

    def test_zoom_and_pan_are_linked(self):
        self.open("two")
        self.choose_middle()
        self.press("+", "+")
        for chart in (0, 1):
            before = self.view()
            self.drag(f"canvas[data-chart='{chart}']", (300, 200), (200, 200))
            self.assertGreater(self.view()[0], before[0])
            self.settle()
            texts = self.js("""
                return [...document.querySelectorAll("svg.axes")].map((svg) =>
                    [...svg.querySelectorAll(".axis text")].map((t) => t.textContent).join())""")
            self.assertEqual(texts[0], texts[1])

    def test_a_filter_holds_for_both(self):
        self.open("two")
        self.choose("#stream", "=1")
        facts = [e.text for e in self.find_all(".head .facts")]
        self.assertEqual(len(facts), 2)
        self.assertTrue(all(" of " in text for text in facts), facts)

    def test_keys_go_to_the_chart_that_was_used_last(self):
        self.open("two")
        self.click(*self.point_of(3, chart=1), chart=1)
        self.assertEqual(self.js("return weirPage.charts.map((c) => c.block)"), [-1, 3])
        self.press("j")
        self.assertEqual(self.js("return weirPage.charts[0].block"), -1)
        self.assertNotEqual(self.js("return weirPage.charts[1].block"), 3)
        self.press(Keys.ESCAPE)
        self.assertEqual(self.js("return weirPage.charts.map((c) => c.block)"), [-1, -1])

    def test_two_files_of_one_name_are_told_apart(self):
        self.open("same")
        self.assertEqual([e.text.split(",")[0].split(" python")[0] for e in self.find_all(".head h1")],
                         ["small (1)", "small (2)"])
        self.assertEqual(self.driver.title, "Memory of small (1) and small (2)")


if __name__ == "__main__":
    browser.run()
