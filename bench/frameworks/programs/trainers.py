# SPDX-License-Identifier: Apache-2.0
"""Steps of transformers' Trainer and of the trainers that extend it."""
import random
import shutil
import tempfile

from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback

from programs.made import text


class Boundaries(TrainerCallback):
    def __init__(self, trainer, steps):
        self.trainer, self.steps = trainer, steps

    def on_train_begin(self, *_, **__):
        self.steps.start()

    def on_step_end(self, *_, **__):
        self.steps.done(self.trainer.last_loss)


def keeping_loss(trainer_class):
    """The class, with the loss of the last step: a callback is not told it, and the log rounds it."""
    class KeepingLoss(trainer_class):
        def training_step(self, *args, **kwargs):
            self.last_loss = super().training_step(*args, **kwargs)
            return self.last_loss

    return KeepingLoss


def train(trainer, steps):
    trainer.add_callback(Boundaries(trainer, steps))
    try:
        trainer.train()
    finally:
        shutil.rmtree(trainer.args.output_dir)


def common(steps, **more):
    """Of TrainingArguments: no file is kept, nothing is reported elsewhere."""
    return {"output_dir": tempfile.mkdtemp(prefix="weir-frameworks-"), "max_steps": steps.count, "report_to": "none",
            "save_strategy": "no", "disable_tqdm": True, "use_cpu": steps.device.type == "cpu", "seed": 0,
            "bf16": steps.device.type == "cuda", **more}


def llama(full, tokenizer, device, **more):
    """A decoder of 0.6 billion parameters in fp32, as bf16 training has them."""
    config = LlamaConfig(vocab_size=32_000 if full else len(tokenizer), hidden_size=1536 if full else 32,
                         intermediate_size=4096 if full else 64, num_hidden_layers=16 if full else 2,
                         num_attention_heads=12 if full else 2, num_key_value_heads=4 if full else 2,
                         max_position_embeddings=8192, pad_token_id=tokenizer.pad_token_id,
                         bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, **more)
    with device:
        return LlamaForCausalLM(config)


def texts(count, typical, **columns):
    """A dataset whose columns are texts: of `typical` words times the column's factor, log-normal."""
    sizes = random.Random(0)
    return Dataset.from_list([{name: text(sizes, max(4, round(factor * typical * sizes.lognormvariate(0.0, 0.5))))
                               for name, factor in columns.items()} for _ in range(count)])
