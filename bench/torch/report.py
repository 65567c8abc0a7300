# SPDX-License-Identifier: Apache-2.0
"""The figures of bench/torch/run and bench/frameworks/run, out of the processes' rows, and the table. Needs no PyTorch."""
import datetime
import json
import pathlib
import random
import shlex
import statistics
import sys

import machine
from turns import TITLES

GIB = 1 << 30
MEDIANS = ("reserved_peak", "allocated_peak", "requested_peak", "driver_peak", "driver_after",
           "wall_ms", "median_ms", "build_s", "retries")
RESAMPLES, MIN_ROUNDS = 2000, 3  # of the interval


def good(rows):
    return [row for row in rows if "error" not in row]


def gather(rows):
    """{workload: {allocator: {figure: median over rounds, of the greater rank}}}"""
    gathered = {}
    for row in good(rows):
        gathered.setdefault(row["workload"], {}).setdefault(row["allocator"], []).append(row)
    return {workload: {allocator: medians(several) for allocator, several in allocators.items()}
            for workload, allocators in gathered.items()}


def medians(rows):
    rounds = {}
    for row in rows:
        rounds.setdefault(row.get("round", 0), []).append(row)
    figures = {name: statistics.median(max(row.get(name, 0) for row in one)
                                       for one in rounds.values()) for name in MEDIANS}
    ahead = [min(row["ahead_ms"] for row in one) for one in rounds.values()
             if all(row.get("ahead_ms") is not None for row in one)]
    figures["ahead_ms"] = statistics.median(ahead) if ahead else None
    figures["rounds"] = len(rounds)
    figures["least_ms"] = least_ms(rounds.values())
    figures["event_ms"] = {number: slower_ms(one) for number, one in rounds.items()
                           if all(row.get("event_ms") for row in one)}
    # Every rank's, of every round: to be equal they must all be.
    figures["losses"] = [[row["losses"] for row in sorted(one, key=lambda row: row["rank"])]
                         for _, one in sorted(rounds.items())]
    return figures


def slower_ms(rows):
    """Of one round, each timed step's, by the slower rank."""
    return [max(times) for times in zip(*(row["event_ms"][row.get("untimed", 0):] for row in rows))]


def least_ms(rounds):
    """Mean over timed steps of the least that each took in any round, by the slower rank: what a
    busy host adds to some rounds is left out. None where no steps were timed."""
    return mean_of_least([slower_ms(one) for one in rounds if all(row.get("event_ms") for row in one)])


def mean_of_least(rounds):
    least = [min(times) for times in zip(*rounds)]
    return statistics.fmean(least) if least else None


