# SPDX-License-Identifier: Apache-2.0
"""Scenario A many times over: the first operation of a group of NCCL's is inside a capture, in new processes.

usage: first_operations.py [--processes 1] [--world 2] [--at-once 8] [--seconds 220] [--side Weir]
                           [--only NAME ...] [--json FILE]

Needs PyTorch with CUDA and NCCL, the Weir package, and as many GPUs as ranks. Each operation, in each
capture mode, is captured in --processes pairs of processes (worlds of --world ranks), --at-once of them
side by side. The graph is launched three times, and all data are compared. Then programs of other
shapes. Prints how many pairs were right; exit 1 if one was not, or did not come to run in --seconds.
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist

MODES = ("global", "thread_local", "relaxed")
COUNT = 1 << 18
REPLAYS = 3
PAIR_SECONDS = 90
OPERATIONS, PROGRAMS = {}, {}


def operation(define):
    """define(rank, world) gives fill(k), captured(), right(k): before, in, and after launch k."""
    OPERATIONS[define.__name__] = define
    return define


def program(define):
    """define(rank, world) is whole; it returns what rank 0 reports, with "right"."""
    PROGRAMS[define.__name__] = define
    return define


def new(value=0.0, count=COUNT):
    return torch.full((count,), float(value), device="cuda")


def value(rank, k):
    return 10.0 * rank + k + 1


def total(world, k):
    return sum(value(rank, k) for rank in range(world))


def same(tensor, expected):
    return bool((tensor == expected).all().item())


def reducing(rank, world, captured):
    """`captured(x)` puts the sum over the ranks in place of x."""
    x = new()
    return (lambda k: x.fill_(value(rank, k)), lambda: captured(x), lambda k: same(x, total(world, k)))


@operation
def all_reduce(rank, world):
    return reducing(rank, world, dist.all_reduce)


@operation
def functional_all_reduce(rank, world):
    from torch.distributed import _functional_collectives as functional
    return reducing(rank, world, lambda x: x.copy_(functional.wait_tensor(
        functional.all_reduce(x, "sum", dist.group.WORLD))))


@operation
def of_the_autograd_thread(rank, world):
    class Reduce(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x * 1

        @staticmethod
        def backward(context, gradient):
            gradient = gradient.clone()
            dist.all_reduce(gradient)
            return gradient

    def captured(x):
        leaf = torch.zeros_like(x).requires_grad_()
        gradient, = torch.autograd.grad((Reduce.apply(leaf) * x).sum(), leaf)
        x.copy_(gradient)
    leaf = torch.zeros(1, device="cuda", requires_grad=True)
    torch.autograd.grad((leaf * 2).sum(), leaf)  # its thread is there; no group is used
    return reducing(rank, world, captured)


@operation
def two_new_groups(rank, world):
    groups = [dist.new_group(list(range(world))) for _ in range(2)]
    x, y = new(), new()

    def captured():
        dist.all_reduce(x, group=groups[0])
        dist.all_reduce(y, group=groups[1])

    def fill(k):
        x.fill_(value(rank, k))
        y.fill_(2 * value(rank, k))
    return fill, captured, lambda k: same(x, total(world, k)) and same(y, 2 * total(world, k))


def gathered(out, world, k):
    return all(same(part, value(each, k)) for each, part in enumerate(out.chunk(world)))


@operation
def all_gather_into_tensor(rank, world):
    x, out = new(), new(count=COUNT * world)
    return (lambda k: x.fill_(value(rank, k)), lambda: dist.all_gather_into_tensor(out, x),
            lambda k: gathered(out, world, k))


@operation
def all_to_all_single(rank, world):
    x, out = new(count=COUNT * world), new(count=COUNT * world)
    return (lambda k: x.fill_(value(rank, k)), lambda: dist.all_to_all_single(out, x),
            lambda k: gathered(out, world, k))


@operation
def send_recv(rank, world):
    """Rank 0 sends to 1, and 1 answers; others only capture."""
    x, out = new(), new()

    def captured():
        if rank == 0:
            dist.send(x, 1)
            dist.recv(out, 1)
        elif rank == 1:
            dist.recv(out, 0)
            dist.send(x, 0)
        else:
            out.copy_(x)
    from_rank = 1 - rank if rank < 2 else rank
    return lambda k: x.fill_(value(rank, k)), captured, lambda k: same(out, value(from_rank, k))


@operation
def batch_isend_irecv(rank, world):
    x, out = new(), new()
    after, before = (rank + 1) % world, (rank - 1) % world

    def captured():
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, after),
                                            dist.P2POp(dist.irecv, out, before)]):
            work.wait()
    return lambda k: x.fill_(value(rank, k)), captured, lambda k: same(out, value(before, k))


@operation
def coalescing_manager(rank, world):
    from torch.distributed.distributed_c10d import _coalescing_manager
    x, out = [new(), new()], [new(count=COUNT * world) for _ in range(2)]

    def captured():
        with _coalescing_manager(device=torch.device("cuda", rank), async_ops=True) as works:
            for one, other in zip(x, out):
                dist.all_gather_into_tensor(other, one)
        works.wait()

    def fill(k):
        for each in x:
            each.fill_(value(rank, k))
    return fill, captured, lambda k: all(gathered(each, world, k) for each in out)


def capture_and_launch(define, rank, world, mode):
    fill, captured, right = define(rank, world)
    fill(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        captured()
    for k in range(REPLAYS):
        fill(k)
        graph.replay()
        torch.cuda.synchronize()
        if not right(k):
            return {"right": False, "why": f"launch {k}: other data"}
    return {"right": True, "reserved": torch.cuda.memory_reserved(),
            "allocated": torch.cuda.memory_allocated()}


@program
def a_pipelines_first_stage_captures_alone(rank, world):
    """Rank 1 is in recv() meanwhile: whoever had all ranks connect as a capture begins would hang."""
    if rank == 0:
        x, graph = new(3), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
        graph.replay()
        dist.send(y, 1)
    elif rank == 1:
        y = new()
        dist.recv(y, 0)
    else:
        y = new(6)
    torch.cuda.synchronize()
    return {"right": same(y, 6)}


@program
def one_rank_captures_and_the_others_do_not(rank, world):
    fill, reduce, right = all_reduce(rank, world)
    fill(0)
    if rank == 0:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            reduce()
        reduce = graph.replay
    good = True
    for k in range(REPLAYS):
        fill(k)
        reduce()
        torch.cuda.synchronize()
        good = good and right(k)
    return {"right": good}


@program
def a_rank_that_raises_before_the_call(rank, world):
    """The others get PyTorch's error after its timeout; their memory is sound."""
    if rank == 0:
        time.sleep(25)  # it does not come; its store stays
        return {"right": True}
    x, said = new(1), None
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            dist.all_reduce(x)
    except Exception as error:
        said = type(error).__name__
    torch.cuda.set_stream(torch.cuda.default_stream())
    y = [new(each) for each in range(4)]
    torch.cuda.synchronize()
    good = said is not None and all(same(each, i) for i, each in enumerate(y)) and same(x, 1)
    return {"right": good, "why": f"the error: {said}"}


