# SPDX-License-Identifier: Apache-2.0
"""The same addresses in every start, on a GPU: training, serving with graphs, and ranks of a group.

usage: python tests/torch/same_addresses_gpu_test.py [--starts N] [--jobs N]     50 starts a program, 6 at once
       needs PyTorch with CUDA and the Weir package with the full backend; exit 77 where there is no GPU

Each start is a process (or a process a rank) with WEIR_ADDRESSES=fixed that prints a hash of all addresses that it
saw, and weir.layout(). All starts must print the same, ranks among each other too.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import time

try:
    import torch
except ImportError:
    torch = None
if torch is None or not torch.cuda.device_count():
    print("no PyTorch with a GPU here")
    sys.exit(77)

GPUS = min(torch.cuda.device_count(), 2)

BEGIN = """
import hashlib, json, os, sys, time
import torch, torch.distributed as dist
from torch import nn
import weir
weir.enable("full", addresses="fixed", record=os.environ["RECORD"], record_ring="4MiB")
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
torch.cuda.set_device(rank if world > 1 else int(os.environ.get("GPU", 0)))
torch.manual_seed(1)
seen = hashlib.sha256()
def see(*tensors):
    for tensor in tensors:
        seen.update(tensor.data_ptr().to_bytes(8, "little"))
def model(width=1024, layers=6):
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(layers))).cuda()
def end():
    torch.cuda.synchronize()
    print(json.dumps({"addresses": seen.hexdigest()[:16], "layout": {str(n): list(map(str, v)) for n, v in weir.layout().items()}}))
"""

# Batches of many sizes, copies on a side stream that the step waits for, and frees behind them.
TRAINING = BEGIN + """
net, side = model(), torch.cuda.Stream()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
for step in range(60):
    rows = 64 + 97 * step % 1500
    with torch.cuda.stream(side):
        batch = torch.randn(rows, 1024, pin_memory=True).cuda(non_blocking=True)
        noise = torch.empty(rows * 300, device="cuda").normal_()
    torch.cuda.current_stream().wait_stream(side)
    batch.record_stream(torch.cuda.current_stream())
    loss = (net(batch) ** 2).mean() + noise[:10].sum() * 0
    see(batch, noise, loss)
    loss.backward()
    see(*(p.grad for p in net.parameters()))
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    del noise, batch
    if step % 20 == 19: torch.cuda.empty_cache()
end()
"""

SERVING = BEGIN + """
net, graphs, pool = model(), {}, None
source = torch.zeros(4096, 1024, device="cuda")
with torch.no_grad():
    net(source)
    for rows in (4096, 2048, 1024, 512, 256, 64, 8):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            output = net(source[:rows])
        pool = pool or graph.pool()
        graphs[rows] = graph, output
        see(output)
cache = []
for number in range(150):
    rows = (4096, 2048, 1024, 512, 256, 64, 8)[number * 5 % 7]
    graph, output = graphs[rows]
    graph.replay()
    cache.append(output.repeat(2, 3))
    logits = torch.softmax(output, -1).argsort(-1)
    see(cache[-1], logits)
    if len(cache) > 12: del cache[number % 5::4]
end()
"""

RANKS = BEGIN + """
dist.init_process_group("nccl", init_method="file://" + os.environ["STORE"], rank=rank, world_size=world)
net = model()
net = nn.parallel.DistributedDataParallel(net, device_ids=[rank])
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
for step in range(30):
    batch = torch.randn(64 + 97 * step % 1500, 1024, device="cuda")
    loss = (net(batch) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    parts = [torch.empty(1 << 20, device="cuda") for _ in range(world)]
    work = dist.all_gather(parts, parts[0].clone(), async_op=True)
    see(batch, loss, *parts)
    work.wait()
    del parts, work
try:
    weir.check_layouts()
    said = None
except weir.Problem as problem:
    said = str(problem)
print(json.dumps({"said": said}))
end()
os._exit(0)  # whatever becomes of the group
"""


def run(code, gpu, ranks=1):
    """What each rank printed."""
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for rank in range(ranks):
            environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "GPU": str(gpu), "STORE": f"{folder}/store", "RECORD": f"{folder}/{rank}.weir"}
            started.append(subprocess.Popen([sys.executable, "-c", code], env=environment, text=True,
                                            stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        printed = []
        for process in started:
            out, error = process.communicate(timeout=180)
            lines = [line for line in out.splitlines() if line.startswith("{")]
            if process.returncode or not lines:
                raise SystemExit(f"a start failed: exit {process.returncode}: {error[-2000:]}")
            printed.append(lines)
        return printed


def compare(name, starts, jobs, start):
    """Are all starts alike?"""
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        found = collections.Counter(place for printed in pool.map(start, range(starts)) for place in printed)
    print(f"{name}: {starts} starts, {sum(found.values())} processes, {len(found)} different pictures, {time.monotonic() - begun:.0f} s",
          flush=True)
    for picture, count in found.most_common() if len(found) > 1 else found.most_common(1):
        print(f"  {count} times: {picture}")
    return len(found) == 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=6)
    arguments = parser.parse_args()
    starts, jobs = arguments.starts, arguments.jobs
    gpus = torch.cuda.device_count()

    def alone(code):
        return lambda number: [lines[-1] for lines in run(code, number % gpus)]

    right = compare("training", starts, jobs, alone(TRAINING))
    right &= compare("serving with graphs", starts, jobs, alone(SERVING))

    def ranks(_):
        printed = run(RANKS, 0, GPUS)
        for lines in printed:
            if said := json.loads(lines[0])["said"]:
                raise SystemExit(f"ranks differ: {said}")
        return [lines[-1] for lines in printed]

    right &= compare(f"{GPUS} ranks", starts, max(1, jobs // 2), ranks)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
