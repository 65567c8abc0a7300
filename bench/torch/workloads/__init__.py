# SPDX-License-Identifier: Apache-2.0
"""The workloads of bench/torch, by name. Needs no PyTorch.

One is a class of a module here: `Class(scale, device)` builds the model with random weights, and
`step(i)` runs one training step, request or generation and returns a scalar tensor, its loss or
another figure that depends on all of what was computed. It takes sizes from `common.draw(i)` and
data from PyTorch's generators, so that every allocator gets the same. A new one: a file, and a line
below. `bench/torch/run --check --workloads NAME` tries it on the CPU.
"""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Entry:
    place: str          # module:Class
    title: str
    steps: int          # at full scale: some 5 to 8 s on an H200
    distributed: bool = False  # over several processes, a GPU each
    listed: bool = True  # runs when none is named


SMALL_STEPS = 6

WORKLOADS = {
    "gpt2": Entry("language:Gpt2", "GPT-2 medium, training, lengths vary", 40),
    "llama": Entry("language:Llama", "Llama 1 B, training, lengths vary", 40),
    "lora": Entry("adapters:Lora", "Llama 2.7 B, LoRA, checkpointing", 24),
    "generate": Entry("language:Generate", "Llama 1 B, generation", 10),
    "moe": Entry("experts:Moe", "mixture of 16 experts, training", 40),
    "cnn": Entry("vision:Cnn", "ConvNeXt, resolutions vary, training", 40),
    "gnn": Entry("graphs:Gnn", "graph neural net, graphs vary, training", 80),
    "serve": Entry("serving:Serve", "serving on six streams", 40),
    "ddp": Entry("distributed:Ddp", "GPT-2 medium, DDP", 30, distributed=True),
    "fsdp2": Entry("distributed:Fsdp2", "Llama 1 B, FSDP2", 30, distributed=True),
    "ddp_large": Entry("distributed:DdpLarge", "GPT-2 medium, DDP, batch of 24", 30,
                       distributed=True, listed=False),
    "fsdp2_large": Entry("distributed:Fsdp2Large", "Llama 1 B, FSDP2, batch of 24", 30,
                         distributed=True, listed=False),
    "gpt2_small": Entry("language:Gpt2Small", "GPT-2 small, training (--bitwise)", 200,
                        listed=False),
}


def steps_of(name: str, scale: str) -> int:
    return WORKLOADS[name].steps if scale == "full" else SMALL_STEPS
