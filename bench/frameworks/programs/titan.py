# SPDX-License-Identifier: Apache-2.0
"""torchtitan's Trainer on one GPU: its Llama 3 with selective activation checkpointing, two batches a step."""
import os
import tempfile
import types

import torch

if not torch.cuda.is_available():  # torchtitan takes a GPU to be there, and looks when it is imported
    torch._utils._get_available_device_type = lambda: "cpu"

from torchtitan.components import metrics  # noqa: E402
from torchtitan.components.dataloader import ParallelAwareDataloader  # noqa: E402
from torchtitan.config import JobConfig  # noqa: E402
from torchtitan.distributed import utils as distributed  # noqa: E402
from torchtitan.models.llama3 import TransformerModelArgs, get_train_spec  # noqa: E402
from torchtitan.protocols.train_spec import register_train_spec  # noqa: E402
from torchtitan.train import Trainer  # noqa: E402

if not torch.cuda.is_available():
    metrics.build_device_memory_monitor = lambda: types.SimpleNamespace(
        device_name="CPU", get_peak_stats=lambda: metrics.DeviceMemStats(*[0.0] * 6), reset_peak_stats=lambda: None)
    distributed.set_pg_timeouts = lambda timeout, parallel_dims: None

ARGUMENTS = {
    "full": TransformerModelArgs(dim=1536, n_layers=16, n_heads=12, n_kv_heads=4, vocab_size=32_000, rope_theta=500_000),
    "small": TransformerModelArgs(dim=32, n_layers=2, n_heads=2, vocab_size=256, rope_theta=500_000),
}


class Tokens(torch.utils.data.IterableDataset):
    """Random ones: (inputs, labels)."""

    def __init__(self, vocabulary, length):
        self.vocabulary, self.length = vocabulary, length

    def __iter__(self):
        source = torch.Generator().manual_seed(0)
        while True:
            tokens = torch.randint(self.vocabulary, (self.length + 1,), generator=source)
            yield {"input": tokens[:-1]}, tokens[1:]


def load(dp_world_size, dp_rank, tokenizer, job_config, **_):
    dataset = Tokens(ARGUMENTS[job_config.model.flavor].vocab_size, job_config.training.seq_len)
    return ParallelAwareDataloader(dataset, dp_rank=dp_rank, dp_world_size=dp_world_size,
                                   batch_size=job_config.training.local_batch_size)


class Stepped(Trainer):
    def forward_backward_step(self, **batch):
        self.last_loss = super().forward_backward_step(**batch)
        return self.last_loss

    def train_step(self, data_iterator):
        super().train_step(data_iterator)
        self.boundaries.done(self.last_loss)


def config_of(scale, count, folder):
    full, config = scale == "full", JobConfig()
    config.job.dump_folder = folder
    config.model.name, config.model.flavor = "weir_llama", scale
    config.training.steps = count
    config.training.local_batch_size, config.training.global_batch_size = (4, 8) if full else (2, 4)
    config.training.seq_len = 2048 if full else 32
    config.activation_checkpoint.mode = "selective"
    config.lr_scheduler.warmup_steps = 2
    config.metrics.log_freq = count + 1
    config.comm.trace_buf_size = 0
    config.debug.seed, config.debug.deterministic, config.debug.deterministic_warn_only = 0, True, True
    return config


def run(scale, steps):
    spec = get_train_spec()
    spec.model_args, spec.build_dataloader_fn, spec.build_tokenizer_fn = ARGUMENTS, load, None
    spec.state_dict_adapter = None
    register_train_spec("weir_llama", spec)
    with tempfile.TemporaryDirectory(prefix="weir-frameworks-") as folder:
        # What torchrun sets.
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT="0")
        trainer = Stepped(config_of(scale, steps.count, folder))
        # It would reset the peaks that the benchmark reads.
        trainer.metrics_processor.device_memory_monitor.reset_peak_stats = lambda: None
        trainer.boundaries = steps
        steps.start()
        trainer.train()
        trainer.close()
    torch.distributed.destroy_process_group()
