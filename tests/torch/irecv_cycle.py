# SPDX-License-Identifier: Apache-2.0
"""Rank 0 posts a receive early, then computes on other streams what rank 1 needs before it answers.

usage: [python -m weir run] irecv_cycle.py [--connections 32] [--seconds 20]       two GPUs

With PyTorch's own allocator it ends: no stream of rank 0's waits for the receive. An allocator that has
one of them wait for "all work queued so far", since a tensor's memory goes from one stream to another,
has both ranks wait for each other for ever. Prints a line; exit 0 if both ranks ended, 1 if not.

Everything that the program does it has done once before: CUDA loads a kernel when it is first launched,
and waits for all running kernels meanwhile, the receive among them. And streams that share a connection
to the GPU may wait for each other (CUDA_DEVICE_MAX_CONNECTIONS, 8 by default): there are enough here.
"""

import argparse
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

LARGE = 1 << 27  # floats: 512 MiB
SMALL = 1 << 20


def weir_is_on():
    weir = sys.modules.get("weir")
    return bool(weir is not None and weir.enabled())


class Rank0:
    def __init__(self, early, late):
        self.early, self.late = early, late
        self.a, self.b = torch.cuda.Stream(), torch.cuda.Stream()
        self.answer = torch.zeros(SMALL, device="cuda")

    def run(self, posts_early):
        self.answer.zero_()
        torch.cuda.synchronize()
        work = dist.irecv(self.answer, 1, group=self.early) if posts_early else None
        with torch.cuda.stream(self.a):
            x = torch.ones(LARGE, device="cuda")
            del x
        with torch.cuda.stream(self.b):
            y = torch.ones(LARGE, device="cuda")
            part = y[:SMALL] * 3
            dist.send(part, 1, group=self.late)
        if work is None:
            work = dist.irecv(self.answer, 1, group=self.early)
        work.wait()


class Rank1:
    def __init__(self, early, late):
        self.early, self.late = early, late
        self.answer = torch.zeros(SMALL, device="cuda")

    def run(self, posts_early):
        self.answer.zero_()
        torch.cuda.synchronize()
        dist.recv(self.answer, 0, group=self.late)
        self.answer += 1
        dist.send(self.answer, 0, group=self.early)


def worker(rank, results, store, seconds, with_weir):
    if with_weir and not weir_is_on():  # a spawned process has it only with WEIR_ENABLE=1
        import weir
        weir.enable()
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="file://" + store, rank=rank, world_size=2)
    program = (Rank0, Rank1)[rank](dist.new_group([0, 1]), dist.new_group([0, 1]))
    program.run(posts_early=False)
    torch.cuda.synchronize()
    dist.barrier()
    assert program.answer[0].item() == 4
    torch.cuda.synchronize()
    results.put((rank, "ready"))
    program.run(posts_early=True)
    done = torch.cuda.Event()
    done.record()
    end = time.monotonic() + seconds
    while not done.query() and time.monotonic() < end:
        time.sleep(0.02)
    results.put((rank, "right" if done.query() and program.answer[0].item() == 4 else "hangs"))
    results.close()
    results.join_thread()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=20)
    arguments = parser.parse_args()
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = str(arguments.connections)
    context = mp.get_context("spawn")
    results = context.Queue()
    said = {}
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=worker, args=(rank, results, os.path.join(folder, "store"),
                                                      arguments.seconds, weir_is_on()))
                 for rank in range(2)]
        for each in ranks:
            each.start()
        try:
            while len(said) < 2 or "ready" in said.values():
                rank, what = results.get(timeout=arguments.seconds + 60)
                said[rank] = what
        except Exception as error:
            said["error"] = type(error).__name__
        for each in ranks:
            each.kill()
            each.join()
    right = said == {0: "right", 1: "right"}
    print(f"irecv_cycle {'OK' if right else 'WRONG'} {said}{' (Weir)' if weir_is_on() else ''}", flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
