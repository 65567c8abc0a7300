# SPDX-License-Identifier: Apache-2.0
"""timm: ConvNeXt with mixup, on images that grow while training goes on (progressive resizing), as timm's train.py."""
import numpy
import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2

SIDES = {"full": (128, 192, 224, 256, 320, 352), "small": (32, 64)}


def run(scale, steps):
    full, device, sides = scale == "full", steps.device, SIDES[scale]
    numpy.random.seed(0)
    batch = 40 if full else 2
    with device:
        model = timm.create_model("convnext_base" if full else "convnext_atto", drop_path_rate=0.1)
    model = model.to(memory_format=torch.channels_last).train()
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-4, weight_decay=0.05)
    mixup, loss_of = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=1000), SoftTargetCrossEntropy()
    steps.start()
    for i in range(steps.count):
        side = sides[i * len(sides) // steps.count]
        images = torch.randn(batch, 3, side, side, device=device).contiguous(memory_format=torch.channels_last)
        images, targets = mixup(images, torch.randint(1000, (batch,), device=device))
        with torch.autocast(device.type, torch.bfloat16, enabled=full):
            loss = loss_of(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps.done(loss)
