# SPDX-License-Identifier: Apache-2.0
"""Weir under the real CuPy and Numba, on a GPU: skips what is not installed.

usage: array_libraries_gpu_test.py    (with Weir installed)
"""

import os
import subprocess
import sys
import unittest

LIVE = """
import ctypes, gc
from weir import _blocks, _native
def live():
    gc.collect()
    library, handle = _blocks._library()
    numbers = _native.Statistics(size=ctypes.sizeof(_native.Statistics))
    _native.check(library, library.weir_statistics(handle, 0, ctypes.byref(numbers)))
    return numbers.live_bytes
"""


def has(module):
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True,
                          check=False).returncode == 0


class OnAGpu(unittest.TestCase):
    def run_code(self, code, **environment):
        result = subprocess.run([sys.executable, "-c", LIVE + code], capture_output=True, text=True,
                                timeout=120, check=False, env={**os.environ, **environment})
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.split()

    @unittest.skipUnless(has("cupy"), "CuPy is not installed")
    def test_cupy_computes_in_weirs_memory(self):
        self.assertEqual(self.run_code("""
import cupy, weir.cupy
cupy.cuda.set_allocator(weir.cupy.allocator)
total, streams = 0, [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
for turn in range(300):
    with streams[turn % 3]:
        x = cupy.full(100_000 + turn, turn, dtype=cupy.int64)
        total += int((x * 2).sum()) - 2 * turn * x.size
print(total, live() > 0)
del x
print(live())
"""), ["0", "True", "0"])

    @unittest.skipUnless(has("numba.cuda"), "Numba is not installed")
    def test_numba_computes_in_weirs_memory(self):
        self.assertEqual(self.run_code("""
import numpy, weir.numba
from numba import cuda
cuda.set_memory_manager(weir.numba.MemoryManager)
@cuda.jit
def double(x):
    i = cuda.grid(1)
    if i < x.size: x[i] *= 2
wrong = 0
for turn in range(100):
    host = numpy.arange(100_000 + turn)
    x = cuda.to_device(host)
    double[400, 256](x)
    wrong += int((x.copy_to_host() != 2 * host).sum())
print(wrong, live() > 0, cuda.current_context().get_memory_info().total > 0)
del x
print(live())
"""), ["0", "True", "True", "0"])

    @unittest.skipUnless(has("cupy"), "CuPy is not installed")
    def test_another_process_opens_cupys_plain_memory(self):
        self.assertEqual(self.run_code("""
import subprocess, sys, cupy, weir.cupy
cupy.cuda.set_allocator(weir.cupy.allocator)
first, x = cupy.zeros(1000), cupy.full(100_000, 3, dtype=cupy.int64)
handle = cupy.cuda.runtime.ipcGetMemHandle(x.data.ptr)
base = ctypes.c_uint64()
size = ctypes.c_size_t()
driver = ctypes.CDLL("libcuda.so.1")
assert driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(x.data.ptr)) == 0
cupy.cuda.Device().synchronize()
other = subprocess.run([sys.executable, "-c", f'''
import cupy
base = cupy.cuda.runtime.ipcOpenMemHandle({handle!r})
memory = cupy.cuda.UnownedMemory(base + {x.data.ptr - base.value}, {x.nbytes}, None)
y = cupy.ndarray(({x.size},), cupy.int64, cupy.cuda.MemoryPointer(memory, 0))
print(int(y.sum()))
y += 1
cupy.cuda.Device().synchronize()
cupy.cuda.runtime.ipcCloseMemHandle(base)
'''], capture_output=True, text=True)
print(other.stdout.strip(), other.stderr.strip() or "well", int(x.sum()))
""", WEIR_MEMORY="plain"), ["300000", "well", "400000"])

    @unittest.skipUnless(has("numba.cuda"), "Numba is not installed")
    def test_another_process_opens_numbas_plain_memory(self):
        self.assertEqual(self.run_code("""
import base64, numpy, pickle, subprocess, sys, weir.numba
from numba import cuda
cuda.set_memory_manager(weir.numba.MemoryManager)
first, x = cuda.to_device(numpy.zeros(1000)), cuda.to_device(numpy.full(100_000, 3))
handle = base64.b64encode(pickle.dumps(x.get_ipc_handle())).decode()
cuda.synchronize()
other = subprocess.run([sys.executable, "-c", f'''
import base64, pickle
from numba import cuda
with pickle.loads(base64.b64decode("{handle}")) as y:
    values = y.copy_to_host()
    print(values.sum())
    y.copy_to_device(values + 1)
    cuda.synchronize()
'''], capture_output=True, text=True)
print(other.stdout.strip(), other.stderr.strip() or "well", x.copy_to_host().sum())
""", WEIR_MEMORY="plain"), ["300000", "well", "400000"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