# A program's group has another timeout, or is made with the device.
TIMEOUTS = {"a_rank_that_raises_before_the_call": 8}


def rank_of(name, mode, rank, world, store, side, with_device):
    if side == "Weir":
        import weir
        weir.enable("full")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="file://" + store, rank=rank, world_size=world,
                            timeout=datetime.timedelta(seconds=TIMEOUTS.get(name, 60)),
                            device_id=torch.device("cuda", rank) if with_device else None)
    if name in PROGRAMS:
        return PROGRAMS[name](rank, world)
    return capture_and_launch(OPERATIONS[name], rank, world, mode)


def child(folder, job, rank):
    """A process of one rank, forked from one that has imported PyTorch and used no CUDA."""
    out = os.open(os.path.join(folder, f"said{rank}"), os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    try:
        result = rank_of(rank=rank, store=os.path.join(folder, "store"), **job)
    except BaseException as error:
        while error.__context__ is not None:  # the end of a broken capture hides what broke it
            error = error.__context__
        result = {"right": False, "why": f"{type(error).__name__}: {str(error).strip()[:300]}"}
    pathlib.Path(folder, f"result{rank}").write_text(json.dumps(result))
    os._exit(0)


class Pair:
    """The processes of one world, which start when this is made."""

    def __init__(self, job, until):
        self.job, self.end = job, min(time.monotonic() + PAIR_SECONDS, until)
        self.folder = tempfile.TemporaryDirectory()
        self.pids = {}
        for rank in range(job["world"]):
            pid = os.fork()
            if pid == 0:
                child(self.folder.name, job, rank)
            self.pids[pid] = rank

    def is_over(self):
        """Have all ended? Those that take too long are ended here."""
        late = time.monotonic() > self.end
        for pid in list(self.pids):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self.pids[pid]
        self.hung = sorted(self.pids.values())
        if not late:
            return not self.pids
        for pid in self.pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        return True

    def result(self):
        """Rank 0's; or that of the first which was not right."""
        with self.folder:
            results = [self._of(rank) for rank in range(self.job["world"])]
        return next((each for each in results if not each["right"]), results[0])

    def _of(self, rank):
        path = pathlib.Path(self.folder.name, f"result{rank}")
        if path.exists():
            return json.loads(path.read_text())
        said = pathlib.Path(self.folder.name, f"said{rank}")
        why = "did not end" if rank in self.hung else "died"
        text = said.read_text(errors="replace").strip()[-300:] if said.exists() else ""
        return {"right": False, "why": f"rank {rank} {why}: {text}"}


def run_all(jobs, at_once, until):
    """Each job, and what came of it, as they end."""
    waiting, running = list(reversed(jobs)), []
    while waiting or running:
        while waiting and len(running) < at_once and time.monotonic() < until:
            running.append(Pair(waiting.pop(), until))
        if waiting and not running:
            yield from ((job, {"right": False, "why": "not run: no time left"}) for job in waiting)
            return
        for pair in [each for each in running if each.is_over()]:
            running.remove(pair)
            yield pair.job, pair.result()
        time.sleep(0.02)


def gpus():
    done = subprocess.run([sys.executable, "-c", "import torch; print(torch.cuda.device_count())"],
                          capture_output=True, text=True, check=True)
    return int(done.stdout)


def jobs_of(arguments):
    two = {"send_recv", "a_pipelines_first_stage_captures_alone", "batch_isend_irecv",
           "a_rank_that_raises_before_the_call"}
    names = [each for each in (*PROGRAMS, *OPERATIONS)
             if (not arguments.only or each in arguments.only) and (arguments.world > 1 or each not in two)]
    jobs = []
    for name in names:
        for mode in MODES if name in OPERATIONS else ("",):
            jobs += [{"name": name, "mode": mode, "world": arguments.world, "side": arguments.side,
                      "with_device": False}] * arguments.processes
    if not arguments.only:
        jobs += [{"name": "all_reduce", "mode": "global", "world": arguments.world,
                  "side": arguments.side, "with_device": True}]
    return jobs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=220)
    parser.add_argument("--side", choices=("Weir", "native"), default="Weir")
    parser.add_argument("--only", nargs="+", choices=(*OPERATIONS, *PROGRAMS), default=[])
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if gpus() < arguments.world:
        print(f"there are fewer than {arguments.world} GPUs")
        return 77
    until = time.monotonic() + arguments.seconds
    rows = {}
    for job, result in run_all(jobs_of(arguments), arguments.at_once, until):
        key = job["name"] + (", with device_id" if job["with_device"] else "")
        row = rows.setdefault(key, {}).setdefault(job["mode"] or "-", {"right": 0, "of": 0, "why": {}})
        row["of"] += 1
        row["right"] += result["right"]
        if not result["right"]:
            row["why"][result["why"]] = row["why"].get(result["why"], 0) + 1
        row["memory"] = [result.get("reserved"), result.get("allocated")]
    for key, modes in rows.items():
        counts = "  ".join(f"{mode} {row['right']}/{row['of']}" for mode, row in modes.items())
        print(f"{key:42} {counts}", flush=True)
    for key, modes in rows.items():
        for mode, row in modes.items():
            for why, count in row["why"].items():
                print(f"{key}, {mode}, {count} times: {why}")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=2) + "\n")
    return 0 if all(row["right"] == row["of"] for modes in rows.values() for row in modes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
