# SPDX-License-Identifier: Apache-2.0
"""The controls, the keyboard, dark and light, of a page of one recording."""

import browser
from browser import Keys, PageTest

BLUE, ORANGE = "#0072b2", "#e69f00"  # streams 0 and 1


class Narrowed(PageTest):
    def setUp(self):
        self.open("small")

    def test_a_stream_is_shown_alone(self):
        self.choose("#stream", "=1")
        self.settle()
        count = self.pixels()
        self.assertGreater(count[ORANGE], 500)
        self.assertNotIn(BLUE, count)
        self.assertIn("12 blocks of 32", self.text(".head .facts"))
        self.screenshot("small-one-stream")

    def test_sizes_are_a_range(self):
        self.fill("#least", "12 MiB")
        self.fill("#most", "20971520")
        self.assertIn("4 blocks of 32 · most live 12 MiB", self.text(".head .facts"))
        self.find("#reset").click()
        self.assertIn("32 blocks · most live 48 MiB", self.text(".head .facts"))

    def test_what_is_no_size_is_refused(self):
        self.fill("#least", "much")
        self.assertEqual(self.find("#least").get_attribute("aria-invalid"), "true")
        self.assertIn("32 blocks", self.text(".head .facts"))
        self.fill("#least", "1g")
        self.assertEqual(self.find("#least").get_attribute("aria-invalid"), "false")
        self.assertIn("No block is left", self.text(".plot .empty"))
        self.screenshot("small-none-left")

    def test_a_text_of_a_stack_finds_its_blocks(self):
        self.press("/")
        self.assertEqual(self.js("return document.activeElement.id"), "find")
        self.press(*"GELU")
        self.wait_for("return document.getElementById('result').textContent === '11 blocks, up to 21 MiB'")
        self.settle()
        self.assertNotIn(BLUE, {c for c, n in self.pixels().items() if n > 5000})
        self.screenshot("small-found")
        self.press(Keys.ESCAPE, "n")
        first = self.js("return weirPage.charts[0].block")
        self.assertEqual(first % 3, 1)
        self.press("n")
        self.assertEqual(self.js("return weirPage.charts[0].block"), first + 3)
        self.press("p")
        self.assertEqual(self.js("return weirPage.charts[0].block"), first)
        self.assertIn("gelu", self.text("#story"))

    def test_what_is_not_there_is_said_to_be_missing(self):
        self.fill("#find", "no such function")
        self.wait_for("return document.getElementById('result').textContent === 'nothing found'")


class Reached(PageTest):
    def setUp(self):
        self.open("small")

    def test_tab_goes_from_the_top_to_the_bottom(self):
        names = []
        while len(names) < 60 and names[-1:] != ["row"]:
            self.press(Keys.TAB)
            name = self.js("const e = document.activeElement; return e.id || e.className || e.tagName")
            if names[-1:] != [name]:  # rows and calls follow each other
                names.append(name)
        self.assertEqual(names, ["theme", "show-help", "colour", "stack", "stream", "pool", "least", "most",
                                 "find", "reset", "CANVAS", "BUTTON", "call", "map", "by-block", "row"])
        self.screenshot("small-focus")

    def test_blocks_are_chosen_by_keys_at_the_chosen_moment(self):
        self.press("j")
        top = self.js("return weirPage.charts[0].block")
        self.press("j")
        below = self.js("return weirPage.charts[0].block")
        self.assertGreater(top, below)  # the oldest is lowest
        self.press("k")
        self.assertEqual(self.js("return weirPage.charts[0].block"), top)
        self.assertIn(f"Block {top}\n", self.text("#story"))

    def test_dots_and_commas_step_through_changes(self):
        step = self.js("return weirPage.charts[0].moment.step")
        self.press(".")
        self.assertEqual(self.js("return weirPage.charts[0].moment.step"), step + 1)
        self.press(",", ",")
        self.assertEqual(self.js("return weirPage.charts[0].moment.step"), step - 1)

    def test_help_lists_the_keys_and_goes_away(self):
        self.press("?")
        for word in ("earlier, later", "Shift + wheel", "show the whole recording"):
            self.assertIn(word, self.text("#help"))
        self.screenshot("small-help")
        self.find("#help summary").click()
        self.assertIn("Mike Bostock", self.text("#help pre"))
        self.press(Keys.ESCAPE)
        self.assertFalse(self.js("return document.getElementById('help').open"))

    def test_letters_typed_into_a_field_are_no_commands(self):
        before = self.view()
        self.find("#find").send_keys("+c0d?")
        self.assertEqual(self.view(), before)
        self.assertEqual(self.js("return weirPage.colours.by"), "stream")


class Dressed(PageTest):
    def contrast(self, name, under="background"):
        return self.js("""
            const style = getComputedStyle(document.documentElement);
            const light = (name) => {
              const {r, g, b} = d3.rgb(style.getPropertyValue("--" + name).trim());
              const [x, y, z] = [r, g, b].map((v) => v / 255).map(
                  (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
              return 0.2126 * x + 0.7152 * y + 0.0722 * z;
            };
            const [a, b] = [light(arguments[0]), light(arguments[1])].sort((x, y) => y - x);
            return (a + 0.05) / (b + 0.05);""", name, under)

    def background(self):
        return self.js("return getComputedStyle(document.body).backgroundColor")

    def prefer(self, scheme):
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def tearDown(self):
        self.prefer("light")
        super().tearDown()

    def test_the_page_is_as_dark_as_the_system_and_can_be_switched(self):
        self.prefer("dark")
        self.open("small")
        self.assertEqual(self.background(), "rgb(20, 23, 27)")
        self.click(*self.point_of(3))
        self.screenshot("small-dark")
        self.press("d")
        self.assertEqual(self.background(), "rgb(255, 255, 255)")
        self.find("#theme").click()
        self.assertEqual(self.background(), "rgb(20, 23, 27)")
        self.assertEqual(self.js("return [document.documentElement.dataset.theme]"), ["dark"])

    def test_texts_can_be_read(self):
        for scheme in ("light", "dark"):
            self.prefer(scheme)
            self.open("small")
            for name in ("text", "soft", "link", "grave", "reserved"):
                for under in ("background", "panel"):
                    self.assertGreater(self.contrast(name, under), 4.5, (scheme, name, under))


if __name__ == "__main__":
    browser.run()
