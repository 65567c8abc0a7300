# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts: each token goes to two of them, so their batches vary from step to step."""
import torch
from torch import nn
from torch.nn import functional

from workloads.common import Block, Feed, Training, built_on, draw, length, tokens


class Experts(nn.Module):
    """The router and its experts; each runs on the tokens that chose it."""

    def __init__(self, width, hidden, count, chosen=2):
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(Feed(width, hidden) for _ in range(count))

    def forward(self, x):
        flat = x.flatten(0, 1)
        weights, choice = functional.softmax(self.router(flat).float(), -1).topk(self.chosen)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(choice == number)
            if len(token):
                part = expert(flat.index_select(0, token)) * weights[token, place].unsqueeze(-1)
                out = out.index_add(0, token, part)
        return out.view_as(x)


class Decoder(nn.Module):
    def __init__(self, vocabulary, width, heads, hidden, layers, experts):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block(width, heads, Experts(width, hidden, experts))
                                      for _ in range(layers)))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.embedding(ids))))


class Moe(Training):
    def __init__(self, scale, device):
        self.full = scale == "full"
        self.vocabulary = 32000 if self.full else 500
        shape = (1536, 12, 2048, 8, 16) if self.full else (64, 4, 96, 2, 4)
        with built_on(device, torch.bfloat16):
            model = Decoder(self.vocabulary, *shape)
        self.start(model, device)

    def loss(self, i):
        batch, range_ = (8, (128, 700, 1792)) if self.full else (2, (4, 12, 32))
        ids = tokens(batch, length(draw(i), *range_), self.vocabulary, self.device)
        logits = self.model(ids)[:, :-1].flatten(0, 1).float()
        return functional.cross_entropy(logits, ids[:, 1:].flatten())
