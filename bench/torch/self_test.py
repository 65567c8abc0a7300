# SPDX-License-Identifier: Apache-2.0
"""Checks the runner without PyTorch or a GPU: turns of workers that only pretend, and the table."""
import contextlib
import io
import json
import os
import sys
import tempfile
from unittest import mock

import limits
import report
import turns
import worker
from turns import Templates, Turn, run_all
from workloads import WORKLOADS, steps_of

GIB = report.GIB

# What a template's children do, by the name of the workload. Each writes down when it begins and ends.
WORKER = """\
import os, sys, time
sys.path.insert(0, {folder!r})
import worker
allocator, rank, *names = sys.argv[1:]
def note(what):
    with open({log!r}, "a") as log:
        log.write(what + "\\n")
def take(turn, say):
    name = turn["workload"]
    note(f"turn {{name}} {{allocator}} {{rank}}")
    if name == "crash":
        print("first line\\nlast line", file=sys.stderr)
        return 1
    if name == "killed":
        os.kill(os.getppid(), 9)
    if name in ("hang", "killed") or (name == "half" and rank == "0"):
        time.sleep(100)
    if name == "half":
        say({{"error": "failed"}})
        return 1
    if name == "need" and turn["cap"] < 70:
        say({{"error": "too little", "out_of_memory": True}})
        return 1
    say({{"steps": turn.get("steps"), "cap": turn.get("cap"), "store": turn["store"],
         "conf": os.environ.get("PYTORCH_CUDA_ALLOC_CONF")}})
    note(f"end {{name}} {{allocator}} {{rank}}")
    if name == "late":
        sys.exit("fails as it ends")
    return 0
if "import" in names and allocator == "async":
    sys.exit("no module of that name")
time.sleep(0.2 * (allocator == "weir"))
note(f"ready {{allocator}} {{rank}}")
sys.exit(worker.fork_for_each(take))
"""


def count_ready(log):
    with open(log) as file:
        return sum(line.startswith("ready") for line in file)


def pretended(folder):
    """({check: (found, expected)}) of turns with real processes."""
    log, script = os.path.join(folder, "log"), os.path.join(folder, "pretends.py")
    with open(script, "w") as file:
        file.write(WORKER.format(log=log, folder=os.path.dirname(os.path.abspath(worker.__file__))))
    go = {"steps": 3}
    several = [Turn("one", "native", "small", go=go), Turn("one", "weir", "small", go=go),
               Turn("crash", "weir", "small"), Turn("import", "async", "small"),
               Turn("late", "expandable", "small"), Turn("two", "weir", "small", world=2, go=go)]
    with Templates((script,)) as templates:
        rows = run_all(several, templates)
        with open(log) as file:
            noted = file.read().splitlines()
        found, tried = limits.search(lambda cap: Turn("need", "weir", "small", go={"cap": cap}),
                                     templates, 50, 110)
        stopped, _ = limits.search(lambda cap: Turn("crash", "weir", "small"), templates, 50, 110)
        with mock.patch.object(turns, "TURN_LIMIT", 0.5):
            slow = run_all([Turn("hang", "weir", "small")], templates)
        killed = run_all([Turn("killed", "weir", "small")], templates)
        again = run_all([Turn("one", "weir", "small", go=go)], templates)
        before = count_ready(log)
        run_all([Turn("one", "weir", "small", go=go, label={"round": number}) for number in range(3)], templates)
        of_rounds = count_ready(log) - before
        with mock.patch.object(turns, "GRACE", 0.2):
            half = run_all([Turn("half", "weir", "small", world=2, go=go)], templates)
    return {
        "rows": ([(row["workload"], row["rank"], "error" in row) for row in rows],
                 [("one", 0, False), ("one", 0, False), ("crash", 0, True), ("import", 0, True),
                  ("late", 0, True), ("two", 0, False), ("two", 1, False)]),
        "setting": ([row.get("conf") for row in rows[:2]], ["backend:native", None]),
        "go": (rows[0]["steps"], 3),
        "ranks meet at one file": (rows[5]["store"] == rows[6]["store"] != rows[0]["store"], True),
        "crash": (rows[2]["error"], "ended with 1 and no result: first line\nlast line"),
        "no import": (rows[3]["error"],
                      "ended with 1 and no result: no module of that name"),
        "late": (rows[4]["error"], "ended with 1: fails as it ends"),
        "one turn after the other": (noted[4:9], ["turn one native 0", "end one native 0",
                                                  "turn one weir 0", "end one weir 0",
                                                  "turn crash weir 0"]),
        "all are ready before one runs": (sorted(noted[:4]), ["ready expandable 0", "ready native 0",
                                                              "ready weir 0", "ready weir 1"]),
        "a template that was killed": (killed[0]["error"].startswith("ended with -9 and no result"), True),
        "another takes its place": (again[0]["steps"], 3),
        "each round after the first has a template of its own": (of_rounds, 2),
        "hangs": (slow[0]["error"].startswith("ended with stopped and no result"), True),
        "a rank waits for one that failed": (["error" in row for row in half], [True, True]),
        "limit": (found, {"cap": 70, "failed": 69}),
        "limit, tries": ([row["cap"] for row in tried], [80, 65, 72, 68, 70, 69]),
        "limit, another error": (stopped, {"cap": None, "failed": 50}),
    }


