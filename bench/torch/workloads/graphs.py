# SPDX-License-Identifier: Apache-2.0
"""A graph neural net with gated edges: graphs of other sizes in each step.

In plain PyTorch: the scatter of torch_geometric has, with deterministic algorithms on, an index as
large as the messages.
"""
import torch
from torch import nn
from torch.nn import functional

from workloads.common import Training, built_on, draw


class Layer(nn.Module):
    """Each node adds up the gated messages of its neighbours."""

    def __init__(self, width):
        super().__init__()
        self.message, self.own = nn.Linear(width, width), nn.Linear(width, width)
        self.source_gate, self.target_gate = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x, source, target):
        gate = torch.sigmoid(self.source_gate(x).index_select(0, source)
                             + self.target_gate(x).index_select(0, target))
        messages = gate * self.message(x).index_select(0, source)
        gathered = torch.zeros_like(x).index_add(0, target, messages)
        return x + functional.relu(self.norm(self.own(x) + gathered))


class Net(nn.Module):
    def __init__(self, features, width, layers, classes):
        super().__init__()
        self.embed, self.head = nn.Linear(features, width), nn.Linear(width, classes)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))

    def forward(self, x, source, target):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x, source, target)
        return self.head(x)


class Gnn(Training):
    FEATURES, CLASSES = 100, 40

    def __init__(self, scale, device):
        self.full = scale == "full"
        with built_on(device):
            model = Net(self.FEATURES, 256 if self.full else 16, 3, self.CLASSES)
        self.start(model, device, rate=1e-3)

    def loss(self, i):
        sizes = draw(i)
        nodes = sizes.randint(15_000, 70_000) if self.full else sizes.randint(20, 80)
        edges = nodes * sizes.randint(6, 14)
        x = torch.randn(nodes, self.FEATURES, device=self.device)
        source, target = torch.randint(nodes, (2, edges), device=self.device)
        labels = torch.randint(self.CLASSES, (nodes,), device=self.device)
        return functional.cross_entropy(self.model(x, source, target), labels)
