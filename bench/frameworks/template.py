# SPDX-License-Identifier: Apache-2.0
"""A template of bench/frameworks/run: bench/torch/worker.py, which runs programs. Started by the runner only.

usage: template.py ALLOCATOR RANK PROGRAM...
"""
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "torch"))
import worker  # noqa: E402
from programs import PROGRAMS  # noqa: E402

LIBRARIES = ("diffusers", "trl", "torchtitan", "lightning", "sentence_transformers", "torch_geometric", "timm",
             "transformers", "accelerate", "datasets", "peft")

if __name__ == "__main__":
    sys.exit(worker.main(worker.Suite("programs", PROGRAMS, lambda run, scale, steps: run(scale, steps), LIBRARIES)))
