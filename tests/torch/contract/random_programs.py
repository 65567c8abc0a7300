# SPDX-License-Identifier: Apache-2.0
"""Random programs that PyTorch's rules allow, run with Weir on a GPU.

usage: random_programs.py --seconds N [--what both|short|random] [--way weir] [--first-seed S]
                          [--jobs 2] [--env NAME=VALUE] [--json FILE]
       random_programs.py --seconds N --collectives L1|F [--world 2] ...
                                                      random programs with collectives, at that level
                                                      (program.py), on so many GPUs
       random_programs.py --seconds N --peers ...     streams of GPU 1 copy the tensors, by peer access
       random_programs.py --seed S [--collectives L1|F] [--repeat N]       one random program
       random_programs.py --replay FILE [--repeat N]  a program, or the failures, of a JSON file
       random_programs.py --plan N                    prints programs; needs no GPU

First come the short programs (generate.py: every maker, use, drop and disturber), in an order that mixes
them, then random ones. Children run them in batches, so that a crash loses the program that it was in;
programs that make Weir give up events of the context, which is for the life of the process, have batches
of their own. A child that starts takes as long as some 50 programs: many jobs want large batches.
The first failures of each kind are run again alone, with PyTorch's own allocator too; random programs
are then made shorter. --seconds is for all of it. Exit: 1 if a program that is right with PyTorch's own
allocator failed, or one of level F with Weir; 77 if there are too few GPUs, 2 if nothing could be run.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import itertools
import json
import pathlib
import queue
import subprocess
import sys
import tempfile
import threading
import time

import generate
import ways
from program import SHARES, ends_context_events, format_program, needed_level
from shrink import shrink

EXECUTE = str(pathlib.Path(__file__).with_name("execute.py"))
START_SECONDS = 120  # until a child is ready
PROGRAM_SECONDS = 25
NO_GPU = 77


class Unusable(Exception):
    """A child can't start; the message says why."""


def run_child(programs, options, way=None, repeat=1, seconds=1e9):
    """[(program, outcome, message)] in turn, of those that a child came to.

    outcome: right, wrong (what was read), crash, hang, memory (out of it), leak (of what the program
    dropped), error. A crash or a hang is
    the last, except where the child was only killed between programs.
    """
    way = way or options.way
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "programs")
        path.write_text("".join(json.dumps(program) + "\n" for program in programs))
        arguments = [EXECUTE, str(path), "--repeat", str(repeat), "--programs-seconds",
                     str(round(seconds, 1))]
        with open(pathlib.Path(folder, "errors"), "w+") as errors:
            environment = {**ways.environment(way, options.settings), "WORLD_SIZE": str(options.world),
                           "STORE": str(pathlib.Path(folder, "store"))}
            children = [subprocess.Popen(
                ways.command(way, arguments), env={**environment, "RANK": str(rank)},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                stderr=errors, text=True, start_new_session=True) for rank in range(options.world)]
            try:
                found = _listen(children[0], programs)
            finally:
                for child in children:
                    ways.kill(child)
            errors.seek(0)
            said = errors.read()
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith("frame #")]
    last = " ".join(lines[-3:])[-600:]
    if isinstance(found, str):
        raise Unusable(f"{way}: {found} {last}")
    return [(program, outcome, f"{message} {last}" if outcome == "crash" else message)
            for program, outcome, message in found]


def _listen(child, programs):
    """What run_child returns, or why the child did not start."""
    lines = queue.Queue()

    def read():
        for line in child.stdout:
            lines.put(line)
        lines.put(None)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        return _results(child, lines, programs)
    finally:
        ways.kill(child)
        reader.join(5)
        if not reader.is_alive():
            child.stdout.close()


def _results(child, lines, programs):
    """Reads the child's lines."""
    named = {program["name"]: program for program in programs}
    found, running, ready = {}, None, False
    while True:
        try:
            line = lines.get(timeout=PROGRAM_SECONDS if ready else START_SECONDS)
        except queue.Empty:
            if not ready:
                return "it does not start"
            if running is not None:
                found[running] = ("hang", f"nothing in {PROGRAM_SECONDS} s")
            break
        if line is None:
            try:
                status = child.wait(10)
            except subprocess.TimeoutExpired:
                status = None
            if not ready:
                return f"it ended with {status}"
            if running is not None:
                why = (ways.name_of_signal(status) if status is not None and status < 0
                       else f"exit {status}")
                found[running] = ("crash", why)
            break
        word, _, rest = line.partition(" ")
        try:
            what = json.loads(rest) if rest.strip() else {}
        except ValueError:
            continue
        if word == "READY":
            ready = True
        elif word == "UNUSABLE":
            return what.get("message", "")
        elif word == "BEGIN":
            running = what["name"]
        elif word == "END":
            found[what["name"]] = (what["outcome"], what["message"])
            running = None
        elif word == "DONE":
            break
    return [(named[name], *result) for name, result in found.items() if name in named]


