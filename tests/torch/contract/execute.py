# SPDX-License-Identifier: Apache-2.0
"""Runs programs (program.py) with PyTorch on a GPU, and checks what their reads find.

usage: execute.py FILE [--repeat N] [--programs-seconds S]     FILE: a program as JSON on each line

Programs with collectives run on each rank of a group of NCCL's; without RANK, WORLD_SIZE and STORE (a
file that all ranks can reach) in the environment, on a group of one. Rank 0 speaks for all.

Fills and reads are kernels of its own, which allocate nothing: an element holds a number made of the
tensor's value and of its index; a read counts what differs, in a tensor that is there from beginning to
end. Prints BEGIN and END with JSON for each program; a program that loses CUDA's context ends the
process with status 3, one that can't be run at all with status 4.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import gc
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import torch

from program import COLLECTIVES, MAIN, MAX_PEER_BYTES, PEERS, SIDE, THREAD, needs_peer

LOST, UNUSABLE = 3, 4
OTHERS_SECONDS = 15  # that the other ranks may take longer for a program
THREAD_STEP = 10000  # the number of a thread's first step
SLEEP_CYCLES_PER_MS = 1_900_000  # of torch.cuda._sleep, where there are no kernels of ours
SINCE_2_14 = "capture_end_pre"  # a graph has it
LEAK_SPARE = 1 << 20  # bytes; a tensor is smaller often, but programs are many

KERNELS = r"""
#define EXPECTED(value, i) ((unsigned)(value) * 2654435761u + (unsigned)(i) * 2246822519u)

__device__ void differs(int* errors, int step, int i, unsigned found, unsigned expected) {
  atomicAdd(errors, 1);
  if (atomicCAS(errors + 1, 0, 1) == 0) {
    errors[2] = step; errors[3] = i; errors[4] = (int)found; errors[5] = (int)expected;
  }
  atomicMax(errors + 6, i + 1);
  atomicMax(errors + 7, 0x7fffffff - i);
}

extern "C" __global__ void fill(unsigned* data, int count, int value) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    data[i] = EXPECTED(value, i);
}

extern "C" __global__ void check(const unsigned* data, int count, int first, int period, int value,
                                 int step, int* errors) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    unsigned expected = EXPECTED(value, first + i % period);
    if (data[i] != expected) differs(errors, step, i, data[i], expected);
  }
}

extern "C" __global__ void compare(const unsigned* data, const unsigned* other, int count, int step,
                                   int* errors) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    if (data[i] != other[i]) differs(errors, step, i, data[i], other[i]);
}

