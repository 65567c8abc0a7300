# SPDX-License-Identifier: Apache-2.0
"""Scenario B: a training step, captured with a pool after a warm-up in the pool, on any stream."""

from __future__ import annotations

GPUS = 1
TITLE = "Scenario B: a captured training step, after a warm-up inside its pool"
HEADS = ["", "step's own peak", "pool", "pool / peak", "replays exact"]
CASES = [{"side": side, "title": title, "warm_up": warm_up}
         for warm_up, title in (("none", "no warm-up"),
                                ("capture", "warm-up on the capture's stream"),
                                ("current", "warm-up on the current stream"))
         for side in ("native", "Weir")]
GIB = 1 << 30
LAYERS, TOKENS, WIDTH = 16, 16384, 4096  # an activation is 128 MiB
REPLAYS = 5


def make_step(layers: int, count: int, width: int, device):  # noqa: ANN001
    """(parameters, step): forward and backward of layers with hidden widths of their own."""
    import torch
    from torch.nn import functional

    weights = []
    for layer in range(layers):
        hidden = width + width // 16 * (layer % 4)
        for shape in ((hidden, width), (width, hidden)):
            weight = torch.randn(shape, device=device, dtype=torch.bfloat16) * shape[1] ** -0.5
            weights.append(weight.requires_grad_())
    source = torch.randn(count, width, device=device, dtype=torch.bfloat16)

    def step() -> None:
        for weight in weights:
            weight.grad = None
        x = source
        for up, down in zip(weights[::2], weights[1::2]):
            x = x + functional.linear(functional.gelu(functional.linear(x, up)), down)
        loss = x.float().square().mean()
        # On this thread: a pool is bound by thread, and a warm-up is to use it for all.
        with torch.autograd.set_multithreading_enabled(False):
            loss.backward()

    return weights, step


def pool_figures(pool) -> tuple[int, int]:  # noqa: ANN001
    """(bytes that the pool holds, bytes of it that are live)."""
    import torch

    segments = [one for one in torch.cuda.memory_snapshot()
                if tuple(one["segment_pool_id"]) == tuple(pool.id)]
    return (sum(one["total_size"] for one in segments),
            sum(one["allocated_size"] for one in segments))


def warm_up(kind: str, pool, capture, current, step) -> None:  # noqa: ANN001
    import torch

    if kind == "none":
        return
    stream = current if kind == "current" else capture
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.use_mem_pool(pool), torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()


def measure(case: dict, job: dict) -> dict:
    import torch

    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    weights, step = make_step(LAYERS, TOKENS, WIDTH, "cuda")
    step()
    expected = [weight.grad for weight in weights]
    capture, current = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    pool = torch.cuda.MemPool()
    warm_up(case["warm_up"], pool, capture, current, step)
    for weight in weights:
        weight.grad = None
    torch.cuda.synchronize()
    _, kept = pool_figures(pool)
    before = torch.cuda.memory_stats()["allocated_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id, stream=capture):
        step()
    own_peak = torch.cuda.memory_stats()["allocated_bytes.all.peak"] - before + kept
    held, _ = pool_figures(pool)
    exact = 0
    for _ in range(REPLAYS):
        for weight in weights:
            weight.grad.zero_()
        # What the graph does not write must not matter to it, nor be written by it.
        other = torch.full((256 << 20,), 7, dtype=torch.uint8, device="cuda")
        graph.replay()
        torch.cuda.synchronize()
        same = all(torch.equal(weight.grad, one) for weight, one in zip(weights, expected))
        exact += same and bool((other == 7).all().item())
    return {"own_peak": own_peak, "pool_bytes": held, "ratio": held / own_peak, "exact": exact,
            "replays": REPLAYS}


def cells(row: dict) -> list[str]:
    return [f"{row['own_peak'] / GIB:.2f} GiB", f"{row['pool_bytes'] / GIB:.2f} GiB",
            f"{row['ratio']:.3f}", f"{row['exact']} of {row['replays']}"]


def sentences(rows: list[dict]) -> list[str]:
    lines = []
    for side, text in (("native", "a block freed on one stream serves no other"),
                       ("Weir", "the streams of a pool share its memory")):
        ratios = [row["ratio"] for row in rows if row["side"] == side]
        if ratios:
            lines.append(f"{side}: the pool holds {min(ratios):.3f} to {max(ratios):.3f} of the "
                         f"step's own peak; {text}.")
    wrong = [row for row in rows if row["exact"] != row["replays"]]
    lines += [f"WRONG DATA: {row['side']}, {row['title']}" for row in wrong]
    return lines
