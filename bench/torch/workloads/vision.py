"""A convolutional net of torchvision's, trained on images of another resolution each step."""
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
        sizes = draw(i)
        batch = sizes.randint(24, 48) if self.full else 2
        side = 32 * (sizes.randint(4, 14) if self.full else sizes.randint(1, 2))
        images = torch.randn(batch, 3, side, side, device=self.device)
        labels = torch.randint(1000, (batch,), device=self.device)
        logits = self.model(images.contiguous(memory_format=torch.channels_last))
        return functional.cross_entropy(logits.float(), labels)
