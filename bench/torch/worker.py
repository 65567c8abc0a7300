# SPDX-License-Identifier: Apache-2.0
"""A template of bench/torch/run: the processes of one allocator and rank. Started by the runner only.
bench/frameworks has one of its own, which calls `main` with another `Suite`.

usage: worker.py ALLOCATOR RANK WORKLOAD...

Imports everything, prints {"ready": true}, and waits for lines of JSON on stdin: {"workload", "scale", "store", "device",
"steps", "cap", "settings"}. Forks for each. The child, which has its turn on the GPU, prints one line
of JSON with what it measured, or {"error"}; then the template prints {"ended": exit status}. The
allocator is set, and CUDA started, only in the child. What libraries print goes to stderr.
"""
import dataclasses
import functools
import gc
import importlib
import itertools
import json
import os
import statistics
import sys
import threading
import time
import traceback
import warnings

SLACK = 512 << 20   # for what CUDA loads by itself while a cap by ballast is on
SAMPLE_EVERY = 0.05  # seconds
OUT_OF_MEMORY = ("OutOfMemory", "out of memory", "ALLOC_FAILED")


@dataclasses.dataclass(frozen=True)
class Suite:
    """What a template's turns run."""

    package: str      # of the modules
    entries: dict     # by name; `place` of one is module:attribute
    drive: object     # drive(attribute, scale, steps): all steps of a turn, told to `steps`
    libraries: tuple  # modules whose versions a row has


class NotInstalled(RuntimeError):
    """A module that an entry needs cannot be imported."""


class DriverMemory:
    """What the driver says is in use on the device beyond the beginning: now, and at most."""

    def __init__(self, torch, device):
        self.torch, self.device = torch, device
        self.first = self.used()
        self.most = self.first
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.sample, daemon=True)
        self.thread.start()

    def used(self):
        # By name: a new thread's current device is the first one.
        free, total = self.torch.cuda.mem_get_info(self.device)
        return total - free

    def look(self):
        self.most = max(self.most, self.used())

    def sample(self):
        while not self.done.wait(SAMPLE_EVERY):
            self.look()

    def report(self):
        self.done.set()
        self.thread.join()
        self.look()
        return {"driver_before": self.first, "driver_after": self.used() - self.first,
                "driver_peak": self.most - self.first}


def limit_memory(torch, allocator, cap):
    """The allocator holds at most `cap` bytes.

    cudaMallocAsync would hold its limit against what is live, not against what its pool has of the
    driver's: there, all but the cap (and what CUDA loads by itself) is taken away beforehand.
    """
    free, total = torch.cuda.mem_get_info()
    if allocator != "async":
        torch.cuda.set_per_process_memory_fraction(min(1.0, cap / total))
        return
    import ctypes

    ballast = free - cap - SLACK
    if ballast <= 0:
        raise RuntimeError(f"a cap of {cap} bytes is more than is free")
    place = ctypes.c_uint64()
    status = ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(place),
                                                       ctypes.c_size_t(ballast))
    if status != 0:
        raise RuntimeError(f"cuMemAlloc of {ballast} bytes failed: {status}")


def settings_of(names, turn):
    """Weir's. A recording of several ranks is a file for each."""
    settings = dict(turn.get("settings") or {})
    if names["world"] > 1 and "record" in settings:
        root, extension = os.path.splitext(settings["record"])
        settings["record"] = f"{root}-rank{names['rank']}{extension}"
    return settings


def start_allocator(allocator, settings):
    """Before CUDA starts. What PyTorch has built in is chosen by the environment."""
    if allocator != "weir":
        return
    try:
        import weir
    except ImportError as error:
        raise RuntimeError("the package weir isn't installed: pip install "
                           "--no-build-isolation .") from error
    weir.enable("full", **settings)


def heeded(torch, allocator):
    """Whether the allocator that was asked for is the one that served."""
    backend = torch.cuda.get_allocator_backend()
    if allocator == "weir":
        import weir
        return weir.enabled() == "full"
    if allocator == "async":
        return backend == "cudaMallocAsync"
    kept = torch.empty(1, device="cuda")  # a segment, even if the program has freed all of its own
    expandable = any(one.get("is_expandable") for one in torch.cuda.memory_snapshot())
    del kept
    return backend == "native" and expandable == (allocator == "expandable")


