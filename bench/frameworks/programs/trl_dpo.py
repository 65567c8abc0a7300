# SPDX-License-Identifier: Apache-2.0
"""TRL's DPOTrainer with a reference model: pairs of a chosen and a rejected answer, of varying length."""
from trl import DPOConfig, DPOTrainer

from programs.made import tokenizer
from programs.trainers import common, keeping_loss, llama, texts, train


def run(scale, steps):
    full = scale == "full"
    words, batch = tokenizer(), 8 if full else 2
    arguments = DPOConfig(**common(steps), per_device_train_batch_size=batch, max_length=1024 if full else 64)
    trainer = keeping_loss(DPOTrainer)(
        model=llama(full, words, steps.device), ref_model=llama(full, words, steps.device), args=arguments,
        processing_class=words, train_dataset=texts(batch * steps.count, 250 if full else 10, prompt=0.6, chosen=1,
                                                    rejected=1))
    train(trainer, steps)
