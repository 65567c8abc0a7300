# SPDX-License-Identifier: Apache-2.0
"""Programs of PyTorch's Python where there is no GPU: with Weir on a simulated device, or without Weir.

usage of a test: TEST FOLDER [STUBS]    (of libweir_torch.so and built_for.json; of without_cuda.py's)

Needs a PyTorch that can be imported, with the stubs if there are any, the one that the libraries were built for; exit 77 without.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import without_cuda

# What a program begins with that uses CUDA on the fake runtime. PyTorch asks the driver whether the device has a context; here
# it asks the fake, also as the process ends, when no Python runs any more.
CONTEXT = """
import ctypes, torch
ctypes.CDLL("libc10_cuda.so")["_ZN3c104cuda9_internal20setHasPrimaryContextEPFbaE"](ctypes.CDLL(None).fake_has_context)
torch.cuda.init()
"""
SOURCE = pathlib.Path(__file__).resolve().parents[2] / "allocator" / "torch" / "weir"


class Simulated(unittest.TestCase):
    BEGIN = ""  # what each program begins with

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        package = pathlib.Path(cls.folder.name, "weir")
        shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
        backend = pathlib.Path(sys.argv[1]).resolve()
        cls.library = package / "torch" / backend.name / "libweir_torch.so"
        shutil.copytree(backend, cls.library.parent)
        shutil.copy(backend.parents[1] / "libweir_pluggable.so", package)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_code(self, code, begin=None, **environment):
        """What it printed, and what it said otherwise."""
        done = _run((self.BEGIN if begin is None else begin) + code, self.folder.name, **environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.strip(), done.stderr.strip()


def environment(folder, **more):
    stubs = without_cuda.environment(pathlib.Path(sys.argv[2])) if len(sys.argv) > 2 else {}
    return {**os.environ, "PYTHONPATH": folder, "WEIR_DEVICE": "sim", "TORCH_CPP_LOG_LEVEL": "ERROR", **stubs, **more}


def _run(code, folder, **more):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300,
                          cwd=folder, check=False, env=environment(folder, **more))


def main():
    done = _run("import torch; torch.distributed.is_available()", os.getcwd())
    if done.returncode != 0:
        print(f"no PyTorch can be imported here: {done.stderr}")
        sys.exit(77)
    unittest.main(module="__main__", argv=sys.argv[:1])
