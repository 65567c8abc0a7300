# SPDX-License-Identifier: Apache-2.0
"""Small programs that are right with PyTorch's own allocator, and rely on it to be.

usage: programs.py NAME [--trials N]    or    programs.py --list

They are of rows of docs/guarantees.md that no short program of generate.py has the form of. Each program
checks its results by value, several times, since a race needs luck.

The last line that starts with RESULT holds JSON: outcome (right, wrong, error, unsupported, skip) and
message. run_programs.py runs all of them with several allocators.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

try:
    import torch
except ImportError:  # the list of programs needs none
    torch = None

ELEMENTS = 1 << 26  # of float32: 256 MiB
CYCLES_PER_MS = int(os.environ.get("SPIN_CYCLES_PER_MS", "1900000"))
SPIN_MS = float(os.environ.get("SPIN_MS", "40"))

PROGRAMS: dict[str, Program] = {}


class Program:
    def __init__(self, name, title, trial, environment, trials, gpus, loses_device):
        self.name, self.title, self.trial = name, title, trial
        self.environment = environment  # needed by the program, with every allocator
        self.trials = trials
        self.gpus = gpus  # that it needs
        self.loses_device = loses_device  # nothing can be done there afterwards


class Skipped(Exception):
    """The program can't run here; the message says why."""


def program(name, title, environment=None, trials=5, gpus=1, loses_device=False):
    def add(trial):
        PROGRAMS[name] = Program(name, title, trial, environment or {}, trials, gpus, loses_device)
        return trial
    return add


# Rows that neither these programs nor random ones show.
NOT_SHOWN = {"3c": "record_stream on a MemPool(allocator): source_pools_test.cc, as 6 and 7",
             "9": "trackers get every entry without history on: they are attached in C++ only",
             "11": "peer access reaches opened shared memory: needs two GPUs and two processes",
             "21": "retries and errors in the statistics: tests on the fake runtime show them",
             "22": "frames and contexts in the history: gpu_test.py shows the ones, the fake runtime the others"}


# ---------------------------------------------------------------------------------------------------
# What the programs share.

def ones(elements=ELEMENTS):
    return torch.ones(elements, device="cuda")


def zeros(elements=ELEMENTS):
    return torch.zeros(elements, device="cuda")


def spin(milliseconds=None):
    """A kernel that keeps the current stream busy, and touches no memory."""
    torch.cuda._sleep(int((SPIN_MS if milliseconds is None else milliseconds) * CYCLES_PER_MS))


def on(stream):
    return torch.cuda.stream(stream)


def made_on(stream, elements=ELEMENTS):
    with on(stream):
        return ones(elements)


def read_late(x, made):
    """The sum of `x`, made on stream `made`, read on the current stream behind a long kernel.

    The host has waited for the stream `made`: only the current stream's own queue says that `x` is
    still in use.
    """
    torch.cuda.current_stream().wait_stream(made)
    made.synchronize()
    spin()
    return x.sum()


def expect(result, value, what):
    found = result.item()
    assert found == value, f"{what}: {found}, not {value}"


def expect_sum(y, elements=ELEMENTS):
    expect(y, float(elements), "the sum of the tensor read late")


def allocate_on(stream, value, count=2, elements=ELEMENTS):
    with on(stream):
        return [torch.full((elements,), float(value), device="cuda") for _ in range(count)]


class Streams:
    """The current stream and two side streams, the same in every trial."""

    main: torch.cuda.Stream
    side: torch.cuda.Stream
    third: torch.cuda.Stream

    @classmethod
    def make(cls):
        cls.main = torch.cuda.current_stream()
        cls.side, cls.third = torch.cuda.Stream(), torch.cuda.Stream()


