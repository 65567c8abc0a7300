# SPDX-License-Identifier: Apache-2.0
"""diffusers' WanPipeline: videos of several sizes and lengths, each from a prompt, with guidance.

A step is a denoising step, or the decoding of a video: a part of a second at a time, with features kept between them.
"""
import random

import torch
from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, WanPipeline, WanTransformer3DModel
from transformers import UMT5Config, UMT5EncoderModel

from programs.made import on_cpu, text, tokenizer

SIZES = ((480, 832, 17), (384, 640, 25), (544, 960, 9))


def pipeline(full):
    words = tokenizer(longest=512)
    width = 2048 if full else 32
    t5 = UMT5Config(vocab_size=len(words), d_model=width, d_kv=64 if full else 16, d_ff=5120 if full else 64,
                    num_layers=8 if full else 1, num_heads=32 if full else 2)
    return WanPipeline(
        tokenizer=words, text_encoder=on_cpu(lambda: UMT5EncoderModel(t5), torch.bfloat16),
        transformer=on_cpu(lambda: WanTransformer3DModel(
            num_attention_heads=12 if full else 2, attention_head_dim=128 if full else 12, text_dim=width,
            ffn_dim=8960 if full else 64, num_layers=24 if full else 1, in_channels=16, out_channels=16),
            torch.bfloat16),
        vae=on_cpu(lambda: AutoencoderKLWan(base_dim=96 if full else 4, z_dim=16, dim_mult=[1, 2, 4, 4],
                                            num_res_blocks=2 if full else 1), torch.float32),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=5.0))


def run(scale, steps):
    full = scale == "full"
    denoising = 4 if full else 2
    pipe = pipeline(full).to(steps.device)
    pipe.set_progress_bar_config(disable=True)

    def denoised(pipe, i, timestep, kwargs):
        steps.done(kwargs["latents"].float().mean())
        return kwargs

    sizes = random.Random(0)
    steps.start()
    for i in range(steps.count // (denoising + 1)):
        height, width, frames = SIZES[i % len(SIZES)] if full else (32, 48, 5 + 4 * i)
        video = pipe(text(sizes, 40), negative_prompt=text(sizes, 20), height=height, width=width, num_frames=frames,
                     num_inference_steps=denoising, guidance_scale=5.0, generator=torch.Generator().manual_seed(i),
                     output_type="pt", callback_on_step_end=denoised)
        steps.done(video.frames.float().mean())
