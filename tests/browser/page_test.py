"""What a person does with a page of one recording. make_pages.cc says what `small` holds."""

import unittest

import browser
from browser import ActionChains, Keys, PageTest

MIB = 1 << 20
BLUE, ORANGE, GREEN = "#0072b2", "#e69f00", "#009e73"  # streams 0, 1, 2


class Shown(PageTest):
    def setUp(self):
        self.open("small")

    def test_the_head_says_what_the_recording_holds(self):
        facts = self.text(".chart .facts")
        for fact in ("32 blocks", "most live 48 MiB at", "most reserved 50 MiB", "lasts 10.9 ms"):
            self.assertIn(fact, facts)
        self.assertEqual(self.text(".chart h2"), "small python train.py --batch 8, on simulated device")
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


class Labelled(PageTest):
    def test_large_blocks_have_their_sizes_on_them_when_the_view_rests(self):
        self.open("small")
        self.wait_for("return weirPage.charts[0].labels?.length > 0")
        labels = self.js("return weirPage.charts[0].labels")
        self.assertEqual(sorted({e["text"] for e in labels}), ["12 MiB", "2.50 MiB", "3 MiB"])
        self.js("weirPage.view.zoomTime(0.25)")
        self.assertIsNone(self.js("return weirPage.charts[0].labels"))
        self.wait_for("return weirPage.charts[0].labels?.length > 0")
        more = self.js("return weirPage.charts[0].labels")
        self.assertIn("21 MiB", {e["text"] for e in more})


class Moved(PageTest):
    def setUp(self):
        self.open("small")
        self.whole = self.view()

    def test_the_wheel_zooms_about_the_pointer(self):
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

    def test_shift_and_the_wheel_zoom_bytes(self):
        canvas = self.find("canvas[data-chart]")
        origin = browser.webdriver.common.actions.wheel_input.ScrollOrigin.from_element(canvas)
        ActionChains(self.driver).key_down(Keys.SHIFT).scroll_from_origin(origin, 0, -400).key_up(
            Keys.SHIFT).perform()
        self.settle()
        begin, end, bottom, top = self.view()
        self.assertEqual([begin, end], self.whole[:2])
        self.assertLess(top - bottom, 0.7 * (self.whole[3] - self.whole[2]))
        self.screenshot("small-zoomed-bytes")

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
        self.assertEqual(held, 50 * MIB)
        live = self.js("const c = weirPage.charts[0]; return c.all.live[c.moment.step]")
        self.assertEqual(used, live)
        self.assertIn(f"{len(pages)} pages, 50 MiB", facts)

    def test_arrows_on_the_map_choose_pages(self):
        self.js("document.querySelector('canvas.map').focus()")
        before = self.view()
        self.press(Keys.ARROW_RIGHT)
        self.assertRegex(self.text(".pages .about"), r"^Page 0: .* in use by .* mapped at 0x")
        self.press(Keys.ARROW_RIGHT)
        self.assertRegex(self.text(".pages .about"), r"^Page 1: ")
        self.assertEqual(self.view(), before)


class Narrowed(PageTest):
    def setUp(self):
        self.open("small")

    def test_a_stream_is_shown_alone(self):
        self.choose("#stream", "=1")
        self.settle()
        count = self.pixels()
        self.assertGreater(count[ORANGE], 500)
        self.assertNotIn(BLUE, count)
        self.assertIn("12 blocks of 32", self.text(".chart .facts"))
        self.screenshot("small-one-stream")

    def test_sizes_are_a_range(self):
        self.fill("#least", "12 MiB")
        self.fill("#most", "20971520")
        self.assertIn("4 blocks of 32 · most live 12 MiB", self.text(".chart .facts"))
        self.find("#reset").click()
        self.assertIn("32 blocks · most live 48 MiB", self.text(".chart .facts"))

    def test_what_is_no_size_is_refused(self):
        self.fill("#least", "much")
        self.assertEqual(self.find("#least").get_attribute("aria-invalid"), "true")
        self.assertIn("32 blocks", self.text(".chart .facts"))
        self.fill("#least", "1g")
        self.assertEqual(self.find("#least").get_attribute("aria-invalid"), "false")
        self.assertIn("No block is left", self.text(".plot .empty"))
        self.screenshot("small-none-left")

    def test_a_text_of_a_stack_finds_its_blocks(self):
        self.press("/")
        self.assertEqual(self.js("return document.activeElement.id"), "find")
        self.press(*"GELU")
        self.wait_for("return document.getElementById('result').textContent !== ''")
        self.assertEqual(self.text("#result"), "11 blocks, up to 21 MiB")
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

    def test_an_address_finds_the_blocks_around_it(self):
        address = self.js("return weirPage.recordings[0].address[3] + 100")
        self.fill("#find", hex(int(address)))
        self.wait_for("return document.getElementById('result').textContent !== ''")
        found = self.js("return weirPage.charts[0].foundBlocks")
        self.assertIn(3, found)
        self.find("#found button").click()
        self.assertIn(self.js("return weirPage.charts[0].block"), found)

    def test_what_is_not_there_is_said_to_be_missing(self):
        self.fill("#find", "no such function")
        self.wait_for("return document.getElementById('result').textContent === 'nothing found'")


class Reached(PageTest):
    def setUp(self):
        self.open("small")

    def test_tab_goes_from_the_top_to_the_bottom(self):
        names = []
        for _ in range(12):
            self.press(Keys.TAB)
            names.append(self.js("const e = document.activeElement; return e.id || e.className || e.tagName"))
        self.assertEqual(names, ["theme", "show-help", "colour", "stack", "stream", "pool", "least",
                                 "most", "find", "reset", "CANVAS", "map"])
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

    def test_stacks_are_by_age_or_by_address(self):
        order = """
            const chart = weirPage.charts[0];
            const found = [];
            for (let step = 0; step < chart.selection.step.length; ++step) {
              chart.stack.moveTo(step);
              const addresses = [];
              chart.stack.visit((b) => { addresses.push(arguments[0] ? chart.recording.address[b] : b); });
              if (addresses.some((a, i) => i > 0 && a <= addresses[i - 1])) return false;
              found.push(addresses.length);
            }
            return found.length;"""
        self.assertEqual(self.js(order, False), 63)
        self.assertFalse(self.js(order, True))
        self.choose("#stack", "address")
        self.assertEqual(self.js(order, True), 63)
        self.choose("#stream", "=0")
        self.assertGreater(self.js(order, True), 10)


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