class Driver:
    """The calls of the CUDA driver that PyTorch does not offer."""

    NON_BLOCKING = 1
    RELAXED = 2
    _library = None

    @classmethod
    def loaded(cls):
        if cls._library is None:
            cls._library = ctypes.CDLL("libcuda.so.1")
        return cls._library

    @classmethod
    def check(cls, call, *arguments):
        torch.cuda.current_stream()  # makes the context, in this thread too
        status = getattr(cls.loaded(), call)(*arguments)
        if status != 0:
            raise RuntimeError(f"{call} returned {status}")

    @classmethod
    def external_stream(cls):
        handle = ctypes.c_void_p()
        cls.check("cuStreamCreate", ctypes.byref(handle), ctypes.c_uint(cls.NON_BLOCKING))
        return torch.cuda.ExternalStream(handle.value)

    @classmethod
    def destroy(cls, stream):
        cls.check("cuStreamDestroy_v2", ctypes.c_void_p(stream.cuda_stream))

    @classmethod
    def begin_capture(cls, stream):
        """As another library does, whose captures PyTorch hears nothing of."""
        cls.check("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.cuda_stream),
                  ctypes.c_int(cls.RELAXED))

    @classmethod
    def end_capture(cls, stream):
        """How many nodes the graph has, which is destroyed."""
        graph, nodes = ctypes.c_void_p(), ctypes.c_size_t()
        status = cls.loaded().cuStreamEndCapture(ctypes.c_void_p(stream.cuda_stream),
                                                 ctypes.byref(graph))
        assert status == 0, f"the capture was broken: cuStreamEndCapture returned {status}"
        cls.check("cuGraphGetNodes", graph, None, ctypes.byref(nodes))
        cls.check("cuGraphDestroy", graph)
        return nodes.value

    @classmethod
    def has_context(cls, device):
        flags, active = ctypes.c_uint(), ctypes.c_int()
        number = ctypes.c_int()
        cls.check("cuDeviceGet", ctypes.byref(number), ctypes.c_int(device))
        cls.check("cuDevicePrimaryCtxGetState", number, ctypes.byref(flags), ctypes.byref(active))
        return active.value != 0

    @classmethod
    def block_of(cls, address):
        """Start and bytes of the driver's allocation at `address`; None where there is none."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        status = cls.loaded().cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size),
                                                       ctypes.c_uint64(address))
        return (base.value, size.value) if status == 0 else None


class SourceAllocator:
    """An allocator for MemPool(allocator): cuMemAlloc and cuMemFree."""

    SOURCE = r"""
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

typedef int (*alloc_t)(unsigned long long*, size_t);
typedef int (*free_t)(unsigned long long);

static void* driver(const char* name) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  return library ? dlsym(library, name) : NULL;
}

#ifdef __cplusplus
extern "C" {
#endif
void* source_malloc(size_t size, int device, void* stream) {
  unsigned long long address = 0;
  alloc_t alloc = (alloc_t)driver("cuMemAlloc_v2");
  (void)device; (void)stream;
  if (!alloc || alloc(&address, size) != 0) { fprintf(stderr, "cuMemAlloc failed\n"); return NULL; }
  return (void*)address;
}
void source_free(void* address, size_t size, int device, void* stream) {
  free_t release = (free_t)driver("cuMemFree_v2");
  (void)size; (void)device; (void)stream;
  if (release) release((unsigned long long)address);
}
#ifdef __cplusplus
}
#endif
"""

    _made = None

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="source_allocator_")
        source = os.path.join(self._folder.name, "source.c")
        path = os.path.join(self._folder.name, "libsource.so")
        with open(source, "w") as file:
            file.write(self.SOURCE)
        compilers = [[name, "-shared", "-fPIC", "-O1"] for name in ("gcc", "cc", "clang", "g++")]
        compilers.append(["nvcc", "-shared", "-Xcompiler", "-fPIC", "-cudart", "none"])
        said = "there is no C compiler"
        for command in compilers:
            if shutil.which(command[0]) is None:
                continue
            done = subprocess.run([*command, "-o", path, source, "-ldl"], capture_output=True,
                                  text=True, timeout=60)
            if done.returncode == 0:
                break
            said = done.stderr[-500:]
        else:
            raise Skipped(f"the allocator for the pool could not be compiled: {said}")
        self._allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "source_malloc",
                                                                   "source_free")

    @classmethod
    def shared(cls):
        if cls._made is None:
            cls._made = cls()
        return cls._made

    def pool(self):
        return torch.cuda.MemPool(self._allocator.allocator())


class HostFlag:
    """A kernel that spins until the host sets a flag, or until `LIMIT_S` seconds have passed."""

    LIMIT_S = 4.0
    NAME = "spin_on_flag"
    SOURCE = r"""
