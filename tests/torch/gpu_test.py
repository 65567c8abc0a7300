# SPDX-License-Identifier: Apache-2.0
"""Weir under PyTorch on a GPU: data whole, memory where it should be, and the ways programs go wrong.

usage: python tests/torch/gpu_test.py      needs PyTorch with CUDA and the Weir package with the full
                                           backend; exit 77 where there is no GPU
"""
import gc
import os
import pickle
import subprocess
import sys
import unittest

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


if __name__ == "__main__":
    weir.enable("full")
    unittest.main(verbosity=2)
