# SPDX-License-Identifier: Apache-2.0
"""Serving on six streams: a model in two halves, each request handed from one stream to the next.

A step is a dozen requests of other sizes, two a stream. The first half runs on one stream, the
second half on the next one, which waits for it on the GPU; what is handed over is dropped at once,
and recorded with record_stream, as PyTorch's documentation asks. The latest replies are kept.
"""
import collections
import contextlib

import torch
from torch import nn

from workloads.common import Block, Feed, built_on, draw, length

STREAMS = 6
REQUESTS = 12
KEPT = 8


def half(width, heads, hidden, layers):
    return nn.Sequential(*(Block(width, heads, Feed(width, hidden)) for _ in range(layers)))


class Serve:
    def __init__(self, scale, device):
        self.device, self.full = torch.device(device), scale == "full"
        shape = (2048, 16, 5632, 4) if self.full else (64, 4, 96, 1)
        self.width = shape[0]
        with built_on(device, torch.bfloat16):
            self.first, self.second = half(*shape).eval(), half(*shape).eval()
        self.streams = ([torch.cuda.Stream() for _ in range(STREAMS)]
                        if self.device.type == "cuda" else [None] * STREAMS)
        self.replies = collections.deque(maxlen=KEPT)

    def on(self, stream):
        return torch.cuda.stream(stream) if stream else contextlib.nullcontext()

    def hand(self, tensor, giver, taker):
        """`taker` may use the tensor from now on, and its memory is not reused before it has."""
        if taker:
            taker.wait_stream(giver)
            tensor.record_stream(taker)

    def request(self, sizes, number, total):
        batch = sizes.randint(2, 24) if self.full else 2
        count = length(sizes, 64, 400, 1024) if self.full else sizes.randint(3, 12)
        one, other = self.streams[number % STREAMS], self.streams[(number + 1) % STREAMS]
        with self.on(one):
            x = torch.randn(batch, count, self.width, device=self.device, dtype=torch.bfloat16)
            hidden = self.first(x)
            self.hand(hidden, one, other)
        with self.on(other):
            reply = self.second(hidden)
            total[number].copy_(reply.float().square().mean())
        self.replies.append(reply)

    @torch.no_grad()
    def step(self, i):
        sizes = draw(i)
        total = torch.zeros(REQUESTS, device=self.device)
        main = torch.cuda.current_stream() if self.streams[0] else None
        for stream in filter(None, self.streams):
            stream.wait_stream(main)
        for number in range(REQUESTS):
            self.request(sizes, number, total)
        for stream in filter(None, self.streams):
            main.wait_stream(stream)
        return total.sum()
