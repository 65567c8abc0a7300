# SPDX-License-Identifier: Apache-2.0
"""Checks the runner without PyTorch, frameworks or a GPU: a worker that only pretends, verdicts, and the table."""
import contextlib
import io
import os
import tempfile
from unittest import mock

import comparison
import report
from programs import PROGRAMS, steps_of
from self_test import command, refused

GIB = report.GIB

# Has figures at once: native's losses are those of how often it has run where a program is not deterministic.
QUICK = """\
import json, sys
allocator, runs = sys.argv[1], {{}}
print(json.dumps({{"ready": True}}), flush=True)
while line := sys.stdin.readline():
    turn = json.loads(line)
    name = turn["workload"]
    with open({log!r}, "a") as log:
        log.write(f"{{name}} {{allocator}}\\n")
    runs[name] = runs.get(name, 0) + 1
    row = {{"losses": [1.0] * turn["steps"], "wall_ms": 2.0, "median_ms": 1.0, "gpu": "a GPU",
           "reserved_peak": {{"weir": 2}}.get(allocator, 3) << 30, "requested_peak": 2 << 30, "driver_peak": 0,
           "versions": {{"torch": "2.11", "trl": "1.2"}}}}
    if name == "pyg":
        row["losses"][1] = {{"native": 2.0 * runs[name], "expandable": 3.0, "weir": 9.0}}[allocator]
    if name == "titan":
        row = {{"error": "NotInstalled: No module named 'torchtitan'", "not_installed": True}}
    if name == "wan" and allocator == "weir":
        row = {{"error": "RuntimeError: no"}}
    print(json.dumps(row))
    print(json.dumps({{"ended": 0}}), flush=True)
"""


def whole(folder, main):
    """({check: (found, expected)}) of whole runs with pretending workers."""
    log, script = os.path.join(folder, "log"), os.path.join(folder, "quick.py")
    with open(script, "w") as file:
        file.write(QUICK.format(log=log))
    with mock.patch.dict(main.__globals__, {"count_gpus": lambda: 1, "WORKER": (script,)}), \
            mock.patch.dict(os.environ), contextlib.redirect_stdout(io.StringIO()):
        fine = command(main, folder, "--programs", "pyg,titan,sft")
        fails = command(main, folder, "--programs", "wan", "--allocators", "native,weir")
        unknown = refused(main, "--programs", "sft,nothing")
        checked = refused(main, "--check", "--programs", "titan")
    with open(log) as file:
        order = file.read().split("\n")[:10]
    lines = [line.split() for line in fine[1].splitlines()]
    return {
        "exits": ((fine[0], fails[0], unknown[0], checked[0]), (0, 1, 2, 1)),
        "native again, only where losses differ": (order[8:10] + [fine[2]["samples"][9]["round"]],
                                                   ["sft weir", "pyg native", 1]),
        "versions": ("trl 1.2" in fine[1].splitlines()[0], True),
        "native, with its spread": (lines[10], "native 1.500 3.00 2.0 1.000 own spread 2.0e+00".split()),
        "within native's spread": (lines[11][-2:], ["within", "spread"]),
        "beyond it": (lines[12], "Weir 1.000 2.00 2.0 1.000 differ, 2.5 of spread".split()),
        "equal": ([line[-1] for line in lines[5:8]], ["-", "equal", "equal"]),
        "not installed": (fine[1].splitlines()[-1],
                          "titan: not installed: No module named 'torchtitan'"),
        "not installed is in no table": (sum("titan" in line for line in fine[1].splitlines()), 1),
        "JSON": ((fine[2]["losses"]["pyg"]["weir"], list(fine[2]["not_installed"]), len(fine[2]["samples"])),
                 ("differ, 2.5 of spread", ["titan"], 10)),
        "Weir failed": (fails[1].splitlines()[-1], "FAILED wan, Weir, rank 0: RuntimeError: no"),
        "what is wrong with a name": ("no 'nothing'; there are flux, " in unknown[1], True),
    }


def runs(*losses):
    return {"losses": [[one] for one in losses]}


def verdicts():
    nan = float("nan")
    one, two = runs([1.0, 2.0]), runs([1.0, 2.0], [1.0, 2.5])
    return {
        "the same": (comparison.verdict(runs([1.0, nan]), runs([1.0, nan])), "equal"),
        "of NaN and a number": (comparison.verdict(runs([1.0, 1.0]), runs([1.0, nan])), "differ by inf"),
        "fewer steps": (comparison.verdict(runs([1.0]), one), "differ by inf"),
        "against one run": (comparison.verdict(runs([1.0, 2.25]), one), "differ by 2.5e-01"),
        "within": (comparison.verdict(runs([1.0, 1.75]), two), "within spread"),
        "each round counts": (comparison.verdict(runs([1.0, 2.0], [1.0, 3.5]), two), "differ, 2.0 of spread"),
        "equal to either run": (comparison.verdict(runs([1.0, 2.5]), two), "equal"),
        "native repeats itself": (comparison.verdict(runs([1.0, 3.0]), runs([1.0, 2.0], [1.0, 2.0])),
                                  "differ by 1.0e+00"),
        "without native": (comparison.verdict(one, None), "-"),
        "nothing to repeat": (comparison.to_repeat({"a": {"native": one, "weir": one}, "b": {"weir": two}}), []),
        "native ran often enough": (comparison.to_repeat({"a": {"native": two, "weir": runs([0.0, 0.0])}}), []),
        "steps": ((steps_of("sft", "full"), steps_of("sft", "small")), (PROGRAMS["sft"].full, PROGRAMS["sft"].small)),
    }


def self_test(main):
    """`main`: of the runner."""
    with tempfile.TemporaryDirectory() as folder:
        checks = {**verdicts(), **whole(folder, main)}
    wrong = {name: pair for name, pair in checks.items() if pair[0] != pair[1]}
    for name, (found, expected) in wrong.items():
        print(f"self-test: {name}: found {found!r}, expected {expected!r}")
    print(f"frameworks: self-test, {len(checks) - len(wrong)} of {len(checks)} checks right")
    return 1 if wrong else 0
