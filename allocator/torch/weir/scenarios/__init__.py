# SPDX-License-Identifier: Apache-2.0
"""python -m weir scenario: what goes wrong in PyTorch, and the same with Weir, side by side.

Each case is a process of its own (one for each GPU where it takes part in a group of NCCL's), so
that no allocator sees another's memory. Importing this needs neither PyTorch nor a GPU.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from weir._native import Problem, require_place
from weir.scenarios import a, b, c

SCENARIOS = {"A": a, "B": b, "C": c}
_TIME_LIMIT = 150  # seconds, for one case
_ERROR_LINES = 4


def gpus() -> int:
    """How many GPUs CUDA can use here; 0 too where there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def require(name: str) -> int:
    """The GPUs to use. Raises Problem where a scenario can't run."""
    if importlib.util.find_spec("torch") is None:
        raise Problem(f"scenario {name} compares PyTorch's allocator with Weir, and PyTorch can't "
                      "be imported: install one that has CUDA (`pip install torch`)")
    count = gpus()
    if count == 0:
        raise Problem(f"scenario {name} needs a GPU, and CUDA finds none (no driver, or "
                      "CUDA_VISIBLE_DEVICES hides it). Without one, `weir replay` shows what Weir "
                      "does with a recorded program, on a simulated device")
    return min(count, SCENARIOS[name].GPUS)


def last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[-_ERROR_LINES:])


def _environment() -> dict[str, str]:
    """As the user has it, but for the allocator's choice; and cuBLAS's workspaces are fixed."""
    kept = {name: value for name, value in os.environ.items()
            if name not in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")}
    folder = os.fspath(pathlib.Path(__file__).parents[2])  # this weir, not another one
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, kept.get("PYTHONPATH")]))
    kept.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return kept


def run_case(name: str, case: dict, world: int) -> dict:
    """One row: what the first rank's process printed, with the case; or {"error"}."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = [{"scenario": name, "case": case, "rank": rank, "world": world,
                 "store": os.path.join(folder, "store")} for rank in range(world)]
        # Files, not pipes: nobody reads a rank's while another one is waited for.
        files = [tempfile.TemporaryFile("w+") for _ in range(2 * world)]
        processes = [subprocess.Popen(
            [sys.executable, "-m", "weir.scenarios.child", json.dumps(job)], env=_environment(),
            stdout=out, stderr=err) for job, out, err in zip(jobs, files[::2], files[1::2])]
        status = _wait(processes)
        texts = [_text(file) for file in files]
    for code, out, err in zip(status, texts[::2], texts[1::2]):
        if code != 0 or not out.strip():
            said = f"not done after {_TIME_LIMIT} s" if code is None else f"exit {code}"
            return {**case, "error": last_words(err) or said}
    return {**case, **json.loads(texts[0].strip().splitlines()[-1])}


def _text(file) -> str:  # noqa: ANN001
    file.seek(0)
    with file:
        return file.read()


def _wait(processes: list[subprocess.Popen]) -> list[int | None]:
    """Exit statuses; None for one that had to be ended."""
    until, status = time.monotonic() + _TIME_LIMIT, []
    for process in processes:
        try:
            status.append(process.wait(max(0.0, until - time.monotonic())))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status.append(None)
    return status


def table(rows: list[list[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *(text.rjust(width) for text, width in
                                                  zip(row[1:], widths[1:]))]).rstrip()
            for row in rows]


def report(name: str, rows: list[dict]) -> list[str]:
    """The lines that are printed, of the rows of one scenario."""
    scenario = SCENARIOS[name]
    cells = [scenario.HEADS]
    for row in rows:
        title = f"{row['side']}, {row['title']}"
        if "error" in row:
            cells.append([title, "failed"] + ["-"] * (len(scenario.HEADS) - 2))
        else:
            cells.append([title, *scenario.cells(row)])
    failed = [f"FAILED {row['side']}, {row['title']}: {row['error']}" for row in rows
              if "error" in row]
    return [scenario.TITLE, "", *table(cells), "", *failed, *scenario.sentences(
        [row for row in rows if "error" not in row])]


def run(name: str, json_file: str | None = None) -> int:
    """Runs one scenario and prints it. 1 if a case of Weir's failed."""
    world = require(name)
    if json_file:
        require_place(json_file, "--json")
    rows = []
    for case in SCENARIOS[name].CASES:
        print(f"{case['side']}, {case['title']} ...", file=sys.stderr, flush=True)
        rows.append(run_case(name, case, world))
    print("\n".join(report(name, rows)))
    if json_file:
        text = json.dumps({"scenario": name, "gpus": world, "rows": rows}, indent=2)
        pathlib.Path(json_file).write_text(text + "\n")
    return 1 if any("error" in row for row in rows if row["side"] == "Weir") else 0