extern "C" __global__ void spin(int microseconds) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < 1000ull * microseconds);
}
"""
NAMES = ("fill", "check", "compare", "spin")


class Cuda:
    """The driver's calls that PyTorch does not offer, and the kernels."""

    NON_BLOCKING = 1
    RELAXED = 2

    def __init__(self):
        self._library = ctypes.CDLL("libcuda.so.1")
        torch.cuda.init()
        torch.empty(1, device="cuda")  # makes the context
        self._context = ctypes.c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(self._context))
        self._functions = self._load()

    def call(self, name, *arguments):
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            said = ctypes.c_char_p()
            self._library.cuGetErrorName(ctypes.c_int(status), ctypes.byref(said))
            raise RuntimeError(f"CUDA error: {name}: {(said.value or b'?').decode()} ({status})")

    def use_context(self):
        """A thread that is new to CUDA calls this first."""
        self.call("cuCtxSetCurrent", self._context)

    def _load(self):
        try:
            image, names = self._with_nvrtc()
        except Exception as first:
            try:
                image, names = self._with_nvcc(), NAMES
            except Exception as second:
                raise RuntimeError(f"no way to compile kernels: {first}; {second}") from second
        module, found = ctypes.c_void_p(), {}
        self.call("cuModuleLoadData", ctypes.byref(module), image)
        for name, symbol in zip(NAMES, names):
            function = ctypes.c_void_p()
            self.call("cuModuleGetFunction", ctypes.byref(function), module, symbol.encode())
            found[name] = function
        return found

    @staticmethod
    def _architecture():
        return "sm_%d%d" % torch.cuda.get_device_capability()

    @classmethod
    def _with_nvrtc(cls):
        version = torch.version.cuda.split(".")[0]
        library = None
        wheels = [path for folder in sys.path
                  for path in glob.glob(f"{folder}/nvidia/*/lib/libnvrtc.so.{version}")]
        for name in (f"libnvrtc.so.{version}", "libnvrtc.so", *wheels):
            try:
                library = ctypes.CDLL(name)
                break
            except OSError:
                continue
        if library is None:
            raise RuntimeError("there is no NVRTC")

        def check(status, what):
            if status != 0:
                raise RuntimeError(f"{what} returned {status}")

        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        check(library.nvrtcCreateProgram(ctypes.byref(program), KERNELS.encode(), b"kernels.cu", 0,
                                         None, None), "nvrtcCreateProgram")
        options = (ctypes.c_char_p * 1)(f"--gpu-architecture={cls._architecture()}".encode())
        check(library.nvrtcCompileProgram(program, 1, options), "nvrtcCompileProgram")
        check(library.nvrtcGetCUBINSize(program, ctypes.byref(size)), "nvrtcGetCUBINSize")
        image = ctypes.create_string_buffer(size.value)
        check(library.nvrtcGetCUBIN(program, image), "nvrtcGetCUBIN")
        return image, NAMES

    @classmethod
    def _with_nvcc(cls):
        with tempfile.TemporaryDirectory() as folder:
            source, path = os.path.join(folder, "k.cu"), os.path.join(folder, "k.cubin")
            with open(source, "w") as file:
                file.write(KERNELS)
            nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
            subprocess.run([nvcc, f"-arch={cls._architecture()}", "-cubin", "-o", path, source],
                           check=True, capture_output=True, timeout=60)
            with open(path, "rb") as file:
                image = file.read()
        return ctypes.create_string_buffer(image, len(image))

    def launch(self, name, stream, count, *arguments):
        """Addresses are given as c_void_p, numbers as c_int."""
        pointers = (ctypes.c_void_p * len(arguments))(
            *[ctypes.cast(ctypes.pointer(each), ctypes.c_void_p).value for each in arguments])
        blocks = max(1, min(1056, (count + 255) // 256)) if count > 1 else 1
        self.call("cuLaunchKernel", self._functions[name], blocks, 1, 1, 256 if count > 1 else 1, 1,
                  1, 0, ctypes.c_void_p(stream.cuda_stream), pointers, None)

    def stream_new(self):
        handle = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(handle), ctypes.c_uint(self.NON_BLOCKING))
        return torch.cuda.ExternalStream(handle.value)

    def stream_destroy(self, stream):
        self.call("cuStreamDestroy_v2", ctypes.c_void_p(stream.cuda_stream))

    def capture_begin(self, stream):
        """As another library does."""
        self.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.cuda_stream),
                  ctypes.c_int(self.RELAXED))

    def capture_end(self, stream):
        """How many nodes the graph had."""
        graph, nodes = ctypes.c_void_p(), ctypes.c_size_t()
        self.call("cuStreamEndCapture", ctypes.c_void_p(stream.cuda_stream), ctypes.byref(graph))
        self.call("cuGraphGetNodes", graph, None, ctypes.byref(nodes))
        self.call("cuGraphDestroy", graph)
        return nodes.value


class RawBlock:
    """Memory of torch.cuda.caching_allocator_alloc, as far as a program uses a tensor."""

    def __init__(self, size, stream):
        self._size = size
        self._address = torch.cuda.caching_allocator_alloc(size, stream=stream.cuda_stream)

    def __del__(self):
        torch.cuda.caching_allocator_delete(self._address)

    def numel(self):
        return self._size // 4

    def data_ptr(self):
        return self._address