def row(allocator, reserved, wall, losses, **more):
    return {"workload": "gnn", "allocator": allocator, "rank": 0, "round": 0, "wall_ms": wall,
            "median_ms": wall - 1, "ahead_ms": wall - 48, "losses": losses,
            "event_ms": [wall, 2 * wall], "reserved_peak": int(reserved * GIB),
            "driver_peak": int(reserved * GIB) + GIB, "requested_peak": 10 * GIB, **more}


def rounds(times):
    """Of one step that took so long in each round."""
    return {"event_ms": {number: [time] for number, time in enumerate(times)}, "least_ms": min(times)}


def figures():
    nan = float("nan")
    rows = [row("native", 30.0, 50.0, [1.5, nan]), row("native", 32.0, 52.0, [1.5, nan], round=1),
            row("native", 31.0, 51.0, [1.5, nan], round=2),
            row("async", 12.0, 60.0, [1.5, 0.1], requested_peak=0,
                nondeterministic=["x does not have a deterministic implementation"]),
            row("weir", 10.1, 51.0, [1.5, nan]),
            {"workload": "gnn", "allocator": "expandable", "rank": 0, "error": "a\nb"}]
    gathered = report.gather(rows)
    found = {"gnn": {"weir": {"cap": int(10.05 * GIB), "failed": 10 * GIB},
                     "native": {"cap": None, "failed": 25 * GIB}}}
    order = ["native", "expandable", "async", "weir"]
    lines = report.table(gathered, rows, order, WORKLOADS, report.HEADS, lambda name, allocators, allocator:
                         report.cells(allocators, allocator, found.get(name, {})))
    two = report.gather([row("weir", 4.0, 1.0, [1.0]),
                         row("weir", 6.0, 2.0, [2.0], rank=1, ahead_ms=None)])
    return {
        "heads": (lines[0].split("  ")[-1], "cap / live"),
        "title": (lines[2], "gnn: graph neural net, graphs vary, training; 10.00 GiB live at most"),
        "native": (lines[3].split(),
                   "native 3.100 31.00 32.00 50.00 51.00 3.0 1.000 1.000 - > 2.500".split()),
        "failed": (lines[4].split()[:3], ["expandable", "segments", "failed"]),
        "async": (lines[5].split(), "cudaMallocAsync 1.200 12.00 13.00 59.00 60.00 12.0 1.176 "
                                    "1.200 differ, step 1 -".split()),
        "Weir": (lines[6].split(),
                 "Weir 1.010 10.10 11.10 50.00 51.00 3.0 1.000 1.020 same 1.005".split()),
        "failures": (report.failures(rows), ["FAILED gnn, expandable segments, rank 0: a; b"]),
        "not deterministic": (report.nondeterministic(rows),
                              ["not deterministic in gnn: x does not have a deterministic "
                               "implementation"]),
        "live is the least": (report.live_bytes({"native": {"requested_peak": 9},
                                                 "weir": {"requested_peak": 7}}), 7),
        "live, without native": (report.live_bytes({"async": {"requested_peak": 0},
                                                    "weir": {"requested_peak": 7}}), 7),
        "the rank that is less ahead": (
            report.gather([row("weir", 1.0, 50.0, [1.0]), row("weir", 1.0, 60.0, [1.0], rank=1)])
            ["gnn"]["weir"]["ahead_ms"], 2.0),
        "ahead, of the median step": (worker.ahead_ms([5.0, 5.0, 5.0], [0.004, 0.005, 0.006]), 5.0),
        "ahead, without a GPU": (worker.ahead_ms([], []), None),
        "ahead, the host behind": (worker.ahead_ms([5.0], [0.006]), 0.0),
        "ahead, unknown": (report.cells({"weir": two["gnn"]["weir"]}, "weir", {})[6], "-"),
        "ahead, of rows without": (two["gnn"]["weir"]["ahead_ms"], None),
        "greater rank": (two["gnn"]["weir"]["reserved_peak"], 6 * GIB),
        "losses of all ranks": (two["gnn"]["weir"]["losses"], [[[1.0], [2.0]]]),
        "least of each step": (report.least_ms([[{"event_ms": [1.0, 9.0]}, {"event_ms": [2.0, 3.0]}],
                                                [{"event_ms": [5.0, 4.0]}]]), 3.0),
        "no steps timed": (report.least_ms([[{}]]), None),
        "interval": (report.least_interval(rounds([9.0, 6.0, 8.0]), rounds([3.0, 3.0, 3.0])), (2.0, 3.0)),
        "interval, rounds are drawn for both": (
            report.least_interval(rounds([2.0, 4.0, 8.0]), rounds([1.0, 2.0, 4.0])), (2.0, 2.0)),
        "interval of two rounds": (report.least_interval(rounds([1.0, 1.0]), rounds([1.0, 1.0])), None),
        "interval, in the table": (report.least_cell(rounds([9.0, 6.0, 8.0]), rounds([3.0, 3.0, 3.0])),
                                   "2.000 (2.000 to 3.000)"),
        "native's own differ": (report.losses_cell({"losses": [[[1.0]], [[1.0]]]},
                                                   {"losses": [[[2.0]], [[3.0]]]}),
                                "differ, step 0, as native's do"),
        "fewer losses": (report.same_losses({"losses": [[[1.0]]]}, {"losses": [[[1.0, 2.0]]]}), 1),
        "JSON keeps every bit": (json.loads(json.dumps(0.1 + 0.2)), 0.1 + 0.2),
        "steps": ((steps_of("gnn", "full"), steps_of("gnn", "small")), (80, 6)),
        "a GPU a process": (sorted(name for name, entry in WORKLOADS.items() if entry.distributed),
                            ["ddp", "ddp_large", "fsdp2", "fsdp2_large"]),
    }


