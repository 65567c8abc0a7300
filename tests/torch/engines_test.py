# SPDX-License-Identifier: Apache-2.0
"""The engines' own Python, as installed, with Weir on the simulated device: torch_memory_saver, SGLang's adapter of
it, vLLM's sleep mode. Their files are run from where they are; what these need of the rest of the engine is a stand-in.

usage: engines_test.py FOLDER STUBS    (simulated.py)

An engine that is not installed beside PyTorch is skipped.
"""

import importlib.metadata
import importlib.util
import pathlib
import re
import unittest

import simulated


def folder_of(name):
    """Of a package that is installed; it need not be one that can be imported."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise unittest.SkipTest(f"{name} is not installed")
    print(f"{name} {importlib.metadata.version(name)}")
    return pathlib.Path(next(iter(spec.submodule_search_locations)))


class Engines(simulated.Simulated):
    BEGIN = """
import importlib.util, inspect, pathlib, re, sys, types
import weir
assert weir.enable("full") == "full"
import torch
def module(name, **named):
    made = sys.modules[name] = types.ModuleType(name)
    made.__dict__.update(named)
    return made
def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[])
    made = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made
def tensor(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
def states(prefix):
    return {name[len(prefix):]: (info["state"], info["device_bytes"] + info["asleep_bytes"] >> 20, info["host_bytes"] >> 20)
            for name, info in weir.tags().items() if name.startswith(prefix)}
def check(found, **expected):
    assert found == expected, found
""" + simulated.CONTEXT

    def test_a_backup_is_none_where_there_is_none(self):
        self.run_code("""
from weir.torch_memory_saver import torch_memory_saver as saver
with saver.region("kept", enable_cpu_backup=True):
    kept = tensor(2)
with saver.region("dropped"):
    dropped = tensor(2)
assert saver.get_cpu_backup(kept) is None  # it is awake
saver.pause()
assert saver.get_cpu_backup(dropped, zero_copy=True) is None
for wrong, error, says in ((kept, weir.Problem, "has no bytes"), (kept[::2], ValueError, "not contiguous")):
    try:
        saver.get_cpu_backup(wrong)
    except error as problem:
        assert says in str(problem), problem
    else:
        raise AssertionError(says)
saver.resume()
""")

    def test_the_engines_ask_for_the_entry_points_that_the_package_has(self):
        project = simulated.SOURCE.parents[2].joinpath("pyproject.toml").read_text()
        for name, path, entry in (("vllm", "plugins/__init__.py", "weir.vllm:register"),
                                  ("sglang", "srt/plugins/__init__.py", "weir.torch_memory_saver:register")):
            with self.subTest(name):
                asked = re.findall(r'(?m)^\w*GENERAL_PLUGINS_GROUP = "(.*)"|^DEFAULT_PLUGINS_GROUP = "(.*)"',
                                   (folder_of(name) / path).read_text())
                self.assertIn(f'[project.entry-points."{"".join(asked[0])}"]\nweir = "{entry}"\n', project)

    def test_torch_memory_saver_has_no_parameter_and_no_variable_that_weir_does_not_know(self):
        folder = folder_of("torch_memory_saver")
        self.run_code(f"""
import torch_memory_saver as theirs
import weir.torch_memory_saver as ours
public = [name for name in vars(theirs.TorchMemorySaver) if not name.startswith("_")]
assert {{"region", "cuda_graph", "pause", "resume"}} <= set(public)
for name in public:
    mine = getattr(ours.torch_memory_saver, name)  # it is there
    if inspect.isfunction(getattr(theirs.TorchMemorySaver, name)):
        known = list(inspect.signature(mine).parameters.values())
        for at, parameter in enumerate(inspect.signature(getattr(theirs.torch_memory_saver, name)).parameters.values()):
            assert (known[at].name, known[at].default) == (parameter.name, parameter.default), (name, parameter)
assert set(vars(theirs)) & {{"configure_subprocess", "torch_memory_saver"}} <= set(vars(ours))
names = set()
libraries = list(pathlib.Path({str(folder.parent)!r}).glob("torch_memory_saver_hook_mode_preload_cu*.so"))
assert libraries
for library in libraries:
    names |= set(re.findall(rb"TMS_[A-Z_]+", library.read_bytes()))
assert b"TMS_INIT_ENABLE" in names
unknown = {{name.decode() for name in names}} - ours._MEANT - ours._MEANINGLESS
assert not unknown, unknown
""")

    def test_sglangs_adapter_pauses_and_resumes_weirs_memory(self):
        folder_of("torch_memory_saver")
        adapter = folder_of("sglang") / "srt" / "utils" / "torch_memory_saver_adapter.py"
        self.run_code(f"""
for name in ("sglang", "sglang.srt", "sglang.srt.utils"):
    module(name)
module("sglang.srt.utils.common", is_xpu=lambda: False)
adapter = load("sglang.srt.utils.torch_memory_saver_adapter", {str(adapter)!r})  # has imported the other one
theirs = [sys.modules["torch_memory_saver"]]
import weir.torch_memory_saver
weir.torch_memory_saver.register()
import torch_memory_saver as ours
assert ours is weir.torch_memory_saver and ours is not theirs[0]
import torch_memory_saver.testing_utils  # of the other package, and it has Weir's
saver = adapter.TorchMemorySaverAdapter.create(True)
assert saver.enabled
with saver.configure_subprocess():
    import os
    assert os.environ["WEIR_ENABLE"] == "1" and "torch_memory_saver" not in os.environ.get("LD_PRELOAD", "")
with saver.region("weights", enable_cpu_backup=True):
    weights = tensor(8)
with saver.region("kv_cache"):
    cache = tensor(16)
address = cache.data_ptr()
saver.pause("kv_cache"); saver.pause("weights"); saver.pause("cuda_graph")
check(states("memory_saver:"), **{{"kv_cache:discard": ("asleep", 16, 0), "weights:backup": ("asleep", 8, 8)}})
before = torch.cuda.memory_reserved()
with saver.disable():
    assert tensor(32).is_cuda
assert torch.cuda.memory_reserved() == before
saver.resume("cuda_graph"); saver.resume("weights"); saver.resume("kv_cache")
check(states("memory_saver:"), **{{"kv_cache:discard": ("awake", 16, 0), "weights:backup": ("awake", 8, 0)}})
assert cache.data_ptr() == address
assert ours.torch_memory_saver.get_cpu_backup(weights, zero_copy=True) is None  # it is awake
""")

    def test_vllms_worker_sleeps_and_wakes_by_weir(self):
        vllm = folder_of("vllm")
        self.run_code(f"""
import ast, contextlib, logging, time
root = pathlib.Path({str(vllm)!r})
class Log(logging.Logger):
    info_once = warning_once = logging.Logger.info
cuda = types.SimpleNamespace(is_cuda_alike=lambda: True, is_cuda=lambda: True, is_xpu=lambda: False,
                             is_cpu=lambda: False, is_rocm=lambda: False)
for name in ("vllm", "vllm.utils", "vllm.v1", "vllm.v1.worker"):
    module(name).__path__ = []
module("vllm.envs", VLLM_SLEEP_MODE_RELEASE_HOST_MEMORY=True)
module("vllm.platforms", current_platform=cuda)
module("vllm.logger", init_logger=Log)
module("vllm.utils.mem_constants", GiB_bytes=1 << 30)
allocators = load("vllm.device_allocator", root / "device_allocator" / "__init__.py")
sys.modules["vllm"].device_allocator = allocators
backends = load("vllm.device_allocator.sleep_mode_backend", root / "device_allocator" / "sleep_mode_backend.py")
# The worker's own methods, and what they name.
wanted = {{"sleep", "wake_up", "discard", "sleep_mode_backend", "_maybe_get_memory_pool_context"}}
source = ast.parse((root / "v1" / "worker" / "gpu_worker.py").read_text())
worker = next(node for node in source.body if isinstance(node, ast.ClassDef) and node.name == "Worker")
worker.bases, worker.decorator_list = [], []
worker.body = [node for node in worker.body if getattr(node, "name", None) in wanted]
assert {{node.name for node in worker.body}} == wanted
gpu_worker = module("vllm.v1.worker.gpu_worker", torch=torch, time=time, logger=Log("vllm"), current_platform=cuda,
    nullcontext=contextlib.nullcontext, AbstractContextManager=contextlib.AbstractContextManager,
    get_mem_allocator_instance=allocators.get_mem_allocator_instance, format_gib=str,
    has_kv_transfer_group=lambda: False, suspend_device_comms=lambda: told.append("suspended"),
    resume_device_comms=lambda: told.append("resumed"))
told = []
free = torch.accelerator.get_memory_info if hasattr(torch.accelerator, "get_memory_info") else None
torch.accelerator.get_memory_info = lambda: torch.cuda.mem_get_info()
torch.accelerator.synchronize = lambda: None  # no GPU is there
exec(compile(ast.Module([worker], []), "gpu_worker.py", "exec"), vars(gpu_worker))
import weir.vllm
weir.vllm.register()
for name in ("weir", "cumem"):
    worker = gpu_worker.Worker()
    worker._sleep_mode_backend, worker._sleep_saved_parameters = None, {{}}
    worker._sleep_saved_buffers, worker._sleep_saved_draft_buffers = {{}}, {{}}
    worker.synchronize_device = lambda: None
    worker.vllm_config = types.SimpleNamespace(model_config=types.SimpleNamespace(sleep_mode_backend=name,
        enable_cumem_allocator=True, enable_sleep_mode=True, enable_nccl_comm_suspend=True))
    kept = tensor(4)
    with worker._maybe_get_memory_pool_context("weights"):
        weights = tensor(8)
    with worker._maybe_get_memory_pool_context("kv_cache"):
        cache = tensor(16)
    worker.sleep(1)
    check(states("vllm:"), weights=("asleep", 8, 8), kv_cache=("asleep", 16, 0))
    assert weir.tags()["default"]["state"] == ("asleep" if name == "weir" else "awake")
    worker.wake_up(["weights"])
    check(states("vllm:"), weights=("awake", 8, 0), kv_cache=("asleep", 16, 0))
    worker.wake_up(["kv_cache"])
    check(states("vllm:"), weights=("awake", 8, 0), kv_cache=("awake", 16, 0))
    worker.discard(("kv_cache",))
    check(states("vllm:"), weights=("awake", 8, 0), kv_cache=("asleep", 16, 0))
    worker.wake_up()
    assert weir.tags()["default"]["state"] == "awake"
    assert told == ["suspended", "resumed", "resumed", "resumed"], told
    told.clear()
    del weights, cache, kept
    torch.cuda.empty_cache()
""")


if __name__ == "__main__":
    simulated.main()
