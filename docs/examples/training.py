# SPDX-License-Identifier: Apache-2.0
"""Training with Weir: a small network on batches of varying length.

    python training.py            # Weir where there is a GPU; else plain PyTorch on the CPU

The only line that concerns Weir is weir.enable(). Without it: python -m weir run training.py
"""

import torch
from torch import nn

if torch.version.cuda and torch.cuda.device_count() > 0:
    import weir

    weir.enable()  # before anything uses CUDA
    device = torch.device("cuda")
else:
    device = torch.device("cpu")


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(20):
        length = 64 + 37 * step % 512  # a new length in each step
        batch = torch.randn(length, 256, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")
    if device.type == "cuda":
        numbers = weir.stats()
        print(f"reserved {numbers['reserved_bytes_peak'] / numbers['live_bytes_peak']:.4f} of live, "
              f"{numbers['host_waits']} host waits")


main()
