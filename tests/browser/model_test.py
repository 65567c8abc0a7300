# SPDX-License-Identifier: Apache-2.0
"""What a page counts equals what a plain recount of its blocks gives."""

import browser
from browser import PageTest

# Every block that lives at a step, by going through all of them.
PLAIN = """
    const live = (r, step, matches) => {
      const blocks = [];
      for (let b = 0; b < r.count; ++b)
        if (r.beginStep[b] <= step && r.endStep[b] > step && (!matches || matches[b])) blocks.push(b);
      return blocks;
    };
    let seed = 1;
    const random = (n) => (seed = Math.imul(seed, 1103515245) + 12345 >>> 0) % n;
"""


class Model(PageTest):
    def test_stacks_are_right_wherever_the_view_jumps(self):
        self.open("serve")
        for how in ("age", "address"):
            self.choose("#stack", how)
            for stream in ("any", "=2"):
                self.choose("#stream", stream)
                wrong = self.js(PLAIN + """
                    const {recording: r, selection, stack} = weirPage.charts[1];
                    for (let i = 0; i < 60; ++i) {
                      const step = random(selection.step.length);
                      stack.moveTo(step);
                      const got = [];
                      let sum = 0;
                      stack.visit((b, from, to) => { got.push(b); sum = to; });
                      const key = (b) => selection.byAddress ? r.address[b] : b;
                      const want = live(r, selection.toRecording(step), selection.matches)
                          .sort((a, b) => key(a) - key(b));
                      if (String(got) !== String(want)) return `step ${step}: ${got} for ${want}`;
                      if (sum !== selection.live[step]) return `step ${step}: ${sum} bytes`;
                    }
                    return "";""")
                self.assertEqual(wrong, "", (how, stream))

    def test_the_highest_step_of_any_range_is_found(self):
        self.open("serve")
        wrong = self.js(PLAIN + """
            const {selection: s} = weirPage.charts[0];
            for (let i = 0; i < 300; ++i) {
              const from = random(s.step.length + 1) - 1;
              const to = from + random(Math.min(5000, s.step.length - from));
              let most = s.liveAfter(from);
              for (let step = from + 1; step <= to; ++step) most = Math.max(most, s.live[step]);
              const got = s.highest(from, to);
              if (got < from || got > to || s.liveAfter(got) !== most) return `${from} to ${to}: ${got}`;
            }
            return "";""")
        self.assertEqual(wrong, "")

    def test_pages_hold_exactly_the_live_blocks(self):
        for name in ("serve", "pools"):
            self.open(name)
            wrong = self.js(PLAIN + """
                const {recording: r, all} = weirPage.charts[0];
                for (let i = 0; i < 40; ++i) {
                  const step = random(r.step.length);
                  const pages = pagesOf(r, step);
                  const used = d3.sum(pages, (p) => d3.sum(p.used, (part) => part.bytes));
                  if (used !== all.live[step]) return `step ${step}: ${used} used, ${all.live[step]} live`;
                  for (const p of pages) {
                    const parts = p.used.slice().sort((a, b) => a.from - b.from);
                    if (parts.some((part, j) => j > 0 && part.from < parts[j - 1].from + parts[j - 1].bytes))
                      return `step ${step}: page ${p.id} is used twice`;
                    if (p.used.length > 0 && p.heap < 0) return `step ${step}: page ${p.id} is idle and used`;
                  }
                }
                return "";""".replace("pagesOf(r, step)",
                                      "(weirPage.charts[0].setMoment(step), weirPage.charts[0].map.pages)"))
            self.assertEqual(wrong, "", name)


if __name__ == "__main__":
    browser.run()
