# SPDX-License-Identifier: Apache-2.0
"""Language models of the library transformers: training, and generation."""
import torch
from transformers import (DynamicCache, GPT2Config, GPT2LMHeadModel, LlamaConfig,
                          LlamaForCausalLM)

from workloads.common import Training, built_on, draw, length, tokens


def gpt2_model(scale, device, layers, width, heads):
    if scale == "small":
        layers, width, heads = 2, 64, 4
    config = GPT2Config(n_layer=layers, n_embd=width, n_head=heads, use_cache=False,
                        vocab_size=50257 if scale == "full" else 500, attn_implementation="sdpa",
                        bos_token_id=0, eos_token_id=0)
    with built_on(device):
        return GPT2LMHeadModel(config)


def llama_model(scale, device, layers=16, width=2048, heads=16, hidden=5632,
                dtype=torch.bfloat16, **more):
    if scale == "small":
        layers, width, heads, hidden = 2, 64, 4, 160
    config = LlamaConfig(num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads,
                         num_key_value_heads=heads, intermediate_size=hidden,
                         vocab_size=32000 if scale == "full" else 500,
                         max_position_embeddings=8192, attn_implementation="sdpa", **more)
    with built_on(device, dtype):
        return LlamaForCausalLM(config)


class Language(Training):
    """Training on random tokens: a batch of `batch` sequences of one length, another each step."""

    def sizes(self, scale, batch, shortest, typical, longest):
        self.shape = ((batch, shortest, typical, longest) if scale == "full"
                      else (max(2, batch // 6), 4, 12, 32))

    def loss(self, i):
        batch, *range_ = self.shape
        ids = tokens(batch, length(draw(i), *range_), self.vocabulary(), self.device)
        return self.model(input_ids=ids, labels=ids).loss

    def vocabulary(self):
        return self.model.config.vocab_size


class Gpt2(Language):
    autocast = True

    def __init__(self, scale, device):
        self.sizes(scale, 12, 128, 512, 1024)
        self.start(gpt2_model(scale, device, 24, 1024, 16), device)


class Gpt2Small(Language):
    autocast = True
    strict = True  # what has no deterministic algorithm is an error

    def __init__(self, scale, device):
        self.sizes(scale, 8, 64, 256, 512)
        self.start(gpt2_model(scale, device, 12, 768, 12), device)


class Llama(Language):
    def __init__(self, scale, device):
        self.sizes(scale, 8, 128, 700, 1792)
        self.start(llama_model(scale, device, use_cache=False), device)


class Generate:
    """A prompt, then token after token: the cache of keys and values grows by one each time."""

    def __init__(self, scale, device):
        self.device, self.full = device, scale == "full"
        self.model = llama_model(scale, device).eval()

    @torch.no_grad()
    def step(self, i):
        sizes = draw(i)
        batch = sizes.randint(16, 64) if self.full else sizes.randint(1, 3)
        prompt = length(sizes, 128, 512, 1024) if self.full else sizes.randint(4, 12)
        new = sizes.randint(32, 64) if self.full else sizes.randint(3, 6)
        cache = DynamicCache(config=self.model.config)
        ids = tokens(batch, prompt, self.model.config.vocab_size, self.device)
        total = torch.zeros((), device=self.device)
        for _ in range(new):
            logits = self.model(input_ids=ids, past_key_values=cache, use_cache=True,
                                logits_to_keep=1).logits[:, -1]
            ids = logits.argmax(-1, keepdim=True)
            total += logits.float().mean() + ids.float().mean()
        return total
