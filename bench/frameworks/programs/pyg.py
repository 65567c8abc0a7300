# SPDX-License-Identifier: Apache-2.0
"""PyTorch Geometric: GATv2 classifies graphs of varying size, several in a batch.

Deterministic algorithms are off: with them scatter takes an index as large as the messages. Losses are compared with
how far two runs under the native allocator are apart.
"""
import random

import torch
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATv2Conv, global_mean_pool

FEATURES, CLASSES = 64, 10


class Net(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.convolutions = torch.nn.ModuleList(
            GATv2Conv(FEATURES if i == 0 else width, width // heads, heads=heads) for i in range(3))
        self.head = torch.nn.Linear(width, CLASSES)

    def forward(self, x, edge_index, batch):
        for convolution in self.convolutions:
            x = functional.elu(convolution(x, edge_index))
        return self.head(global_mean_pool(x, batch))


def graphs(count, typical):
    sizes, source = random.Random(0), torch.Generator().manual_seed(0)
    for _ in range(count):
        nodes = max(4, round(typical * sizes.lognormvariate(0.0, 0.7)))
        yield Data(x=torch.randn(nodes, FEATURES, generator=source), y=torch.tensor([sizes.randrange(CLASSES)]),
                   edge_index=torch.randint(nodes, (2, nodes * sizes.randint(4, 16)), generator=source))


def run(scale, steps):
    full = scale == "full"
    torch.use_deterministic_algorithms(False)
    batch = 16 if full else 4
    loader = DataLoader(list(graphs(batch * 10, 3000 if full else 8)), batch_size=batch, shuffle=True)
    model = Net(256 if full else 8, 4 if full else 2).to(steps.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()
    steps.start()
    while steps.taken < steps.count:
        for data in loader:
            data = data.to(steps.device)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(data.x, data.edge_index, data.batch), data.y)
            loss.backward()
            optimizer.step()
            steps.done(loss)
            if steps.taken == steps.count:
                break