# A worker that has figures at once: serving fails under Weir, and losses differ with a setting.
QUICK = """\
import json, sys
print(json.dumps({"ready": True}), flush=True)
allocator = sys.argv[1]
while line := sys.stdin.readline():
    turn = json.loads(line)
    if (turn["workload"], allocator) == ("serve", "weir"):
        sys.exit("no")
    row = dict.fromkeys(("reserved_peak", "requested_peak", "driver_peak"), 1 << 30)
    row["losses"] = [0.5] * turn["steps"] + [1.0 if turn.get("settings") else 0.5]
    print(json.dumps({**row, "wall_ms": 2.0, "median_ms": 1.0, "gpu": "a GPU",
                      "settings": turn.get("settings"), "versions": {"torch": "2.11"}}))
    print(json.dumps({"ended": 0}), flush=True)
"""


def command(main, folder, *arguments):
    """(exit status, what was printed, the JSON) of a whole run with quick workers and one GPU."""
    file = os.path.join(folder, "out.json")
    out, argv = io.StringIO(), ["run", "--scale", "small", "--json", file, *arguments]
    with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(out), \
            contextlib.redirect_stderr(io.StringIO()):
        status = main()
    with open(file) as text:
        return status, out.getvalue(), json.load(text)


def refused(main, *arguments):
    """The exit status, and the last line of what was said."""
    said = io.StringIO()
    with mock.patch.object(sys, "argv", ["run", *arguments]), contextlib.redirect_stderr(said):
        try:
            return main(), ""
        except SystemExit as exit_:
            return exit_.code, said.getvalue().splitlines()[-1]


