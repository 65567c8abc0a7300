# SPDX-License-Identifier: Apache-2.0
"""Scenario C: buffers of all-reduces on another stream, each dropped as soon as it is launched.

First as programs do it, with all_reduce(async_op=True), and nothing of Weir's in the program; then on a
side stream of the program's own, with each way to say that the stream uses the buffer.
"""

from __future__ import annotations

GPUS = 2
LAYERS, WIDTH, TOKENS = 8, 8192, 4096  # a buffer is 64 MiB
TITLE = (f"Scenario C: {LAYERS} layers of {WIDTH}, each followed by an all-reduce of 64 MiB on "
         "another stream, whose buffer is dropped at once")
HEADS = ["", "beyond the weights", "ms a step", "five runs alike", "data"]
CASES = [
    {"side": "native", "title": "no all-reduce", "keep": "none"},
    {"side": "native", "title": "all_reduce(async_op=True), dropped", "keep": "dropped"},
    {"side": "Weir", "title": "the same, WEIR_C10D=0", "keep": "dropped", "settings": {"c10d": 0}},
    {"side": "Weir", "title": "the same", "keep": "dropped"},
    {"side": "native", "title": "record_stream", "keep": "record_stream"},
    {"side": "native", "title": "references kept until waited for", "keep": "references"},
    {"side": "Weir", "title": "no all-reduce", "keep": "none", "settings": {"reuse": "wait"}},
    {"side": "Weir", "title": "weir.fence, reuse=wait", "keep": "fence",
     "settings": {"reuse": "wait"}},
    {"side": "Weir", "title": "weir.fence, reuse=balanced", "keep": "fence",
     "settings": {"reuse": "balanced"}},
]
MIB = 1 << 20
STEPS, RUNS = 20, 5
STAND_IN = 4  # times there and back over a buffer: about as long as an all-reduce between two GPUs


class Net:
    """The layers, the side stream, and what is done so that a buffer in use is not reused."""

    def __init__(self, keep: str, world: int, width: int, count: int, device):  # noqa: ANN001
        import torch

        self.keep, self.world, self.kept = keep, world, []
        self.weights = [torch.randn(width, width, device=device, dtype=torch.bfloat16)
                        .mul_(width ** -0.5) for _ in range(LAYERS)]
        self.weight_bytes = sum(one.numel() * one.element_size() for one in self.weights)
        self.x = torch.randn(count, width, device=device, dtype=torch.bfloat16)
        self.sums = torch.zeros(LAYERS, width, device=device)
        self.side = torch.cuda.Stream() if self.x.is_cuda else None

    def reduce(self, buffer, layer: int) -> None:  # noqa: ANN001
        """On the stream that is current."""
        import torch

        if self.world > 1:
            torch.distributed.all_reduce(buffer)
        else:
            for _ in range(STAND_IN):
                buffer.mul_(0.5).mul_(2.0)
        torch.sum(buffer, 0, dtype=torch.float32, out=self.sums[layer])

    def launch(self, buffer, layer: int) -> None:  # noqa: ANN001
        import torch

        if self.keep == "none":
            return
        if self.keep == "dropped":
            torch.distributed.all_reduce(buffer, async_op=True)
            return
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.reduce(buffer, layer)
        if self.keep == "record_stream":
            buffer.record_stream(self.side)
        elif self.keep == "fence":
            import weir
            weir.fence(buffer, self.side)
        else:
            self.kept.append(buffer)

    def step(self) -> None:
        import torch

        x = self.x
        for layer, weight in enumerate(self.weights):
            x = x @ weight
            self.launch(x * 0.5, layer)
        if self.keep == "dropped":  # what was summed is nobody's: that the layers are whole counts
            torch.sum(x, 0, dtype=torch.float32, out=self.sums[0])
        elif self.keep != "none":
            torch.cuda.current_stream().wait_stream(self.side)
            self.kept.clear()


