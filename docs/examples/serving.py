# SPDX-License-Identifier: Apache-2.0
"""Serving with CUDA graphs: one graph for each batch size, all in one pool.

    python serving.py

Graphs that share a pool are replayed one after the other, and their temporary memory is shared.
Each request's result is copied out, since the next replay overwrites it. Needs a GPU; exits with
77 (skipped) where there is none.
"""

import sys

import torch
from torch import nn

if not torch.version.cuda or torch.cuda.device_count() == 0:
    print("skipped: needs a GPU")
    sys.exit(77)

import weir

weir.enable()  # before anything uses CUDA


@torch.no_grad()
def main() -> None:
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda().eval()
    pool = torch.cuda.graph_pool_handle()
    graphs = {}
    for batch in (64, 16, 4, 1):
        given = torch.zeros(batch, 1024, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model(given)  # libraries set themselves up outside the capture
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = model(given)
        graphs[batch] = graph, given, result

    for batch in (1, 4, 64, 16, 4):
        graph, given, result = graphs[batch]
        request = torch.randn(batch, 1024, device="cuda")
        given.copy_(request)
        graph.replay()
        answer = result.clone()
        assert torch.allclose(answer, model(request), atol=1e-2), f"batch {batch}: another result"
    numbers = weir.stats()
    print(f"{len(graphs)} graphs, {numbers['reserved_bytes_peak'] >> 20} MiB reserved at the peak")


main()
