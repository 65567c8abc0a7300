# SPDX-License-Identifier: Apache-2.0
"""What workloads share: random sizes, building on a device, training, a decoder's block."""
import contextlib
import math
import random

import torch
from torch import nn
from torch.nn import functional


def draw(i, seed=0):
    """The random sizes of step i: the same in every process."""
    return random.Random(1_000_003 * seed + i)


def length(sizes, shortest, typical, longest):
    """A sequence's length, log-normal, to the token."""
    return min(longest, max(shortest, round(sizes.lognormvariate(math.log(typical), 0.5))))


@contextlib.contextmanager
def built_on(device, dtype=torch.float32):
    """Parameters made within are on `device`, of `dtype`."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def tokens(batch, count, vocabulary, device):
    return torch.randint(vocabulary, (batch, count), device=device)


class Training:
    """step(i): forward, backward, AdamW. A workload says what model, and loss(i)."""

    autocast = False  # bf16, over parameters of fp32

    def start(self, model, device, rate=1e-4):
        self.device = torch.device(device)
        self.model = model.train()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=rate)

    def step(self, i):
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            loss = self.loss(i)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


class Feed(nn.Module):
    """The gated feed-forward part of a decoder's layer."""

    def __init__(self, width, hidden):
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """A decoder's layer: causal attention, and `feed`."""

    def __init__(self, width, heads, feed):
        super().__init__()
        self.heads, self.feed = heads, feed
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, count, width = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, count, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, count, width))
        return x + self.feed(self.norms[1](x))
