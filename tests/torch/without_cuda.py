# SPDX-License-Identifier: Apache-2.0
"""Lets PyTorch be imported and used where there are no CUDA libraries and no GPU.

usage: without_cuda.py FOLDER FAKE_RUNTIME LIBRARY...

Makes FOLDER/libcudart.so.13 (as PyTorch names it): the functions of FAKE_RUNTIME, an object file, and all others
of CUDA's libraries that PyTorch and each LIBRARY need, which fail. CUDA's other libraries are links to it. A
program that runs with environment(FOLDER) has these instead of CUDA's own.
"""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

_OF_CUDA = re.compile(r"(__cu|cu|nccl|nvrtc|nvshmem|nvtx|nvJitLink)")


def package() -> pathlib.Path:
    """PyTorch's folder; it need not be one that can be imported."""
    return pathlib.Path(importlib.util.find_spec("torch").origin).parent


def _printed(*command: object) -> str:
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout


def make(folder: pathlib.Path, fake_runtime: pathlib.Path, *libraries: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    needed: set[str] = set()
    undefined: set[str] = set()
    for library in [*sorted(package().glob("lib/*.so")), *libraries]:
        needed.update(re.findall(r"\(NEEDED\).*\[lib(cu\S+|nccl\S+|nv\S+)\]", _printed("readelf", "-d", library)))
        names = _printed("nm", "-D", "--undefined-only", library)
        undefined.update(name for name in re.findall(r" U (\w+)", names) if _OF_CUDA.match(name))
    defined = set(re.findall(r" [TW] (\w+)", _printed("nm", "--defined-only", fake_runtime)))
    runtime = next(name for name in needed if name.startswith("cudart."))
    source = folder / "stubs.c"
    # 999: cudaErrorUnknown, CUDA_ERROR_UNKNOWN; and no success of any other library's.
    source.write_text("".join(f"int {name}(void) {{ return 999; }}\n" for name in sorted(undefined - defined)))
    library = folder / f"lib{runtime}"
    _printed("c++", "-shared", "-fPIC", "-w", "-x", "c", source, "-x", "none", fake_runtime, "-o", library,
             f"-Wl,-soname,{library.name}")
    for name in needed - {runtime}:
        link = folder / f"lib{name}"
        link.unlink(missing_ok=True)
        link.symlink_to(library.name)


def environment(folder: pathlib.Path) -> dict[str, str]:
    """What the environment of a program has besides. PyTorch's libraries name folders of their own: preloaded, this comes
    before those."""
    folder = folder.resolve()
    runtime = next(folder.glob("libcudart.so.*"))
    return {"LD_PRELOAD": os.fspath(runtime), "LD_LIBRARY_PATH": os.fspath(folder)}


if __name__ == "__main__":
    make(*map(pathlib.Path, sys.argv[1:]))
