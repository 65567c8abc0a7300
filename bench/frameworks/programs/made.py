# SPDX-License-Identifier: Apache-2.0
"""What programs would download, made here: tokenizers, texts, weights."""
import random

import torch
from accelerate import init_empty_weights
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import PreTrainedTokenizerFast

BLOCK = (1 << 20) - 3  # values; odd, so that no two rows of a matrix are alike


def words(count=2000):
    return [f"w{i}" for i in range(count)]


def tokenizer(longest=4096, padding_side="right"):
    """Of words(), each a token, with BERT's and GPT's special tokens."""
    special = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    vocabulary = {word: i for i, word in enumerate(special + words())}
    one = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    one.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=one, pad_token="<pad>", unk_token="<unk>", bos_token="<s>",
                                   eos_token="</s>", mask_token="<mask>", cls_token="<s>", sep_token="</s>",
                                   model_max_length=longest, padding_side=padding_side)


def text(sizes: random.Random, count):
    """`count` words."""
    return " ".join(f"w{sizes.randrange(2000)}" for _ in range(count))


def on_cpu(make, dtype):
    """The model that make() builds, in the CPU's memory. Its weights repeat one block of random numbers: drawing
    each of a billion would take the CPU longer than the program takes."""
    with init_empty_weights():
        model = make()
    block = torch.randn(BLOCK, generator=torch.Generator().manual_seed(0)).mul_(0.02).to(dtype)
    filled = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in filled:  # tied weights stay tied
                    filled[id(parameter)] = nn.Parameter(filling(parameter, block), requires_grad=False)
                module._parameters[name] = filled[id(parameter)]
    return model.to(dtype).eval()


def filling(parameter, block):
    if parameter.dim() < 2:  # of a norm
        return torch.ones(parameter.shape, dtype=block.dtype)
    count = parameter.numel()
    return block.repeat(-(-count // len(block)))[:count].view(parameter.shape)