class Peer:
    """GPU 1, whose streams copy tensors of GPU 0 by peer access."""

    def __init__(self, cuda):
        self._cuda = cuda
        for here, there in (("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")):  # peer access is on, both ways
            torch.ones(8, device=here).to(there).sum().item()
        self.streams = {name: torch.cuda.Stream(1) for name in PEERS}
        self._room = torch.empty(MAX_PEER_BYTES // 4, dtype=torch.int32, device="cuda:1")
        self._copied = []  # (step, the first element in the room, how many, value)
        self._used = 0
        self.synchronize()

    @staticmethod
    def synchronize():
        torch.cuda.synchronize(1)

    def spin(self, stream, milliseconds):
        with torch.cuda.device(1), torch.cuda.stream(stream):
            torch.cuda._sleep(int(milliseconds * SLEEP_CYCLES_PER_MS))

    def copy(self, tensor, stream, value, step):
        count = tensor.numel()
        with torch.cuda.device(1), torch.cuda.stream(stream):
            self._cuda.call("cuMemcpyAsync", ctypes.c_uint64(self._room.data_ptr() + 4 * self._used),
                            ctypes.c_uint64(tensor.data_ptr()), ctypes.c_size_t(4 * count),
                            ctypes.c_void_p(stream.cuda_stream))
        self._copied.append((step, self._used, count, value))
        self._used += count

    def take(self):
        """(step, the copied tensor on GPU 0, value) of each copy; all are forgotten then."""
        copied, self._copied, self._used = self._copied, [], 0
        self.synchronize()
        for step, first, count, value in copied:
            yield step, self._room[first:first + count].to("cuda:0"), value


class Ranks:
    """Those that run the same programs: this process alone, or one process for each GPU."""

    def __init__(self, has_collectives):
        self.rank, self.size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self._store, self._programs = None, 0
        if not has_collectives:
            return
        dist, path = torch.distributed, os.environ.get("STORE")
        if self.size > 1:
            self._store = dist.FileStore(path + ".results", self.size)
            self._store.set_timeout(datetime.timedelta(seconds=OTHERS_SECONDS))
        device = torch.device("cuda", self.rank)
        torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl", store=dist.FileStore(path, self.size) if self.size > 1 else dist.HashStore(),
            rank=self.rank, world_size=self.size, device_id=device,
            timeout=datetime.timedelta(seconds=60))
        self._connect()

    def _connect(self):
        """NCCL connects the ranks when an operation first needs it, which a capture may not see."""
        for count in (64, 16 << 10, 256 << 10, 2 << 20, 16 << 20):
            output = torch.zeros(count, dtype=torch.int32, device="cuda")
            source = torch.zeros(count, dtype=torch.int32, device="cuda")
            for kind in COLLECTIVES:
                for asynchronous in (True, False):
                    work = self.queue(kind, output, source, asynchronous)
                    if work is not None:
                        work.wait()
        torch.cuda.synchronize()

    def share(self, tensor):
        """This rank's part of the tensor."""
        count = tensor.numel() // self.size
        return tensor[self.rank * count:(self.rank + 1) * count]

    def queue(self, kind, output, source, asynchronous):
        """On the current stream; `source` is not for operations in place. Returns the Work, if any."""
        dist = torch.distributed
        most = dist.ReduceOp.MAX
        if kind == "all_reduce":
            return dist.all_reduce(output, op=most, async_op=asynchronous)
        if kind == "broadcast":
            return dist.broadcast(output, src=0, async_op=asynchronous)
        if kind == "all_gather":
            return dist.all_gather_into_tensor(output, self.share(source), async_op=asynchronous)
        if kind == "reduce_scatter":
            return dist.reduce_scatter_tensor(self.share(output), source, op=most,
                                              async_op=asynchronous)
        assert kind == "all_to_all", kind
        return dist.all_to_all_single(output, source, async_op=asynchronous)

    def agree(self, result):
        """What all ranks say of a program: the first that is not right speaks."""
        if self._store is None:
            return result
        self._programs += 1
        verdict = f"{self._programs}/all"
        if self.rank:
            self._store.set(f"{self._programs}/{self.rank}", json.dumps(result))
            return json.loads(self._store.get(verdict))
        for rank in range(1, self.size):
            try:
                other = json.loads(self._store.get(f"{self._programs}/{rank}"))
            except Exception as error:  # of the store: the rank is late, or gone
                other = {"outcome": "crash", "message": f"says nothing: {one_line(error)}"}
            if other["outcome"] != "right" and result["outcome"] in ("right", "memory"):
                result = {"outcome": other["outcome"], "message": f"rank {rank}: {other['message']}"}
        self._store.set(verdict, json.dumps(result))
        return result


