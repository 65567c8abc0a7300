"""The least memory with which a workload finishes, by bisection.

Each try is a process of its own, under another cap; processes are started ahead of it, and get the
cap with their turn.
"""
import collections

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


def search(make_turn, worker, low, high, tries=TRIES, ahead=1):
    """(result, rows): `make_turn()` is a turn whose go lacks its cap."""
    looking, rows, waiting = Search(low, high), [], collections.deque()
    for number in range(tries):
        while len(waiting) < min(ahead + 1, tries - number):
            waiting.append(make_turn())
            waiting[-1].start(worker)
        turn, cap = waiting.popleft(), looking.next()
        several = turn.run({**turn.go, "cap": cap})
        rows += [{**row, "cap": cap} for row in several]
        failed = [row for row in several if "error" in row]
        if any(not row.get("out_of_memory") for row in failed):
            break  # an error of another kind says nothing about memory
        looking.tell(cap, not failed)
    for turn in waiting:
        turn.stop()
    return looking.result(), rows
