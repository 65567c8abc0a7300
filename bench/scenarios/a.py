# SPDX-License-Identifier: Apache-2.0
"""Scenario A: the first all-reduce of a process is inside a CUDA graph capture."""

from __future__ import annotations

GPUS = 2
TITLE = ("Scenario A: a process joins an NCCL group, and its first all-reduce is inside "
         "torch.cuda.graph")
HEADS = ["", "captured", "replays right"]
CASES = [{"side": side, "title": title, "eager": eager}
         for eager, title in ((False, "communicator made when first used (PyTorch's default)"),
                              (True, "communicator made with the group (device_id)"))
         for side in ("native", "Weir")]
REPLAYS = 3


def first_cause(error: BaseException) -> str:
    """What went wrong first: the end of a capture that is broken fails too, and hides it."""
    while error.__context__ is not None:
        error = error.__context__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "captur" in line), lines[0] if lines else repr(error))


def measure(case: dict, job: dict) -> dict:
    import datetime

    import torch
    from torch import distributed

    device = torch.device("cuda", job["rank"])
    distributed.init_process_group("nccl", init_method="file://" + job["store"], rank=job["rank"],
                                   world_size=job["world"],
                                   device_id=device if case["eager"] else None,
                                   timeout=datetime.timedelta(seconds=60))
    tensor = torch.ones(1 << 20, device=device)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            distributed.all_reduce(tensor)
    except RuntimeError as error:
        return {"captured": False, "said": first_cause(error), "ranks": job["world"]}
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    wanted = float(job["world"] ** REPLAYS)
    return {"captured": True, "right": bool((tensor == wanted).all().item()),
            "ranks": job["world"]}


def cells(row: dict) -> list[str]:
    if not row["captured"]:
        return ["fails", "-"]
    return ["works", "yes" if row["right"] else "NO"]


def sentences(rows: list[dict]) -> list[str]:
    said = [row["said"] for row in rows if not row["captured"]]
    lines = [f"What is said: {text}" for text in dict.fromkeys(said)]
    if said and all(row["captured"] for row in rows if row["side"] == "Weir"):
        lines.append("NCCL's communicator is made inside the capture, by calls that CUDA permits "
                     "there only if the thread's capture mode is relaxed. Weir relaxes it while an "
                     "operation is queued, so the first all-reduce is captured with no warm-up. With "
                     "PyTorch's own allocator init_process_group(device_id=...) makes the "
                     "communicator with the group.")
    return lines
