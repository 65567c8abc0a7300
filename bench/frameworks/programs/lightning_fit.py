# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer: GPT-2 on sequences of varying length in mixed precision, with validation on longer ones."""
import random

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.environments import LightningEnvironment
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel


class Sequences(Dataset):
    """Random tokens. Those of one batch have one length."""

    def __init__(self, count, batch, typical, longest, vocabulary, seed):
        sizes = random.Random(seed)
        self.lengths = [min(longest, round(typical * sizes.lognormvariate(0.0, 0.4))) for _ in range(count // batch)]
        self.count, self.batch, self.vocabulary, self.seed = count, batch, vocabulary, seed

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        source = torch.Generator().manual_seed(self.seed + i)
        return torch.randint(self.vocabulary, (self.lengths[i // self.batch],), generator=source)


class LanguageModel(lightning.LightningModule):
    def __init__(self, config):
        super().__init__()
        self.model = GPT2LMHeadModel(config)

    def training_step(self, tokens, index):
        return self.model(tokens, labels=tokens).loss

    def validation_step(self, tokens, index):
        self.log("validation", self.model(tokens, labels=tokens).loss)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


class Boundaries(Callback):
    def __init__(self, steps):
        self.steps = steps

    def on_train_start(self, trainer, module):
        self.steps.start()

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.steps.done(outputs["loss"])


def run(scale, steps):
    full = scale == "full"
    config = GPT2Config(n_embd=1024, n_layer=24, n_head=16) if full else GPT2Config(
        n_embd=32, n_layer=2, n_head=2, n_positions=64, vocab_size=256)
    lightning.seed_everything(0, verbose=False)
    batch, longest = (8, 1024) if full else (2, 64)
    training = Sequences(batch * steps.count, batch, longest // 2, longest, config.vocab_size, 0)
    validation = Sequences(2 * 2 * batch, 2 * batch, longest, longest, config.vocab_size, 10_000)
    trainer = lightning.Trainer(
        max_steps=steps.count, accelerator="gpu" if steps.device.type == "cuda" else "cpu", devices=1,
        precision="bf16-mixed", gradient_clip_val=1.0, val_check_interval=max(2, steps.count // 3),
        num_sanity_val_steps=0, callbacks=[Boundaries(steps)], plugins=[LightningEnvironment()],  # MPI is not asked
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    with trainer.init_module():
        model = LanguageModel(config)
    trainer.fit(model, DataLoader(training, batch_size=batch), DataLoader(validation, batch_size=2 * batch))
