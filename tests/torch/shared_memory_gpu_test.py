# SPDX-License-Identifier: Apache-2.0
"""Memory that others open or register, on two GPUs: nothing stale is registered, nothing is misread.

usage: python tests/torch/shared_memory_gpu_test.py     needs PyTorch with CUDA and NCCL, the Weir
                                                        package with the full backend, two GPUs and a
                                                        C compiler; exit 77 where there are none
SECONDS (20): how long each mixed program runs.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from collectives_gpu_test import GPUS, run

SECONDS = os.environ.get("SECONDS", "20")
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
if GPUS < 2 or COMPILER is None:
    print("no two GPUs, or no C compiler, here")
    sys.exit(77)

# What programs do besides: blocks of many sizes come and go, and memory goes back to the device.
MIXED = """
import ctypes, random
chance = random.Random(rank)
kept = []
def mix(turn):
    for _ in range(20):
        kept.append(torch.empty(chance.choice((1 << 10, 3 << 20, 20 << 20, 64 << 20)) + 512 * turn % 4096,
                                dtype=torch.uint8, device="cuda"))
        if len(kept) > 40:
            del kept[chance.randrange(len(kept))]
    if turn % 10 == 9:
        kept.clear()
        torch.cuda.empty_cache()
def until_all_are_done(seconds):  # turns, as many on each rank
    end, turn = time.monotonic() + seconds, 0
    flag = torch.zeros(1)
    gloo = dist.new_group(backend="gloo")
    while True:
        yield turn
        turn += 1
        flag.fill_(time.monotonic() >= end)
        dist.broadcast(flag, 0, group=gloo)
        if flag.item():
            return
"""

REGISTERED = MIXED + """
probe = ctypes.CDLL(os.environ["PROBE"])
def ranges():
    begins, sizes = (ctypes.c_uint64 * 4096)(), (ctypes.c_uint64 * 4096)()
    n = probe.nccl_probe_live(begins, sizes, 4096)
    return [(begins[i], begins[i] + sizes[i]) for i in range(n)]
def counts():
    two = (ctypes.c_long * 2)()
    probe.nccl_probe_counts(two)
    return list(two)
def stale():  # what is registered and in no segment that the allocator has
    segments = [(s["address"], s["address"] + s["total_size"]) for s in torch.cuda.memory_snapshot()]
    return [r for r in ranges() if not any(b <= r[0] and r[1] <= e for b, e in segments)]
"""

# The custom all-reduce of inference servers: each rank opens the others' buffers, and reads them.
CUSTOM_ALL_REDUCE = MIXED + """
runtime = ctypes.CDLL("libcudart.so.13")
driver = ctypes.CDLL("libcuda.so.1")
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * 64)]
class Memory:  # what a pointer points to, for PyTorch
    def __init__(self, pointer, floats):
        self.__cuda_array_interface__ = {"shape": (floats,), "typestr": "<f4", "data": (pointer, False),
                                         "version": 2}
def check(status):
    assert status == 0, status
def share(tensor):
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    check(driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size),
                                         ctypes.c_uint64(tensor.data_ptr())))
    handle = Handle()
    check(runtime.cudaIpcGetMemHandle(ctypes.byref(handle), ctypes.c_void_p(tensor.data_ptr())))
    return bytes(handle), tensor.data_ptr() - base.value
def open_(shared):
    handle, pointer = Handle.from_buffer_copy(shared[0]), ctypes.c_void_p()
    check(runtime.cudaIpcOpenMemHandle(ctypes.byref(pointer), handle, 1))
    return pointer.value + shared[1]
"""


class OnTwoGpus(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.probe = os.path.join(cls.folder.name, "nccl_probe.so")
        subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", cls.probe,
                        pathlib.Path(__file__).with_name("nccl_probe.c"), "-ldl"], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_registered(self, code, **environment):
        return run(REGISTERED + code, 2, LD_PRELOAD=self.probe, PROBE=self.probe, SECONDS=SECONDS,
                   **environment)

    # As NCCL's user buffers: a pool of NCCL's own allocator.
    def test_a_pool_of_nccls_memory_is_registered_while_pages_come_and_go(self):
        said = self.run_registered("""
