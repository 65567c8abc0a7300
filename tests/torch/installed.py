# SPDX-License-Identifier: Apache-2.0
"""What tests of the Python package share."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).parents[2] / "allocator" / "torch" / "weir"
LIBRARY = pathlib.Path()  # of the build: libweir_pluggable.so; a test sets it


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

    def fake_torch(self, **attributes):
        """A module named torch that is as far as the test needs."""
        path = pathlib.Path(tempfile.mkdtemp(dir=self.folder.name))
        lines = ["import types", "version = types.SimpleNamespace(cuda='13.0')",
                 "__version__ = '9.9'", "cuda = types.SimpleNamespace(is_initialized=lambda: False)"]
        lines += [f"{name} = {value}" for name, value in attributes.items()]
        (path / "torch.py").write_text("\n".join(lines))
        return f"{path}{os.pathsep}{self.folder.name}"

    def broken_torch(self, version, error):
        """A package named torch that is installed and fails."""
        path = pathlib.Path(tempfile.mkdtemp(dir=self.folder.name))
        (path / "torch").mkdir()
        (path / "torch" / "version.py").write_text(f"__all__ = []\n__version__ = '{version}'\n")
        (path / "torch" / "__init__.py").write_text(error)
        return f"{path}{os.pathsep}{self.folder.name}"

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
