# SPDX-License-Identifier: Apache-2.0
"""Sleep and wake under PyTorch on a GPU: training bit-equal, graphs good, the GPU empty meanwhile.

usage: python tests/torch/sleep_gpu_test.py    needs PyTorch with CUDA and the Weir package with the
                                               full backend; exit 77 where there is no GPU
"""
import gc
import multiprocessing
import sys
import threading
import time
import unittest

try:
    import torch
except ImportError:
    torch = None
if torch is None or not torch.cuda.device_count():
    print("no PyTorch with a GPU here")
    sys.exit(77)
import weir  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30


def held():
    return weir.residue()["weir_bytes"]


def block(width):
    layers = torch.nn
    return layers.Sequential(layers.LayerNorm(width), layers.Linear(width, 4 * width),
                             layers.GELU(), layers.Linear(4 * width, width))


class Model(torch.nn.Module):
    def __init__(self, width=512, depth=6):
        super().__init__()
        self.blocks = torch.nn.ModuleList(block(width) for _ in range(depth))

    def forward(self, x):
        for each in self.blocks:
            x = x + each(x)
        return x


def trained(steps, between):
    """The losses of a small training with Adam; between(step) is called after each step."""
    torch.manual_seed(7)
    torch.use_deterministic_algorithms(True, warn_only=True)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        generator = torch.Generator(device="cuda").manual_seed(step)
        x = torch.randn(64, 128, 512, device="cuda", generator=generator)
        loss = (model(x) - x.roll(1, dims=1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        del x, loss
        between(step)
    torch.use_deterministic_algorithms(False)
    return losses


def take_turns(barrier, turns, mine, result, size):
    """A process that holds `size` bytes in its turns, and checks them."""
    weir.enable()
    count = size // 8
    places = torch.arange(0, count, 4096, device="cuda")
    x = torch.arange(mine, count + mine, device="cuda", dtype=torch.int64)
    torch.cuda.synchronize()
    weir.sleep()
    barrier.wait()
    good = True
    for turn in range(turns):
        barrier.wait()
        if turn % 2 == mine:
            weir.wake(keep_host=64 * GIB)
            good = good and bool((x[places] == places + mine + turn // 2).all().item())
            x += 1
            torch.cuda.synchronize()
            weir.sleep()
        barrier.wait()
    result.put((mine, good))


class Sleep(unittest.TestCase):
    def setUp(self):
        weir.wake()
        gc.collect()
        torch.cuda.empty_cache()

    tearDown = setUp

    def test_asleep_nothing_of_weirs_is_on_the_gpu_and_tensors_come_back(self):
        x = torch.randn(64 * MIB, device="cuda")
        small = [torch.full((257,), float(i), device="cuda") for i in range(1000)]
        total, address = x.double().sum().item(), x.data_ptr()
        free = torch.cuda.mem_get_info()[0]
        slept = weir.sleep()
        self.assertEqual(held(), 0)
        self.assertGreaterEqual(slept["bytes"], 256 * MIB)
        self.assertGreaterEqual(torch.cuda.mem_get_info()[0] - free, 256 * MIB)
        with self.assertRaisesRegex(RuntimeError, "sleeps"):
            torch.empty(1, device="cuda")
        self.assertEqual(weir.tags()["default"]["state"], "asleep")
        weir.wake()
        self.assertEqual((x.double().sum().item(), x.data_ptr()), (total, address))
        for i, one in enumerate(small):
            self.assertEqual(one.sum().item(), 257.0 * i)
        self.assertEqual(weir.residue()["host_bytes"], 0)

    def test_training_that_sleeps_after_every_step_has_the_same_losses(self):
        plain = trained(8, lambda step: None)

        def nap(step):
            weir.sleep()
            self.assertEqual(held(), 0)
            weir.wake(keep_host=4 * GIB)

        self.assertEqual(trained(8, nap), plain)

    def test_graphs_replay_bit_exact_after_100_cycles(self):
        inputs, outputs, graphs = [], [], []
        for i in range(20):
            x = torch.randn(256, 256, device="cuda")
            model = block(256).cuda()
            with torch.no_grad():
                stream = torch.cuda.Stream()
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    model(x)
                torch.cuda.current_stream().wait_stream(stream)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    y = model(x)
            inputs.append((x, model))
            outputs.append(y)
            graphs.append(graph)
        for graph in graphs:
            graph.replay()
        torch.cuda.synchronize()
        expected = [y.clone() for y in outputs]
        for cycle in range(100):
            weir.sleep()
            if cycle == 0:
                self.assertEqual(held(), 0)
            weir.wake(keep_host=4 * GIB)
            if cycle % 10 == 0:
                for y, good in zip(outputs, expected):
                    self.assertTrue(torch.equal(y, good))  # as it was left
                    y.zero_()
                for graph in graphs:
                    graph.replay()
                for y, good in zip(outputs, expected):
                    self.assertTrue(torch.equal(y, good))
        weir.wake()

    def test_torch_memory_savers_interface(self):
        from weir.torch_memory_saver import torch_memory_saver as saver

        outside = torch.full((1000,), 5.0, device="cuda")
        with saver.region("kept", enable_cpu_backup=True):
            kept = torch.full((20 * MIB,), 10, dtype=torch.uint8, device="cuda")
        with saver.region("dropped"):
            dropped = torch.full((200 * MIB,), 20, dtype=torch.uint8, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with saver.cuda_graph(graph, tag="graph", enable_cpu_backup=True):
            y = kept + 1
        graph.replay()
        torch.cuda.synchronize()
        free, address = torch.cuda.mem_get_info()[0], dropped.data_ptr()
        saver.pause()
        self.assertGreaterEqual(torch.cuda.mem_get_info()[0] - free, 220 * MIB)
        backup = saver.get_cpu_backup(kept)
        self.assertEqual((int(backup.min()), int(backup.max()), backup.shape), (10, 10, kept.shape))
        self.assertEqual(outside.sum().item(), 5000)
        saver.resume("dropped")
        saver.resume()
        self.assertEqual(dropped.data_ptr(), address)
        self.assertEqual(int(kept.max().item()), 10)
        dropped.fill_(3)
        y.zero_()
        graph.replay()
        self.assertEqual(int(y.min().item()), 11)

    def test_a_wake_without_room_says_who_has_it_and_may_be_tried_again(self):
        total = torch.cuda.mem_get_info()[1]
        with weir.tag("cache"):
            # (Not arange(): it leaves zeros from element 2 ** 32 on.)
            cache = torch.full((total // 3 // 8,), 7, device="cuda", dtype=torch.int64)
            cache[-1] = 8
        weir.sleep("cache")
        hog = [torch.empty(total // 4, device="cuda", dtype=torch.uint8) for _ in range(3)]
        with self.assertRaisesRegex(weir.Problem, "no room for tag 'cache'"):
            weir.wake()
        del hog
        gc.collect()
        weir.wake()
        self.assertEqual(int(cache[-1].item()), 8)
        self.assertEqual(int(cache[:-1].min().item()), 7)

    def test_two_processes_take_turns_on_memory_for_one(self):
        size = min(24 * GIB, torch.cuda.mem_get_info()[0] // 3) // GIB * GIB
        # Of what is left, one of them takes more than half.
        hog = torch.empty(torch.cuda.mem_get_info()[0] - size * 3 // 2 - 3 * GIB, device="cuda",
                          dtype=torch.uint8)
        context = multiprocessing.get_context("spawn")
        barrier, result = context.Barrier(2), context.Queue()
        processes = [context.Process(target=take_turns, args=(barrier, 6, mine, result, size))
                     for mine in range(2)]
        for process in processes:
            process.start()
            if process is processes[0]:
                while barrier.n_waiting == 0 and process.is_alive():  # it has filled its memory
                    time.sleep(0.1)
        said = sorted(result.get(timeout=300) for _ in processes)
        for process in processes:
            process.join()
        del hog
        self.assertEqual(said, [(0, True), (1, True)])

    def test_two_models_swap_places_in_two_threads(self):
        size = torch.cuda.mem_get_info()[0] * 6 // 10 // 8
        size = min(size, 2 * GIB)
        names = ("first", "second")
        tensors = {}
        for at, name in enumerate(names):
            with weir.tag(name):
                tensors[name] = torch.arange(at, size + at, device="cuda", dtype=torch.int64)
            weir.sleep(name)
        weir.wake("first", keep_host=64 * GIB)
        falls, wakes = names
        for turn in range(6):
            seconds = {}
            thread = threading.Thread(target=lambda: seconds.update(out=weir.sleep(falls)))
            thread.start()
            time.sleep(0.005)
            seconds["in"] = weir.wake(wakes, keep_host=64 * GIB)
            thread.join()
            print(f"swap {turn}: out {seconds['out']['seconds']:.3f} s, "
                  f"in {seconds['in']['seconds']:.3f} s, of {size * 8 / GIB:.1f} GiB each")
            x = tensors[wakes]
            self.assertEqual(int(x[-1].item()) - int(x[0].item()), size - 1)
            falls, wakes = wakes, falls


if __name__ == "__main__":
    weir.enable()
    unittest.main()
