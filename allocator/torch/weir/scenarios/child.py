# SPDX-License-Identifier: Apache-2.0
"""One process of a scenario's case: python -m weir.scenarios.child JOB (see run_case)."""

from __future__ import annotations

import json
import os
import sys

import weir
from weir.scenarios import SCENARIOS


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
    row = SCENARIOS[job["scenario"]].measure(case, job)
    print(json.dumps({**row, **software}), file=out, flush=True)
    if job["world"] > 1 or job["scenario"] in ("A", "C"):
        os._exit(0)  # a process group whose capture failed may wait for ever as it ends


if __name__ == "__main__":
    main()