class Search:
    """Runs programs until the time is over, and keeps what failed."""

    def __init__(self, options, programs):
        self.options = options
        self.end = time.monotonic() + options.seconds
        self.start = time.monotonic()
        self.guard = threading.Lock()
        self.programs = iter(programs)  # GUARDED_BY(guard), and all below
        self.waiting = {False: [], True: []}  # by whether they end context events
        self.counts = {}
        self.failures = []
        self.kinds = set()  # those that were run again
        self.failed_of = collections.Counter()
        self.passed_over = 0
        self.unusable = None

    def say(self, text):
        print(f"[{time.monotonic() - self.start:5.0f} s] {text}", flush=True)

    def left(self):
        return self.end - time.monotonic()

    def batch(self):
        """The next programs, without those of a kind that failed twice: each would cost a child."""
        with self.guard:
            while max(map(len, self.waiting.values())) < self.options.batch:
                program = next(self.programs, None)
                if program is None:
                    break
                kind = self.kind_of(program, "")
                if kind[0] != "random" and self.failed_of[kind] >= 2:
                    self.passed_over += 1
                else:
                    self.wait([program])
            fullest = max(self.waiting.values(), key=len)
            taken = fullest[:self.options.batch]
            del fullest[:self.options.batch]
        return taken

    def wait(self, programs):
        for program in programs:
            self.waiting[ends_context_events(program["steps"])].append(program)

    def work(self):
        while self.left() > 5 and self.unusable is None:
            programs = self.batch()
            if not programs:
                return
            try:
                found = run_child(programs, self.options, seconds=max(1, self.left()))
            except Unusable as reason:
                with self.guard:
                    self.unusable = str(reason)
                return
            names = {program["name"] for program, _, _ in found}
            failed = [one for one in found if one[1] != "right"]
            with self.guard:
                self.wait(program for program in programs if program["name"] not in names)
                for _, outcome, _ in found:
                    self.counts[outcome] = self.counts.get(outcome, 0) + 1
                done = sum(self.counts.values())
            self.say(f"{done} programs, {done - self.counts.get('right', 0)} failed")
            for program, outcome, message in failed:
                self.failed(program, outcome, message)

    @staticmethod
    def kind_of(program, outcome):
        parts = program["name"].split("/")
        return (parts[0], parts[4]) if len(parts) == 6 else ("random", outcome)

    def failed(self, program, outcome, message):
        failure = {"name": program["name"], "outcome": outcome, "message": message,
                   "level": needed_level(program["steps"]), "program": program}
        kind = self.kind_of(program, outcome)
        with self.guard:
            self.failures.append(failure)
            self.failed_of[kind] += 1
            treat = kind not in self.kinds and len(self.kinds) < self.options.failures
            if treat:
                self.kinds.add(kind)
        self.say(f"FAILED: {program['name']} ({failure['level']}): {outcome}: {message}")
        if treat and self.left() > 20:
            try:
                self.treat(program, failure)
            except Unusable as reason:
                self.say(f"not run again: {reason}")
        self.save()

    def first_failing(self, candidates):
        """Each in a child of its own, side by side."""
        def fails(steps):
            try:
                found = run_child([{"name": "shorter", "steps": steps}], self.options, repeat=3,
                                  seconds=10)
            except Unusable:
                return False
            return any(outcome != "right" for _, outcome, _ in found)

        with concurrent.futures.ThreadPoolExecutor(len(candidates)) as pool:
            results = list(pool.map(fails, candidates))
        return results.index(True) if True in results else None

    def is_the_allocators(self, failure):
        """Should it have run the program well? With fences some need no order that PyTorch needs."""
        return (failure.get("native", "right") == "right"
                or (failure["level"] == "F" and self.options.way == "weir"))

    def treat(self, program, failure):
        again = run_child([program], self.options, repeat=10, seconds=20)
        failure["again"] = again[0][1] if again else "?"
        if self.options.way != "native":
            native = run_child([program], self.options, way="native", repeat=5, seconds=20)
            failure["native"] = native[0][1] if native else "?"
        self.say(f"{program['name']} alone: {failure['again']}; with PyTorch's own allocator: "
                 f"{failure.get('native', '-')}")
        if (failure["again"] == "right" or not self.is_the_allocators(failure)
                or self.kind_of(program, "")[0] != "random"):  # the others are short
            return
        seconds = min(self.options.shrink_seconds, self.left() - 10)
        steps, tried = shrink(program["steps"], self.first_failing, seconds,
                              self.options.shrink_jobs, level=self.options.collectives or "L1")
        shorter = {"name": f"{program['name']}, shorter", "steps": steps}
        failure["shorter"], failure["shorter_level"] = shorter, needed_level(steps)
        with self.guard:
            print(f"{len(program['steps'])} steps became {len(steps)} in {tried} trials; needs level "
                  f"{failure['shorter_level']}:\n{format_program(shorter)}", flush=True)

    def save(self):
        if self.options.json is None:
            return
        with self.guard:
            text = json.dumps({"way": self.options.way, "settings": self.options.settings,
                               "counts": self.counts, "failures": self.failures}, indent=1)
        self.options.json.write_text(text)

    def run(self):
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            for each in [pool.submit(self.work) for _ in range(self.options.jobs)]:
                each.result()
        self.save()
        self.say(f"{self.options.way}: {sum(self.counts.values())} programs: {self.counts}")
        if self.unusable:
            print(f"a child could not start: {self.unusable}")
            if not self.counts:
                return 2
        for kind, count in sorted(self.failed_of.items()):
            print(f"  {count:4} failed: {' / '.join(kind)}")
        if self.passed_over:
            print(f"  {self.passed_over:4} were not run: of a kind that had failed twice")
        return 1 if any(map(self.is_the_allocators, self.failures)) else 0


