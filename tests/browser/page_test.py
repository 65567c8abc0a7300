# SPDX-License-Identifier: Apache-2.0
"""What a person does with a page of one recording. make_pages.cc says what `small` holds."""

import browser
from browser import ActionChains, Keys, PageTest

MIB = 1 << 20
BLUE, ORANGE, GREEN = "#0072b2", "#e69f00", "#009e73"  # streams 0, 1, 2


class Shown(PageTest):
    def setUp(self):
        self.open("small")

    def test_the_head_says_what_the_recording_holds(self):
        facts = self.text(".head .facts")
        for fact in ("32 blocks", "most live 48 MiB at", "most reserved 52 MiB", "lasts 10.9 ms"):
            self.assertIn(fact, facts)
        self.assertEqual(self.text(".head h1"), "small python train.py --batch 8")
        self.assertEqual(self.driver.title, "Memory of small")
        self.assertEqual(self.find_all(".warning"), [])
        self.screenshot("small-light")

    def test_blocks_have_the_area_of_their_bytes_and_time(self):
        count = self.pixels()
        pixels = self.js("""
            const r = weirPage.recordings[0];
            const {time, bytes} = weirPage.charts[0].scale;
            let area = 0;
            for (let b = 0; b < r.count; ++b)
              area += r.bytes[b] / bytes * (Math.min(r.end[b], r.duration) - r.begin[b]) / time;
            return area;""")
        self.assertAlmostEqual(sum(count.values()) / pixels, 1, delta=0.04)
        for colour in (BLUE, ORANGE, GREEN):
            self.assertGreater(count.get(colour, 0), 500, colour)

    def test_a_note_beside_the_pointer_names_the_block(self):
        self.hover(*self.point_of(3))
        note = self.text("#tip")
        for part in ("Block 3: 12 MiB", "stream 0", "lives from", "Attention::forward", "live,"):
            self.assertIn(part, note)
        self.screenshot("small-note")

    def test_marks_are_named_above_the_chart(self):
        self.assertEqual([e.text for e in self.find_all(".marks text")],
                         ["step 0", "step 1", "step 2", "step 3"])

    def test_colours_are_by_stream_pool_or_size(self):
        by_stream = self.pixels()
        self.choose("#colour", "size")
        self.settle()
        by_size = self.pixels()
        self.assertGreater(by_stream[ORANGE], 0)
        self.assertNotIn(ORANGE, by_size)
        self.assertIn("up to 8 MiB", self.text("#legend"))
        self.screenshot("small-by-size")
        self.choose("#colour", "pool")
        self.settle()
        self.assertIn("#999999", self.pixels())
        self.assertIn("no pool", self.text("#legend"))


class Moved(PageTest):
    def setUp(self):
        self.open("small")
        self.choose_middle()
        self.whole = self.view()

    def test_the_wheel_zooms_time_about_the_pointer_and_with_shift_bytes(self):
        x = 300
        time_at = "const c = weirPage.charts[0]; return c.view.from + arguments[0] / c.width * c.view.span"
        before = self.js(time_at, x)
        self.hover(x, 200)
        canvas = self.find("canvas[data-chart]")
        offset = (int(x - canvas.size["width"] / 2), int(200 - canvas.size["height"] / 2))
        origin = browser.webdriver.common.actions.wheel_input.ScrollOrigin.from_element(canvas, *offset)
        ActionChains(self.driver).scroll_from_origin(origin, 0, -400).perform()
        self.settle()
        begin, end = self.view()[:2]
        self.assertLess(end - begin, 0.7 * (self.whole[1] - self.whole[0]))
        self.assertAlmostEqual(self.js(time_at, x) / before, 1, delta=0.01)
        ActionChains(self.driver).key_down(Keys.SHIFT).scroll_from_origin(origin, 0, -400).key_up(Keys.SHIFT).perform()
        self.settle()
        self.assertEqual(self.view()[:2], [begin, end])
        self.assertLess(self.view()[3] - self.view()[2], 0.7 * (self.whole[3] - self.whole[2]))

    def test_dragging_moves_the_picture_with_the_pointer(self):
        self.press("+", "+", "+")
        before = self.view()
        width = self.js("return weirPage.charts[0].width")
        self.drag("canvas[data-chart]", (500, 200), (400, 200))
        after = self.view()
        span = before[1] - before[0]
        self.assertAlmostEqual(after[1] - after[0], span, delta=span * 1e-6)
        self.assertAlmostEqual((after[0] - before[0]) / span, 100 / width, delta=0.01)

    def test_keys_move_and_zoom_and_zero_shows_all(self):
        self.press("+")
        begin, end = self.view()[:2]
        self.assertAlmostEqual((end - begin) * 1.5, self.whole[1], delta=1)
        self.press(Keys.ARROW_RIGHT)
        self.assertGreater(self.view()[0], begin)
        self.press(Keys.ARROW_LEFT)
        self.assertAlmostEqual(self.view()[0], begin, delta=1)
        self.press("]")
        self.assertLess(self.view()[3], self.whole[3])
        self.press(Keys.ARROW_UP)
        self.assertGreater(self.view()[2], 0)
        self.press("[", "0")
        self.assertEqual(self.view(), self.whole)

    def test_a_view_never_leaves_the_recording(self):
        self.press(*["+"] * 40)
        begin, end = self.view()[:2]
        self.assertAlmostEqual(end - begin, 100, delta=0.1)  # ns
        self.press(*[Keys.ARROW_LEFT] * 3)
        self.js("weirPage.view.setTime(-5e9, -4e9); weirPage.view.setBytes(-10, 1e15)")
        begin, end, bottom, top = self.view()
        self.assertGreaterEqual(begin, 0)
        self.assertLessEqual(end, self.whole[1])
        self.assertEqual([bottom, top], self.whole[2:])
        self.settle()

    def test_the_overview_chooses_a_part(self):
        width = self.js("return weirPage.charts[0].width")
        self.press("+", "+")
        self.js("weirPage.view.setTime(0, weirPage.view.duration / 4)")
        self.drag(".overview svg", (width * 0.125, 20), (width * 0.625, 20))
        begin, end = self.view()[:2]
        self.assertAlmostEqual(begin / self.whole[1], 0.5, delta=0.02)
        self.assertAlmostEqual(end / self.whole[1], 0.75, delta=0.02)

    def test_a_double_click_shows_all(self):
        self.press("+", "+")
        self.click(300, 100, double=True)
        self.assertEqual(self.view(), self.whole)


