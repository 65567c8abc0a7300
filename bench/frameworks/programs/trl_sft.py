# SPDX-License-Identifier: Apache-2.0
"""TRL's SFTTrainer with activation_offloading: activations wait for the backward pass in the CPU's memory."""
from trl import SFTConfig, SFTTrainer

from programs.made import tokenizer
from programs.trainers import common, keeping_loss, llama, texts, train


def run(scale, steps):
    full = scale == "full"
    words, batch = tokenizer(), 8 if full else 2
    arguments = SFTConfig(**common(steps), per_device_train_batch_size=batch,
                          activation_offloading=steps.device.type == "cuda", gradient_checkpointing=True,
                          max_length=2048 if full else 64)
    trainer = keeping_loss(SFTTrainer)(
        model=llama(full, words, steps.device), args=arguments, processing_class=words,
        train_dataset=texts(batch * steps.count, 600 if full else 20, text=1))
    train(trainer, steps)
