# SPDX-License-Identifier: Apache-2.0
"""Random programs (generate.py) in one process for as long as asked, and what the process holds after them.

usage: python [-m weir run] tests/torch/contract/soak.py --seconds N --samples FILE [--first-seed S]

tools/checks/soak starts it, and has weir_soak judge the samples. Without `-m weir run` PyTorch's own allocator serves
the programs, to compare. Each program ends with all its tensors gone
and the caches emptied, so that a sample shows what is left. Exit: 0 each program was right; 1 one was not, or
took the process with it; 77 without a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time

SAMPLE_SECONDS = 1.0
# By name: growth over the second half that is no reason to fail, and the same as a share of the mean.
QUANTITIES = {
    "resident KiB": (16384, 0.02),
    "process mappings": (32, 0.02),
    "threads": (0.5, 0),
    "descriptors": (1.5, 0),
    "device mappings": (16, 0.05),
    "reserved KiB": (4096, 0.05),
}


def process_sample():
    """Of this process, as the kernel has it."""
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    with open("/proc/self/maps") as file:
        mappings = sum(1 for _ in file)
    return {"resident KiB": resident / 1024, "process mappings": mappings,
            "threads": len(os.listdir("/proc/self/task")),
            "descriptors": len(os.listdir("/proc/self/fd")) - 1}  # the folder itself was open


class Samples:
    """A file as weir_soak --judge reads it."""

    def __init__(self, path):
        self.file = open(path, "w")
        self.file.write(",".join(["seconds", *(f"{name}:{slack}:{share}"
                                               for name, (slack, share) in QUANTITIES.items())]) + "\n")

    def add(self, seconds, values):
        row = [f"{seconds:.2f}"]
        row += [str(round(values[name], 2)) if name in values else "" for name in QUANTITIES]
        self.file.write(",".join(row) + "\n")
        self.file.flush()


def soak(run, device_sample, seconds, samples, seeds, now=time.monotonic, sample_seconds=SAMPLE_SECONDS):
    """Runs run(seed) for so long. Returns how many programs ran, and those that failed: (seed, what)."""
    start = last = now()
    ran, failed = 0, []
    for seed in seeds:
        if now() - start >= seconds:
            break
        result = run(seed)
        ran += 1
        if result["outcome"] not in ("right", "memory"):
            failed.append((seed, f"{result['outcome']}: {result['message']}"))
            print(f"FAILED: seed {seed}: {failed[-1][1]}", flush=True)
        if result["outcome"] == "crash":
            break
        if now() - last >= sample_seconds:
            last = now()
            samples.add(last - start, {**process_sample(), **device_sample()})
    return ran, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--samples", required=True, metavar="FILE")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--spin-ms", type=float, default=6.0)
    options = parser.parse_args()
    import ways
    if ways.gpu_count() == 0:
        print("no GPU here")
        return 77
    import torch
    import weir

    import execute
    import generate
    machine = execute.Machine()

    def run(seed):
        return execute.run(machine, generate.random_program(seed, options.spin_ms))

    def device_sample():
        sample = {"reserved KiB": torch.cuda.memory_reserved() / 1024}
        return {**sample, "device mappings": weir.stats()["mappings"]} if weir.enabled() else sample

    ran, failed = soak(run, device_sample, options.seconds, Samples(options.samples),
                       itertools.count(options.first_seed))
    print(f"{ran} programs with {weir.enabled() or 'no'} weir, {len(failed)} failed")
    sys.stdout.flush()
    os._exit(1 if failed else 0)  # how a process ends is not what is tested here


if __name__ == "__main__":
    sys.exit(main())
