# SPDX-License-Identifier: Apache-2.0
"""What a page says of the peak without a click, compared with `weir report` and with a plain recount."""

import browser
from browser import By, Keys, PageTest

FIRST = ".columns[data-chart='0']"  # of a page of two, the tables of the first

# What lives at a step, and sums of it, by going through all blocks.
PLAIN = """
    const [step, key] = arguments;
    const r = weirPage.recordings[0];
    const sums = {};
    for (let b = 0; b < r.count; ++b) {
      if (r.beginStep[b] > step || r.endStep[b] <= step) continue;
      const of = {all: 0, stack: r.stack[b], fresh: r.beginStep[b] > arguments[2] ? 1 : 0}[key];
      sums[of] = (sums[of] || 0) + r.bytes[b];
    }
    return sums;"""


def in_words(number):
    """As the page writes a number of bytes."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    value, unit = float(number), 0
    while value >= 1024:
        value, unit = value / 1024, unit + 1
    digits = 0 if unit == 0 or value >= 100 or value == int(value) else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {units[unit]}"


class Figures(PageTest):
    def rows(self, css):
        """The bytes of each row by its name."""
        return {row.find_element(By.CSS_SELECTOR, ".name").text: int(row.get_attribute("data-bytes"))
                for row in self.find_all(f"{FIRST} {css} li")}

    def test_the_title_is_that_of_the_report(self):
        for name in ("small", "serve", "generate", "training", "pools"):
            self.open(name)
            peak = self.report(name)["peak_live"]
            self.assertEqual(self.find(".title h2").text,
                             f"At the peak: {in_words(peak['live_bytes'])} in {peak['blocks']:,} blocks")
            self.assertFalse(self.find(".back").is_displayed())

    def test_streams_and_pools_are_those_of_the_report(self):
        for name in ("small", "serve", "pools"):
            self.open(name)
            peak = self.report(name)["peak_live"]
            figures = self.js("""
                const {figures} = weirPage.charts[0].panel;
                const r = weirPage.recordings[0];
                return [figures.byStream.map((g) => [r.streams[g.key], g.bytes, g.blocks.length]),
                        figures.byPool.map((g) => [g.key === 0 ? "0" : r.pools[g.key - 1], g.bytes])];""")
            for got, want in zip(figures[0], peak["by_stream"], strict=True):
                self.assertEqual(got[1:], [want["bytes"], want["blocks"]], name)
            self.assertEqual([each[1] for each in figures[1]], [each["bytes"] for each in peak["by_pool"]])
            shown = self.rows(".shares ul")
            self.assertEqual(sum(shown.values()) % peak["live_bytes"], 0, name)  # each list is all of it

    def test_what_is_reserved_and_not_asked_for_is_that_of_the_report(self):
        for name in ("small", "serve", "pools", "generate", "training"):
            self.open(name)
            report = self.report(name)
            for moment in ("peak_live", "peak_reserved", "end"):
                want = report[moment]
                causes = {key.removesuffix("_bytes"): n for key, n in want["fragmentation"].items()}
                self.assertEqual(causes.pop("unplaced"), 0)
                self.js("weirPage.charts[0].setMoment(...arguments)", self.step_of(want),
                        want["time_us"] * 1e3 + 0.5)
                got = self.js("return weirPage.charts[0].panel.figures.causes")
                self.assertEqual(got, causes, (name, moment))
                shown = {e.get_attribute("data-key"): int(e.get_attribute("data-bytes"))
                         for e in self.find_all(f"{FIRST} .causes li")}
                self.assertEqual(shown, {key: n for key, n in causes.items() if n > 0})

    def step_of(self, moment):
        """The last step with as much live, no later than the moment."""
        return self.js("""
            const {all, recording: r} = weirPage.charts[0];
            const [live, us] = arguments;
            let step = all.step.length - 1;
            while (step > 0 && (all.live[step] !== live || r.stepTime[step] / 1e3 > us + 1e-3)) --step;
            return step;""", moment["live_bytes"], moment["time_us"])

    def test_rows_add_up_to_all_that_is_live_and_bars_have_their_lengths(self):
        for name in ("serve", "training"):
            self.open(name)
            live = self.js("return weirPage.recordings[0].peakLive")
            rows = [int(e.get_attribute("data-bytes")) for e in self.find_all(f"{FIRST} .largest li")]
            self.assertEqual(sum(rows), live, name)
            widths = self.js("""
                return [...document.querySelectorAll(".columns[data-chart='0'] .largest li")].map((li) => {
                  const parts = [...li.querySelectorAll(".bar i")];
                  return [Number(li.dataset.bytes),
                          parts.reduce((sum, i) => sum + i.getBoundingClientRect().width, 0) /
                              li.querySelector(".bar").getBoundingClientRect().width];
                });""")
            for number, width in widths:
                self.assertAlmostEqual(width, number / live, delta=0.01)

    def test_stacks_are_a_plain_recount(self):
        self.open("training")
        step = self.js("return weirPage.recordings[0].peakStep")
        want = self.js(PLAIN, step, "stack")
        got = self.js("return weirPage.charts[0].panel.figures.byStack.map((g) => [g.key, g.bytes])")
        self.assertEqual({str(key): number for key, number in got}, want)
        self.assertEqual(list(self.rows(".largest"))[:2], ["Linear.forward (linear.py:12)", "cross_entropy (functional.py:310)"])
        lead = self.text(".answer")
        for part in ("Linear.forward (linear.py:12), cross_entropy (functional.py:310) and Adam.step",
                     "59.3 % of it", "3.63 GiB came after memory last dipped, to ", ", while 264 MiB was freed"):
            self.assertIn(part, lead)
        self.find("#by-block").click()
        self.assertEqual(list(self.rows(".largest"))[0], "2 × 900 MiB")
        self.find("#by-stack").click()
        self.assertTrue(any(row.startswith("gelu (") for row in self.rows(".largest")))

    def test_where_no_stack_has_half_of_it_the_caller_that_has_is_named(self):
        self.open("layers")
        under, largest, live = self.js("""
            const r = weirPage.recordings[0];
            let [under, largest, live] = [0, 0, 0];
            for (let b = 0; b < r.count; ++b) {
              if (r.beginStep[b] > r.peakStep || r.endStep[b] <= r.peakStep) continue;
              live += r.bytes[b];
              if (!r.stacks[r.stack[b]].some((f) => r.frames[f][0] === "Net.forward")) continue;
              under += r.bytes[b];
              largest = Math.max(largest, r.bytes[b]);
            }
            return [under, largest, live];""")
        self.assertIn(f"{100 * under / live:.1f} % of it was allocated under Net.forward; the most, "
                      f"{100 * largest / live:.2f} %, in relu (functional.py:114).", self.text(".answer"))

    def test_what_came_since_the_trough_is_a_plain_recount(self):
        for name in ("serve", "training", "generate"):
            self.open(name)
            step, trough = self.js("""
                return [weirPage.recordings[0].peakStep, weirPage.charts[0].panel.figures.trough];""")
            came = self.js("return weirPage.charts[0].panel.figures.came.bytes")
            gone = self.js("return weirPage.charts[0].panel.figures.gone.bytes")
            self.assertEqual(came, self.js(PLAIN, step, "fresh", trough)["1"], name)
            live = self.js("return weirPage.charts[0].all.live")
            self.assertEqual(live[step] - live[trough], came - gone)
            # The trough: nothing between is lower, and before it live was a tenth of the peak higher.
            self.assertEqual(min(live[trough:step + 1]), live[trough])
            before = next((i for i in range(trough, -1, -1) if live[i] - live[trough] >= live[step] / 10), -1)
            self.assertTrue(before < 0 or min(live[before:step + 1]) == live[trough], name)

    def test_a_row_shows_where_its_blocks_are(self):
        self.open("training")
        self.find(".largest .row").click()
        blocks = self.js("return weirPage.charts[0].foundBlocks")
        group = self.js("return weirPage.charts[0].panel.figures.byStack[0].blocks")
        self.assertEqual(blocks, group)
        self.assertIn("block", self.text("#found"))
        self.press(Keys.ESCAPE)
        self.assertEqual(self.text("#found"), "")


class Drawn(PageTest):
    def test_the_peak_is_labelled_where_it_is(self):
        for name in ("serve", "training"):
            self.open(name)
            self.assertRegex(self.text(".peak text"), r"^peak [\d.]+ GiB at [\d.]+ m?s$")
            x, y, want_x, want_y = self.js("""
                const c = weirPage.charts[0];
                const box = document.querySelector(".peak path").getBoundingClientRect();
                const canvas = c.canvas.getBoundingClientRect();
                const {from, span, bottom, height} = c.view;
                const r = c.recording;
                return [box.x + box.width / 2 - canvas.x, box.bottom - canvas.y,
                        (r.stepTime[r.peakStep] - from) / span * c.width,
                        (1 - (r.peakLive - bottom) / height) * canvas.height];""")
            self.assertAlmostEqual(x, want_x, delta=1.5)
            self.assertAlmostEqual(y, want_y, delta=5)

    def test_texts_of_the_chart_do_not_collide(self):
        for name in ("serve", "training", "pools", "generate"):
            self.open(name)
            boxes = self.js("""
                return [...document.querySelectorAll(".axes text")].filter((t) => t.textContent !== "")
                    .map((t) => [t.textContent, t.getBoundingClientRect()])
                    .filter(([, b]) => b.width > 0)
                    .map(([text, b]) => [text, b.left, b.top, b.right, b.bottom]);""")
            for i, (one, *a) in enumerate(boxes):
                for other, *b in boxes[i + 1:]:
                    apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] + 3 or b[3] <= a[1] + 3
                    self.assertTrue(apart, (name, one, other))

    def test_the_chosen_moment_is_a_caret_and_stays_in_view(self):
        self.open("serve")
        self.assertTrue(self.find(".caret .line").is_displayed())
        for keys in ("+" * 6, "-" * 3, "+" * 12):
            self.press(*keys)
            begin, end = self.view()[:2]
            time = self.js("return weirPage.charts[0].moment.time")
            self.assertTrue(begin <= time <= end)
        self.press(*[Keys.ARROW_RIGHT] * 9)
        self.settle()
        self.assertIn("away", self.find(".caret").get_attribute("class"))

    def test_z_goes_to_the_peak_and_shows_how_memory_came_to_it(self):
        for name in ("serve", "training", "small"):
            self.open(name)
            peak = self.js("return weirPage.recordings[0].peakStep")
            self.js("weirPage.charts[0].setMoment(3)")
            self.assertTrue(self.find(".back").is_displayed())
            self.assertNotIn("At the peak", self.find(".title h2").text)
            self.press("z")
            self.assertIn("At the peak", self.find(".title h2").text)
            self.assertEqual(self.js("return weirPage.charts[0].moment.step"), peak)
            begin, end = self.view()[:2]
            half_begin, half_end, duration = self.js("""
                const {all, panel: {figures}, recording: r} = weirPage.charts[0];
                const half = (all.live[r.peakStep] + all.liveAfter(figures.trough)) / 2;
                const above = all.live.map((live) => live > half);
                return [all.time[above.lastIndexOf(0, r.peakStep) + 1],
                        all.time[above.indexOf(0, r.peakStep)] ?? r.duration, r.duration];""")
            width = max(100, half_end - half_begin)
            self.assertAlmostEqual(end - begin, min(3 * width, duration), delta=1)
            self.assertTrue(begin <= half_begin <= half_end <= end)
            self.screenshot(f"{name}-peak")

    def test_reserved_memory_is_a_red_line_at_its_height(self):
        self.open("serve")
        self.js("weirPage.charts[0].view.setTime(1.2e9, 1.4e9)")
        self.settle()
        red = self.js("""
            const c = weirPage.charts[0];
            const y = Math.round(c.rows - (c.recording.reservedAt(1.2e9) - c.scale.bottom) / c.scale.bytes) - 1;
            const copy = new OffscreenCanvas(c.canvas.width, c.canvas.height).getContext("2d");
            copy.drawImage(c.canvas, 0, 0);
            const change = c.recording.reservedTime.find((t) => t > 1.2e9);
            const end = Math.floor((change - c.view.from) / c.scale.time) - 2;  // it is level until then
            const d = copy.getImageData(0, y - 1, end, 3).data;
            const red = (i) => d[i + 3] > 0 && d[i] > 1.5 * d[i + 1] && d[i] > 1.5 * d[i + 2];
            return [...Array(end).keys()].filter((x) => [0, 1, 2].some((row) => red(4 * (row * end + x)))).length / end;""")
        self.assertGreater(red, 0.9)

    def test_pytorchs_reserved_memory_is_a_dotted_line(self):
        self.open("training")
        self.assertEqual(self.text("text.other"), "PyTorch reserved up to 4 GiB")
        self.assertIn("reserved by PyTorch", self.text("#legend"))
        at = self.js("return [10e6, 100e6, 160e6].map((t) => weirPage.recordings[0].otherAt(t) / 2 ** 30)")
        self.assertEqual(at, [1, 3, 4])
        self.assertGreater(self.pixels().get("#7b3fa0", 0), 200)
        self.open("serve")  # far above Weir's: out of view until one zooms out
        self.assertIn("↑ PyTorch reserved up to 17.5 GiB", self.find_all("text.other")[0].text)
        self.press(*["["] * 6)
        self.settle()
        self.assertEqual(self.find_all("text.other")[0].text, "PyTorch reserved up to 17.5 GiB")
        self.open("small")
        self.assertFalse(self.find("text.other").is_displayed())

    def test_lanes_count_the_waits_of_the_report(self):
        for name in ("serve", "pools"):
            self.open(name)
            report = self.report(name)
            lanes = self.js("return weirPage.charts[0].lanes.lanes.map(({name, note}) => [name, note])")
            waits = sum(int(note.split()[0].replace(",", "")) for name, note in lanes if "waits" in name)
            self.assertEqual(waits, sum(pair["waits"] for pair in report["waits"]))

    def test_driver_calls_are_counted_by_kind(self):
        for name in ("driver", "serve", "pools"):
            self.open(name)
            totals = self.report(name)["totals"]
            kinds = {"create": "pages_created", "release": "pages_released", "map": "maps", "unmap": "unmaps"}
            whole, parts = self.js("""
                const c = weirPage.charts[0];
                const lane = c.lanes.lanes.find((l) => l.name === "driver");
                const parts = Array.from({length: 40}, (_, i) => lane.within(
                    i / 40 * c.recording.duration, i === 39 ? Infinity : (i + 1) / 40 * c.recording.duration));
                return [lane.within(0, Infinity), parts];""")
            for kind, total in kinds.items():
                self.assertEqual(whole[kind], totals[total], (name, kind))
                self.assertEqual(sum(part[kind] for part in parts), totals[total], (name, kind))
        self.open("driver")
        note = self.js("return weirPage.charts[0].lanes.lanes.find((l) => l.name === 'driver').note")
        created, released = sum(8 * (i + 1) for i in range(7)), sum(8 * (i + 1) for i in range(0, 7, 2))
        self.assertEqual(note, f"36 calls: 7 pages created ({created} MiB), 4 released ({released} MiB), "
                               "14 mapped, 11 unmapped")

    def test_waits_of_the_host_are_as_wide_as_they_were_long(self):
        self.open("driver")
        totals = self.report("driver")["totals"]
        waits = self.js("return weirPage.recordings[0].hostWaits")
        self.assertEqual(len(waits), totals["host_waits"])
        self.assertAlmostEqual(sum(wait["took"] for wait in waits) / 1e3, totals["host_wait_time_us"])
        title = self.js("return weirPage.charts[0].lanes.lanes.find((l) => l.name === 'host waits').title")
        self.assertEqual(title, "For a stream, the host waited 6 times, 5.10 ms in all, 1.75 ms at most")
        lane, width, duration = self.js("""
            const c = weirPage.charts[0];
            const place = c.lanes.lanes.findIndex((l) => l.name === "host waits");
            const {canvas} = c.lanes;
            const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {willReadFrequently: true});
            copy.drawImage(canvas, 0, 0);
            const {data} = copy.getImageData(0, place * 20 + 1, canvas.width, 1);
            return [Array.from({length: canvas.width}, (_, x) => data[4 * x] > 150 && data[4 * x + 1] < 50),
                    c.width, c.recording.duration];""")
        for x in range(120, int(width)):  # right of the note
            at = [(x + part) / width * duration for part in (-1, 2)]
            touched = any(wait["from"] < at[1] and wait["to"] > at[0] for wait in waits)
            inside = any(wait["from"] <= at[0] and wait["to"] >= at[1] for wait in waits)
            self.assertTrue(lane[x] or not inside, x)
            self.assertTrue(touched or not lane[x], x)
        self.assertGreater(sum(lane[120:]), 20)

    def test_of_equal_peaks_the_first_is_the_peak(self):
        self.open("pools")  # its peak comes back many times
        report = self.report("pools")
        time = self.js("return weirPage.charts[0].moment.time")
        self.assertAlmostEqual(time / 1e3, report["peak_live"]["time_us"], delta=0.001)
        self.assertEqual(*self.js("return [weirPage.charts[0].all.peak(), weirPage.recordings[0].peakStep]"))

    def test_the_lane_of_what_is_not_live_is_a_plain_recount(self):
        self.open("serve")
        wrong = self.js("""
            const c = weirPage.charts[0];
            const {recording: r, all} = c;
            const lane = c.lanes.lanes[0];
            for (const t of [0.2e9, 0.9e9, 1.5e9, 2.3e9, 2.6e9]) {
              const want = r.reservedAt(t) - all.liveAfter(all.stepAt(t));
              const got = lane.height(t, t) * lane.peak;
              if (Math.abs(got - want) > 1) return `${t}: ${got} for ${want}`;
            }
            return "";""")
        self.assertEqual(wrong, "")


class Begun(PageTest):
    def test_the_title_is_the_name_of_the_file_and_no_folder_is_told(self):
        self.open("generate")
        self.assertEqual(self.driver.title, "Memory of generate.trace.gz")
        self.assertTrue(self.text("h1").startswith("generate.trace.gz"))
        self.assertNotIn("bench/traces", self.js(
            "return document.documentElement.outerHTML + JSON.stringify(weirPage.recordings[0].source)"))


class Failed(PageTest):
    def set_width(self, width):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600})
        self.addCleanup(self.driver.execute_cdp_cmd, "Emulation.clearDeviceMetricsOverride", {})

    def test_a_page_of_a_failed_request_says_so_in_its_title_and_above_the_chart(self):
        for width in (1400, 390):
            self.set_width(width)
            self.open("failed")
            self.assertEqual(self.driver.title, "Out of memory: failed.snapshot.json")
            self.js("weirPage.view.setTime(0, 7100000)")  # it is at the right edge
            self.settle()
            mark = self.find(".marks .grave text")
            self.assertEqual(self.js("return arguments[0].textContent", mark), "out of memory: 15 MiB asked for")
            left, right = self.js("const b = arguments[0].getBoundingClientRect(); return [b.left, b.right]", mark)
            self.assertGreaterEqual(left, 0)
            self.assertLessEqual(right, width)

    def test_the_request_that_failed_is_the_headline_and_the_moment_that_is_shown(self):
        self.open("failed")
        self.assertEqual(self.text(".title h2"), "When the request failed: 10 MiB in 1 block")
        self.assertTrue(self.text(".failure").startswith(
            "Out of memory on device 0 of 2: 15.0 MiB wanted at 7.00 ms by loss (model.py:9); 10.0 MiB was live, 10.0 MiB unused"))
        self.assertTrue(self.text(".advice").startswith("No setting is enough alone: up to the failed request it needs "))
        self.assertEqual(sum("recompute activations" in each.text for each in self.find_all(".advice")), 1)
        self.assertIn("forward (model.py:7)", self.text(".largest"))
        self.assertIn("device 0 of 2, the only one used", self.text("body"))
        self.assertIn("10.0 MiB of 20.0 MiB reserved (50.0 %)".replace(".0 M", " M"), self.text(".held"))
        self.assertIn("beside live blocks of the same segments", self.text(".held"))
        self.assertNotIn("somebody/", self.js("return document.documentElement.outerHTML"))


class Said(PageTest):
    """What the report's first lines say, the page does."""

    def test_where_a_backward_pass_allocated_most_a_line_of_the_program_is_named_too(self):
        self.open("backward")
        self.assertTrue(self.text(".answer").startswith(
            "MulBackward0 (backward pass) allocated 75.0 % of it: 1 block of 600 MiB. "
            "By a line of the program: 25.0 %, in forward (model.py:7)."), self.text(".answer"))

    def test_of_a_snapshot_of_pytorchs_what_is_reserved_is_said_to_be_weirs(self):
        self.open("backward")
        self.assertIn("Weir would hold 800 MiB", self.text(".head .facts"))
        self.assertIn("Weir would hold", self.text("#legend"))
        self.open("small")
        self.assertIn("most reserved", self.text(".head .facts"))
        self.assertNotIn("Weir would hold", self.text("#legend"))

    def test_a_file_without_a_history_says_how_to_record_one_and_names_its_device(self):
        self.open("unrecorded")
        self.assertIn("allocated while nothing was recorded: call torch.cuda.memory._record_memory_history() first.",
                      self.text(".answer"))
        self.assertIn("device 0 of 2, the only one used", self.text(".head"))


