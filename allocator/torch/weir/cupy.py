# SPDX-License-Identifier: Apache-2.0
"""Weir as CuPy's allocator:

    import cupy, weir.cupy
    cupy.cuda.set_allocator(weir.cupy.allocator)

Where PyTorch runs with Weir too (turn that on first), both share one heap. Settings are WEIR_*
environment variables (docs/configuration.md).
"""

from __future__ import annotations

import cupy

from weir._blocks import Block


def allocator(size: int) -> cupy.cuda.MemoryPointer:
    """Memory of the current device, for CuPy's current stream. Raises MemoryError, Problem."""
    device = cupy.cuda.runtime.getDevice()
    block = Block(size, cupy.cuda.get_current_stream().ptr, device)
    memory = cupy.cuda.UnownedMemory(block.pointer, size, block, device)
    return cupy.cuda.MemoryPointer(memory, 0)
