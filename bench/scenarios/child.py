# SPDX-License-Identifier: Apache-2.0
"""One process of a scenario's case: child.py JOB (see run_case in `run`)."""

from __future__ import annotations

import importlib
import json
import os
import sys

import weir


def main() -> None:
    job = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print
    case = job["case"]
    if case["side"] == "Weir":
        try:
            weir.enable("full", **case.get("settings", {}))
        except weir.Problem as problem:
            sys.exit(f"weir: {problem}")
    import torch

    torch.cuda.set_device(job["rank"])
    torch.manual_seed(0)
    software = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name()}
    row = importlib.import_module(job["scenario"].lower()).measure(case, job)
    print(json.dumps({**row, **software}), file=out, flush=True)
    if job["world"] > 1 or job["scenario"] in ("A", "C"):
        os._exit(0)  # a process group whose capture failed may wait for ever as it ends


if __name__ == "__main__":
    main()
