# SPDX-License-Identifier: Apache-2.0
"""Weir as the allocator of CuPy and Numba, with stand-ins for both and the simulated device.

usage: array_libraries_test.py LIBRARY    (of the build: libweir_pluggable.so)
"""

import os
import pathlib
import sys
import unittest

import installed

# As much of each library as Weir's modules touch, with the semantics of the real one.
CUPY = """
class UnownedMemory:
    def __init__(self, pointer, size, owner, device):
        self.ptr, self.size, self.owner, self.device = pointer, size, owner, device
class MemoryPointer:
    def __init__(self, memory, offset):
        self.mem, self.ptr = memory, memory.ptr + offset
class Stream:
    ptr = 0
class runtime:
    getDevice = staticmethod(lambda: 0)
class cuda:
    stream = Stream()
    get_current_stream = staticmethod(lambda: cuda.stream)
cuda.UnownedMemory, cuda.MemoryPointer, cuda.runtime = UnownedMemory, MemoryPointer, runtime
"""
NUMBA_CONFIG = "CUDA_PER_THREAD_DEFAULT_STREAM = 0\n"
NUMBA_CUDA = """
import abc, collections, weakref
class HostOnlyCUDAMemoryManager(abc.ABC):
    def __init__(self, *, context): self.context = context
    @abc.abstractmethod
    def initialize(self): ...
    @abc.abstractmethod
    def memalloc(self, size): ...
    @abc.abstractmethod
    def get_memory_info(self): ...
    @abc.abstractmethod
    def get_ipc_handle(self, memory): ...
    @property
    @abc.abstractmethod
    def interface_version(self): ...
class IpcHandle: ...
class GetIpcHandleMixin:
    def get_ipc_handle(self, memory):
        raise RuntimeError("[1] Call to cuIpcGetMemHandle results in CUDA_ERROR_INVALID_VALUE")
class MemoryPointer:
    def __init__(self, context, pointer, size, owner=None, finalizer=None):
        self.device_pointer, self.size = pointer, size
        self._finalizer = weakref.finalize(self, finalizer)
MemoryInfo = collections.namedtuple("MemoryInfo", "free total")
"""
STATISTICS = """
import ctypes
from weir import _blocks, _native
def live():
    library, handle = _blocks._library()
    numbers = _native.Statistics(size=ctypes.sizeof(_native.Statistics))
    _native.check(library, library.weir_statistics(handle, 0, ctypes.byref(numbers)))
    return numbers.live_blocks, numbers.live_bytes
"""


class ArrayLibraries(installed.Installed):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = pathlib.Path(cls.folder.name, "stand_ins")
        (folder / "numba" / "cuda").mkdir(parents=True)
        (folder / "cupy.py").write_text(CUPY)
        (folder / "numba" / "__init__.py").write_text("")
        (folder / "numba" / "config.py").write_text(NUMBA_CONFIG)
        (folder / "numba" / "cuda" / "__init__.py").write_text(NUMBA_CUDA)
        cls.path = f"{cls.folder.name}{os.pathsep}{folder}"

    def run_on_sim(self, code, **environment):
        return self.run_code(STATISTICS + code, **{
            "PYTHONPATH": self.path, "WEIR_DEVICE": "sim", **environment}).splitlines()

    def test_cupys_arrays_are_weirs_blocks_and_go_back_with_the_last_reference(self):
        self.assertEqual(self.run_on_sim(
            "import weir.cupy\n"
            "memory = weir.cupy.allocator(3 << 20)\n"
            "print(live(), memory.ptr % 512, memory.mem.size == 3 << 20, memory.mem.device)\n"
            "view = memory.mem\n"
            "del memory\n"
            "print(live())\n"
            "del view\n"
            "print(live())\n"), ["(1, 3145728) 0 True 0", "(1, 3145728)", "(0, 0)"])

    def test_cupys_current_stream_is_the_blocks(self):
        # A block that goes back serves the next request of its own stream.
        self.assertEqual(self.run_on_sim(
            "import ctypes, weir.cupy\n"
            "library, handle = _blocks._library()\n"
            "streams = [ctypes.c_void_p() for i in range(2)]\n"
            "for each in streams:\n"
            "    _native.check(library, library.weir_sim_new_stream(ctypes.c_void_p(handle), 0,\n"
            "                                                       ctypes.byref(each)))\n"
            "def on(stream):\n"
            "    weir.cupy.cupy.cuda.stream.ptr = stream.value\n"
            "    return weir.cupy.allocator(1000)\n"
            "first = on(streams[0]); address = first.ptr\n"
            "second = on(streams[1])\n"
            "print(second.ptr != address)\n"
            "del first\n"
            "print(on(streams[0]).ptr == address)\n"), ["True", "True"])

    def test_zero_bytes_are_null(self):
        self.assertEqual(self.run_on_sim(
            "import weir.cupy\n"
            "print(weir.cupy.allocator(0).ptr, live())\n"), ["0 (0, 0)"])

    def test_lack_of_memory_says_how_much_was_wanted(self):
        (said,) = self.run_on_sim(
            "import weir.cupy\n"
            "try: weir.cupy.allocator(1 << 30)\n"
            "except MemoryError as error: print(error, live())\n", WEIR_LIMIT="512MiB")
        self.assertIn("1.00 GiB", said)
        self.assertTrue(said.endswith("(0, 0)"), said)

    def test_numbas_memory_goes_back_with_its_pointer(self):
        self.assertEqual(self.run_on_sim(
            "import gc, types, weir.numba\n"
            "manager = weir.numba._numba_memory_manager(\n"
            "    context=types.SimpleNamespace(device=types.SimpleNamespace(id=0)))\n"
            "manager.initialize()\n"
            "memory = manager.memalloc(1 << 20)\n"
            "print(manager.interface_version, live(), memory.device_pointer.value % 512, memory.size)\n"
            "try: manager.get_ipc_handle(memory)\n"
            "except weir.Problem as problem: print('WEIR_MEMORY=plain' in str(problem))\n"
            "del memory\n"
            "print(live())\n"), ["1 (1, 1048576) 0 1048576", "True", "(0, 0)"])

    def test_pytorchs_heap_is_shared_where_weir_is_on(self):
        said = self.run_on_sim(
            "import weir\n"
            "weir.enable('pluggable')\n"
            "import weir.cupy\n"
            "memory = weir.cupy.allocator(4096)\n"
            "print(weir.stats()['live_blocks'])\n",
            PYTHONPATH=f"{self.fake_torch(**self.PLUGGABLE)}{os.pathsep}{self.path}")
        self.assertEqual(said, ["1"])

    def test_a_setting_that_is_wrong_is_said(self):
        result = self.python("-c", "import weir.cupy; weir.cupy.allocator(1)",
                             PYTHONPATH=self.path, WEIR_DEVICE="sim", WEIR_LIMIT="much")
        self.assertIn("WEIR_LIMIT", result.stderr.splitlines()[-1])

    def test_blocks_that_live_to_the_end_of_the_process_do_no_harm(self):
        result = self.python("-c", "import weir.cupy; kept = weir.cupy.allocator(1 << 20)",
                             PYTHONPATH=self.path, WEIR_DEVICE="sim")
        self.assertEqual((result.returncode, result.stderr), (0, ""))


if __name__ == "__main__":
    installed.LIBRARY = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
