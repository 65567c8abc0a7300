# SPDX-License-Identifier: Apache-2.0
"""Weir under PyTorch on a GPU: data whole, memory where it should be, and the ways programs go wrong.

usage: python tests/torch/gpu_test.py      needs PyTorch with CUDA and the Weir package with the full
                                           backend; exit 77 where there is no GPU
SOAK_SECONDS (20): how long training and serving are mixed at random.
"""
import gc
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import zlib

try:
    import torch
except ImportError:
    torch = None
if torch is None or not torch.cuda.device_count():
    print("no PyTorch with a GPU here")
    sys.exit(77)
import weir  # noqa: E402

MIB = 1 << 20


def run(code, **environment):
    """A process of its own: its status, and all that it said."""
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=120,
                          env={**os.environ, **environment})
    return done.returncode, done.stdout + done.stderr


def payloads(recording):
    """What the blocks of a recording hold (docs/recording.md)."""
    at = recording.find(b"WBLK")
    while at >= 0:
        size = int.from_bytes(recording[at + 8:at + 12], "little")
        yield zlib.decompress(recording[at + 24:at + 24 + size])
        at = recording.find(b"WBLK", at + 24 + size)


def write_in_child(box, done):
    tensor = box.pop()  # or the process's arguments would hold it to the end
    assert weir.enabled() == "full"  # it came with the tensor
    tensor.add_(1)
    torch.cuda.synchronize()
    done.put(float(tensor.sum()))
    del tensor
    gc.collect()


class OnAGpu(unittest.TestCase):
    def setUp(self):
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.live = torch.cuda.memory_allocated()

    def tearDown(self):
        gc.collect()
        torch.cuda.synchronize()
        # Less is what a library kept from an earlier test, and dropped.
        self.assertLessEqual(torch.cuda.memory_allocated(), self.live)


class Streams(OnAGpu):
    def used_on_a_side_stream(self, release):
        side = torch.cuda.Stream()
        for i in range(100):
            block = torch.full((MIB,), i, device="cuda", dtype=torch.float32)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(500_000)
                total = block.sum()
            release(block, side)
            del block
            torch.full((MIB,), -1.0, device="cuda")
            side.synchronize()
            self.assertEqual(total.item(), i * MIB)

    def test_record_stream_keeps_the_data(self):
        self.used_on_a_side_stream(lambda block, side: block.record_stream(side))

    def test_a_fence_keeps_the_data(self):
        self.used_on_a_side_stream(weir.fence)

    def test_a_fence_keeps_no_memory(self):
        side = torch.cuda.Stream()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(50):
            block = torch.empty(64 * MIB, device="cuda", dtype=torch.uint8)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(2_000_000)
                block.add_(1)
            weir.fence(block, side)
            del block
        side.synchronize()
        self.assertLess(torch.cuda.max_memory_allocated() - self.live, 65 * MIB)

    def test_threads_on_streams_of_their_own(self):
        wrong = []

        def work(number):
            with torch.cuda.stream(torch.cuda.Stream()):
                for j in range(300):
                    a = torch.full((1000 * (j % 50 + 1),), number, device="cuda")
                    if j % 50 == 0 and not bool((a * 2 == 2 * number).all()):
                        wrong.append(number)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    @unittest.skipIf(torch.cuda.device_count() < 2, "needs two GPUs")
    def test_copies_between_devices(self):
        here = torch.arange(MIB, device="cuda:0", dtype=torch.float32)
        there = here.to("cuda:1")
        back = (there + 1).to("cuda:0")
        self.assertTrue(torch.equal(back, here + 1))
        del there


