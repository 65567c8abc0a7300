# SPDX-License-Identifier: Apache-2.0
"""sentence-transformers' trainer with CachedMultipleNegativesRankingLoss: all pairs of a large batch are compared, and
its texts go through the model in small parts, twice."""
import tempfile

import torch
from sentence_transformers import (SentenceTransformer, SentenceTransformerTrainer,
                                   SentenceTransformerTrainingArguments)
from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import BertConfig, BertModel

from programs.made import on_cpu, tokenizer
from programs.trainers import common, keeping_loss, texts, train


def embedder(full, device):
    """Of BERT-base, by way of files: the framework reads no other model."""
    words = tokenizer(longest=512)
    config = BertConfig(vocab_size=30_522 if full else len(words), hidden_size=768 if full else 32,
                        num_hidden_layers=12 if full else 1, num_attention_heads=12 if full else 2,
                        intermediate_size=3072 if full else 64, pad_token_id=words.pad_token_id)
    with tempfile.TemporaryDirectory(prefix="weir-frameworks-") as folder:
        on_cpu(lambda: BertModel(config), torch.float32).save_pretrained(folder)
        words.save_pretrained(folder)
        transformer = Transformer(folder)
    return SentenceTransformer(modules=[transformer, Pooling(config.hidden_size)], device=device)


def run(scale, steps):
    full = scale == "full"
    model, batch = embedder(full, steps.device), 256 if full else 8
    arguments = SentenceTransformerTrainingArguments(**common(steps), per_device_train_batch_size=batch)
    trainer = keeping_loss(SentenceTransformerTrainer)(
        model=model, args=arguments, loss=CachedMultipleNegativesRankingLoss(model, mini_batch_size=64 if full else 4),
        train_dataset=texts(batch * steps.count, 90 if full else 8, anchor=0.5, positive=1))
    train(trainer, steps)
