#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What graphs hold between their launches: PyTorch's own allocator, and Weir that keeps their scratch and that lends it, on a GPU.

usage: python bench/graph_pool/scratch.py [--parts NAME,...] [--allocators native,keep,lend] [--json FILE]

Each part runs in a process for each allocator. Results are compared bit by bit. Needs Weir with the full backend.

serve    13 batch sizes in one pool; between replays eager work that needs 600 MiB. reserved: the peak beyond the weights
turns    two models, each with graphs of its own, replayed in turn; one_model: the larger one of them alone
compile, compile_loss
         torch.compile(mode="reduce-overhead"), training, two shapes in turn; the loss is eager, or compiled with the
         model. reserved: the peak of everything, once all is captured
host     us of the host: a replay while nothing was lent; a capture of 200 kernels; a replay for which 512 MiB are replaced
         that a tensor has meanwhile, beyond the first, for each 64 MiB; and one after what was lent is free again

Exit: 1 if a part failed or results differ; 77 where there is no GPU.
"""
import argparse
import hashlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

ALLOCATORS = ("native", "keep", "lend")
BATCHES = (256, 192, 128, 96, 64, 48, 32, 24, 16, 8, 4, 2, 1)
ROWS, WIDTH = 48, 4096  # tokens of a sequence, and the width of the model
MIB = 1 << 20
NO_GPU = 77
TIME_LIMIT = 300  # seconds, of one process


class Model:
    """Layers whose activations are a graph's scratch: `wide` and its input at a time."""

    def __init__(self, seed, layers=4, width=WIDTH):
        import torch
        generator = torch.Generator("cuda").manual_seed(seed)

        def weight(rows, columns):
            drawn = torch.randn(rows, columns, generator=generator, device="cuda", dtype=torch.bfloat16)
            return drawn * rows ** -0.5

        self.layers = [(weight(width, 4 * width), weight(4 * width, width)) for _ in range(layers)]

    def __call__(self, x):
        import torch
        for into, out in self.layers:
            wide = x @ into
            torch.relu_(wide)
            x = wide @ out
        return x.mean(dim=1)


class Graphs:
    """One graph a batch size, in one pool, the largest first."""

    def __init__(self, model, batches=BATCHES):
        import torch
        self.graphs, self.pool = {}, None
        self.input = torch.zeros(max(batches) * ROWS, WIDTH, dtype=torch.bfloat16, device="cuda")
        model(self.input[:ROWS])  # cuBLAS has its workspace
        torch.cuda.synchronize()
        for batch in batches:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool):
                output = model(self.input[:batch * ROWS])
            self.pool = self.pool or graph.pool()
            self.graphs[batch] = graph, output

    def __call__(self, batch, number):
        graph, output = self.graphs[batch]
        self.input[:batch * ROWS].fill_(0.25 + number % 7)
        graph.replay()
        return output


def digest(values):
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def warm(then):
    """Weights and libraries are there: what `then` returns, and peaks count from here."""
    import torch
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    weights = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    return then(), weights


def held(pool):
    import torch
    return sum(s["total_size"] for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == tuple(pool))


def serve():
    import torch
    model, sums = Model(1), []
    graphs, weights = warm(lambda: Graphs(model))
    scratch = held(graphs.pool)
    turns = random.Random(5)
    for number in range(200):
        output = graphs(turns.choice(BATCHES), number)
        parts = [output.float().sum().expand(25 * MIB).contiguous() for _ in range(6)]  # 100 MiB each
        sums.append(sum(part.double().mean() for part in parts))
        del parts
    return {"reserved": torch.cuda.max_memory_reserved() - weights, "scratch": scratch,
            "bits": digest([value.item().hex() for value in sums])}


def turns():
    import torch
    models = [(Model(1), (256, 64)), (Model(2), (192, 48))]
    torch.cuda.empty_cache()
    both, weights = warm(lambda: [Graphs(model, batches) for model, batches in models])
    sums = []
    for number in range(100):
        for graphs in both:
            for batch in graphs.graphs:
                sums.append(graphs(batch, number).double().sum())
    inputs = sum(graphs.input.nbytes for graphs in both)
    need = torch.cuda.max_memory_reserved() - weights - inputs
    return {"reserved": need, "bits": digest([value.item().hex() for value in sums])}


def one_model():
    """What the larger of the two models of turns() takes alone."""
    import torch
    model = Model(1)
    graphs, weights = warm(lambda: Graphs(model, (256, 64)))
    for number in range(10):
        for batch in graphs.graphs:
            graphs(batch, number)
    return {"reserved": torch.cuda.max_memory_reserved() - weights - graphs.input.nbytes}