class OfPytorch(PageTest):
    """A training program that ran out of memory; make_pages.cc has its blocks."""

    def setUp(self):
        self.open("pytorch")

    def test_what_memory_is_for_is_the_first_colour_and_has_a_table(self):
        self.assertEqual(self.js("return document.getElementById('colour').value"), "purpose")
        rows = {row.find_element(By.CSS_SELECTOR, ".name").text: int(row.get_attribute("data-bytes")) >> 20
                for row in self.find_all("#tables > .columns > div:first-child li")}
        self.assertEqual(rows, {"activations": 600, "optimizer state": 200, "weights": 100, "gradients": 100})
        legend = self.text("#legend")
        for name in rows:
            self.assertIn(name, legend)
        self.assertNotIn("workspace", legend)

    def test_segments_are_a_map_in_which_blocks_have_their_colours(self):
        shown = self.js("""
            const {segments} = weirPage.charts[0];
            const r = weirPage.recordings[0];
            return segments.pages.map((page) => [page.bytes, page.heap, page.why,
                page.used.map((part) => [part.bytes, part.block < 0 ? null : r.purposeOf(part.block)])]);""")
        mib = 1 << 20
        self.assertEqual(shown, [
            [400 * mib, 0, 3, [[100 * mib, "weights"], [200 * mib, "optimizer state"], [100 * mib, "gradients"]]],
            [800 * mib, 0, 3, [[300 * mib, "activations"], [300 * mib, "activations"]]],
            [200 * mib, -1, 4, []]])
        self.assertIn("PyTorch's segments when the request failed", self.text(".segments h3"))
        self.assertIn("the largest piece without one has 200 MiB", self.text(".segments .facts"))

    def test_blocks_have_the_addresses_of_the_file(self):
        found = self.js("""
            weirPage.onText("0x46400000");  // 1 GiB and 100 MiB: where the optimizer's state begins
            const {recording, found} = weirPage.charts[0];
            return [...found.keys()].filter((b) => found[b] === 1).map((b) => recording.purposeOf(b));""")
        self.assertEqual(found, ["optimizer state"])

    def test_verdict_advice_and_chart_are_on_the_first_screen(self):
        for width, height in ((1400, 900), (390, 844)):
            for theme in ("light", "dark"):
                self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                    "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
                self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
                    "features": [{"name": "prefers-color-scheme", "value": theme}]})
                self.open("pytorch")
                self.screenshot(f"first-screen-{width}-{theme}")
                boxes = [self.find(css).rect for css in (".failure", ".advice", "canvas[data-chart='0']")]
                for box in boxes[:2]:
                    self.assertLess(box["y"] + box["height"], height)
                chart = boxes[2]
                seen = min(height, chart["y"] + chart["height"]) - chart["y"]
                self.assertGreater(seen, chart["height"] * (1 if width > 600 else 0.6) - 1)
                self.assertLessEqual(self.js("return document.documentElement.scrollWidth"), width)
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.assertIn("expandable_segments", self.text(".advice"))
        # Replays judge settings, and nobody else does.
        self.assertEqual(sum("ALLOC_CONF" in each.text for each in self.find_all(".advice")), 1)