def one_run(net: Net) -> dict:
    """STEPS steps without a pause. The picture: what is live and held after each, and the peaks."""
    import time

    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    picture, begin = [], time.perf_counter()
    for _ in range(STEPS):
        net.step()
        stats = torch.cuda.memory_stats()
        picture.append([stats[f"{name}_bytes.all.{which}"] for name in ("allocated", "reserved")
                        for which in ("current", "peak")])
    torch.cuda.synchronize()
    return {"ms": (time.perf_counter() - begin) * 1e3 / STEPS, "picture": picture,
            "data": net.sums.cpu().numpy().tobytes().hex()}


def measure(case: dict, job: dict) -> dict:
    import datetime
    import hashlib
    import statistics

    import torch

    if job["world"] > 1 or case["keep"] == "dropped":
        torch.distributed.init_process_group(
            "nccl", init_method="file://" + job["store"], rank=job["rank"],
            world_size=job["world"], device_id=torch.device("cuda", job["rank"]),
            timeout=datetime.timedelta(seconds=60))
    net = Net(case["keep"], job["world"], WIDTH, TOKENS, "cuda")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    first = one_run(net)
    runs = [one_run(net) for _ in range(RUNS)]
    reserved = max(one["picture"][-1][3] for one in (first, *runs))
    live = max(one["picture"][-1][1] for one in (first, *runs))
    data = {one["data"] for one in (first, *runs)}
    return {"beyond_bytes": reserved - net.weight_bytes,
            "live_beyond_bytes": live - net.weight_bytes,
            # After each step, in the order of time.
            "held_beyond_bytes": [step[2] - net.weight_bytes for one in (first, *runs)
                                  for step in one["picture"]],
            "ms": statistics.median(one["ms"] for one in runs),
            "pictures_alike": all(one["picture"] == runs[0]["picture"] for one in runs),
            "data_alike": len(data) == 1, "ranks": job["world"],
            "data": hashlib.sha256(runs[0]["data"].encode()).hexdigest()[:8]}


def cells(row: dict) -> list[str]:
    return [f"{row['beyond_bytes'] / MIB:,.0f} MiB", f"{row['ms']:.2f}",
            "yes" if row["pictures_alike"] and row["data_alike"] else
            "data differ" if not row["data_alike"] else "memory differs",
            "-" if row["keep"] == "none" else row["data"]]


def sentences(rows: list[dict]) -> list[str]:
    lines = ["Beyond the weights: the most memory that the allocator held. Alike: what is live and "
             "what is held after each step, and the data."]
    if rows and rows[0]["ranks"] == 1:
        lines.append("One GPU: a stand-in takes an all-reduce's place on the side stream; what is dropped "
                     "is reduced by NCCL, in a group of one.")
    for dropped in (True, False):  # their data are others
        if len({row["data"] for row in rows if row["keep"] != "none"
                and (row["keep"] == "dropped") == dropped}) > 1:
            lines.append("WRONG DATA: the cases with all-reduces do not agree")
    unchanged = {(row["side"], "settings" in row): row for row in rows if row["keep"] == "dropped"}
    native, weir = unchanged.get(("native", False)), unchanged.get(("Weir", False))
    if native and weir:
        lines.append(f"The unchanged program with Weir: {weir['beyond_bytes'] / MIB:,.0f} MiB beyond the "
                     f"weights, and {native['beyond_bytes'] / MIB:,.0f} with PyTorch's own allocator, at "
                     f"{weir['ms'] / native['ms']:.3f} of its time.")
    found = {(row["side"], row["keep"]): row for row in reversed(rows)}
    native, weir = found.get(("native", "record_stream")), found.get(("Weir", "fence"))
    if native and weir:
        lines.append(f"Weir, waiting on the GPU for a buffer's last use: "
                     f"{weir['beyond_bytes'] / native['beyond_bytes']:.2f} of the memory with "
                     f"record_stream, at {weir['ms'] / native['ms']:.3f} of its time.")
    return lines
