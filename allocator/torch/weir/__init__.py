# SPDX-License-Identifier: Apache-2.0
"""Weir: a CUDA caching allocator for PyTorch, aware of streams and graphs.

    import weir
    weir.enable()              # before anything uses CUDA

or, for an unchanged program, `python -m weir run train.py`. Importing this needs neither a GPU nor
PyTorch. Settings are WEIR_* environment variables (docs/configuration.md), or enable()'s arguments.
"""

from __future__ import annotations

from weir._enable import enable
from weir._graphs import launching
from weir._in_use import enabled
from weir._layouts import check_layouts, step
from weir._memory import (fence, layout, plain_memory, plain_pool, record,
                          snapshot, stats, trim)
from weir._native import Problem, info
from weir._sleep import changed, residue, sleep, tag, tags, wake

__all__ = ["Problem", "changed", "check_layouts", "enable", "enabled", "fence", "info",
           "launching", "layout", "plain_memory", "plain_pool", "record", "residue", "sleep", "snapshot", "stats",
           "step", "tag", "tags", "trim", "wake"]
__version__ = "0.1.0"