begin()
group = dist.group.WORLD._get_backend(torch.device("cuda"))
pool = torch.cuda.MemPool(group.mem_allocator)
with torch.cuda.use_mem_pool(pool):
    mine = [torch.empty(n << 20, dtype=torch.uint8, device="cuda") for n in (1, 8, 64)]
group.register_mem_pool(pool)
at_first, wrong, old = counts()[0], 0, 0
for turn in until_all_are_done(float(os.environ["SECONDS"])):
    mix(turn)
    for each in mine:
        each.fill_(turn % 50 + rank)
        dist.all_reduce(each)
        wrong += int((each != turn % 50 * 2 + 1).sum())
    old += len(stale())
before = len(ranges())
group.deregister_mem_pool(pool)
finish(at_first=at_first, wrong=wrong, stale=old, turns=turn, before=before, after=len(ranges()),
       counts=counts())
""")
        print(said)
        self.assertGreaterEqual(said["at_first"], 3)
        self.assertEqual((said["wrong"], said["stale"], said["after"]), (0, 0, 0))
        self.assertGreater(said["turns"], 10)

    # The setting by which PyTorch registers whatever the allocator has and gets.
    HOOK = """
begin()
wrong = old = most = 0
for turn in until_all_are_done(float(os.environ["SECONDS"])):
    mix(turn)
    given = full(turn % 50 + rank, 16)
    dist.all_reduce(given)
    wrong += int((given != turn % 50 * 2 + 1).sum())
    most = max(most, len(ranges()))
    old += len(stale())
finish(wrong=wrong, stale=old, most=most, counts=counts(), turns=turn)
"""

    def test_what_pytorch_registers_of_plain_memory_is_never_stale(self):
        said = self.run_registered(self.HOOK, WEIR_MEMORY="plain",
                                   TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK="1")
        print(said)
        self.assertEqual((said["wrong"], said["stale"]), (0, 0))
        self.assertGreater(said["most"], 3)
        self.assertGreater(said["counts"][1], 0)

    def test_pages_are_not_registered(self):
        said = self.run_registered(self.HOOK, TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK="1")
        print(said)
        self.assertEqual((said["wrong"], said["stale"], said["most"]), (0, 0, 0))

    def test_a_custom_all_reduce_through_ipc_handles(self):
        said = run(CUSTOM_ALL_REDUCE + """
begin()
import weir
with weir.plain_memory():
    small = [torch.zeros(1 << 18, device="cuda") for _ in range(2)]
mine = max(small, key=torch.Tensor.data_ptr)  # of two in one segment: the one with an offset
shared = [None, None]
dist.all_gather_object(shared, share(mine))
other = torch.as_tensor(Memory(open_(shared[1 - rank]), mine.numel()), device="cuda")
wrong = 0
for turn in until_all_are_done(float(os.environ["SECONDS"])):
    mix(turn)
    mine.fill_(turn + rank)
    torch.cuda.synchronize()
    dist.barrier()
    wrong += int((mine + other != 2 * turn + 1).sum())
    torch.cuda.synchronize()
    dist.barrier()
finish(wrong=wrong, turns=turn, offset=shared[0][1], peer=torch.cuda.can_device_access_peer(0, 1))
""", 2, SECONDS=SECONDS)
        print(said)
        self.assertEqual(said["wrong"], 0)
        self.assertGreater(said["turns"], 10)
        self.assertGreater(said["offset"], 0)

    # A peer's access is enabled after the memory is there, as by a copy between two GPUs.
    def test_peer_access_that_comes_late(self):
        for memory in ("pages", "plain"):
            with self.subTest(memory):
                said = run("""
begin()
if rank == 0:
    here = [torch.full((n,), 7.0, device="cuda:0") for n in (100, 1 << 20, 30 << 20)]
    there = [each.to("cuda:1") for each in here]
    again = [torch.full((n,), 8.0, device="cuda:0") for n in (200, 2 << 20, 40 << 20)]
    there += [each.to("cuda:1") for each in again]
    back = [each.to("cuda:0") for each in there]
    whole = all(whole(each, 7.0) for each in back[:3]) and all(whole(each, 8.0) for each in back[3:])
else:
    whole = True
finish(whole=whole)
""", 2, WEIR_MEMORY=memory)
                self.assertTrue(said["whole"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