class Told(PageTest):
    def setUp(self):
        self.open("small")

    def test_a_click_tells_a_blocks_story(self):
        self.click(*self.point_of(3))
        story = self.text("#story")
        for part in ("Block 3", "12 MiB on stream 0", "12,582,912 B", "0x", "Attention::forward",
                     "src/attention.cc:120", "Model::step", "by stream 1 at", "Freed", "Reused"):
            self.assertIn(part, story)
        self.assertGreater(self.pixels().get("#000000", 0), 200)  # the block stands out
        self.screenshot("small-story")

    def test_a_block_that_was_never_freed_says_so(self):
        self.click(*self.point_of(29))
        story = self.text("#story")
        self.assertIn("not in this recording", story)
        self.assertNotIn("Reused", story)

    def test_links_lead_to_who_had_the_memory_next_and_back(self):
        self.click(*self.point_of(3))
        link = self.find("#story dd > button.link")
        to = int(link.get_attribute("data-block"))
        link.click()
        self.assertIn(f"Block {to}\n", self.text("#story"))
        self.assertIn("Memory of", self.text("#story"))
        back = self.find("#story li > button.link[data-block='3']")
        back.click()
        self.assertIn("Block 3\n", self.text("#story"))

    def test_whoever_takes_memory_of_another_stream_waits_for_it(self):
        waited = self.js("""
            const r = weirPage.recordings[0];
            return Array.from({length: r.count}, (_, b) => b).filter((b) => r.wasWaitedFor(b))""")
        self.assertNotEqual(waited, [])
        self.js("weirPage.follow(weirPage.charts[0], arguments[0])", waited[0])
        self.assertIn("its stream waits, on the GPU, for the last use", self.text("#story"))

    def test_escape_lets_go(self):
        self.click(*self.point_of(3))
        self.press(Keys.ESCAPE)
        self.assertIn("Click on a block", self.text("#story"))
        self.assertNotIn("#000000", {c for c, n in self.pixels().items() if n > 1500})

    def test_a_click_chooses_the_moment_of_the_map_of_pages(self):
        self.js("weirPage.charts[0].setMoment(0)")
        first = self.text(".pages .facts")
        self.assertIn("3 MiB in use", first)
        self.click(*self.point_of(6))
        facts = self.text(".pages .facts")
        self.assertNotEqual(first, facts)
        pages = self.js("return weirPage.charts[0].map.pages")
        held = sum(page["bytes"] for page in pages)
        used = sum(part["bytes"] for page in pages for part in page["used"])
        self.assertEqual(held, 48 * MIB)
        live = self.js("const c = weirPage.charts[0]; return c.all.live[c.moment.step]")
        self.assertEqual(used, live)
        self.assertIn(f"{len(pages)} pages, 48 MiB", facts)

    def test_arrows_on_the_map_choose_pages(self):
        self.js("document.querySelector('canvas.map').focus()")
        before = self.view()
        self.press(Keys.ARROW_RIGHT)
        self.assertRegex(self.text(".pages .about"), r"^Page 0: .* in use by .* mapped at 0x")
        self.press(Keys.ARROW_RIGHT)
        self.assertRegex(self.text(".pages .about"), r"^Page 1: ")
        self.assertEqual(self.view(), before)


if __name__ == "__main__":
    browser.run()
