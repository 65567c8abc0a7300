# SPDX-License-Identifier: Apache-2.0
"""The backends that this Weir has, in the folder `torch` beside this file, and which one fits a PyTorch.

PyTorch changes the functions of its CUDAAllocator with a minor version, seldom with a patch. So there is one backend for
a minor version and a major version of CUDA: 2.14-cu13, say. Its built_for.json says which release it was compiled for, and
how long the table of functions of a class that PyTorch exports was there. That length tells whether another release of
the minor version has the same functions.

usage: _backends.py    (of the build) prints the PyTorch of this Python, and what its built_for.json says, as JSON
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import mmap
import pathlib
import re
import struct
import sys
from typing import NamedTuple

FOLDER = pathlib.Path(__file__).parent / "torch"
LIBRARY = "libweir_torch.so"

_TABLE = b"\0_ZTVN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE\0"
_DYNAMIC_SYMBOLS = 11  # SHT_DYNSYM of ELF


class Torch(NamedTuple):
    """A PyTorch that is installed."""

    version: str  # "2.14.0+cu130"
    cuda: str | None  # "13.0"; None: built without, or unknown
    folder: str

    @property
    def name(self) -> str:
        """Of the backend for it: 2.14-cu13."""
        minor = re.match(r"\d+\.\d+|", self.version)[0]
        return f"{minor}-cu{(self.cuda or 'none').split('.')[0]}"

    def table(self) -> int | None:
        """How long the table of functions is, in bytes; None: there is none."""
        path = pathlib.Path(self.folder, "lib", "libtorch_cuda.so")
        return _table_of(path) if path.exists() else None

    def __str__(self) -> str:
        return f"{self.version} {f'with CUDA {self.cuda}' if self.cuda else 'without CUDA'}"


def installed() -> Torch | None:
    """The PyTorch that would be imported, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None:
        return None
    folder = next(iter(spec.submodule_search_locations or []), "")
    path = pathlib.Path(folder, "version.py")
    text = path.read_text() if path.exists() else ""
    version, cuda = (re.search(rf"^{name} *(?::[^=]*)?= *['\"]([^'\"]+)", text, re.MULTILINE)
                     for name in ("__version__", "cuda"))
    try:
        return Torch(version[1] if version else importlib.metadata.version("torch"),
                     cuda and cuda[1], folder)
    except importlib.metadata.PackageNotFoundError:
        return Torch("of unknown version", None, folder)


def present() -> dict[str, dict]:
    """By name: what the built_for.json of each says. One that can't be read is passed over."""
    found = {}
    for path in FOLDER.glob("*/built_for.json"):
        with contextlib.suppress(OSError, ValueError):
            found[path.parent.name] = json.loads(path.read_text())
    return dict(sorted(found.items(), key=lambda item: [int(n) for n in re.findall(r"\d+", item[0])]))


def fitting(torch: Torch) -> tuple[str | None, str]:
    """The name of the backend for it, and what is to be known of that; None, and why there is none."""
    name, there = torch.name, present()
    if name not in there:
        return None, (f"Weir has backends for PyTorch {', '.join(there)}, and this is {torch}."
                      if there else "")
    built_for = there[name]["version"]
    if torch.table() != there[name]["table"]:
        return None, f"PyTorch {torch} has other functions than {built_for}, which Weir's backend is for."
    if torch.version != built_for and not re.fullmatch(r"\d+\.\d+\.\d+(\+\w+)?", torch.version):
        return None, f"Weir's backend is for PyTorch {built_for}, and {torch.version} is no release."
    patch, compiled_for = (each.split("+")[0] for each in (torch.version, built_for))
    return name, "" if patch == compiled_for else (
        f"The backend was compiled for PyTorch {compiled_for}; {patch} has the same functions.")


def _table_of(library: pathlib.Path) -> int | None:
    """Read from the file, since loading it takes seconds and CUDA's libraries."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as elf:
        sections_at, = struct.unpack_from("<Q", elf, 0x28)
        entry, count = struct.unpack_from("<HH", elf, 0x3A)
        sections = [struct.unpack_from("<IIQQQQII", elf, sections_at + entry * i) for i in range(count)]
        for _, kind, _, _, begin, size, names, _ in sections:
            if kind == _DYNAMIC_SYMBOLS:
                names_at, names_size = sections[names][4:6]
                name = elf.find(_TABLE, names_at, names_at + names_size) + 1 - names_at
                for symbol in struct.iter_unpack("<IBBHQQ", elf[begin:begin + size]):
                    if symbol[0] == name:
                        return symbol[5]
    return None


if __name__ == "__main__":
    torch = installed()
    if torch is None:
        sys.exit(f"{sys.executable} has no PyTorch")
    print(json.dumps({"folder": torch.folder, "name": torch.name,
                      "version": torch.version, "table": torch.table()}))