extern "C" __global__ void spin_on_flag(const int* flag, const float* x, float* out, int limit_ms) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (*(volatile const int*)flag == 0 && now - start < 1000000ull * limit_ms);
  out[0] = x[0];
}
"""
    _launch = None

    def __init__(self):
        self.flag = torch.zeros(1, dtype=torch.int32, pin_memory=True)

    @classmethod
    def compile(cls):
        if cls._launch is not None:
            return
        try:
            kernel = torch.cuda._compile_kernel(cls.SOURCE, cls.NAME)

            def launch(flag, x, out, limit_ms):
                kernel(grid=(1, 1, 1), block=(1, 1, 1), args=[flag, x, out, limit_ms])
        except Exception as first:
            try:
                import cupy
                raw = cupy.RawKernel(cls.SOURCE, cls.NAME)
                raw.compile()
            except Exception as second:
                raise Skipped(f"no way to compile a kernel: {first}; {second}") from second

            def launch(flag, x, out, limit_ms):
                stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
                pointers = [cupy.uint64(t.data_ptr()) for t in (flag, x, out)]
                raw((1,), (1,), (*pointers, cupy.int32(limit_ms)), stream=stream)
        cls._launch = staticmethod(launch)

    def wait_for_it(self, x, out):
        type(self)._launch(self.flag, x, out, int(self.LIMIT_S * 1000))

    def set(self):
        self.flag.fill_(1)


def captured(body, stream, **options):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, **options):
        result = body()
    return graph, result


def captured_at_once(body, stream):
    """Without the wait for the device, and the empty_cache(), of torch.cuda.graph."""
    graph = torch.cuda.CUDAGraph()
    with on(stream):
        graph.capture_begin(capture_error_mode="relaxed")
        result = body()
        graph.capture_end()
    return graph, result


# ---------------------------------------------------------------------------------------------------
# 1: memory of a stream goes to others only through cudaFree.

def receiver(requests, answers):
    """A child: takes a tensor, waits for a word, sums the tensor behind a spin, drops it, answers."""
    try:
        while True:
            x = requests.get()
            if x is None:
                return
            answers.put("received")
            late = requests.get()
            if late:
                spin()
            y = x.sum()
            if not late:
                torch.cuda.synchronize()
            del x
            gc.collect()
            answers.put(y.item())
            del y
    except BaseException as error:  # the parent waits for an answer
        answers.put(f"{type(error).__name__}: {error}"[:500])
        raise


class Receiver:
    """A spawned process that runs receiver()."""

    def __init__(self):
        context = torch.multiprocessing.get_context("spawn")
        # A SimpleQueue pickles in put(), so that its errors are raised here.
        self.requests, self.answers = context.SimpleQueue(), context.Queue()
        self.process = context.Process(target=receiver, args=(self.requests, self.answers),
                                       daemon=True)
        self.process.start()

    def answer(self):
        answer = self.answers.get(timeout=40)
        if isinstance(answer, str) and answer != "received":
            raise RuntimeError(f"in the receiver: {answer}")
        return answer

    def send(self, x):
        self.requests.put(x)
        self.answer()

    def sum(self, late):
        """The child's sum of the tensor that was sent last, which the child drops."""
        self.requests.put(late)
        return self.answer()

    def end(self):
        self.requests.put(None)
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()


@program("1g", "a child process reads a shared tensor late and drops it", trials=1)
def _():
    child = Receiver()
    try:
        for _ in range(5):
            x = ones()
            torch.cuda.synchronize()
            child.send(x)
            found = child.sum(late=True)
            assert found == ELEMENTS, f"the child's sum: {found}, not {ELEMENTS}"
            del x
    finally:
        child.end()


@program("1i", "two graphs are captured on two streams, without a wait, beside a third one's reads")
def _():
    """PyTorch makes the seed and the offset of all graphs' random numbers as the first capture begins, and writes them
    as the second one begins, on its stream."""
    fourth = torch.cuda.Stream()
    with on(Streams.side):
        x = torch.full((850,), 7, dtype=torch.int32, device="cuda")
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    with on(Streams.third):
        spin()
        torch.sum(x, dim=0, out=total)
    x.record_stream(Streams.third)
    del x
    first = captured_at_once(lambda: spin(0.1), Streams.side)
    second = captured_at_once(lambda: spin(0.1), fourth)
    Streams.third.synchronize()
    expect(total, 850 * 7, "the sum of what the captures may not write")
    del first, second
    torch.cuda.empty_cache()


