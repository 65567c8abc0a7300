# SPDX-License-Identifier: Apache-2.0
"""torch.distributed with Weir on, where there is no GPU: what is fenced, what is left alone, how it is
turned off.

usage: c10d_python_test.py FOLDER [STUBS]    (simulated.py)
"""

import pathlib
import re
import subprocess
import sys

import simulated
import without_cuda

class C10d(simulated.Simulated):
    BEGIN = """
import datetime, os, tempfile, unittest.mock
import weir
assert weir.enable("full") == "full"
import torch, torch.distributed as dist
from weir import _c10d, _enable, _in_use
library = _enable._state["c10d"]
def operations():
    return _in_use.active().weir_torch_fenced_operations()
def at_backend_select(name):
    return [line for line in torch._C._dispatch_dump("c10d::" + name).splitlines()
            if line.startswith("BackendSelect")]
def init(backend, **named):
    store = dist.FileStore(os.path.join(tempfile.mkdtemp(), "store"), 1)
    dist.init_process_group(backend, store=store, rank=0, world_size=1, **named)
"""

    # An operator that PyTorch adds and that Weir does not see keeps its tensors; this tells of it.
    def test_every_operator_of_c10d_has_a_kernel(self):
        self.run_code("""
schemas = {schema.name for schema in torch._C._jit_get_all_schemas()}
names = {name.removeprefix("c10d::") for name in schemas if name.startswith("c10d::")}
# The one is gloo's alone; the other's kernel runs on the current stream. Neither gives a work.
exempt = {"monitored_barrier_", "check_for_nan"}
assert names - exempt == set(filter(at_backend_select, names)), names
for name in names - exempt:
    assert len(at_backend_select(name)) == 1, name
""")

    # One that PyTorch adds, and that is not handed on, would say what the base class says.
    def test_a_fenced_work_hands_on_every_virtual_function(self):
        header = without_cuda.package().joinpath(
            "include", "torch", "csrc", "distributed", "c10d", "Work.hpp").read_text()
        body = header[header.index("class TORCH_API Work "):header.index("protected:")]
        virtual = set(re.findall(r"virtual [^;(]*?(\w+)\(", body))
        own = simulated.SOURCE.parent.joinpath("c10d", "operations.h").read_text()
        self.assertLessEqual(virtual, set(re.findall(r"(\w+)\([^()]*\) (?:const )?override", own)))
        self.assertGreater(len(virtual), 10)

    def test_switched_off_nothing_is_changed(self):
        self.run_code("""
assert library is None
assert not at_backend_select("allreduce_")
# PyTorch's own, of pybind11: "instancemethod" up to 2.13.
assert type(dist.ProcessGroup._end_coalescing).__name__ != "function"
""", WEIR_C10D="0")
        self.run_code("assert library is None and not at_backend_select('send')",
                      begin=self.BEGIN.replace('weir.enable("full")', 'weir.enable("full", c10d=False)'))

    def test_a_value_that_is_none_is_refused(self):
        pathlib.Path(self.folder.name, "x.py").touch()
        done = subprocess.run(
            [sys.executable, "-m", "weir", "run", "--allocator", "full", "--c10d", "perhaps", "x.py"],
            capture_output=True, text=True, timeout=60, cwd=self.folder.name, check=False,
            env=simulated.environment(self.folder.name))
        self.assertEqual(done.returncode, 1)
        self.assertIn("WEIR_C10D", done.stderr)

    def test_gloo_is_left_alone(self):
        self.run_code("""
init("gloo")
tensor = torch.ones(8)
for work in (dist.all_reduce(tensor, async_op=True), dist.broadcast(tensor, 0, async_op=True),
             dist.barrier(async_op=True)):
    assert work.wait()
outputs = [torch.zeros(8)]
dist.all_gather(outputs, tensor)
assert torch.equal(outputs[0], tensor)
group = dist.new_group([0])
dist.all_reduce(tensor, group=group)
backend = group._get_backend(torch.device("cpu"))
assert isinstance(backend, dist.ProcessGroupGloo), backend
assert operations() == 0
dist.destroy_process_group()
""")

    def test_functional_collectives_and_ddp_run(self):
        self.run_code("""
import torch.distributed._functional_collectives as functional
init("gloo")
assert torch.equal(functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD) + 0, torch.ones(4))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
model(torch.ones(2, 4)).sum().backward()
assert model.module.weight.grad is not None
assert operations() == 0
dist.destroy_process_group()
""")

    def test_coalesced_operations_run(self):
        self.run_code("""
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
from torch.distributed.distributed_c10d import _coalescing_manager
with _coalescing_manager(device=torch.device("cpu"), async_ops=True) as works:
    dist.all_gather_into_tensor(torch.zeros(8), torch.ones(4))
assert operations() == 0  # no CUDA tensors
""")

    # The thread's capture mode is relaxed while NCCL connects, and as before whatever comes of it.
    def test_the_end_of_a_coalesced_operation_is_made_relaxed_and_told_of(self):
        self.run_code("""
calls = []
class Library:
    def weir_c10d_coalescing_begins(self, group):
        calls.append(("begins", group))
    def weir_c10d_relax(self, group):
        calls.append(("relax", group))
        return 5
    def weir_c10d_restore(self, mode):
        calls.append(("restore", mode))
class Work:
    def boxed(self):
        return "work"
class Group:
    def _id(self):
        return 7
    def _start_coalescing(self, device):
        calls.append(("start", device))
    def _end_coalescing(self, device):
        calls.append(("end", device))
        if device == "bad":
            raise KeyError("NCCL's own")
        return None if device == "current" else Work()
_c10d._tell_of_coalescing(Group, Library(), lambda *what: calls.append(("ended", *what)))
group = Group()
def coalesce(device):
    calls.clear()
    group._start_coalescing(device)
    assert calls == [("start", device), ("begins", 7)], calls
    calls.clear()
    try:
        return group._end_coalescing(device)
    except KeyError as error:
        return error
    finally:
        work = "work" if device == "cuda" else None
        assert calls == [("relax", 7), ("end", device), ("restore", 5), ("ended", 7, work)], calls
assert isinstance(coalesce("cuda"), Work)
assert coalesce("current") is None
assert isinstance(coalesce("bad"), KeyError)
""")

    # So that no Python runs while the Work is joined, and no mode of the program's sees it.
    def test_the_work_of_a_coalesced_operation_is_handed_over_as_it_is(self):
        self.run_code("""
from torch.utils._python_dispatch import TorchDispatchMode
class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        assert "weir" not in str(function), function
        return function(*arguments, **(named or {}))
init("gloo")
tensor = torch.ones(8)
work = dist.all_reduce(tensor, async_op=True)
work.wait()
with Mode():
    assert torch.ops.weir._coalescing_ends(dist.group.WORLD._id(), work.boxed()) is None
    assert torch.ops.weir._coalescing_ends(dist.group.WORLD._id(), None) is None
dist.destroy_process_group()
""")

    # PyTorch's own groups, with the fake runtime's NCCL.
    def test_nccls_groups_give_their_memory_back_where_pytorch_can_suspend_them(self):
        if len(sys.argv) < 3:
            self.skipTest("it needs the fake NCCL")
        self.run_code(simulated.CONTEXT + """
device = torch.device("cuda", 0)
init("nccl", device_id=device)
groups = [dist.group.WORLD, dist.new_group([0])]
backends = [group._get_backend(device) for group in groups]
dist.new_group([0], backend="gloo")
def suspended():
    return [backend.memory_stats()["suspended"] for backend in backends]
def refused():
    try:
        weir.sleep(communicators=True)
    except weir.Problem as problem:
        return str(problem)
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12):
    assert "can't suspend NCCL's groups" in refused()
else:
    with dist.distributed_c10d._coalescing_manager(device=device):
        assert "are in flight" in refused()
    assert suspended() == [0, 0]
    for _ in range(2):
        assert weir.sleep(communicators=True)["communicator_bytes"] == 200
        assert suspended() == [1, 1]
        assert weir.wake()["communicator_bytes"] == 200
        assert suspended() == [0, 0]
dist.destroy_process_group()
""")

    def test_a_backend_without_its_functions_is_told_of_and_passed_over(self):
        whole = self.library.read_bytes()
        self.addCleanup(self.library.write_bytes, whole)
        self.library.write_bytes(whole.replace(b"weir_c10d_", b"none_c10d_"))
        check = "assert library is None and weir.enabled() == 'full'"
        _, said = self.run_code(check)
        self.assertIn("are kept as PyTorch keeps them", said)
        self.assertIn("weir_c10d_enable", said)
        self.assertIn("WEIR_C10D=0", said)
        _, said = self.run_code(check, WEIR_C10D="0")
        self.assertNotIn("Weir", said)
        printed, _ = self.run_code("import weir; print(weir.info()['c10d'])", begin="")
        self.assertEqual(printed, "False")

    def test_info_tells_of_the_library(self):
        printed, _ = self.run_code("import weir; print(weir.info()['c10d'])", begin="")
        self.assertEqual(printed, "True")


if __name__ == "__main__":
    simulated.main()