class Machine:
    """What all programs of the process share."""

    ROWS, WIDTH = 32, 8

    def __init__(self, has_collectives=False, has_peer=False):
        self.has_collectives = has_collectives
        self.ranks = Ranks(has_collectives)
        self.cuda = Cuda()
        self.peer = Peer(self.cuda) if has_peer else None
        self.kept = []  # PyTorch has pointers to graphs that failed
        self.may_stay = 0  # bytes that PyTorch's own allocator may never have back
        self.total = torch.cuda.get_device_properties(self.ranks.rank).total_memory
        self.streams = {MAIN: torch.cuda.default_stream()}
        self.streams |= {name: torch.cuda.Stream() for name in (*SIDE, *THREAD)}
        self.errors = torch.zeros(self.ROWS * self.WIDTH, dtype=torch.int32, device="cuda")
        self._load_kernels()

    def _load_kernels(self):
        """All of them: a kernel's first launch may wait for the device, and hide a race."""
        with torch.cuda.stream(self.streams["s0"]):
            torch.nn.functional.dropout(torch.ones(16, device="cuda"), 0.5, True)
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            graph.capture_begin(capture_error_mode="relaxed")
            output = torch.nn.functional.dropout(torch.ones(16, device="cuda"), 0.5, True)
            graph.capture_end()
            torch.cuda.manual_seed(20)
            graph.replay()
            torch.cuda.synchronize()
            output.clone()
        torch.cuda.synchronize()
        del graph, output
        data = torch.empty(16, dtype=torch.int32, device="cuda")
        for stream in self.streams.values():
            where = ctypes.c_void_p(data.data_ptr())
            self.cuda.launch("fill", stream, 16, where, ctypes.c_int(16), ctypes.c_int(1))
            torch.cuda.synchronize()
        self.cuda.launch("check", self.streams[MAIN], 16, ctypes.c_void_p(data.data_ptr()),
                         ctypes.c_int(16), ctypes.c_int(0), ctypes.c_int(16), ctypes.c_int(1),
                         ctypes.c_int(0), self.row(0))
        self.cuda.launch("compare", self.streams[MAIN], 16, ctypes.c_void_p(data.data_ptr()),
                         ctypes.c_void_p(data.data_ptr()), ctypes.c_int(16), ctypes.c_int(0),
                         self.row(0))
        self.cuda.launch("spin", self.streams[MAIN], 1, ctypes.c_int(10))
        torch.cuda.synchronize()
        if int(self.errors.sum()):
            raise RuntimeError("the kernels for checks do not work")
        del data
        self.allocated = torch.cuda.memory_allocated()

    def leaked(self):
        """The bytes that are allocated since it was last asked, and need not be. (PyTorch lets go of a
        collective's tensors when its watchdog comes to it.)"""
        left = torch.cuda.memory_allocated() - self.allocated - self.may_stay
        if self.has_collectives or left <= LEAK_SPARE:
            return 0
        self.allocated += left
        return left

    def row(self, number):
        """The address of a stream's row of errors."""
        return ctypes.c_void_p(self.errors.data_ptr() + number % self.ROWS * self.WIDTH * 4)