class Graphs(OnAGpu):
    def test_a_fork_to_a_stream_never_used_before(self):
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream(priority=-1)
        given = torch.randn(MIB, device="cuda")
        with torch.cuda.graph(graph):
            doubled = given * 2
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                more = doubled * 3 + 1
            torch.cuda.current_stream().wait_stream(side)
            result = doubled + more
            del doubled, more
        for _ in range(20):
            given.normal_()
            graph.replay()
            self.assertTrue(torch.allclose(result, given * 8 + 1, atol=1e-4))
        del graph, result

    def pool_over_peak(self, warm_up):
        given = torch.randn(16 * MIB, device="cuda")

        def step():
            kept = [given]
            for _ in range(8):
                kept.append(kept[-1] * 1.01)
            return kept[-1].sum()

        wanted = step().item()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        peak = torch.cuda.max_memory_allocated() - before
        torch.cuda.empty_cache()
        held = torch.cuda.memory_reserved()
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream()
        if warm_up != "none":
            with torch.cuda.stream(stream if warm_up == "capture" else torch.cuda.current_stream()):
                torch.cuda.synchronize()
                torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
                step()
                torch._C._cuda_endAllocateToPool(0, pool)
            torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            result = step()
        graph.replay()
        self.assertEqual(result.item(), wanted)
        torch.cuda.empty_cache()
        ratio = (torch.cuda.memory_reserved() - held) / peak
        del graph, result
        if warm_up != "none":
            torch._C._cuda_releasePool(0, pool)
        return ratio

    def test_a_warm_up_on_any_stream_costs_the_pool_nothing(self):
        for warm_up in ("none", "capture", "current"):
            with self.subTest(warm_up):
                self.assertLess(self.pool_over_peak(warm_up), 1.03)

    def test_a_graph_that_is_dropped_while_it_runs_keeps_its_memory(self):
        side, words = torch.cuda.Stream(), 4 << 20
        for _ in range(20):
            start = torch.ones(words, device="cuda")
            result = torch.empty_like(start)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                value = start
                for _ in range(300):
                    value = value + 1  # in the pool's memory, again and again
                result.copy_(value)
                del value
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                graph.replay()
            del graph
            others = [torch.full((words,), 7.0, device="cuda") for _ in range(8)]
            torch.cuda.synchronize()
            self.assertTrue(all(bool((other == 7).all()) for other in others))
            self.assertTrue(bool((result == 301).all()))

    def test_the_debug_mode_of_graphs_keeps_no_memory(self):
        status, said = run("""import torch, weir; weir.enable('full')
def held_by(graphs):
    for _ in range(graphs):
        graph, given = torch.cuda.CUDAGraph(), torch.ones(1 << 22, device="cuda")
        graph.enable_debug_mode()  # from now on PyTorch destroys none of its graphs
        with torch.cuda.graph(graph): result = given + 1
        graph.replay()
    del graph, given, result
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()
print("alike" if held_by(1) == held_by(8) else "it grew")""")
        self.assertEqual((status, "alike" in said), (0, True), said)

    def test_reduce_overhead(self):
        model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()).cuda()
        fast = torch.compile(model, mode="reduce-overhead")
        with torch.no_grad():
            for _ in range(8):
                torch.compiler.cudagraph_mark_step_begin()
                given = torch.randn(32, 256, device="cuda")
                self.assertTrue(torch.allclose(fast(given), model(given), atol=1e-3))
        del given
        self.live = torch.cuda.memory_allocated()  # its graphs stay


class Pools(OnAGpu):
    def test_a_mem_pool_holds_its_memory_and_gives_it_back(self):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            block = torch.empty(10 * MIB, device="cuda", dtype=torch.uint8)
        self.assertEqual(sum(s["allocated_size"] for s in pool.snapshot()), 10 * MIB)
        held = torch.cuda.memory_reserved()
        del block, pool
        torch.cuda.empty_cache()
        self.assertLess(torch.cuda.memory_reserved(), held)


class OutOfMemory(OnAGpu):
    def test_it_is_caught_and_training_goes_on(self):
        model = torch.nn.Linear(4096, 4096).cuda()
        keep = []
        with self.assertRaisesRegex(torch.OutOfMemoryError, "Tried to allocate 4.00 GiB"):
            while True:
                keep.append(torch.empty(4096 * MIB, dtype=torch.uint8, device="cuda"))
        keep.clear()
        for _ in range(3):
            model(torch.randn(64, 4096, device="cuda")).sum().backward()
        del model
        self.live = torch.cuda.memory_allocated()  # cuBLAS has its workspace now

    def test_the_fraction_is_kept_and_named(self):
        torch.cuda.set_per_process_memory_fraction(0.01)
        try:
            with self.assertRaisesRegex(torch.OutOfMemoryError, "limit"):
                torch.empty(8192 * MIB, dtype=torch.uint8, device="cuda")
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    def test_an_exception_in_a_step_leaves_nothing(self):
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, given):
                return given * 2

            @staticmethod
            def backward(ctx, gradient):
                raise RuntimeError("in the middle")

        for _ in range(3):
            given = torch.randn(MIB, device="cuda", requires_grad=True)
            with self.assertRaisesRegex(RuntimeError, "in the middle"):
                Fails.apply(given * 3).sum().backward()
            del given


