# SPDX-License-Identifier: Apache-2.0
"""weir.check_layouts() in eight ranks, each a process with a simulated device: who differs, and since which call.

usage: layouts_test.py FOLDER STUBS TOOL    (simulated.py; the `weir` command)
"""

import json
import shutil
import sys

import simulated

# Ranks are forked once PyTorch is imported. Each runs `steps` steps of DIVERGES, prints what weir.step() raised, and
# what it took in seconds of its own and of its children's processors.
PROGRAM = r"""
import ctypes, json, os, resource, sys, tempfile, time
import torch, torch.distributed as dist
import weir
from weir import _memory
WORLD, STEPS = 8, 12
# As PyTorch asks the driver whether the device has a context.
has_context = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_byte)(lambda device: True)
def seconds():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
def tensor(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")
kept = []
def forward(rank, step):
    for size in (1 << 20, 3000, 5 << 20):
        kept.append(tensor(size))
    DIVERGES
    kept.clear()
def run(rank, folder):
    weir.enable("full", record=os.path.join(folder, f"{rank}.weir"), check_layouts=4, RING)
    ctypes.CDLL("libc10_cuda.so")["_ZN3c104cuda9_internal20setHasPrimaryContextEPFbaE"](has_context)
    store = dist.FileStore(os.path.join(folder, "store"), WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    GROUP
    for step in range(1, STEPS + 1):
        forward(rank, step)
        begun, cpu = time.monotonic(), seconds()
        try:
            weir.step()
        except weir.Problem as problem:
            return {"step": step, "said": str(problem), "wall": time.monotonic() - begun, "cpu": seconds() - cpu}
    return {"step": step, "said": None}
def child(rank, folder):
    # What a rank says is a file of its own: lines of several would mix.
    try:
        said = run(rank, folder)
    except BaseException as error:
        said = {"error": f"{type(error).__name__}: {error}"}
    with open(os.path.join(folder, f"{rank}.json"), "w") as file:
        json.dump(said, file)
with tempfile.TemporaryDirectory() as folder:
    children = []
    for rank in range(WORLD):
        pid = os.fork()
        if pid == 0:
            child(rank, folder)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    said = []
    for rank in range(WORLD):
        try:
            with open(os.path.join(folder, f"{rank}.json")) as file:
                said.append(json.load(file))
        except FileNotFoundError:
            said.append({"error": "died"})
    print(json.dumps(said))
"""


class Layouts(simulated.Simulated):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.program = cls.library.parents[2] / "bin" / "weir"
        cls.program.parent.mkdir()
        shutil.copy(sys.argv[3], cls.program)

    def ranks(self, diverges="pass", ring="record_ring='1MiB', record_stacks='python'", group="pass"):
        program = PROGRAM.replace("DIVERGES", diverges).replace("RING", ring).replace("GROUP", group)
        return json.loads(self.run_code(program)[0].splitlines()[-1])

    def test_ranks_of_one_program_have_one_layout(self):
        # Streams and addresses of other libraries are each process's own.
        for said in self.ranks(group="torch.cuda.Stream() if rank == 3 else None"):
            self.assertEqual(said, {"step": 12, "said": None})

    def test_the_first_call_that_differs_is_named_in_every_rank(self):
        found = self.ranks("if rank == 5 and step == 6: kept.append(tensor(12345))")
        text = found[0]["said"]
        for said in found:
            self.assertEqual((said["step"], said["said"]), (8, text), said)
            self.assertLess(said["cpu"], 1, said)
        self.assertIn("Rank 5 has memory at other places than rank 0", text)
        self.assertIn("allocation of 12,345 bytes", text)
        self.assertRegex(text, r"rank 5:\n  allocation of 12,345 bytes.*\n(  .*\n)*  in .*forward")
        self.assertRegex(text, r"rank 0:\n  free of 5,242,880 bytes that call 33 allocated")
        print(f"named in {max(said['wall'] for said in found):.2f} s", file=sys.stderr)

    def test_without_a_ring_the_ranks_are_named_and_the_remedy(self):
        for said in self.ranks("if rank == 2 and step == 3: kept.append(tensor(12345))", ring="record_ring=0"):
            self.assertEqual(said["step"], 4)
            self.assertIn("Rank 2 has memory at other places than rank 0", said["said"])
            self.assertIn("WEIR_RECORD_RING", said["said"])

    def test_as_many_blocks_of_other_sizes_are_said_to_be_so(self):
        for said in self.ranks("kept.append(tensor(12345 if rank == 2 and step == 3 else 99999))"):
            self.assertIn("as many blocks", said["said"])

    def test_without_the_command_the_ranks_are_named_and_the_remedy(self):
        self.program.rename(self.program.with_name("hidden"))
        self.addCleanup(self.program.with_name("hidden").rename, self.program)
        for said in self.ranks("if rank == 2 and step == 3: kept.append(tensor(12345))"):
            self.assertIn("Rank 2 has memory at other places than rank 0", said["said"])
            self.assertIn("WEIR_TOOLS=ON", said["said"])

    # As symmetric memory is given: the segments are another allocator's, and ranks must use them alike.
    def test_a_pool_with_an_allocator_of_its_own_is_compared_block_by_block(self):
        step = """if step == 1:
        memory = torch.cuda.memory.CUDAPluggableAllocator('libc.so.6', 'malloc', 'free')
        torch.held = memory, torch.cuda.MemPool(memory.allocator())
    with torch.cuda.use_mem_pool(torch.held[1]):
        [tensor(size) for size in (4000, 3 << 20, EXTRA)]"""
        alike, odd = step.replace("EXTRA", "5000"), step.replace("EXTRA", "5000 if rank != 5 else 9000")
        for said in self.ranks(alike):
            self.assertEqual(said, {"step": 12, "said": None})
        found = self.ranks(odd)
        for said in found:
            self.assertEqual((said["step"], said["said"]), (4, found[0]["said"]), said)
        self.assertIn("in the MemPool with an allocator of its own that was opened as number 1", found[0]["said"])
        self.assertIn("The first block of it that differs is number 3: rank 0 has 5,000 bytes at 4,096 in segment 0, "
                      "rank 5 has 9,000 bytes at 4,096 in segment 0.", found[0]["said"])

    # What the group says, and no error of Weir's.
    def test_a_rank_that_dies_is_the_groups_own_error(self):
        found = self.ranks("if rank == 7 and step == 4: os._exit(1)")
        self.assertEqual(found[7], {"error": "died"})
        for said in found[:7]:
            self.assertIn("Error: ", said["error"])
            self.assertNotIn("Problem", said["error"])


if __name__ == "__main__":
    simulated.main()
