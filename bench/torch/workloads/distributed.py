# SPDX-License-Identifier: Apache-2.0
"""The same training over several GPUs: DDP, which keeps the model on each, and FSDP2, which shards it.

The process group is there when these are built; each process draws lengths of its own. The hosts
that this was run on take about as long to queue a step of the small batches as a GPU to run it, and
the times of rounds differ by a quarter; those of the large ones by 1 to 3 %.
"""
import torch
from torch import distributed
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from workloads.common import draw, length, tokens
from workloads.language import Language, gpt2_model, llama_model


class Distributed(Language):
    def loss(self, i):
        batch, *range_ = self.shape
        sizes = draw(i, seed=1 + distributed.get_rank())
        ids = tokens(batch, length(sizes, *range_), self.vocabulary_size, self.device)
        return self.model(input_ids=ids, labels=ids).loss


class Ddp(Distributed):
    autocast = True
    batch = 8

    def __init__(self, scale, device):
        self.sizes(scale, self.batch, 128, 512, 1024)
        model = gpt2_model(scale, device, 24, 1024, 16)
        self.vocabulary_size = model.config.vocab_size
        ids = [torch.device(device).index] if torch.device(device).type == "cuda" else None
        self.start(DistributedDataParallel(model, device_ids=ids), device)


class DdpLarge(Ddp):
    batch = 24


class Fsdp2(Distributed):
    batch = 6

    def __init__(self, scale, device):
        self.sizes(scale, self.batch, 128, 700, 1792)
        kind = torch.device(device).type
        mesh = init_device_mesh(kind, (distributed.get_world_size(),))
        model = llama_model(scale, device, dtype=torch.float32, use_cache=False)
        self.vocabulary_size = model.config.vocab_size
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        self.start(model, device)


class Fsdp2Large(Fsdp2):
    batch = 24
