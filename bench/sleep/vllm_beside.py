# SPDX-License-Identifier: Apache-2.0
"""Sleep and wake of Weir beside vLLM's own allocator: the same program, each in a process of its own.

usage: vllm_beside.py [--with NAME]... [--weights GIB] [--cache GIB] [--cycles N] [--json FILE]

NAME: weir           weir.sleep() and weir.wake(); no pinned memory is kept while awake
      weir_kept      ... pinned memory is kept
      weir_backend   Weir's sleep-mode backend, called by vLLM's interface
      vllm           vLLM's CuMemAllocator
Default: each of them in turn. Needs PyTorch with CUDA, the Weir package with the full backend, and
vLLM for the last two: a name that can't run is reported, and the rest runs.

The weights are tensors of mixed sizes whose bytes must be the same after each wake; the cache's bytes
are dropped, and new ones are written and read after each wake. Prints for each cycle:

    asleep, awake   seconds of the call, until the device is idle; GiB of the weights a second
    left            MiB in use on the GPU while asleep, beyond what the process had before it
                    allocated its first tensor
    host            MiB of this process in the host's memory after the wake (VmRSS), and by how much
                    the host's available memory fell since the start, which counts pinned memory too

Exits with 1 where bytes are wrong or a process failed.
"""
import argparse
import contextlib
import gc
import importlib
import json
import os
import pathlib
import subprocess
import sys
import time
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from arguments import real_number, whole_number  # noqa: E402
from machine import machine  # noqa: E402

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
NAMES = ("weir", "weir_kept", "weir_backend", "vllm")
TAGS = ("weights", "kv_cache")
WEIGHT_SIZES = (512 * MIB, 4 * KIB, 256 * MIB, 100 * KIB, 128 * MIB, 64 * MIB, 12 * KIB, 32 * MIB,
                16 * MIB, 8 * MIB, 3 * MIB, 2 * MIB, MIB, 500 * KIB)
CACHE_SIZE = 256 * MIB
CHUNK = 16 * MIB  # of int32, that a pattern is written and compared in
ODD = 40503


class Weir:
    def __init__(self, keeps):
        import weir

        weir.enable()
        self.weir = weir
        self.keep_host = 1 << 40 if keeps else 0

    def region(self, tag):
        return self.weir.tag(tag, contents="discard" if tag == "kv_cache" else "backup")

    def sleep(self):
        self.weir.sleep(TAGS)

    def wake(self):
        self.weir.wake(TAGS, keep_host=self.keep_host)


class WeirBackend:
    """As vLLM's worker calls it."""

    def __init__(self):
        import weir
        import weir.vllm

        weir.enable()
        weir.vllm.register()
        allocators = importlib.import_module("vllm.device_allocator")
        backends = importlib.import_module("vllm.device_allocator.sleep_mode_backend")
        self.pools = allocators.get_mem_allocator_instance()
        self.backend = backends.SleepModeBackendFactory.create_backend(
            types.SimpleNamespace(sleep_mode_backend="weir"))

    def region(self, tag):
        return self.pools.use_memory_pool(tag=tag)

    def sleep(self):
        self.backend.suspend(level=1)

    def wake(self):
        self.backend.resume()


class Vllm:
    def __init__(self):
        cumem = importlib.import_module("vllm.device_allocator.cumem")
        self.pools = cumem.CuMemAllocator.get_instance()

    def region(self, tag):
        return self.pools.use_memory_pool(tag=tag)

    def sleep(self):
        self.pools.sleep(offload_tags=("weights",))

    def wake(self):
        self.pools.wake_up()


def made(name):
    return {"weir": lambda: Weir(keeps=False), "weir_kept": lambda: Weir(keeps=True),
            "weir_backend": WeirBackend, "vllm": Vllm}[name]()


def sizes_of(total, sizes):
    """Sizes in turn, as many as fit into `total`."""
    while total >= min(sizes):
        for size in sizes:
            if size <= total:
                yield size
                total -= size


def chunks(torch, tensor, seed):
    """The tensor in pieces, each with what is meant to be in it."""
    pattern = torch.arange(min(CHUNK, tensor.numel()), dtype=torch.int32, device=tensor.device) * ODD
    for number, piece in enumerate(tensor.split(CHUNK)):
        yield piece, pattern[:piece.numel()] + (seed * 7919 + number)


def fill(torch, tensors, seed):
    for number, tensor in enumerate(tensors):
        for piece, meant in chunks(torch, tensor, seed + number):
            piece.copy_(meant)


def wrong_tensors(torch, tensors, seed):
    return sum(not all(torch.equal(piece, meant)
                       for piece, meant in chunks(torch, tensor, seed + number))
               for number, tensor in enumerate(tensors))


def give_idle_memory_back(torch):
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()


def used(torch):
    free, total = torch.cuda.mem_get_info()
    return total - free


def proc(path, name):
    """Bytes that a line of /proc says."""
    for line in pathlib.Path(path).read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * KIB
    return 0


