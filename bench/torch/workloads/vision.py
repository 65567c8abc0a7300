# SPDX-License-Identifier: Apache-2.0
"""A convolutional net of torchvision's, trained on images of another resolution each step.

Six of them, each once in six steps: cuDNN plans its convolutions for each new shape, for seconds of
the host, and from the seventh step on there is none.
"""
import torch
from torch.nn import functional
from torchvision.models import convnext_base, convnext_tiny

from workloads.common import Training, built_on, draw


class Cnn(Training):
    autocast = True

    def __init__(self, scale, device):
        self.full = scale == "full"
        with built_on(device):
            model = convnext_base() if self.full else convnext_tiny()
        self.start(model.to(memory_format=torch.channels_last), device)

    def loss(self, i):
        sides = [64 * times for times in range(2, 8)] if self.full else [32, 64]
        draw(i // len(sides)).shuffle(sides)
        batch, side = (40 if self.full else 2), sides[i % len(sides)]
        images = torch.randn(batch, 3, side, side, device=self.device)
        labels = torch.randint(1000, (batch,), device=self.device)
        logits = self.model(images.contiguous(memory_format=torch.channels_last))
        return functional.cross_entropy(logits.float(), labels)