# ---------------------------------------------------------------------------------------------------
# 2: the allocator adds no dependency between streams.

@program("2", "a kernel spins on a host flag; another stream asks for a tensor of the same size",
         trials=2)
def _():
    HostFlag.compile()
    out, warm = zeros(1), ones(1024)
    flag = HostFlag()
    flag.set()
    flag.wait_for_it(warm, out)  # loads the kernel
    with on(Streams.third):
        warm.zero_()
    torch.cuda.synchronize()

    flag = HostFlag()
    x = made_on(Streams.side)
    with on(Streams.side):
        flag.wait_for_it(x, out)
    del x
    start = time.monotonic()
    with on(Streams.third):
        z = zeros()
        done = torch.cuda.Event()
        done.record()
    asked = time.monotonic() - start
    while not done.query() and time.monotonic() - start < HostFlag.LIMIT_S + 10:
        time.sleep(0.002)
    took = time.monotonic() - start
    flag.set()
    torch.cuda.synchronize()
    del z
    assert took < HostFlag.LIMIT_S / 2, (
        f"the third stream waited for the stream that spins on a host flag: {took:.1f} s "
        f"({asked:.1f} s of them in the request)")


# ---------------------------------------------------------------------------------------------------
# 3: record_stream.

@program("3a", "record_stream of another device's stream", gpus=2)
def _():
    there = torch.cuda.Stream(device="cuda:1")
    x = ones()
    torch.cuda.synchronize()
    with on(there):
        y = torch.empty(ELEMENTS, device="cuda:1")
        spin()
        event = torch.cuda.Event()
        event.record(there)
    Streams.side.wait_event(event)  # the copy runs behind the other device's spin
    with on(Streams.side):
        y.copy_(x, non_blocking=True)
    there.wait_stream(Streams.side)
    x.record_stream(there)
    del x
    z = zeros()
    there.synchronize()
    with torch.cuda.device(1):
        expect(y.sum(), float(ELEMENTS), "the sum of the copy on the other device")
    del z


@program("3b", "a recorded tensor is dropped while the recorded stream is captured")
def _():
    x = ones()
    x.record_stream(Streams.side)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g, stream=Streams.side):
        y = ones()
        del x
    z = zeros()
    g.replay()
    expect(y.sum(), float(ELEMENTS), "the sum of the graph's output")
    expect(z.sum(), 0.0, "the sum of a tensor made after the capture")
    del g, y, z
    torch.cuda.synchronize()


# ---------------------------------------------------------------------------------------------------
# 4, 5: streams that PyTorch does not own.

def external_stream_destroyed(dropped_first):
    stream = Driver.external_stream()
    x = made_on(stream)
    small = made_on(stream, 256)
    stream.synchronize()
    if dropped_first:
        del x, small
    Driver.destroy(stream)
    if not dropped_first:
        expect(x.sum() + small.sum(), float(ELEMENTS + 256), "the sum of the tensors")
        del x, small
    kept = allocate_on(Streams.main, 2, 2) + allocate_on(Streams.third, 2, 2)
    kept += allocate_on(Streams.main, 2, 64, 256) + allocate_on(Streams.third, 2, 64, 256)
    torch.cuda.synchronize()
    for each in kept:
        expect(each.sum(), 2.0 * each.numel(), "the sum of a tensor made afterwards")
    del kept, each
    torch.cuda.empty_cache()


@program("4", "made on an external stream, dropped, the stream destroyed; allocate")
def _():
    external_stream_destroyed(dropped_first=True)


@program("4-destroyed-first", "made on an external stream, the stream destroyed, dropped; allocate")
def _():
    external_stream_destroyed(dropped_first=False)


