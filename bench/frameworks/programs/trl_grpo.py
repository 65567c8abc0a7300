# SPDX-License-Identifier: Apache-2.0
"""TRL's GRPOTrainer: the model answers each prompt several times, by transformers' generate(), and learns from rewards."""
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from programs.made import tokenizer
from programs.trainers import common, keeping_loss, llama, texts, train


def even(completion_ids, **_):
    """The reward: how many of an answer's tokens have an even number."""
    return [float(sum(token % 2 == 0 for token in one)) for one in completion_ids]


class GradientNorm(TrainerCallback):
    """What steps are told instead of the loss, which is 0 where each answer is learnt from once."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_pre_optimizer_step(self, arguments, state, control, model, **_):
        self.trainer.last_loss = model.get_output_embeddings().weight.grad.norm()


def run(scale, steps):
    full = scale == "full"
    words, batch = tokenizer(padding_side="left"), 32 if full else 4
    arguments = GRPOConfig(**common(steps), per_device_train_batch_size=batch, num_generations=8 if full else 2,
                           max_completion_length=40 if full else 8)
    trainer = keeping_loss(GRPOTrainer)(
        model=llama(full, words, steps.device), reward_funcs=even, args=arguments, processing_class=words,
        train_dataset=texts(batch * steps.count, 300 if full else 10, prompt=1))
    trainer.add_callback(GradientNorm(trainer))
    train(trainer, steps)
