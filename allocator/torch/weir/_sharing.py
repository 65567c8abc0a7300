# SPDX-License-Identifier: Apache-2.0
"""Tensors on their way to another process: it has Weir on before it opens their memory.

PyTorch's own allocator can't open memory of Weir's. A process that was spawned has the environment of
its parent, WEIR_* settings too, but not what the parent called: so the tensors bring it along.
"""

from __future__ import annotations

import importlib
import os
from multiprocessing.reduction import ForkingPickler


def rebuild(arguments: tuple):  # noqa: ANN201
    """Called where a tensor arrives. Raises Problem if CUDA is in use there without Weir."""
    import weir
    from weir import _records

    if weir.enabled() is None:
        if record := os.environ.get("WEIR_RECORD"):  # that file is the parent's
            os.environ["WEIR_RECORD"] = _records.of_process(record)
        weir.enable("full")
    from torch.multiprocessing import reductions

    return reductions.rebuild_cuda_tensor(*arguments)


def _reduce(tensor):  # noqa: ANN001, ANN202
    from torch.multiprocessing import reductions

    function, arguments = reductions.reduce_tensor(tensor)[:2]
    if function is reductions.rebuild_cuda_tensor:
        return rebuild, (arguments,)
    return function, arguments


def bring_along(torch) -> None:  # noqa: ANN001
    """From now on, what pickles a CUDA tensor for another process says that it is Weir's."""
    importlib.import_module("torch.multiprocessing")  # has PyTorch's own ways, which these replace

    for kind in (*torch._tensor_classes, torch.Tensor, torch.nn.parameter.Parameter):
        ForkingPickler.register(kind, _reduce)