def memory_figures(torch):
    stats = torch.cuda.memory_stats()
    names = {"reserved": "reserved_bytes", "allocated": "allocated_bytes",
             "requested": "requested_bytes"}
    figures = {f"{ours}_peak": stats.get(f"{theirs}.all.peak", 0)
               for ours, theirs in names.items()}
    figures["retries"] = stats.get("num_alloc_retries", 0)
    return figures


def driver_calls():
    """Those that Weir has made: {kind: {"calls", "nanoseconds"}}."""
    weir = sys.modules.get("weir")
    return weir.stats()["driver_calls"] if weir is not None and weir.enabled() else {}


def a_step(before, after, steps):
    """Each kind's calls and nanoseconds of a step."""
    return {kind: {name: (number - before.get(kind, {}).get(name, 0)) / steps
                   for name, number in of.items()} for kind, of in after.items()}


class Steps:
    """A turn's steps, as the program tells them: `start()` once it is built, and `done(loss)` after each
    of `count`. The first fifth is not timed."""

    def __init__(self, torch, count, device):
        self.torch, self.count, self.device = torch, count, device
        self.untimed, self.taken = count // 5, 0
        self.losses, self.marks, self.queued = None, [], []
        self.started = self.begin = 0.0
        self.calls = {}

    def start(self):
        self.started = time.perf_counter()
        self.losses = self.torch.zeros(self.count, device=self.device)
        if self.device.type == "cuda":
            self.marks = [self.torch.cuda.Event(enable_timing=True) for _ in range(self.count + 1)]
        self.mark()

    def done(self, loss):
        """A step has been queued. `loss`: a number, or a tensor of one."""
        if self.taken == self.count:
            raise RuntimeError(f"there are more steps than {self.count}")
        if isinstance(loss, self.torch.Tensor):
            self.losses[self.taken].copy_(loss.detach())
        else:
            self.losses[self.taken] = loss
        self.queued.append(time.perf_counter())
        self.taken += 1
        self.mark()

    def mark(self):
        """The end of one step, and the beginning of the next."""
        if self.taken == self.untimed:
            if self.marks:
                self.torch.cuda.synchronize()
                self.calls = driver_calls()
            self.begin = time.perf_counter()
        if self.marks:
            self.marks[self.taken].record()

    def figures(self):
        """Losses, milliseconds of each step, and of all; and how far ahead of the GPU the host was."""
        if self.taken < self.count:
            raise RuntimeError(f"{self.taken} of {self.count} steps were taken")
        if self.marks:
            self.torch.cuda.synchronize()
        timed = self.count - self.untimed
        wall = (time.perf_counter() - self.begin) * 1e3 / timed
        each = [one.elapsed_time(other) for one, other in zip(self.marks, self.marks[1:])]
        calls = a_step(self.calls, driver_calls() if self.marks else {}, timed)
        return {"losses": self.losses.tolist(), "driver_calls": calls, "wall_ms": wall, "event_ms": each,
                "untimed": self.untimed,
                "median_ms": statistics.median(each[self.untimed:]) if each else wall,
                "ahead_ms": ahead_ms(each[self.untimed:],
                                     [one - self.begin for one in self.queued[self.untimed:]])}


def drive_workload(build, scale, steps):
    workload = build(scale, steps.device)
    steps.start()
    for i in range(steps.count):
        steps.done(workload.step(i))


def ahead_ms(each, queued):
    """How long before the GPU has run a step the host has queued it, of the median step. From the
    moment at which both began: milliseconds that each step took the GPU; seconds after which each
    was queued. None without a GPU."""
    done = itertools.accumulate(each)
    ahead = [max(0.0, end - at * 1e3) for end, at in zip(done, queued)]
    return statistics.median(ahead) if ahead else None


