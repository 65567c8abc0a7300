# SPDX-License-Identifier: Apache-2.0
"""The table of bench/frameworks/run, and what it says of losses. Needs no PyTorch."""
import math

from report import GIB, live_bytes, over
from turns import TITLES

HEADS = ["", "reserved / live", "GiB reserved", "ms a step", "of native", "losses"]


def absent(rows):
    """{program: why it can't be imported}"""
    return {row["workload"]: row["error"].removeprefix("NotInstalled: ") for row in rows if row.get("not_installed")}


def distance(one, other):
    """The most that losses of two runs differ in a step; 0: bit by bit the same."""
    if len(one) != len(other):
        return math.inf
    # By text: it is exact, and NaN equals NaN.
    apart = [abs(a - b) for a, b in zip(one, other) if repr(a) != repr(b)]
    return max((math.inf if math.isnan(one) else one for one in apart), default=0.0)


def of_rounds(figures):
    """The losses of each round; a program has one process."""
    return [ranks[0] for ranks in figures["losses"]]


def spread(native):
    """How far native's runs are apart; None: there is but one."""
    runs = of_rounds(native)
    pairs = [distance(one, other) for i, one in enumerate(runs) for other in runs[:i]]
    return max(pairs, default=None)


def farthest(figures, native):
    """Of these runs, from the one of native's that is nearest to each."""
    return max(min(distance(one, other) for other in of_rounds(native)) for one in of_rounds(figures))


def verdict(figures, native):
    if native is None:
        return "-"
    own = spread(native)
    if figures is native:
        return f"own spread {own:.1e}" if own else "-"
    apart = farthest(figures, native)
    if apart == 0.0:
        return "equal"
    if own is not None and apart <= own:
        return "within spread"
    return f"differ, {apart / own:.1f} of spread" if own else f"differ by {apart:.1e}"


def to_repeat(gathered):
    """Programs of which native ran once, and whose losses differ from its."""
    return [name for name, allocators in gathered.items() if "native" in allocators
            and spread(allocators["native"]) is None
            and any(farthest(figures, allocators["native"]) for figures in allocators.values())]


def cells(name, allocators, allocator):
    figures, native = allocators[allocator], allocators.get("native")
    return [TITLES[allocator], over(figures["reserved_peak"], live_bytes(allocators)),
            f"{figures['reserved_peak'] / GIB:.2f}", f"{figures['wall_ms']:.1f}",
            over(figures["wall_ms"], native and native["wall_ms"]), verdict(figures, native)]
