# SPDX-License-Identifier: Apache-2.0
"""Makes a failing program shorter, one that the rules still allow."""

from __future__ import annotations

import time

from program import check

_NAMES = ("tensor", "graph", "pool", "stream", "other", "input", "output", "work")


def _mentions(step, name):
    if any(step.get(field) == name for field in _NAMES):
        return True
    return str(step.get("pool", "")).endswith(f":{name}")


def _without_names(steps):
    """The program without one of its tensors, graphs, pools or streams."""
    names = {step[field] for step in steps for field in _NAMES if field in step}
    for name in sorted(names, key=str):
        yield [step for step in steps if not _mentions(step, name)]


def _without_captures(steps):
    """The program without one of its graphs, and what was captured for it."""
    for begin, first in enumerate(steps):
        if first["op"] != "capture_begin":
            continue
        end = next((at for at, step in enumerate(steps)
                    if at > begin and step["op"] in ("capture_end", "capture_fail")), len(steps))
        streams = {first["stream"]}  # and those that joined
        for step in steps[begin:end]:
            if step["op"] == "wait" and step["other"] in streams:
                streams.add(step["stream"])
        captured = {at for at in range(begin, end) if steps[at].get("stream") in streams}
        names = {steps[at]["tensor"] for at in captured if steps[at]["op"] in ("alloc", "dropout")}
        names |= {steps[at]["work"] for at in captured if "work" in steps[at]}
        yield [step for at, step in enumerate(steps) if at not in captured
               and not any(_mentions(step, name) for name in (*names, first["graph"]))]


def _without_pauses(steps):
    """The program without one pause of a graph's pool, and what came between."""
    for at, first in enumerate(steps):
        if first["op"] != "pool_pause":
            continue
        end = next((other for other, step in enumerate(steps)
                    if other > at and step["op"] == "pool_resume"), at)
        yield steps[:at] + steps[end + 1:]
        yield steps[:at] + steps[at + 1:end] + steps[end + 1:]


def _without_parts(steps, size):
    for at in range(0, len(steps), size):
        yield steps[:at] + steps[at + size:]


def _without_pools(steps):
    """The program with a tensor or a graph that has no pool named."""
    for at, step in enumerate(steps):
        if "pool" in step and step["op"] in ("alloc", "capture_begin"):
            plain = {name: value for name, value in step.items() if name != "pool"}
            yield [*steps[:at], plain, *steps[at + 1:]]


def _shorter_threads(steps):
    for at, step in enumerate(steps):
        if step["op"] == "thread":
            for inner in _without_parts(step["steps"], max(1, len(step["steps"]) // 4)):
                yield [*steps[:at], {**step, "steps": inner}, *steps[at + 1:]]


def shrink(steps, first_failing, seconds, width=4, level="L1"):
    """Returns the shortest program found in that time, and how many were tried.

    `level`: the one that all are allowed at.
    first_failing(candidates): the index of one of these programs that fails, or None. It is given up to
    `width` at a time.
    """
    end, tried, seen = time.monotonic() + seconds, 0, set()

    def accept(candidates):
        """The first failing one of the candidates, or None."""
        nonlocal tried
        group = []
        for candidate in [*candidates, None]:
            if candidate is not None:
                key = repr(candidate)
                if len(candidate) < 1 or key in seen or check(candidate, level) is not None:
                    continue
                seen.add(key)
                group.append(candidate)
            if group and (candidate is None or len(group) == width):
                if time.monotonic() >= end:
                    return None
                tried += len(group)
                found = first_failing(group)
                if found is not None:
                    return group[found]
                group = []
        return None

    def passes():
        size = len(steps) // 2
        while size >= 1:
            yield lambda size=size: _without_parts(steps, size)
            if size == 4:
                yield lambda: _without_captures(steps)
                yield lambda: _without_names(steps)
                yield lambda: _shorter_threads(steps)
            size //= 2
        yield lambda: _without_captures(steps)
        yield lambda: _without_pauses(steps)
        yield lambda: _without_names(steps)
        yield lambda: _without_pools(steps)

    progress = True
    while progress and time.monotonic() < end:
        progress = False
        for candidates in passes():
            while (shorter := accept(candidates())) is not None:
                steps, progress = shorter, True
    return steps, tried