def all_programs(options):
    if options.collectives:
        for seed in itertools.count(options.first_seed):
            yield generate.random_program(seed, options.spin_ms, options.collectives)
    if options.what in ("both", "short"):
        yield from generate.short_programs(options.spin_ms, options.peers)
    if options.what in ("both", "random"):
        for seed in itertools.count(options.first_seed):
            yield generate.random_program(seed, options.spin_ms, peers=options.peers)


def programs_of(path):
    """Of a program's file, or of what --json wrote."""
    found = json.loads(pathlib.Path(path).read_text())
    if "steps" in found:
        return [found]
    return [failure.get("shorter", failure["program"]) for failure in found["failures"]]


def run_these(programs, options):
    worst = 0
    for program in programs:
        print(f"{format_program(program)}\nneeds level {needed_level(program['steps'])}", flush=True)
        for way in dict.fromkeys(("native", options.way)):
            found = run_child([program], options, way=way, repeat=options.repeat, seconds=60)
            _, outcome, message = found[0] if found else (None, "?", "")
            print(f"{way}: {outcome} {message}", flush=True)
            if way == options.way and outcome != "right":
                worst = 1
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--what", choices=("both", "short", "random"), default="both")
    parser.add_argument("--way", choices=ways.WAYS, default="weir")
    parser.add_argument("--seed", type=int, help="only this random program")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--replay", metavar="FILE")
    parser.add_argument("--plan", type=int, metavar="N")
    parser.add_argument("--collectives", choices=("L1", "F"),
                        help="with collectives: L1 is safe with PyTorch's own allocator, F with fences")
    parser.add_argument("--world", type=int, default=1, metavar="GPUS",
                        help="each of them runs the programs, and they communicate")
    parser.add_argument("--peers", action="store_true", help="with copies by GPU 1: needs two GPUs")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--spin-ms", type=float, default=6.0)
    parser.add_argument("--batch", type=int, default=100, help="programs for one child")
    parser.add_argument("--jobs", type=int, default=2, help="children at once")
    parser.add_argument("--failures", type=int, default=6, help="kinds of failures that are run again")
    parser.add_argument("--shrink-seconds", type=float, default=60)
    parser.add_argument("--shrink-jobs", type=int, default=4)
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    options.settings = dict(text.partition("=")[::2] for text in options.env)
    if options.collectives:
        options.settings.setdefault("WEIR_C10D", "1")
    elif options.world != 1:
        parser.error("--world is for programs with --collectives")
    if options.collectives and options.peers:
        parser.error("--peers is for programs without collectives")
    if options.world < 1 or SHARES % options.world:
        parser.error(f"--world {options.world}: tensors can be divided among 1, 2, 4 or {SHARES} GPUs")
    if options.plan is not None:
        for program in itertools.islice(all_programs(options), options.plan):
            print(f"{format_program(program)}\n  needs level {needed_level(program['steps'])}\n")
        return 0
    needed = 2 if options.peers else options.world
    if ways.gpu_count() < needed:
        print("no GPU here" if needed == 1 else f"there are no {needed} GPUs here")
        return NO_GPU
    try:
        if options.seed is not None:
            return run_these([generate.random_program(options.seed, options.spin_ms,
                                                      options.collectives, options.peers)], options)
        if options.replay:
            return run_these(programs_of(options.replay), options)
        return Search(options, all_programs(options)).run()
    except Unusable as reason:
        print(reason)
        return 2


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    sys.exit(main())
