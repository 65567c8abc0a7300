#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The parts of weir_graph_pool that are about memory, in PyTorch with its own allocator.

usage: torch_side.py PART [--warm-up KIND] [--order ORDER] [--layers N] [--mib N]
                     [--side-streams N]

One part a process, so that no part has another's pool. Prints one line of JSON a result, with the
fields that weir_graph_pool prints; exit 3 where PyTorch finds no GPU. The same blocks are allocated
and freed in the same order as in step.cc and serve.cc; a fence is a record_stream.
"""
import argparse
import json
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from arguments import whole_number  # noqa: E402

MIB = 1 << 20
GRAIN = 512
BATCHES = [256, 192, 128, 96, 64, 48, 32, 24, 16, 8, 4, 2, 1]


def round_up(value, unit):
    return (value + unit - 1) // unit * unit


class Ledger:
    """Tensors of bytes, and the peak of what is live of them, as the program asked for it."""

    def __init__(self):
        self.live = self.peak = 0

    def empty(self, size):
        self.live += round_up(size, GRAIN)
        self.peak = max(self.peak, self.live)
        return torch.empty(size // 8, dtype=torch.int64, device="cuda")

    def drop(self, size):
        self.live -= round_up(size, GRAIN)


def write(out, *sources):
    """Any kernel that reads and writes in place of the hash: without memory of its own."""
    out.fill_(1)
    for source in sources:
        count = min(out.numel(), source.numel())
        out[:count].add_(source[:count])


def record(tensor, owner, user):
    if user != owner:
        tensor.record_stream(user)


class Step:
    """step.cc's, block by block."""

    def __init__(self, layers, activation, side_streams, source):
        self.layers, self.activation, self.source = layers, activation, source
        self.sides = [torch.cuda.Stream() for _ in range(side_streams)]

    def temporary(self, layer):
        return round_up(self.activation * (2 + layer % 3) // 4, 1024) + 24 * 1024 * (layer % 5)

    def run(self):
        main = torch.cuda.current_stream()
        ledger = Ledger()
        sides = self.sides or [main]
        for side in sides:
            side.wait_stream(main)
        activations, kept, x = [], [], self.source
        for layer in range(self.layers):
            x, k = self.forward(ledger, main, sides[layer % len(sides)], layer, x)
            activations.append(x)
            kept.append(k)
            del k
        gradients = [ledger.empty(self.activation)]
        write(gradients[0], x)
        del x
#Lists, so that the callee has the last reference, and frees where step.cc does.
        for layer in reversed(range(self.layers)):
            self.backward(ledger, main, sides[layer % len(sides)], layer, activations, kept,
                          gradients)
        for side in sides:
            main.wait_stream(side)
        return ledger.peak

    def forward(self, ledger, main, side, layer, x):
        t = ledger.empty(self.temporary(layer))
        write(t, x)
        a = ledger.empty(self.activation)
        write(a, x, t)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            u = ledger.empty(self.temporary(layer + 1))
            write(u, a, t)
        record(t, main, side)
        ledger.drop(self.temporary(layer))
        del t
        k = ledger.empty(round_up(self.activation * 5 // 4, GRAIN))
        write(k, a)
        main.wait_stream(side)
        write(k, u)
        record(u, side, main)
        ledger.drop(self.temporary(layer + 1))
        return a, k

    def backward(self, ledger, main, side, layer, activations, kept, gradients):
        a, k, gradient = activations.pop(), kept.pop(), gradients.pop()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            w = ledger.empty(round_up(self.activation // 2, GRAIN))
            write(w, k, gradient)
        record(k, main, side)
        record(gradient, main, side)
        ledger.drop(round_up(self.activation // 2, GRAIN))
        del w
        t = ledger.empty(self.temporary(layer + 2))
        write(t, k, gradient)
        ledger.drop(round_up(self.activation * 5 // 4, GRAIN))
        ledger.drop(self.activation)
        del k, gradient
        gradients.append(ledger.empty(self.activation))
        write(gradients[0], a, t)
        ledger.drop(self.temporary(layer + 2))
        ledger.drop(self.activation)


def held(pool, peak):
    """The row's figures: what the segments of the graph pool hold, beside the program's need."""
    reserved = sum(segment["total_size"] for segment in torch.cuda.memory_snapshot()
                   if tuple(segment["segment_pool_id"]) == tuple(pool.id))
    return {"peak_bytes": peak, "reserved_bytes": reserved, "ratio": reserved / peak}


def scenario_b(arguments):
    source = torch.ones(arguments.mib * MIB // 8, dtype=torch.int64, device="cuda")
    step = Step(arguments.layers, arguments.mib * MIB, arguments.side_streams, source)
    pool = torch.cuda.MemPool()
    capture, current = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    if arguments.warm_up != "none":
        stream = current if arguments.warm_up == "current" else capture
        with torch.cuda.use_mem_pool(pool), torch.cuda.stream(stream):
            step.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id, stream=capture):
        peak = step.run()
    graph.replay()
    torch.cuda.synchronize()
    yield {"part": "scenario_b", "warm_up": arguments.warm_up,
           "side_streams": arguments.side_streams, **held(pool, peak)}


def serve_pass(ledger, batch):
    """serve.cc's pass(): of its blocks only the output stays."""
    hidden = 512 * 1024 * batch

    def following(size, *sources):
        out = ledger.empty(size)
        write(out, *sources)
        return out

    x = following(hidden)
    for _ in range(6):
        qkv = following(hidden * 3, x)
        attended = following(hidden, qkv, x)
        del qkv, x
        ledger.drop(hidden * 4)
        wide = following(hidden * 4, attended)
        x = following(hidden, wide, attended)
        del wide, attended
        ledger.drop(hidden * 5)
    output = following(128 * 1024 * batch, x)
    ledger.drop(hidden)
    return output


def serve(order, batches):
    pool, ledger, kept = torch.cuda.MemPool(), Ledger(), []
    stream = torch.cuda.Stream()
    for batch in batches:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool.id, stream=stream):
            output = serve_pass(ledger, batch)
        kept.append((graph, output))
    for graph, _ in kept:
        graph.replay()
    torch.cuda.synchronize()
    yield {"part": "serve", "order": order, **held(pool, ledger.peak)}


def two_stream():
    pool, ledger = torch.cuda.MemPool(), Ledger()
    stream, side = torch.cuda.Stream(), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id, stream=stream):
        for i in range(200):
            size = 4 * MIB * (1 + i % 7)
            x = ledger.empty(size)
            write(x)
            side.wait_stream(stream)
            with torch.cuda.stream(side):
                y = ledger.empty(size)
                write(y, x)
            record(x, stream, side)
            del y, x
            ledger.drop(size)
            ledger.drop(size)
            stream.wait_stream(side)
    graph.replay()
    torch.cuda.synchronize()
    yield {"part": "two_stream", **held(pool, ledger.peak)}


def rows(arguments):
    if arguments.part == "scenario_b":
        return scenario_b(arguments)
    if arguments.part == "two_stream":
        return two_stream()
    if arguments.order == "largest first":
        return serve(arguments.order, BATCHES)
    return serve(arguments.order, BATCHES[::-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("scenario_b", "serve", "two_stream"))
    parser.add_argument("--warm-up", choices=("none", "capture", "current"), default="none")
    parser.add_argument("--order", choices=("largest first", "smallest first"),
                        default="largest first")
    parser.add_argument("--layers", type=whole_number(1, 1000), default=24)
    parser.add_argument("--mib", type=whole_number(1, 4096), default=128)
    parser.add_argument("--side-streams", type=whole_number(0, 16), default=2)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch_side: PyTorch finds no GPU", file=sys.stderr)
        return 3
    write(torch.empty(2, dtype=torch.int64, device="cuda"),
          torch.ones(2, dtype=torch.int64, device="cuda"))  # loads the kernels
    for row in rows(arguments):
        print(json.dumps({**row, "torch": torch.__version__}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
