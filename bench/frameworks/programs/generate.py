# SPDX-License-Identifier: Apache-2.0
"""transformers' generate() with static caches: batches of prompts, their number and lengths vary.

disable_compile: by default transformers compiles the model for such a cache, for longer than all of this takes. A step
is a call; its figure is the mean of the tokens.
"""
import random

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from programs.made import text, tokenizer


def run(scale, steps):
    full = scale == "full"
    words = tokenizer(padding_side="left")
    config = LlamaConfig(vocab_size=32_000 if full else len(words), hidden_size=2048 if full else 32,
                         intermediate_size=5632 if full else 64, num_hidden_layers=16 if full else 2,
                         num_attention_heads=16 if full else 2, num_key_value_heads=8 if full else 2,
                         max_position_embeddings=8192, pad_token_id=words.pad_token_id,
                         bos_token_id=words.bos_token_id, eos_token_id=words.eos_token_id)
    with steps.device:
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    steps.start()
    for i in range(steps.count):
        sizes = random.Random(i)
        batch, longest = (sizes.randint(4, 32), sizes.randint(500, 2500)) if full else (2, 12)
        prompts = words([text(sizes, sizes.randint(longest // 2, longest)) for _ in range(batch)], padding=True,
                        return_tensors="pt").to(steps.device)
        answers = model.generate(**prompts, max_new_tokens=32 if full else 4, do_sample=False,
                                 cache_implementation="static", disable_compile=True)
        steps.done(answers.float().mean())
