# SPDX-License-Identifier: Apache-2.0
"""The least memory with which a workload finishes, by bisection.

Each try is a turn of its own, under another cap.
"""

TRIES = 6


class Search:
    """Between `low`, which can't be enough, and `high`, which is taken to be until it is tried."""

    def __init__(self, low, high):
        self.low, self.high, self.found = low, high, None

    def next(self):
        return (self.low + self.high) // 2

    def tell(self, cap, finished):
        if finished:
            self.high = self.found = cap
        else:
            self.low = cap

    def result(self):
        """`cap`: the least that was enough; None if none was. `failed`: the most that was not."""
        return {"cap": self.found, "failed": self.low}


def search(make_turn, templates, low, high, tries=TRIES):
    """(result, rows): `make_turn(cap)` is a turn under that cap."""
    looking, rows = Search(low, high), []
    for _ in range(tries):
        cap = looking.next()
        several = make_turn(cap).run(templates)
        rows += [{**row, "cap": cap} for row in several]
        failed = [row for row in several if "error" in row]
        if any(not row.get("out_of_memory") for row in failed):
            break  # an error of another kind says nothing about memory
        looking.tell(cap, not failed)
    return looking.result(), rows