@program("5", "a capture that PyTorch did not begin: another stream allocates meanwhile")
def _():
    static = zeros(1024)
    Streams.side.wait_stream(torch.cuda.current_stream())
    with on(Streams.side):
        static.add_(1)  # loads the kernel
    torch.cuda.synchronize()
    x = made_on(Streams.side)
    with on(Streams.side):
        spin()
    del x
    Driver.begin_capture(Streams.side)
    try:
        with on(Streams.third):
            z = zeros()
            w = z.sum()
        with on(Streams.side):
            static.add_(1)
    finally:
        nodes = Driver.end_capture(Streams.side)
    assert nodes == 1, f"the captured graph has {nodes} nodes, not 1"
    Streams.third.synchronize()
    expect(w, 0.0, "the sum of the third stream's tensor")
    torch.cuda.synchronize()
    expect(static.sum(), 1024.0, "the sum of the captured stream's tensor")
    del z, w, static


@program("12", "PYTORCH_NO_CUDA_MEMORY_CACHING=1: every tensor is a cudaMalloc of its own",
         environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
def _():
    x = made_on(Streams.side)
    small = ones(1000)
    torch.cuda.synchronize()
    for name, tensor in (("large", x), ("small", small)):
        block = Driver.block_of(tensor.data_ptr())
        assert block is not None, f"the driver does not know the {name} tensor's address"
        assert block[0] == tensor.data_ptr(), (
            f"the {name} tensor lies {tensor.data_ptr() - block[0]} bytes inside an allocation")
    address = x.data_ptr()
    y = read_late(x, Streams.side)
    del x
    assert Driver.block_of(address) is None, "a dropped tensor's memory is still mapped"
    expect_sum(y)
    del small


@program("13", "what a receiver of shared memory gave back serves the sender's next request", trials=1)
def _():
    elements = 1 << 24
    child = Receiver()
    try:
        held = []
        for _ in range(8):
            x = ones(elements)
            torch.cuda.synchronize()
            child.send(x)
            del x  # the child still has it
            child.sum(late=False)
            held.append(torch.cuda.memory_reserved())
        grown = (held[-1] - held[1]) / (elements * 4)
        assert grown <= 1.5, f"memory grew by {grown:.1f} shared tensors in six rounds"
    finally:
        child.end()


@program("14", "a capture begins in the pool of a graph that runs: the host does not wait", trials=1)
def _():
    x, spins_ms = ones(1 << 20), 400
    pool, times = torch.cuda.graph_pool_handle(), []

    def long():
        spin(spins_ms)
        return x + 1

    g, y = captured(long, Streams.side, pool=pool)
    for _ in range(4):
        g.replay()
        start = time.monotonic()
        other = torch.cuda.CUDAGraph()
        with on(Streams.side):
            other.capture_begin(pool=pool)
            z = x + 2
            other.capture_end()
        times.append(time.monotonic() - start)
        torch.cuda.synchronize()
        del other, z
    del g, y, x
    assert min(times) < 0.25, f"a capture took {min(times) * 1000:.0f} ms of the host, at least"


# ---------------------------------------------------------------------------------------------------
# 16: captures that fail.

KEPT = []  # graphs that failed: PyTorch goes on calling their filters


def captures_give_memory_back(times=10):
    """What is dropped in captures is free after them."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(times):
        x = made_on(Streams.side, 1 << 24)
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g, stream=Streams.side):
            y = zeros(1024)
            del x
        g.replay()
        torch.cuda.synchronize()
        del g, y
        gc.collect()
    more = (torch.cuda.memory_allocated() - before) >> 20
    assert more < 128, f"{more} MiB more are allocated after {times} captures that dropped 64 MiB each"


@program("16", "a capture fails; what is dropped in later ones comes back", trials=2)
def _():
    failed = torch.cuda.CUDAGraph()
    KEPT.append(failed)
    with on(Streams.side):
        ones(8).sum().item()  # loads the kernels
    try:
        with torch.cuda.graph(failed, stream=Streams.side):
            ones(8).sum().item()
        raise Skipped("the capture did not fail")
    except RuntimeError:
        pass
    finally:
        torch.cuda.set_stream(Streams.main)  # torch.cuda.graph leaves another one
    captures_give_memory_back()


@program("16-never-begun", "a capture can't begin; what is dropped in later ones comes back", trials=2)
def _():
    refused = torch.cuda.CUDAGraph()
    KEPT.append(refused)
    Driver.begin_capture(Streams.third)
    try:
        with on(Streams.third):
            refused.capture_begin(capture_error_mode="relaxed")
        raise Skipped("the capture began")
    except RuntimeError:
        pass
    finally:
        Driver.end_capture(Streams.third)
    captures_give_memory_back()


# ---------------------------------------------------------------------------------------------------
# 19: another GPU.

@program("19", "the statistics of a GPU that is not in use make no context there", trials=1, gpus=2)
def _():
    ones(8).sum().item()
    statistics = torch.cuda.memory_stats(1)
    found = (torch.cuda.memory_allocated(1), torch.cuda.memory_reserved(1),
             statistics.get("allocated_bytes.all.peak", 0))
    torch.cuda.reset_peak_memory_stats(1)
    torch.cuda.reset_accumulated_memory_stats(1)
    torch.cuda.memory_snapshot()
    assert found == (0, 0, 0), f"GPU 1, not in use, has {found} bytes"
    assert not Driver.has_context(1), "GPU 1 has a context now"


# ---------------------------------------------------------------------------------------------------
# 20, 23: what else programs see.

@program("20", "a tensor of a MemPool with an allocator of its own is shared with a child", trials=1)
def _():
    child = Receiver()
    try:
        pool = SourceAllocator.shared().pool()
        with torch.cuda.use_mem_pool(pool):
            ones(1 << 20)
            x = ones(1 << 20)
        torch.cuda.synchronize()
        child.send(x)
        found = child.sum(late=False)
        assert found == 1 << 20, f"the child's sum: {found}, not {1 << 20}"
        del x, pool
    finally:
        child.end()


@program("23", "after a kernel's assertion a request for new memory raises AcceleratorError", trials=1,
         loses_device=True)
def _():
    x = ones(8)
    x[torch.tensor([1 << 20], device="cuda")]
    time.sleep(1)
    try:
        torch.empty(1 << 31, dtype=torch.uint8, device="cuda")
    except RuntimeError as error:
        kind = type(error).__name__
        assert kind == "AcceleratorError", f"{kind}: {one_line(error)}"
        return
    raise AssertionError("the request is granted")


# ---------------------------------------------------------------------------------------------------

def clean():
    gc.collect()
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()


def one_line(text):
    return " ".join(str(text).split())[:300]


def run(one, trials):
    """(outcome, message)"""
    trial = 0
    try:
        torch.cuda.init()
        Streams.make()
        for trial in range(trials):
            one.trial()
            if not one.loses_device:
                clean()
            print(f"trial {trial + 1} of {trials} is right", flush=True)
    except Skipped as reason:
        return "skip", one_line(reason)
    except AssertionError as wrong:
        traceback.print_exc()
        return "wrong", f"trial {trial + 1}: {one_line(wrong)}"
    except Exception as error:
        traceback.print_exc()
        if "does not yet support" in str(error):
            return "unsupported", one_line(error)
        return "error", f"trial {trial + 1}: {type(error).__name__}: {one_line(error)}"
    return "right", ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", nargs="?")
    parser.add_argument("--trials", type=int, help="instead of the program's own number")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list or options.name is None:
        for one in PROGRAMS.values():
            print(f"{one.name:<20} {one.title}")
        for name, why in NOT_SHOWN.items():
            print(f"{name:<20} not shown: {why}")
        return
    if options.name not in PROGRAMS:
        sys.exit(f"there is no program '{options.name}'")
    one = PROGRAMS[options.name]
    os.environ.update(one.environment)
    if torch is None or torch.cuda.device_count() < one.gpus:
        outcome, message = "skip", f"needs PyTorch with {one.gpus} GPU"
    else:
        outcome, message = run(one, options.trials or one.trials)
    print("RESULT " + json.dumps({"outcome": outcome, "message": message}), flush=True)
    sys.stderr.flush()
    if one.loses_device and outcome == "right":
        os._exit(0)
    if outcome in ("wrong", "error", "unsupported"):
        os._exit(1)  # what failed may not end well, and that would hide the reason


if __name__ == "__main__":
    main()
