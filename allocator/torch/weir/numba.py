# SPDX-License-Identifier: Apache-2.0
"""Weir as Numba's memory manager: NUMBA_CUDA_MEMORY_MANAGER=weir.numba, or

    from numba import cuda
    import weir.numba
    cuda.set_memory_manager(weir.numba.MemoryManager)  # before anything uses CUDA

Where PyTorch runs with Weir too (turn that on first), both share one heap. Settings are WEIR_*
environment variables (docs/configuration.md).
"""

from __future__ import annotations

import ctypes

from numba import config, cuda

from weir import _native
from weir._blocks import Block

_PER_THREAD = 2  # cudaStreamPerThread


class MemoryManager(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):
    """Numba's interface for memory managers, version 1. Pinned and mapped memory is Numba's own."""

    @property
    def interface_version(self) -> int:
        return 1

    def initialize(self) -> None:
        pass

    def memalloc(self, size: int) -> cuda.MemoryPointer:
        """For work on Numba's default stream. Raises MemoryError, Problem."""
        stream = _PER_THREAD if config.CUDA_PER_THREAD_DEFAULT_STREAM else 0
        block = Block(size, stream, self.context.device.id)
        return cuda.MemoryPointer(self.context, ctypes.c_void_p(block.pointer), size,
                                  finalizer=block.free)

    def get_memory_info(self) -> cuda.MemoryInfo:
        """Of the device, as the driver has it: what Weir holds counts as used."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) != 0:
            raise NotImplementedError("the driver can't say how much memory there is")
        return cuda.MemoryInfo(free=free.value, total=total.value)

    def get_ipc_handle(self, memory: cuda.MemoryPointer) -> cuda.IpcHandle:
        """Of plain memory. Raises Problem for pages, which such handles can't name."""
        try:
            return super().get_ipc_handle(memory)
        except Exception as refused:  # which class it is depends on Numba's version
            raise _native.Problem("CUDA gives no IPC handle for this memory, as it does for none that is "
                                  "mapped in pages: set WEIR_MEMORY=plain") from refused


_numba_memory_manager = MemoryManager  # what NUMBA_CUDA_MEMORY_MANAGER looks for
