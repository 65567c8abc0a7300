"""Turns on the GPU: a batch of processes import at the same time, then run one after the other.

A turn is one process, or one for each rank. Each says {"ready": true} once it has imported all, and
waits. Nothing runs before the whole batch is ready, so that no import disturbs a measurement. `go`
is a line to its stdin, and is sent once every process of the turn before has ended, so that the
GPU's memory is all there. No lock of the GPU is needed, and the order is the caller's.
"""
import json
import os
import pathlib
import select
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
IMPORT_LIMIT = 180  # seconds until a process is ready
TURN_LIMIT = 150    # seconds for a turn
END_LIMIT = 60      # seconds from the result to the end of the process
GRACE = 10          # seconds for the other ranks, once one has failed
ERROR_LINES = 6     # of stderr that are kept
LATE, READY = "late", {"ready": True}
BATCH = 12          # turns that import together


def environment(allocator):
    """The process's: as PyTorch's user has it, but for the allocator."""
    kept = {name: value for name, value in os.environ.items()
            if name not in (SETTING, "PYTORCH_ALLOC_CONF") and not name.startswith("WEIR_")}
    if ALLOCATORS[allocator]:
        kept[SETTING] = ALLOCATORS[allocator]
    kept.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic, by NVIDIA's word
    kept.setdefault("TOKENIZERS_PARALLELISM", "false")
    kept["HF_HUB_OFFLINE"] = "1"
    return kept


class Process:
    """One worker. Its stderr goes to a file, of which the end is kept if it fails."""

    def __init__(self, command, env):
        self.said = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stderr=self.said,
                                        stdout=subprocess.PIPE, bufsize=0)
        self.rest = b""

    def read(self):
        """Takes in what there is. False at the end of the output."""
        more = os.read(self.process.stdout.fileno(), 1 << 20)
        self.rest += more
        return bool(more)

    def line(self):
        """The next line of JSON that has come; or None."""
        line, end, rest = self.rest.partition(b"\n")
        if not end:
            return None
        self.rest = rest
        return json.loads(line)

    def go(self, turn):
        try:
            self.process.stdin.write(json.dumps(turn).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: the result will be missing, and say so

    def end(self, seconds):
        """Its exit status; "stopped" if it had to be."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "stopped"
        finally:
            self.process.stdin.close()
            self.process.stdout.close()

    def last_words(self):
        self.said.seek(0)
        lines = [line.rstrip() for line in self.said.read().splitlines() if line.strip()]
        return "\n".join(lines[-ERROR_LINES:])


def lines(processes, seconds):
    """A line of each. None for one that has ended without, LATE for one that is late."""
    until = time.monotonic() + seconds
    found = dict.fromkeys(processes, LATE)
    while LATE in found.values():
        waiting = [one for one, line in found.items() if line is LATE]
        ready, _, _ = select.select([one.process.stdout for one in waiting], [], [],
                                    max(0.0, until - time.monotonic()))
        if not ready:
            break
        for one in waiting:
            if one.process.stdout in ready:
                more = one.read()
                line = one.line()
                if line is not None or not more:
                    found[one] = line
                if found[one] is None or "error" in found[one]:
                    until = min(until, time.monotonic() + GRACE)
    return list(found.values())


class Turn:
    """What to run, its processes once started, and its rows."""

    def __init__(self, workload, allocator, scale, world=1, go=None, label=None, device=None):
        self.workload, self.allocator, self.scale = workload, allocator, scale
        self.world, self.go, self.device = world, go or {}, device
        self.label = label or {}
        self.processes, self.folder, self.first_lines = [], None, None

    def start(self, worker):
        self.folder = tempfile.TemporaryDirectory()
        store = os.path.join(self.folder.name, "store")
        for rank in range(self.world):
            command = [sys.executable, *worker, self.workload, self.allocator, self.scale,
                       str(rank), store, *([self.device] if self.device else [])]
            self.processes.append(Process(command, environment(self.allocator)))

    def await_ready(self):
        """Until every process has imported all, or has failed."""
        if self.first_lines is None:
            self.first_lines = lines(self.processes, IMPORT_LIMIT)

    def run(self, go=None):
        """One row for each process: what it printed, or {"error"}."""
        self.await_ready()
        rows = self.first_lines
        if all(one == READY for one in rows):
            for one in self.processes:
                one.go(go or self.go)
            rows = lines(self.processes, TURN_LIMIT)
        return [self.row(rank, one, row)
                for rank, (one, row) in enumerate(zip(self.processes, rows))]

    def row(self, rank, process, row):
        status = process.end(0 if row in (LATE, READY) else END_LIMIT)
        if row in (None, LATE, READY):
            row = {"error": f"ended with {status} and no result: {process.last_words()}"}
        elif "error" not in row and status != 0:
            row = {**row, "error": f"ended with {status}: {process.last_words()}"}
        process.said.close()
        return {"workload": self.workload, "allocator": self.allocator, "rank": rank,
                **self.label, **row}

    def stop(self):
        """For a turn that will not be run."""
        for process in self.processes:
            process.end(0)
            process.said.close()


class Line:
    """Turns in order, in batches that are started together."""

    def __init__(self, batch=BATCH, worker=None):
        self.batch, self.worker = batch, worker or WORKER

    def run(self, turns, each=lambda turn, rows: None):
        """All rows. `each` is called after a turn."""
        all_rows = []
        for first in range(0, len(turns), self.batch):
            waiting = turns[first:first + self.batch]
            try:
                for turn in waiting:
                    turn.start(self.worker)
                for turn in waiting:
                    turn.await_ready()
                while waiting:
                    rows = waiting[0].run()
                    turn = waiting.pop(0)
                    each(turn, rows)
                    all_rows += rows
            finally:
                for turn in waiting:
                    turn.stop()
        return all_rows
