# SPDX-License-Identifier: Apache-2.0
"""Turns on the GPU, one after the other, each in a process of its own that is forked when its turn comes.

For each allocator, and each rank, there is a *template* in each round: a process with that allocator's environment which
has imported PyTorch and the workloads and has not started CUDA. None runs before all of them are ready, so that no import
disturbs a measurement. Rounds share no process, or what is one process's luck would be every round's.
A template gets a line of JSON on its stdin, forks, and waits: the child runs the
turn and prints a line of JSON, its result; once it has ended the template prints {"ended": exit status}.
The next turn begins after that, so that the GPU's memory is all there. No lock of the GPU is needed, and
the order is the caller's.
"""
import itertools
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time

WORKER = (str(pathlib.Path(__file__).resolve().parent / "worker.py"),)
SETTING = "PYTORCH_CUDA_ALLOC_CONF"  # PyTorch reads it when the process starts
ALLOCATORS = {
    "native": "backend:native",
    "expandable": "backend:native,expandable_segments:True",
    "async": "backend:cudaMallocAsync",
    "weir": None,
}
TITLES = {"native": "native", "expandable": "expandable segments", "async": "cudaMallocAsync",
          "weir": "Weir"}
IMPORT_LIMIT = 180  # seconds until a template is ready
TURN_LIMIT = 150    # seconds for a turn
END_LIMIT = 60      # seconds from the results to the end of the processes
GRACE = 10          # seconds for the other ranks, once one has failed
ERROR_LINES = 6     # of stderr that are kept
READY = {"ready": True}