class Stacked(PageTest):
    def setUp(self):
        self.open("training")

    def widths(self):
        """(function, value, share of the graph's width) of each call that is shown."""
        return self.js("""
            const graph = document.querySelector(".graph").getBoundingClientRect();
            return [...document.querySelectorAll(".call")].map((call) => {
              const box = call.getBoundingClientRect();
              return [call.getAttribute("aria-label").split(",")[0], Number(call.dataset.value),
                      (box.width + 1) / graph.width];
            });""")

    def recount(self, by):
        """For each function, the sum over the stacks that it is in."""
        return self.js("""
            const [by] = arguments;
            const r = weirPage.recordings[0];
            const sums = {};
            for (let b = 0; b < r.count; ++b) {
              if (by === "bytes" && (r.beginStep[b] > r.peakStep || r.endStep[b] <= r.peakStep)) continue;
              for (const frame of new Set(r.stacks[r.stack[b]]))
                sums[r.frames[frame][0]] = (sums[r.frames[frame][0]] || 0) + (by === "bytes" ? r.bytes[b] : 1);
            }
            return sums;""", by)

    def check(self, by, total):
        sums = {}
        for name, value, width in self.widths():
            self.assertAlmostEqual(width, value / total, delta=0.005)
            sums[name] = sums.get(name, 0) + value
        # The callers of all stacks share the top row.
        for name in self.text(".call").split(" › ")[:-1]:
            sums[name] = sums.get(name, 0) + total
        self.assertEqual(sums, self.recount(by))

    def test_calls_are_as_wide_as_the_bytes_that_they_hold_at_the_peak(self):
        self.assertEqual(self.text(".flame h3"), "Stacks at the peak, by bytes")
        self.check("bytes", self.js("return weirPage.recordings[0].peakLive"))

    def test_calls_are_as_wide_as_their_allocations(self):
        self.find(".choice [data-by='allocations']").click()
        self.assertEqual(self.text(".flame h3"), "Stacks by number of allocations")
        self.check("allocations", self.js("return weirPage.recordings[0].count"))
        self.screenshot("training-allocations")

    def test_it_follows_the_chosen_moment(self):
        self.js("weirPage.charts[0].setMoment(5)")
        self.assertNotIn("at the peak", self.text(".flame h3"))
        self.assertEqual(sum(1 for name, _, _ in self.widths() if name == "gelu"), 0)

    def test_a_click_shows_a_call_alone(self):
        call = next(e for e in self.find_all("button.call") if e.text == "GPT.forward")
        call.click()
        names = [name for name, _, _ in self.widths()]
        self.assertNotIn("Adam.step", names)
        self.assertIn("MLP.forward", names)
        self.find("button.call").click()
        self.assertIn("Adam.step", [name for name, _, _ in self.widths()])


if __name__ == "__main__":
    browser.run()