class Processes(OnAGpu):
    def test_a_tensor_is_shared_with_a_spawned_process(self):
        spawn = torch.multiprocessing.get_context("spawn")
        tensor, done = torch.ones(3 * MIB, device="cuda"), spawn.Queue()
        child = spawn.Process(target=write_in_child, args=([tensor], done))
        child.start()
        self.assertEqual(done.get(timeout=100), 2.0 * 3 * MIB)
        child.join(60)
        self.assertEqual(child.exitcode, 0)
        self.assertTrue(bool((tensor == 2).all()))
        del tensor
        torch.cuda.ipc_collect()

    def test_plain_memory_is_opened_by_a_process_without_weir(self):
        with weir.plain_memory():
            tensor = torch.ones(3 * MIB, device="cuda")
            (shifted := torch.empty(MIB, device="cuda")).fill_(7)
        handles = [each.untyped_storage()._share_cuda_() for each in (tensor, shifted)]
        torch.cuda.synchronize()
        status, said = run(
            "import pickle, sys, torch\n"
            "torch.cuda.init()\n"
            f"for handle in pickle.loads({pickle.dumps(handles)!r}):\n"
            "    storage = torch.UntypedStorage._new_shared_cuda(*handle)\n"
            "    floats = torch.empty(0, device='cuda').set_(storage)\n"
            "    assert len(set(floats.tolist())) == 1, floats\n"
            "    floats.add_(1)\n"
            "torch.cuda.synchronize()\n"
            "del storage, floats", WEIR_ENABLE="0")
        self.assertEqual((status, said), (0, ""))
        self.assertTrue(bool((tensor == 2).all()) and bool((shifted == 8).all()))
        del tensor, shifted
        torch.cuda.ipc_collect()

    def test_plain_memory_is_opened_by_a_process_with_weir(self):
        spawn = torch.multiprocessing.get_context("spawn")
        with weir.plain_memory():
            tensor = torch.ones(3 * MIB, device="cuda")
        done = spawn.Queue()
        child = spawn.Process(target=write_in_child, args=([tensor], done))
        child.start()
        self.assertEqual(done.get(timeout=100), 2.0 * 3 * MIB)
        child.join(60)
        self.assertTrue(bool((tensor == 2).all()))

    def test_a_forked_child_that_leaves_cuda_alone_ends_well(self):
        tensor = torch.ones(MIB, device="cuda")
        child = multiprocessing.get_context("fork").Process(target=gc.collect)
        child.start()
        child.join(60)
        self.assertEqual(child.exitcode, 0)
        del tensor

    def test_loader_with_workers_and_pinned_memory(self):
        data = torch.utils.data.TensorDataset(torch.ones(1000, 100))
        loader = torch.utils.data.DataLoader(data, batch_size=50, num_workers=2, pin_memory=True)
        total = sum(batch[0].cuda(non_blocking=True).sum().item() for batch in loader)
        self.assertEqual(total, 100_000)

    def test_exit_with_live_tensors_is_silent(self):
        self.assertEqual(run("import weir; weir.enable('full'); import torch;"
                             "kept = torch.ones(1000, device='cuda');"
                             "graph = torch.cuda.CUDAGraph();"
                             "torch.cuda.synchronize()"), (0, ""))

    def test_too_late_is_said(self):
        status, said = run("import torch; torch.ones(1, device='cuda'); import weir; weir.enable()")
        self.assertEqual(status, 1)
        self.assertIn("before anything uses CUDA", said)


class Looking(OnAGpu):
    def test_history_has_frames_and_segments_add_up(self):
        torch.cuda.memory._record_memory_history()
        kept = torch.empty(5 * MIB, device="cuda")
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
        last = snapshot["device_traces"][0][-1]
        self.assertEqual((last["action"], last["size"]), ("alloc", 20 * MIB))
        self.assertIn("test_history_has_frames", str(last["frames"]))
        for segment in snapshot["segments"]:
            self.assertEqual(sum(b["size"] for b in segment["blocks"]), segment["total_size"])
        del kept

    def test_profiler_sees_memory(self):
        with torch.profiler.profile(profile_memory=True) as profile:
            torch.empty(7 * MIB, device="cuda", dtype=torch.uint8)
        used = [e.self_device_memory_usage for e in profile.key_averages()]
        self.assertIn(7 * MIB, used)

    def test_recording_with_stacks_of_python(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "recording.weir")
            with weir.record(path, stacks="python"):
                torch.empty(3 * MIB, device="cuda")
            with open(path, "rb") as file:
                data = file.read()
        text = b"".join(payloads(data))
        self.assertIn(b"test_recording_with_stacks_of_python", text)


class Soak(OnAGpu):
    """Training with lengths that vary, and serving on side streams, at random."""

    def test_nothing_grows(self):
        random.seed(1)
        model = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        streams = [torch.cuda.Stream() for _ in range(4)]

        def step():
            if random.random() < 0.5:
                given = torch.randn(8, random.randrange(16, 1024), 512, device="cuda")
                model(given).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                return
            given = torch.randn(random.randrange(1, 64), 128, 512, device="cuda")
            side = random.choice(streams)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side), torch.no_grad():
                model(given)
            weir.fence(given, side)

        def held_after(seconds):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                step()
            torch.cuda.synchronize()
            return torch.cuda.memory_reserved(), weir.stats()["mappings"]

        seconds = float(os.environ.get("SOAK_SECONDS", "20"))
        warm, mappings = held_after(seconds / 2)
        end, mappings_at_end = held_after(seconds / 2)
        self.assertLessEqual(end, warm * 1.1)
        self.assertLessEqual(mappings_at_end, mappings * 1.5 + 1000)
        del model, optimizer
        self.live = torch.cuda.memory_allocated()  # cuBLAS's workspaces of these streams


if __name__ == "__main__":
    weir.enable("full")
    unittest.main(verbosity=2)