def measure(torch, drive, turn, device):
    torch.manual_seed(0)
    begin = time.perf_counter()
    steps = Steps(torch, turn["steps"], device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        drive(turn["scale"], steps)
        row = steps.figures()
    said = {str(one.message).split("\n")[0] for one in caught}
    row["nondeterministic"] = sorted(one[:200] for one in said if "deterministic" in one)
    row["build_s"] = steps.started - begin
    return row


def on_gpu(torch, drive, names, turn):
    start_allocator(names["allocator"], settings_of(names, turn))
    device = torch.device("cuda", names["rank"])
    torch.cuda.init()
    torch.cuda.set_device(device)
    torch.cuda.synchronize()  # the context is there, so that it counts as the beginning
    driver = DriverMemory(torch, device)
    try:
        if turn.get("cap"):
            limit_memory(torch, names["allocator"], turn["cap"])
        join(torch, names, device)
        row = measure(torch, drive, turn, device)
        row.update(memory_figures(torch), **driver.report())
    finally:
        driver.done.set()
    if not heeded(torch, names["allocator"]):
        raise RuntimeError(f"{names['allocator']} was not heeded: it was not the allocator")
    row["gpu"] = torch.cuda.get_device_name()
    return row


def versions(torch, libraries):
    return {"torch": torch.__version__, "cuda": torch.version.cuda,
            **{name: getattr(sys.modules[name], "__version__", "unknown") for name in libraries if name in sys.modules}}


def join(torch, names, device):
    """The process group of a workload of several processes."""
    if names["world"] == 1:
        return
    torch.distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", rank=names["rank"],
        world_size=names["world"], init_method="file://" + names["store"],
        device_id=device if device.type == "cuda" else None)


def named(suite, place):
    """What module:attribute names."""
    module, _, attribute = place.partition(":")
    try:
        return getattr(importlib.import_module(f"{suite.package}.{module}"), attribute)
    except ImportError as error:
        raise NotInstalled(str(error)) from error


def one_turn(suite, names, turn):
    """Its result."""
    import torch

    build = named(suite, names["place"])
    # Only to warn would leave attention, which could be deterministic, as it is.
    torch.use_deterministic_algorithms(True, warn_only=not getattr(build, "strict", False))
    torch.utils.deterministic.fill_uninitialized_memory = False
    # It plans each new shape on the host for longer than a whole step takes, at another length each
    # time, and is not deterministic: sizes vary here, and nothing else could be seen for it.
    torch.backends.cuda.enable_cudnn_sdp(False)
    drive = functools.partial(suite.drive, build)
    if turn["device"] == "cpu":
        join(torch, names, torch.device("cpu"))
        row = measure(torch, drive, turn, torch.device("cpu"))
    else:
        row = on_gpu(torch, drive, names, turn)
    row["versions"] = versions(torch, suite.libraries)
    if names["world"] > 1:
        torch.distributed.destroy_process_group()
    return row


def take_turn(suite, allocator, rank, turn, say):
    """In the child. Its exit status."""
    names = {"allocator": allocator, "rank": rank, "store": turn["store"], "world": turn["world"],
             "place": suite.entries[turn["workload"]].place}
    try:
        say(one_turn(suite, names, turn))
    except Exception as error:  # whatever it was: a row of the table
        traceback.print_exc()
        kind = type(error).__name__
        say({"error": f"{kind}: {str(error).strip()[:600]}",
             "not_installed": isinstance(error, NotInstalled),
             "out_of_memory": any(one in f"{kind} {error}" for one in OUT_OF_MEMORY)})
        if turn["world"] > 1:
            os._exit(1)  # the process group might wait for the other ranks
        return 1
    return 0


def import_all(suite, names):
    """PyTorch, and the entries' modules. One that can't be imported fails where it is used."""
    for name in names:
        if getattr(suite.entries[name], "starts_cuda", False):
            continue
        try:
            named(suite, suite.entries[name].place)
        except Exception:
            traceback.print_exc()


def fork_for_each(take):
    """Says that it is ready. For each line of stdin a child that calls `take(turn, say)` and ends with
    what it returns: so CUDA and the allocator begin anew each time, and nothing is imported again."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(row):
        print(json.dumps(row), file=out, flush=True)

    say({"ready": True})
    gc.freeze()  # so that collections leave what is shared with the children alone
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            return take(json.loads(line), say)
        say({"ended": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])})
    return 0


def main(suite):
    allocator, rank, *names = sys.argv[1:]
    import_all(suite, names)
    return fork_for_each(lambda turn, say: take_turn(suite, allocator, int(rank), turn, say))


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from workloads import WORKLOADS

    sys.exit(main(Suite("workloads", WORKLOADS, drive_workload, ("transformers", "peft", "torchvision"))))