def whole(folder, main):
    script = os.path.join(folder, "quick.py")
    with open(script, "w") as file:
        file.write(QUICK)
    with mock.patch.object(turns, "WORKER", (script,)), \
            mock.patch.dict(main.__globals__, {"count_gpus": lambda: 1}):
        empty = refused(main, "--workloads", "gnn,")
        fine = command(main, folder, "--workloads", "gnn,ddp", "--rounds", "2",
                       "--limit-search", "gnn", "--steps", "3")
        fails = command(main, folder, "--workloads", "serve", "--allocators", "weir,async")
        equal = command(main, folder, "--bitwise", "--steps", "3")
        other = command(main, folder, "--bitwise", "--steps", "3", "--setting", "reuse=wait")
        kept = command(main, folder, "--workloads", "gnn", "--allocators", "native,weir",
                       "--record", folder)
    order = [row["allocator"] for row in fine[2]["samples"]]
    return {
        "recordings": ([one["settings"] for one in kept[2]["samples"]],
                       [None, {"record": os.path.join(folder, "gnn.weir")}]),
        "a recording of each rank": (
            worker.settings_of({"world": 2, "rank": 1}, {"settings": {"record": "a.b/ddp.weir"}}),
            {"record": "a.b/ddp-rank1.weir"}),
        "an empty name": (empty[0], 2),
        "what is wrong with it": ("--workloads: no ''; there are gpt2, " in empty[1], True),
        "exits": ([one[0] for one in (fine, fails, equal, other)], [0, 1, 0, 1]),
        "rounds begin with another": (order, ["native", "expandable", "async", "weir",
                                              "expandable", "async", "weir", "native"]),
        "one GPU": ("left out, for want of GPUs: ddp" in fine[1], True),
        "limits in JSON": (sorted(fine[2]["limits"]["gnn"]), sorted(turns.ALLOCATORS)),
        "every sample": ([len(row["losses"]) for row in fine[2]["samples"]], [4] * 8),
        "Weir failed": ("FAILED serve, Weir, rank 0: ended with 1 and no result: no" in fails[1], True),
        "bitwise": (equal[1].splitlines()[-1], "losses of 4 steps: bitwise equal"),
        "not bitwise": (other[1].splitlines()[-1], "losses of 4 steps: they differ from step 3 on"),
    }


def self_test(main):
    """`main`: of the runner."""
    with tempfile.TemporaryDirectory() as folder:
        checks = {**pretended(folder), **figures(), **whole(folder, main)}
    wrong = {name: pair for name, pair in checks.items() if pair[0] != pair[1]}
    for name, (found, expected) in wrong.items():
        print(f"self-test: {name}: found {found!r}, expected {expected!r}")
    print(f"torch: self-test, {len(checks) - len(wrong)} of {len(checks)} checks right")
    return 1 if wrong else 0
