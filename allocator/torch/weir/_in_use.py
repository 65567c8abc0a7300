# SPDX-License-Identifier: Apache-2.0
"""The library of Weir's that is PyTorch's allocator, once enable() has made it so."""

from __future__ import annotations

import ctypes

from weir._native import Problem

# "kind": "full" or "pluggable"; "library"; and what must live as long. Empty: Weir is off.
state: dict[str, object] = {}


def enabled() -> str | None:
    """"full" or "pluggable" once Weir is PyTorch's allocator; else None."""
    return state.get("kind")  # type: ignore[return-value]


def active() -> ctypes.CDLL:
    """The library in use. Raises Problem if Weir is off."""
    found = state.get("library")
    if found is None:
        raise Problem("Weir is not on: call weir.enable() before anything uses CUDA, or start the "
                      "program with `python -m weir run`")
    return found  # type: ignore[return-value]