def least_interval(figures, native):
    """(low, high): the middle 95 % of the ratios of `least_ms` that RESAMPLES draws of rounds give, each
    with as many rounds as there were, the same for both allocators. None of native, and with fewer than MIN_ROUNDS.

    Source: B. Efron, Bootstrap methods: another look at the jackknife, Annals of Statistics 7 (1979)."""
    if native is None or native is figures:
        return None
    ours, theirs = figures["event_ms"], native["event_ms"]
    both = sorted(ours.keys() & theirs.keys())
    if len(both) < MIN_ROUNDS:
        return None
    draw = random.Random(0)
    ratios = []
    for _ in range(RESAMPLES):
        drawn = draw.choices(both, k=len(both))
        ratios.append(mean_of_least([ours[one] for one in drawn])
                      / mean_of_least([theirs[one] for one in drawn]))
    ratios.sort()
    return ratios[RESAMPLES // 40], ratios[-1 - RESAMPLES // 40]


def live_bytes(allocators):
    """What ratios are over, the same for all: the least of their peaks of requested bytes.

    PyTorch's own allocator counts a block that record_stream named until the host sees the end of
    its use, so its figure depends on timing, and is more than what was live. cudaMallocAsync does
    not say what was asked for."""
    return min((one["requested_peak"] for one in allocators.values() if one["requested_peak"]),
               default=0)


def same_losses(figures, reference):
    """The step at which the losses differ first, bit by bit; None: nowhere."""
    for ours, theirs in zip(figures["losses"], reference["losses"]):
        for one, other in zip(ours, theirs):
            # By text: it is exact, and NaN equals NaN.
            pairs = list(zip(map(repr, one), map(repr, other)))
            different = [step for step, (a, b) in enumerate(pairs) if a != b]
            if different or len(one) != len(other):
                return different[0] if different else len(pairs)
    return None


def losses_cell(figures, reference):
    if reference is None or figures is reference:
        return "-"
    step = same_losses(figures, reference)
    if step is None:
        return "same"
    first = {"losses": reference["losses"][:1] * len(reference["losses"])}
    alike = same_losses(reference, first) is None
    return f"differ, step {step}" if alike else f"differ, step {step}, as native's do"


def over(value, base):
    return f"{value / base:.3f}" if base else "-"


def limit_cell(limit, live):
    if limit is None:
        return "-"
    if limit["cap"] is None:
        return f"> {over(limit['failed'], live)}"
    return over(limit["cap"], live)


def least_cell(figures, native):
    if not figures["least_ms"] or not native or not native["least_ms"]:
        return "-"
    interval = least_interval(figures, native)
    text = over(figures["least_ms"], native["least_ms"])
    return f"{text} ({interval[0]:.3f} to {interval[1]:.3f})" if interval else text


def cells(allocators, allocator, limits):
    figures, native = allocators[allocator], allocators.get("native")
    live = live_bytes(allocators)
    return [TITLES[allocator], over(figures["reserved_peak"], live),
            f"{figures['reserved_peak'] / GIB:.2f}", f"{figures['driver_peak'] / GIB:.2f}",
            f"{figures['median_ms']:.2f}", f"{figures['wall_ms']:.2f}",
            "-" if figures["ahead_ms"] is None else f"{figures['ahead_ms']:.1f}",
            over(figures["wall_ms"], native and native["wall_ms"]),
            least_cell(figures, native), losses_cell(figures, native),
            limit_cell(limits.get(allocator), live)]


HEADS = ["", "reserved / live", "GiB reserved", "GiB, driver", "ms, median", "ms a step", "ahead, ms",
         "of native", "least, of native", "losses", "cap / live"]


def table(gathered, errors, order, entries, heads, cells):
    """Lines: a row an allocator, below the name and title of its entry. `cells(name, allocators, allocator)`: one row's."""
    names = [name for name in entries if name in gathered or any(
        row["workload"] == name for row in errors)]
    blocks = []
    for name in names:
        allocators = gathered.get(name, {})
        live = live_bytes(allocators)
        rows = []
        for allocator in order:
            if allocator in allocators:
                rows.append(cells(name, allocators, allocator))
            elif any((row["workload"], row["allocator"]) == (name, allocator) for row in errors):
                rows.append([TITLES[allocator], "failed"] + ["-"] * (len(heads) - 2))
        blocks.append((f"{name}: {entries[name].title}; {live / GIB:.2f} GiB live at most", rows))
    everything = [heads] + [row for _, rows in blocks for row in rows]
    widths = [max(len(row[column]) for row in everything) for column in range(len(heads))]

    def line(row):
        return ("  " + row[0].ljust(widths[0]) + "".join(
            "  " + text.rjust(width) for text, width in zip(row[1:], widths[1:]))).rstrip()

    return [line(heads)] + [text for title, rows in blocks
                            for text in ["", title, *map(line, rows)]]


def failures(rows):
    """A line for each row with an error."""
    return [f"FAILED {row['workload']}, {TITLES[row['allocator']]}, rank {row['rank']}: "
            + "; ".join(row["error"].splitlines()) for row in rows if "error" in row]


def nondeterministic(rows):
    """What PyTorch says has no deterministic algorithm, by workload."""
    said = {}
    for row in rows:
        for text in row.get("nondeterministic", []):
            said.setdefault(text, set()).add(row["workload"])
    return [f"not deterministic in {', '.join(sorted(names))}: {text}"
            for text, names in said.items()]


def tell(turn, rows):
    """On stderr, what came of a turn."""
    row = rows[0]
    text = (f"{row['reserved_peak'] / GIB:.2f} GiB, {row['wall_ms']:.2f} ms a step"
            if "error" not in row else "FAILED " + row["error"].splitlines()[0])
    print(f"{turn.workload}, {turn.allocator}: {text} ({row['turn_s']:.1f} s)", file=sys.stderr, flush=True)


def heading(rows):
    """The GPU, the versions, the commit: in one line."""
    one = next(iter(good(rows)), {})
    versions = ", ".join(f"{name} {version}" for name, version in one.get("versions", {}).items())
    return f"{one.get('gpu', 'unknown GPU')}; {versions}; commit {machine.commit() or 'unknown'}"


def write(path, rows, gathered, **more):
    """All samples as JSON, with medians and `more`."""
    figures = {name: {allocator: {**{key: value for key, value in one.items() if key not in ("losses", "event_ms")},
                                  "least_interval": least_interval(one, allocators.get("native"))}
                      for allocator, one in allocators.items()} for name, allocators in gathered.items()}
    result = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
              "command": shlex.join(sys.argv), "commit": machine.commit(), "gpu": machine.gpu(),
              "live_bytes": {name: live_bytes(one) for name, one in gathered.items()}, "medians": figures, **more,
              "samples": rows}
    pathlib.Path(path).write_text(json.dumps(result) + "\n")
