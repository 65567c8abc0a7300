# SPDX-License-Identifier: Apache-2.0
"""LoRA, by the library peft, with checkpointing of activations."""
from peft import LoraConfig, get_peft_model

from workloads.language import Language, llama_model


class Lora(Language):
    """Adapters on every linear layer; the model itself is frozen, its activations recomputed."""

    def __init__(self, scale, device):
        self.sizes(scale, 6, 256, 1000, 2560)
        model = llama_model(scale, device, 12, 4096, 32, 11008, use_cache=False)
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
        adapters = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, task_type="CAUSAL_LM",
                              target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                                              "up_proj", "down_proj"])
        self.start(get_peft_model(model, adapters), device)

    def vocabulary(self):
        return self.model.get_base_model().config.vocab_size
