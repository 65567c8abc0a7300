# SPDX-License-Identifier: Apache-2.0
"""The programs of bench/frameworks, by name. Needs no PyTorch.

A program is a function of a module here, `run(scale, steps)`, that uses a framework as its documentation does:
models from configurations, with random weights, and data made on the spot, all of it from fixed seeds. It runs on
`steps.device`, calls `steps.start()` when the first step begins, and `steps.done(loss)` at the end of each of
`steps.count` steps, from the framework's own callbacks where it has them. A new program: a file, and an entry below.
"""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Entry:
    place: str   # module:function
    title: str
    full: int    # steps at full scale: some 6 s on an H200
    small: int
    starts_cuda: bool = False  # when it is imported: no fork survives that, so each process imports it


PROGRAMS = {
    "flux": Entry("flux:run", "diffusers, Flux pipeline, model CPU offload", 15, 10),
    "wan": Entry("wan:run", "diffusers, Wan video pipeline", 15, 6),
    "sft": Entry("trl_sft:run", "TRL, SFT with activation offload", 12, 3),
    "dpo": Entry("trl_dpo:run", "TRL, DPO with a reference model", 12, 3),
    "grpo": Entry("trl_grpo:run", "TRL, GRPO, generation by transformers", 6, 2),
    "titan": Entry("titan:run", "torchtitan, Llama, selective checkpointing", 15, 3),
    "lightning": Entry("lightning_fit:run", "Lightning, GPT-2, lengths vary, validation", 24, 4),
    "contrastive": Entry("contrastive:run", "sentence-transformers, cached contrastive loss", 10, 3),
    "pyg": Entry("pyg:run", "PyTorch Geometric, GATv2, graphs vary", 60, 4, starts_cuda=True),
    "convnext": Entry("convnext:run", "timm, ConvNeXt, images grow", 30, 4),
    "generate": Entry("generate:run", "transformers, generation with static caches", 8, 3),
}


def steps_of(name: str, scale: str) -> int:
    return PROGRAMS[name].full if scale == "full" else PROGRAMS[name].small