class Execution:
    """One program, or the part of it that a thread runs."""

    def __init__(self, machine, first_step=0):
        self.machine, self.cuda = machine, machine.cuda
        self.first_step = first_step
        self.streams = dict(machine.streams)
        self.streams |= machine.peer.streams if machine.peer is not None else {}
        self.external = {}
        self.tensors, self.values, self.expected, self.works = {}, {}, {}, {}
        # By tensor: (the first element, how many, the first of the pattern's, of how many). Else all.
        self.layouts = {}
        self.graphs, self.outputs, self.pools, self.pool_ids = {}, {}, {}, {}
        self.raw = None  # the stream that another library captures
        self.raw_nodes = 0
        self.recorded = 0  # bytes of tensors that were recorded on a stream
        self.capture = None  # the name of the graph whose capture is open
        self.capture_stream = None
        self.paused = False  # the open capture's pool
        self.workers = []
        self.problems = []
        self.step = 0

    def run(self, steps):
        for number, step in enumerate(steps):
            self.step = self.first_step + number
            getattr(self, "do_" + step["op"])(step)

    def end(self):
        """Whatever the program left open."""
        if self.raw is not None:
            self.do_raw_end({})
        if self.capture is not None:
            with torch.cuda.stream(self.capture_stream):
                self.graphs[self.capture].capture_end()
            self.capture = None
        for worker in self.workers:
            worker.join(30)
            if worker.is_alive():
                self.problems.append("the thread does not end")
        self._synchronize()
        if self.machine.peer is not None:
            for step, tensor, value in self.machine.peer.take():
                count = ctypes.c_int(tensor.numel())
                self.cuda.launch("check", self.streams[MAIN], tensor.numel(), self._where(tensor),
                                 count, ctypes.c_int(0), count, ctypes.c_int(value), ctypes.c_int(step),
                                 self.machine.row(0))
                torch.cuda.synchronize()

    def forget(self):
        if self.machine.kept:  # PyTorch's own allocator then waits for the capture's end for ever
            self.machine.may_stay += self.recorded
        self.works.clear()
        self.tensors.clear()
        self.outputs.clear()
        self.expected.clear()
        self.graphs.clear()
        self.pools.clear()
        for stream in self.external.values():
            self.cuda.stream_destroy(stream)
        self.external.clear()

    def _row(self, name):
        kinds = {MAIN: 0, "s": 1, "u": 8, "e": 16}
        number = 0 if name == MAIN else kinds[name[0]] + int(name[1:])
        return self.machine.row(number)

    @staticmethod
    def _where(tensor):
        return ctypes.c_void_p(tensor.data_ptr())

    def _synchronize(self):
        torch.cuda.synchronize()
        if self.machine.peer is not None:
            self.machine.peer.synchronize()

    def _new(self, step, dtype=torch.int32):
        stream, pool = self.streams[step["stream"]], step.get("pool")
        if step.get("raw"):
            return RawBlock(step["bytes"], stream)
        with torch.cuda.stream(stream):
            if pool is None:
                return torch.empty(step["bytes"] // 4, dtype=dtype, device="cuda")
            with torch.cuda.use_mem_pool(self.pools[pool]):
                return torch.empty(step["bytes"] // 4, dtype=dtype, device="cuda")

    def _fill(self, tensor, stream, value):
        count = tensor.numel()
        self.cuda.launch("fill", stream, count, self._where(tensor), ctypes.c_int(count),
                         ctypes.c_int(value))

    def _layout(self, name):
        count = self.tensors[name].numel()
        return self.layouts.get(name, (0, count, 0, count))

    def do_alloc(self, step):
        name = step["tensor"]
        self.tensors[name] = self._new(step)
        self._fill(self.tensors[name], self.streams[step["stream"]], step["value"])
        self.values[name] = step["value"]

    def do_dropout(self, step):
        with torch.cuda.stream(self.streams[step["stream"]]):
            base = torch.ones(step["bytes"] // 4, device="cuda")
            self.tensors[step["tensor"]] = torch.nn.functional.dropout(base, 0.5, True)
            del base
        self.outputs.setdefault(self.capture, []).append(step["tensor"])

    def do_read(self, step):
        name, stream = step["tensor"], self.streams[step["stream"]]
        tensor, number, row = self.tensors[name], ctypes.c_int(self.step), self._row(step["stream"])
        count = tensor.numel()
        if name in self.expected:
            self.cuda.launch("compare", stream, count, self._where(tensor),
                             self._where(self.expected[name]), ctypes.c_int(count), number, row)
        else:
            start, count, first, period = self._layout(name)
            where = ctypes.c_void_p(tensor.data_ptr() + 4 * start)
            self.cuda.launch("check", stream, count, where, ctypes.c_int(count), ctypes.c_int(first),
                             ctypes.c_int(period), ctypes.c_int(self.values[name]), number, row)

    def do_write(self, step):
        self._fill(self.tensors[step["tensor"]], self.streams[step["stream"]], step["value"])
        self.values[step["tensor"]] = step["value"]
        self.layouts.pop(step["tensor"], None)

    def do_collective(self, step):
        ranks, kind, name = self.machine.ranks, step["kind"], step["output"]
        source = step.get("input", name)
        output = self.tensors[name]
        with torch.cuda.stream(self.streams[step["stream"]]):
            work = ranks.queue(kind, output, self.tensors[source], "work" in step)
        if "work" in step:
            self.works[step["work"]] = work
        self.values[name] = self.values[source]
        count = output.numel()
        share = count // ranks.size
        own = ranks.rank * share
        self.layouts[name] = {"reduce_scatter": (own, share, own, share),
                              "all_to_all": (0, count, own, share)}.get(kind, (0, count, 0, count))

    def do_work_wait(self, step):
        work, stream, how = self.works[step["work"]], self.streams[step["stream"]], step.get("how")

        def wait():
            with torch.cuda.stream(stream):
                work.get_future().wait() if how == "future" else work.wait()

        if how != "thread":
            wait()
            return

        def in_a_thread():
            try:
                self.cuda.use_context()
                wait()
            except Exception as error:
                self.problems.append(f"in a thread that waits, step {self.step}: "
                                     f"{type(error).__name__}: {error}")

        worker = threading.Thread(target=in_a_thread, daemon=True)
        worker.start()
        worker.join()

    def do_work_drop(self, step):
        del self.works[step["work"]]

    def do_spin(self, step):
        stream = self.streams[step["stream"]]
        if step["stream"] in PEERS:
            self.machine.peer.spin(stream, step["ms"])
            return
        if stream is self.raw and self.raw_nodes is not None:
            self.raw_nodes += 1
        self.cuda.launch("spin", stream, 1, ctypes.c_int(int(step["ms"] * 1000)))

    def do_peer_read(self, step):
        name = step["tensor"]
        self.machine.peer.copy(self.tensors[name], self.streams[step["stream"]], self.values[name],
                               self.step)

    def do_wait(self, step):
        self.streams[step["stream"]].wait_stream(self.streams[step["other"]])

    def do_record_stream(self, step):
        self.recorded += 4 * self.tensors[step["tensor"]].numel()
        self.tensors[step["tensor"]].record_stream(self.streams[step["stream"]])

    def do_drop(self, step):
        del self.tensors[step["tensor"]]

    def do_host_sync(self, step):
        self.streams[step["stream"]].synchronize()

    def do_device_sync(self, _):
        self._synchronize()

    def do_empty_cache(self, _):
        torch.cuda.empty_cache()

    def do_limit(self, step):
        total = self.machine.total
        share = min(1.0, step["bytes"] / total) if step["bytes"] else 1.0
        torch.cuda.set_per_process_memory_fraction(share)

    def do_caching(self, step):
        torch.cuda.caching_allocator_enable(step["on"])

    def do_pool_new(self, step):
        self.pools[step["pool"]] = torch.cuda.MemPool()

    def do_pool_drop(self, step):
        del self.pools[step["pool"]]

    def do_stream_new(self, step):
        self.external[step["stream"]] = self.streams[step["stream"]] = self.cuda.stream_new()

    def do_stream_destroy(self, step):
        del self.streams[step["stream"]]
        self.cuda.stream_destroy(self.external.pop(step["stream"]))

    def do_capture_begin(self, step):
        name, pool = step["graph"], step.get("pool")
        options = {}
        if pool is not None:
            kind, _, of = pool.partition(":")
            options["pool"] = self.graphs[of].pool() if kind == "graph" else self.pools[of].id
        elif step.get("named"):
            options["pool"] = torch.cuda.graph_pool_handle()
        self.pool_ids[name] = options.get("pool")
        if step["synchronize"]:  # what torch.cuda.graph does
            self._synchronize()
            torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.streams[step["stream"]]):
            graph.capture_begin(capture_error_mode="relaxed", **options)
        self.graphs[name] = graph
        self.capture, self.capture_stream, self.paused = name, self.streams[step["stream"]], False

    def do_capture_end(self, step):
        with torch.cuda.stream(self.capture_stream):
            self.capture = None
            self.graphs[step["graph"]].capture_end()

    def do_pool_pause(self, step):
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self.pool_ids[step["graph"]])
        self.paused = True

    def do_pool_resume(self, step):
        device, pool = torch.cuda.current_device(), self.pool_ids[step["graph"]]
        torch._C._cuda_beginAllocateCurrentThreadToPool(device, pool)
        if not step.get("keeps"):
            torch._C._cuda_releasePool(device, pool)
        self.paused = False

    def do_pool_holds(self, step):
        pool = tuple(self.graphs[step["graph"]].pool())
        held = sum(segment["total_size"] for segment in torch.cuda.memory_snapshot()
                   if tuple(segment["segment_pool_id"]) == pool)
        if held > step["most"]:
            self.problems.append(f"step {self.step}: the graph's pool holds {held >> 20} MiB, and "
                                 f"{step['most'] >> 20} MiB are enough")

    def _expect_error(self, what, call):
        try:
            call()
        except RuntimeError:
            return
        self.problems.append(f"step {self.step}: {what} raises nothing")

    def _drop_failed(self, name):
        """Before 2.14 PyTorch calls the graph's filter from now on: it has to stay."""
        graph = self.graphs.pop(name, None)
        if graph is not None and not hasattr(graph, SINCE_2_14):
            self.machine.kept.append(graph)

    def do_capture_fail(self, step):
        stream, graph = self.capture_stream, self.graphs[step["graph"]]
        # From 2.14 on capture_end() ends the use of the pool where the capture failed, too; if nothing uses
        # the pool, it leaves CUDA's error to the next call, and the graph aborts the process as it goes.
        if self.paused and hasattr(graph, SINCE_2_14):
            self.do_pool_resume({"graph": step["graph"]})
        with torch.cuda.stream(stream):
            if step["how"] == "item":
                self._expect_error("item() in a capture", self.machine.errors[0].item)
            else:
                self._expect_error("synchronize() in a capture", stream.synchronize)
            self._expect_error("the end of a failed capture", graph.capture_end)
            # PyTorch takes its random numbers for captured until a capture has ended well. (That writes
            # the seed, which no graph may read meanwhile.)
            self._synchronize()
            good = torch.cuda.CUDAGraph()
            good.capture_begin(capture_error_mode="relaxed")
            good.capture_end()
            self._synchronize()
        self.capture = None
        self._drop_failed(step["graph"])

    def do_capture_refused(self, step):
        graph = torch.cuda.CUDAGraph()
        options = {"pool": self.pool_ids[self.capture]} if step["how"] == "pool" else {}
        with torch.cuda.stream(self.streams[step["stream"]]):
            self._expect_error("a capture that can't begin", lambda: graph.capture_begin(
                capture_error_mode="relaxed", **options))
        if step["how"] == "raw":
            self.raw_nodes = None  # the fill of the seed, too
        self.graphs[step["graph"]] = graph
        self._drop_failed(step["graph"])

    def do_raw_begin(self, step):
        stream = self.streams[step["stream"]]
        self.cuda.capture_begin(stream)
        self.raw, self.raw_nodes = stream, 0

    def do_raw_end(self, _):
        stream, self.raw = self.raw, None
        nodes = self.cuda.capture_end(stream)
        if self.raw_nodes not in (None, nodes):
            self.problems.append(f"step {self.step}: another library's graph has {nodes} nodes, and "
                                 f"{self.raw_nodes} were captured")

    def _replay(self, graph, stream):
        if graph in self.outputs:  # with dropout
            torch.cuda.manual_seed(20)
        with torch.cuda.stream(self.streams[stream]):
            self.graphs[graph].replay()

    def do_reference(self, step):
        self._synchronize()
        self._replay(step["graph"], MAIN)
        for name in self.outputs[step["graph"]]:
            if name in self.tensors:
                self.expected[name] = self.tensors[name].clone()
        self._synchronize()

    def do_replay(self, step):
        self._replay(step["graph"], step["stream"])

    def do_graph_drop(self, step):
        del self.graphs[step["graph"]]

    def do_thread(self, step):
        inner = Execution(self.machine, THREAD_STEP)

        def work():
            try:
                self.cuda.use_context()
                inner.run(step["steps"])
                for name in THREAD:
                    inner.streams[name].synchronize()
            except Exception as error:
                self.problems.append(f"in the thread, step {inner.step}: "
                                     f"{type(error).__name__}: {error}")
            inner.forget()

        worker = threading.Thread(target=work, daemon=True)
        self.workers.append(worker)
        worker.start()


# A read of a graph's tensor checks the value that the graph's replays write; several graphs never write
# one tensor, so that the last value that was queued for it, in a capture or not, is the one.


def lost(text):
    """Whether CUDA's context is of no use after the error."""
    return "CUDA error" in text or "CUDA driver error" in text or "illegal memory access" in text


def one_line(text):
    return " ".join(str(text).split())[:400]


def run(machine, program):
    """{"outcome": right, wrong, memory, leak or error, "message": ...}"""
    execution = Execution(machine)
    machine.errors.zero_()
    torch.cuda.synchronize()
    outcome, message = "right", ""
    try:
        execution.run(program["steps"])
        execution.end()
    except torch.OutOfMemoryError as error:
        outcome, message = "memory", f"step {execution.step}: {one_line(error)}"
    except Exception as error:
        traceback.print_exc()
        outcome = "error"
        message = f"step {execution.step}: {type(error).__name__}: {one_line(error)}"
    if execution.problems and outcome == "right":
        outcome, message = "error", one_line("; ".join(execution.problems))
    if lost(message):
        return {"outcome": "crash", "message": message}
    try:
        if outcome != "right":
            execution.end()
        rows = machine.errors.view(machine.ROWS, machine.WIDTH).tolist()
        found = [(row, number) for number, row in enumerate(rows) if row[0]]
        if found and outcome == "right":
            count, _, step, index, value, expected, end, before = found[0][0]
            outcome = "wrong"
            message = (f"step {step} read {value & 0xffffffff:#010x} and not "
                       f"{expected & 0xffffffff:#010x} at element {index} ({count} elements are "
                       f"wrong, of those from {0x7fffffff - before} to {end - 1}, on {len(found)} streams)")
        execution.forget()
        gc.collect()
        torch.cuda.caching_allocator_enable(True)
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        left = machine.leaked()
        if left and outcome == "right":
            outcome, message = "leak", f"{left} bytes more are allocated after the program"
    except Exception as error:
        traceback.print_exc()
        return {"outcome": "crash", "message": f"after the program: {message} "
                                               f"{type(error).__name__}: {one_line(error)}"}
    return {"outcome": outcome, "message": message}


def say(word, **what):
    print(word + " " + json.dumps(what), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file")
    parser.add_argument("--repeat", type=int, default=1, help="until one is not right")
    parser.add_argument("--programs-seconds", type=float, default=1e9,
                        help="no program begins later")
    options = parser.parse_args()
    with open(options.file) as file:
        programs = [json.loads(line) for line in file if line.strip()]
    try:
        machine = Machine(any(step["op"] == "collective" for program in programs
                              for step in program["steps"]),
                          any(needs_peer(program["steps"]) for program in programs))
    except Exception as error:
        traceback.print_exc()
        say("UNUSABLE", message=one_line(error))
        os._exit(UNUSABLE)
    say("READY")
    start = time.monotonic()
    for program in programs:
        if time.monotonic() - start > options.programs_seconds:
            break
        for attempt in range(options.repeat):
            say("BEGIN", name=program["name"])
            result = machine.ranks.agree(run(machine, program))
            say("END", name=program["name"], attempt=attempt, **result)
            if result["outcome"] == "crash":
                os._exit(LOST)
            if result["outcome"] != "right":
                break
    say("DONE")
    sys.stdout.flush()
    os._exit(0)  # not what is tested here


if __name__ == "__main__":
    main()
