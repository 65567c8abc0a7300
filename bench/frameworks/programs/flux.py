# SPDX-License-Identifier: Apache-2.0
"""diffusers' FluxPipeline with enable_model_cpu_offload(): images of several sizes, each from a prompt.

A step is a denoising step, or the decoding of an image.
"""
import random

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from programs.made import on_cpu, text, tokenizer

DENOISING = 4
SIZES = ((1024, 1024), (768, 1344), (1152, 896))


def pipeline(full):
    heads, width = (16, 2048) if full else (2, 32)
    words = tokenizer(longest=512)
    clip = CLIPTextConfig(vocab_size=len(words), hidden_size=768 if full else 32, num_hidden_layers=12 if full else 1,
                          intermediate_size=3072 if full else 64, num_attention_heads=12 if full else 2,
                          projection_dim=768 if full else 32, eos_token_id=words.eos_token_id)
    t5 = T5Config(vocab_size=len(words), d_model=width, d_kv=64 if full else 16, d_ff=5120 if full else 64,
                  num_layers=10 if full else 1, num_heads=32 if full else 2, feed_forward_proj="gated-gelu")
    dtype = torch.bfloat16
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
        text_encoder=on_cpu(lambda: CLIPTextModel(clip), dtype), tokenizer=tokenizer(longest=77),
        text_encoder_2=on_cpu(lambda: T5EncoderModel(t5), dtype), tokenizer_2=words,
        transformer=on_cpu(lambda: FluxTransformer2DModel(
            num_layers=4 if full else 1, num_single_layers=8 if full else 1, attention_head_dim=128 if full else 16,
            num_attention_heads=heads, joint_attention_dim=width, pooled_projection_dim=clip.hidden_size,
            in_channels=64 if full else 16, guidance_embeds=True,
            axes_dims_rope=(16, 56, 56) if full else (4, 6, 6)), dtype),
        vae=on_cpu(lambda: AutoencoderKL(
            block_out_channels=(128, 256, 512, 512) if full else (8, 8, 8, 8), layers_per_block=2 if full else 1,
            down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
            latent_channels=16 if full else 4, norm_num_groups=32 if full else 4, use_quant_conv=False,
            use_post_quant_conv=False, scaling_factor=0.3611, shift_factor=0.1159), dtype))


def run(scale, steps):
    full = scale == "full"
    pipe = pipeline(full)
    pipe.set_progress_bar_config(disable=True)
    if steps.device.type == "cuda":
        pipe.enable_model_cpu_offload()

    def denoised(pipe, i, timestep, kwargs):
        steps.done(kwargs["latents"].float().mean())
        return kwargs

    sizes = random.Random(0)
    steps.start()
    for i in range(steps.count // (DENOISING + 1)):
        height, width = SIZES[i % len(SIZES)] if full else (32, 48)
        image = pipe(text(sizes, 40), height=height, width=width, num_inference_steps=DENOISING, guidance_scale=3.5,
                     generator=torch.Generator().manual_seed(i), output_type="pt", callback_on_step_end=denoised)
        steps.done(image.images.float().mean())