def environment(allocator):
    """The process's: as PyTorch's user has it, but for the allocator."""
    kept = {name: value for name, value in os.environ.items()
            if name not in (SETTING, "PYTORCH_ALLOC_CONF") and not name.startswith("WEIR_")}
    if ALLOCATORS[allocator]:
        kept[SETTING] = ALLOCATORS[allocator]
    kept.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic, by NVIDIA's word
    kept.setdefault("TOKENIZERS_PARALLELISM", "false")
    kept["HF_HUB_OFFLINE"] = "1"
    kept["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # whether there is a GPU: without starting CUDA, which no fork survives
    return kept


class Template:
    """The process that forks for one allocator and rank. Its stderr, and its children's, goes to a file, of which the
    end is kept of a turn that fails."""

    def __init__(self, command, env):
        self.said = tempfile.TemporaryFile("w+")
        # A session of its own: it is stopped with the child that runs.
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stderr=self.said,
                                        stdout=subprocess.PIPE, bufsize=0, start_new_session=True)
        self.rest, self.open, self.from_here = b"", True, 0

    def read(self):
        """Takes in what there is."""
        more = os.read(self.process.stdout.fileno(), 1 << 20)
        self.rest += more
        self.open = bool(more)

    def line(self):
        """The next line of JSON that has come; or None."""
        line, end, rest = self.rest.partition(b"\n")
        if not end:
            return None
        self.rest = rest
        return json.loads(line)

    def go(self, turn):
        if self.open:
            self.from_here = os.fstat(self.said.fileno()).st_size
        try:
            self.process.stdin.write(json.dumps(turn).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: the result will be missing, and say so

    def stop(self):
        """It and its child. Its exit status."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return self.process.wait()

    def last_words(self):
        """Of the turn."""
        self.said.seek(self.from_here)
        lines = [line.rstrip() for line in self.said.read().splitlines() if line.strip()]
        return "\n".join(lines[-ERROR_LINES:])

    def close(self):
        self.process.stdin.close()
        if self.open:
            self.stop()
        self.process.wait()
        self.process.stdout.close()
        self.said.close()


def await_lines(templates, until):
    """Waits until one of these has said more, or has ended. False: none has, and it is late."""
    while True:
        left = max(0.0, until - time.monotonic())
        ready, _, _ = select.select([one.process.stdout for one in templates], [], [], min(left, 1.0))
        for one in templates:
            if one.process.stdout in ready:
                one.read()
            elif one.process.poll() is not None:  # killed: the child that it leaves behind holds its stdout open
                one.stop()
                one.open = False
        if ready or not all(one.open for one in templates):
            return True
        if left <= 1.0:
            return False


class Templates:
    """Those of a run, by allocator and rank. Closed by `with`."""

    def __init__(self, worker=None):
        self.worker, self.running = worker or WORKER, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for one in self.running.values():
            one.close()
        self.running.clear()

    def start(self, turns):
        """Those that these turns need; until all have imported everything, or have failed."""
        modules = sorted({turn.workload for turn in turns})
        new = []
        for key in {key for turn in turns for key in turn.keys()} - self.running.keys():
            allocator, rank = key
            command = [sys.executable, *self.worker, allocator, str(rank), *modules]
            self.running[key] = Template(command, environment(allocator))
            new.append(self.running[key])
        until = time.monotonic() + IMPORT_LIMIT
        while new and await_lines(new, until):
            new = [one for one in new if one.open and one.line() != READY]
        for one in new:
            one.stop()

    def of(self, turn):
        self.start([turn])
        return [self.running[key] for key in turn.keys()]

    def ended(self, turn):
        """Templates that ended, or were stopped, are started anew when one is needed."""
        for key in turn.keys():
            if not self.running[key].open:
                self.running.pop(key).close()


class Turn:
    """What to run, and where."""

    def __init__(self, workload, allocator, scale, world=1, go=None, label=None, device=None):
        self.workload, self.allocator, self.scale = workload, allocator, scale
        self.world, self.go, self.device = world, go or {}, device
        self.label = label or {}

    def keys(self):
        return [(self.allocator, rank) for rank in range(self.world)]

    def run(self, templates):
        """One row for each process: what it printed, or {"error"}; and how long the turn took."""
        several = templates.of(self)
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            for one in several:
                one.go({**self.go, "workload": self.workload, "scale": self.scale, "world": self.world,
                        "device": self.device or "cuda", "store": os.path.join(folder, "store")})
            replies = self.replies(several)
        seconds = round(time.monotonic() - begin, 2)
        rows = [{**self.row(rank, one, *replies[one]), "turn_s": seconds} for rank, one in enumerate(several)]
        templates.ended(self)
        return rows

    def replies(self, several):
        """{template: (its result or None, exit status)}. The status of one that had to be stopped: "stopped"."""
        until = time.monotonic() + TURN_LIMIT
        rows, statuses = dict.fromkeys(several), {}
        while len(statuses) < len(several):
            if not await_lines([one for one in several if one not in statuses], until):
                break
            for one in several:
                while one not in statuses and (line := one.line()) is not None:
                    if "ended" in line:
                        statuses[one] = line["ended"]
                    else:
                        rows[one] = line
                        if all(rows.values()):
                            until = time.monotonic() + END_LIMIT
                if one not in statuses and not one.open:
                    statuses[one] = one.stop()
                if (one in statuses and rows[one] is None) or (rows[one] and "error" in rows[one]):
                    until = min(until, time.monotonic() + GRACE)
        for one in several:
            if one not in statuses:
                one.stop()
                one.open = False
        return {one: (rows[one], statuses.get(one, "stopped")) for one in several}

    def row(self, rank, template, row, status):
        if row is None:
            row = {"error": f"ended with {status} and no result: {template.last_words()}"}
        elif "error" not in row and status != 0:
            row = {**row, "error": f"ended with {status}: {template.last_words()}"}
        return {"workload": self.workload, "allocator": self.allocator, "rank": rank,
                **self.label, **row}


def in_rounds(names, allocators, rounds, make):
    """Turns, round by round, name by name: make(name, allocator, number of the round). Each round begins with another
    allocator."""
    return [make(name, allocator, number) for number in range(rounds) for name in names
            for allocator in allocators[number % len(allocators):] + allocators[:number % len(allocators)]]


def run_all(turns, templates, each=lambda turn, rows: None):
    """All rows. `each` is called after a turn."""
    all_rows = []
    rounds = itertools.groupby(turns, lambda turn: turn.label.get("round"))
    for number, of_round in enumerate(list(of_one) for _, of_one in rounds):
        if number > 0:
            templates.close()
        templates.start(of_round)
        for turn in of_round:
            rows = turn.run(templates)
            each(turn, rows)
            all_rows += rows
    return all_rows