def timed(torch, call):
    begun = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def plain_copies(torch):
    """GiB/s of one pinned copy to the host and back."""
    device = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    host = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
    host.copy_(device)
    return [1 / min(timed(torch, copy) for _ in range(3))
            for copy in (lambda: host.copy_(device, non_blocking=True),
                         lambda: device.copy_(host, non_blocking=True))]


def allocated(torch, memory, tag, total, sizes):
    with memory.region(tag):
        return [torch.empty(size // 4, dtype=torch.int32, device="cuda")
                for size in sizes_of(total, sizes)]


def cycle(torch, memory, number, weights, cache, weights_gib, start):
    give_idle_memory_back(torch)
    asleep = timed(torch, memory.sleep)
    left = used(torch) - start["used"]
    awake = timed(torch, memory.wake)
    host = {"rss": proc("/proc/self/status", "VmRSS"),
            "taken": start["available"] - proc("/proc/meminfo", "MemAvailable")}
    wrong = wrong_tensors(torch, weights, seed=1)
    fill(torch, cache, seed=1000 * (number + 1))
    wrong_cache = wrong_tensors(torch, cache, seed=1000 * (number + 1))
    return {"asleep_s": asleep, "awake_s": awake, "asleep_gib_s": weights_gib / asleep,
            "awake_gib_s": weights_gib / awake, "left_bytes": left, "host_rss_bytes": host["rss"],
            "host_taken_bytes": host["taken"], "wrong_weights": wrong, "wrong_cache": wrong_cache}


def run(name, arguments):
    import torch

    memory = made(name)
    torch.cuda.init()
    plain = plain_copies(torch)
    with contextlib.suppress(AttributeError):
        torch._C._host_emptyCache()
    give_idle_memory_back(torch)
    start = {"used": used(torch), "available": proc("/proc/meminfo", "MemAvailable")}
    weights = allocated(torch, memory, "weights", int(arguments.weights * GIB), WEIGHT_SIZES)
    cache = allocated(torch, memory, "kv_cache", int(arguments.cache * GIB), (CACHE_SIZE,))
    addresses = [tensor.data_ptr() for tensor in weights + cache]
    fill(torch, weights, seed=1)
    give_idle_memory_back(torch)
    held = used(torch) - start["used"]
    weights_gib = sum(tensor.nbytes for tensor in weights) / GIB
    print(f"{name}: {len(weights)} tensors of weights, {weights_gib:.2f} GiB; {len(cache)} of the "
          f"cache; {held / GIB:.2f} GiB in use; plain copies {plain[0]:.1f} and {plain[1]:.1f} GiB/s",
          flush=True)
    cycles = []
    for number in range(arguments.cycles):
        one = cycle(torch, memory, number, weights, cache, weights_gib, start)
        cycles.append(one)
        print(f"  cycle {number}: asleep {one['asleep_s']:.3f} s {one['asleep_gib_s']:.1f} GiB/s, "
              f"awake {one['awake_s']:.3f} s {one['awake_gib_s']:.1f} GiB/s, left "
              f"{one['left_bytes'] / MIB:.0f} MiB, host {one['host_rss_bytes'] / MIB:.0f} and "
              f"{one['host_taken_bytes'] / MIB:.0f} MiB, wrong: {one['wrong_weights']} weights, "
              f"{one['wrong_cache']} of the cache", flush=True)
    moved = addresses != [tensor.data_ptr() for tensor in weights + cache]
    print(json.dumps({"with": name, "torch": torch.__version__, "weights_gib": weights_gib,
                      "cache_gib": arguments.cache, "tensors": len(weights), "held_bytes": held,
                      "plain_gib_s": plain, "moved": moved, "cycles": cycles}), flush=True)
    return any(one["wrong_weights"] or one["wrong_cache"] for one in cycles) or moved


def run_apart(name, arguments):
    """One name in a process of its own. Its line of JSON; None where it failed."""
    command = [sys.executable, __file__, "--with", name, "--one", "--weights", str(arguments.weights),
               "--cache", str(arguments.cache), "--cycles", str(arguments.cycles)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.splitlines()
    found = json.loads(lines.pop()) if lines and lines[-1].startswith("{") else None
    print("\n".join(lines), flush=True)
    if done.returncode != 0:
        print(f"{name}: failed, exit status {done.returncode}", flush=True)
    return found if done.returncode == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--with", action="append", choices=NAMES, dest="names")
    parser.add_argument("--weights", type=real_number(0.001, 1024), default=16, metavar="GIB")
    parser.add_argument("--cache", type=real_number(0.25, 1024), default=8, metavar="GIB")
    parser.add_argument("--cycles", type=whole_number(1, 1000), default=5)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        return int(run(arguments.names[0], arguments))
    found = [run_apart(name, arguments) for name in arguments.names or NAMES]
    text = json.dumps({"machine": machine(no_gpu=False), "runs": [one for one in found if one]})
    print(text)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(text + "\n")
    return int(None in found)


if __name__ == "__main__":
    sys.exit(main())