def compiled(with_loss):
    import torch
    from torch import nn
    torch.manual_seed(3)
    torch.use_deterministic_algorithms(True)

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            q, k, v = (part.view(*part.shape[:2], 16, -1).transpose(1, 2)
                       for part in self.attend(self.norm(x)).chunk(3, dim=-1))
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.project(mixed.transpose(1, 2).flatten(2))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    def loss_of(logits, target):
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), target)

    model = nn.Sequential(*(Block(1024) for _ in range(6)), nn.Linear(1024, 8192)).cuda().to(torch.bfloat16)
    options = {"mode": "reduce-overhead", "dynamic": False}
    if with_loss:
        step = torch.compile(lambda x, target: loss_of(model(x), target), **options)
    else:
        forward = torch.compile(model, **options)
        step = lambda x, target: loss_of(forward(x), target)  # noqa: E731
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses, times = [], []
    for number in range(40):
        length = (1024, 768)[number % 2]
        x = torch.randn(8, length, 1024, device="cuda", dtype=torch.bfloat16)
        target = torch.randint(0, 8192, (8 * length,), device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        start = time.perf_counter()
        loss = step(x, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        losses.append(loss.item().hex())
        if number == 9:  # all graphs are captured
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    of_graphs = sum(s["total_size"] for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) != (0, 0))
    return {"reserved": torch.cuda.max_memory_reserved(), "live": torch.cuda.max_memory_allocated(), "graphs": of_graphs,
            "step_ms": 1e3 * statistics.median(times[10:]), "bits": digest(losses)}


def host():
    import torch
    x = torch.zeros(1 << 20, device="cuda")
    small = torch.cuda.CUDAGraph()
    with torch.cuda.graph(small):
        (x + 1).mul_(2)
    replays = []
    for _ in range(300):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(20):
            small.replay()
        replays.append((time.perf_counter() - start) / 20)
    captures = []
    for _ in range(40):
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        start = time.perf_counter()
        with torch.cuda.graph(graph):
            for _ in range(100):
                (x + 1).mul_(2)
        captures.append(time.perf_counter() - start)
        del graph
    found = {"replay_us": 1e6 * statistics.median(replays), "capture_us": 1e6 * statistics.median(captures)}
    large = torch.cuda.CUDAGraph()
    with torch.cuda.graph(large):
        torch.empty(512 * MIB, dtype=torch.uint8, device="cuda").fill_(1)
    torch.cuda.empty_cache()
    replaced, returned = [], []
    for number in range(30):
        large.replay()
        torch.cuda.synchronize()
        kept = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda").fill_(2)  # of the graph's scratch, if it lends
        if number % 2:
            del kept
        torch.cuda.synchronize()
        start = time.perf_counter()
        large.replay()
        (returned if number % 2 else replaced).append(1e6 * (time.perf_counter() - start))
        torch.cuda.synchronize()
        if not number % 2:
            assert int(kept[::MIB].max()) == int(kept[::MIB].min()) == 2
            del kept
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    found["returned_us"] = statistics.median(returned)
    found["replaced_64MiB_us"] = (statistics.median(replaced) - found["replay_us"]) / 8
    return found


PARTS = {"serve": serve, "turns": turns, "one_model": one_model, "compile": lambda: compiled(False),
         "compile_loss": lambda: compiled(True), "host": host}


def run(part, allocator):
    environment, command = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, [sys.executable]
    if allocator != "native":
        environment["WEIR_GRAPH_SCRATCH"] = allocator
        command += ["-m", "weir", "run"]
    row = {"part": part, "allocator": allocator}
    try:
        done = subprocess.run([*command, __file__, "--one", part], env=environment, text=True, capture_output=True, timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        return {**row, "error": f"stopped after {TIME_LIMIT} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return {**row, **json.loads(lines[-1])} if lines else {**row, "error": f"exit {done.returncode}: {done.stderr[-1500:]}"}


def line(row):
    values = {name: f"{value / MIB:.1f} MiB" if name in ("reserved", "scratch", "live", "graphs") else f"{value:.2f}" if isinstance(value, float)
              else value for name, value in row.items() if name not in ("part", "allocator")}
    return f"{row['part']:10}{row['allocator']:8}" + "  ".join(f"{name} {value}" for name, value in values.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--allocators", default=",".join(ALLOCATORS))
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--one", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    parts, allocators = arguments.parts.split(","), arguments.allocators.split(",")
    for name, known in [*((part, PARTS) for part in parts), *((name, ALLOCATORS) for name in allocators)]:
        if name not in known:
            parser.error(f"{name!r}: choose from {', '.join(known)}")
    if arguments.one:
        print(json.dumps(PARTS[arguments.one]()), flush=True)
        return 0
    try:
        import torch
        has_gpu = torch.cuda.is_available()
    except ImportError:
        has_gpu = False
    if not has_gpu:
        print("no PyTorch with a GPU here", file=sys.stderr)
        return NO_GPU
    rows = []
    for part in parts:
        for allocator in allocators:
            rows.append(run(part, allocator))
            print(line(rows[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    differ = [part for part in parts if len({row.get("bits") for row in rows if row["part"] == part and "error" not in row}) > 1]
    if differ:
        print(f"results differ: {', '.join(differ)}", file=sys.stderr)
    return 1 if differ or any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
