#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a graph pool of PyTorch's holds, over what its captures need: Weir beside PyTorch's own allocator, on a GPU.

usage: python bench/graph_pool/pytorch_step.py [--quick] [--record FOLDER]

Each run is a process of its own and prints one line. `need`: the peak of what is allocated in the capture, with what is live in the pool
before it; `held`: bytes of the pool's segments at the capture's end. Needs transformers, and Weir with the full backend.

step        forward and backward pass of a Llama (16 layers, 2048 wide, 4 x 1024 tokens), after one step outside the pool; then a warm-up in
            the pool (use_mem_pool): none, on the capture's stream, or on another (current). outside-*: a warm-up on that stream, not in the pool.
serve       13 batch sizes captured into one pool, outputs kept, the largest or the smallest first
two_stream  200 steps, each with a tensor that is recorded on a forked stream

--quick: Weir's default trust, and no outside-* runs. --record FOLDER keeps recordings of some runs.
"""
import argparse
import gc
import os
import pathlib
import subprocess
import sys

KINDS = ("none", "capture", "current", "outside-capture", "outside-current")


def held(pool):
    import torch
    return sum(s["total_size"] for s in torch.cuda.memory_snapshot()
               if tuple(s["segment_pool_id"]) == tuple(pool.id))


def step_run(kind):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    config = LlamaConfig(num_hidden_layers=16, hidden_size=2048, num_attention_heads=16, num_key_value_heads=16,
                         intermediate_size=5632, vocab_size=32000, max_position_embeddings=8192,
                         attn_implementation="sdpa", use_cache=False)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    ids = torch.randint(0, 32000, (4, 1024), device="cuda")

    def step():
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        return loss.detach()

    step()  # cuBLAS and others are made ready outside of every pool, as PyTorch's captures want it
    model.zero_grad(set_to_none=True)
    pool = torch.cuda.MemPool()
    capture, current = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    if kind != "none":
        stream = current if kind.endswith("current") else capture
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            if kind.startswith("outside"):
                step()
            else:
                with torch.cuda.use_mem_pool(pool):
                    step()
        torch.cuda.synchronize()
        model.zero_grad(set_to_none=True)
    gc.collect()
    torch.cuda.synchronize()
    before = held(pool)
    kept = sum(b["allocated_size"] for b in torch.cuda.memory_snapshot() if tuple(b["segment_pool_id"]) == tuple(pool.id))
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id, stream=capture, capture_error_mode="thread_local"):
        live = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        loss = step()
        need = torch.cuda.max_memory_allocated() - live + kept
    at_end = held(pool)
    graph.replay()
    torch.cuda.synchronize()
    print_line("step", kind, need, at_end, f"before the capture {before >> 20}, live in the pool then {kept >> 20}, reserved in all "
               f"{torch.cuda.memory_reserved() >> 20}, loss {loss.item():.4f}")


def serve_run(order):
    import torch
    batches = [256, 192, 128, 96, 64, 48, 32, 24, 16, 8, 4, 2, 1]
    if order == "smallest":
        batches.reverse()
    pool, stream, kept = torch.cuda.MemPool(), torch.cuda.Stream(), []

    def empty(n):
        return torch.zeros(n // 8, dtype=torch.int64, device="cuda")

    empty(16)
    base = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for batch in batches:
        graph, hidden = torch.cuda.CUDAGraph(), 512 * 1024 * batch
        with torch.cuda.graph(graph, pool=pool.id, stream=stream):
            x = empty(hidden)
            for _ in range(6):
                qkv = empty(hidden * 3)
                attended = empty(hidden)
                del qkv, x
                wide = empty(hidden * 4)
                x = empty(hidden)
                del wide, attended
            output = empty(128 * 1024 * batch)
            del x
        kept.append((graph, output))
    need = torch.cuda.max_memory_allocated() - base
    for graph, _ in kept:
        graph.replay()
    torch.cuda.synchronize()
    print_line("serve", order, need, held(pool), "")


def two_stream_run(_):
    import torch
    pool = torch.cuda.MemPool()
    stream, side = torch.cuda.Stream(), torch.cuda.Stream()
    torch.zeros(1, device="cuda")
    base = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    graph = torch.cuda.CUDAGraph()
    need = live = 0
    with torch.cuda.graph(graph, pool=pool.id, stream=stream):
        for i in range(200):
            n = (4 << 20) * (1 + i % 7)
            x = torch.ones(n // 4, device="cuda")
            side.wait_stream(stream)
            with torch.cuda.stream(side):
                y = torch.empty(n // 4, device="cuda")
                y.copy_(x)
            x.record_stream(side)
            need = max(need, 2 * n)
            del y, x
            stream.wait_stream(side)
    graph.replay()
    torch.cuda.synchronize()
    print_line("two_stream", "-", need, held(pool), "")


def print_line(part, kind, need, reserved, more):
    trust = os.environ.get("WEIR_TRUST", "context") if os.environ.get("STEP_WEIR") else "native"
    print(f"{part:10} {kind:15} {trust:8} need {need / 2**20:9.1f} MiB  held {reserved / 2**20:9.1f} MiB  "
          f"held/need {reserved / need:.4f}  {more}", flush=True)


def child(part, kind, trust, record=None):
    env = dict(os.environ)
    command = [sys.executable]
    if trust != "native":
        env.update(STEP_WEIR="1", WEIR_TRUST=trust)
        command += ["-m", "weir", "run"] + ([f"--record={record}"] if record else [])
    done = subprocess.run(command + [os.path.abspath(__file__), "--one", part, kind], env=env, text=True,
                          capture_output=True, timeout=300)
    print(done.stdout.strip() or f"{part} {kind} {trust}: rc {done.returncode}: {done.stderr[-800:]}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="Weir alone, the three warm-ups of the issue")
    parser.add_argument("--one", nargs=2)
    arguments = parser.parse_args()
    if arguments.one:
        part, kind = arguments.one
        {"step": step_run, "serve": serve_run, "two_stream": two_stream_run}[part](kind)
        return
    for kind in KINDS[:3] if arguments.quick else KINDS:
        for trust in ("context",) if arguments.quick else ("context", "told", "native"):
            child("step", kind, trust)
    for trust in ("context",) if arguments.quick else ("context", "told"):
        child("serve", "largest", trust)
        child("serve", "smallest", trust)
        child("two_stream", "-", trust)
    if arguments.record:
        arguments.record.mkdir(parents=True, exist_ok=True)
        for kind in KINDS:
            child("step", kind, "context", arguments.record / f"step-{kind}.weir")
        child("step", "none", "told", arguments.record / "step-none-told.weir")
        child("two_stream", "-", "context", arguments.record / "two_stream.weir")
        child("serve", "smallest", "context", arguments.record / "serve-smallest.weir")


if __name__ == "__main__":
    main()
