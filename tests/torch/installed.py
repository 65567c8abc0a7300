# SPDX-License-Identifier: Apache-2.0
"""What tests of the Python package share."""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).parents[2] / "allocator" / "torch" / "weir"
LIBRARY = pathlib.Path()  # of the build: libweir_pluggable.so; a test sets it


def library_with_table(size):
    """A 64-bit ELF file that has three symbols, one of them PyTorch's table of functions."""
    names = b"\0first\0_ZTVN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE\0last\0"
    symbols = b"".join(struct.pack("<IBBHQQ", names.index(name), 0x21, 0, 1, 0, length)
                       for name, length in ((b"first", 8), (b"_ZTV", size), (b"last", 16)))
    sections = [(0, 0, 0, 0), (11, 64, len(symbols), 2), (3, 64 + len(symbols), len(names), 0)]
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 0, 64 + len(symbols + names),
                         0, 64, 0, 0, 64, len(sections), 0)
    return header + symbols + names + b"".join(
        struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, at, length, link, 0, 8, 24)
        for kind, at, length, link in sections)


class Installed(unittest.TestCase):
    """The package as installed: the sources, and the library beside them."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        shutil.copytree(SOURCE, os.path.join(cls.folder.name, "weir"),
                        ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(LIBRARY, os.path.join(cls.folder.name, "weir"))
        shutil.copy(SOURCE.parent / "weir-enable.pth", cls.folder.name)
        pathlib.Path(cls.folder.name, "program.py").write_text("import sys; print(sys.argv[1:])\n")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def python(self, *arguments, **environment):
        """Runs Python with the package, and a PyTorch only if the environment names one."""
        return subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, timeout=60,
            cwd=self.folder.name,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": self.folder.name, **environment})

    def run_code(self, code, **environment):
        result = self.python("-c", code, **environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.strip()

    # What a program begins with that has Weir on the simulated device, once it calls turn_on(): `allocate()` takes memory,
    # which goes as the program ends, and returns the call's status.
    ON_SIM = """
import ctypes, weir
from weir import _enable, _native
library = _native.pluggable()
handle = ctypes.c_void_p(library.weir_torch_allocator())
stream, blocks = ctypes.c_void_p(), []
assert library.weir_sim_new_stream(handle, 0, ctypes.byref(stream)) == 0  # which opens the device
def turn_on():
    _enable._state.update(kind='pluggable', library=library)
def allocate(mib=8):
    block = ctypes.c_void_p()
    status = library.weir_allocate(handle, mib << 20, stream, 0, ctypes.byref(block))
    if status == 0: blocks.append(block)
    return status
"""

    def run_on_sim(self, code, **environment):
        """The lines that `code` printed, behind ON_SIM and with as much of PyTorch as Weir's Python asks for there."""
        path = self.fake_torch(device="types.SimpleNamespace", cuda="types.SimpleNamespace(is_initialized=lambda: False, "
                               "current_device=lambda: 0, graph_pool_handle=lambda: object())")
        return self.run_code(self.ON_SIM + code + "for block in blocks: assert library.weir_deallocate(handle, block) == 0\n",
                             PYTHONPATH=path, WEIR_DEVICE="sim", **environment).splitlines()

    def fake_torch(self, **attributes):
        """A module named torch that is as far as the test needs."""
        path = pathlib.Path(tempfile.mkdtemp(dir=self.folder.name))
        lines = ["import types", "version = types.SimpleNamespace(cuda='13.0')",
                 "__version__ = '9.9'", "cuda = types.SimpleNamespace(is_initialized=lambda: False)"]
        lines += [f"{name} = {value}" for name, value in attributes.items()]
        (path / "torch.py").write_text("\n".join(lines))
        return f"{path}{os.pathsep}{self.folder.name}"

    def torch_package(self, version, code, cuda="13.0", table=None):
        """A package named torch that is installed, with this table of functions in its library."""
        path = pathlib.Path(tempfile.mkdtemp(dir=self.folder.name))
        (path / "torch" / "lib").mkdir(parents=True)
        (path / "torch" / "version.py").write_text(
            f"__all__ = []\n__version__ = '{version}'\ncuda: Optional[str] = '{cuda}'\n")
        (path / "torch" / "__init__.py").write_text(code)
        if table:
            (path / "torch" / "lib" / "libtorch_cuda.so").write_bytes(library_with_table(table))
        return f"{path}{os.pathsep}{self.folder.name}"

    def backend(self, version, table=None, content=b""):
        """Puts a backend that is `content` into the package, built for this PyTorch, until the test ends."""
        folder = pathlib.Path(self.folder.name, "weir", "torch", ".".join(version.split(".")[:2]) + "-cu13")
        folder.mkdir(parents=True, exist_ok=True)
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        (folder / "libweir_torch.so").write_bytes(content)
        (folder / "built_for.json").write_text(json.dumps({"version": version, "table": table}))
        return folder

    def info(self, **environment):
        """What `python -m weir info` prints; it must not fail."""
        result = self.python("-m", "weir", "info", **environment)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return json.loads(result.stdout)

    # With which the pluggable library can be turned on, on the simulated device.
    PLUGGABLE = dict(
        version="types.SimpleNamespace(cuda='13.0')",
        inner="types.SimpleNamespace(**{name: lambda address: None for name in ("
              "'set_init_fn', 'set_reset_fn', 'set_memory_fraction_fn', 'set_base_alloc_fn', "
              "'set_record_stream_fn', 'set_begin_allocate_to_pool', "
              "'set_end_allocate_to_pool_fn', 'set_release_pool')})",
        graph="type('CUDAGraph', (), {'enable_debug_mode': lambda self: print('PyTorch'), "
              "'capture_begin': lambda self, pool=None: print('PyTorch', pool) or 1 / len(pool)})",
        cuda="types.SimpleNamespace(is_initialized=lambda: False, current_device=lambda: 0, "
             "CUDAGraph=graph, "
             "memory=types.SimpleNamespace(change_current_allocator=lambda allocator: None, "
             "CUDAPluggableAllocator=lambda *names: types.SimpleNamespace(allocator=lambda: inner)))",
        device="type('device', (), {})")

    def run_weir(self, *arguments, **environment):
        return self.python("-W", "error", "-m", "weir", "run", "--allocator", "pluggable", *arguments,
                           PYTHONPATH=self.fake_torch(**self.PLUGGABLE), WEIR_DEVICE="sim",
                           **environment)
