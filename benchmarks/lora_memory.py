"""Memory and time of a LoRA's step by how its base lies there: `python -m benchmarks.lora_memory --model wan-2.1-14b`.

Weights are drawn, since neither depends on them. On a GPU the peak of allocated memory is told; on a CPU there is no such
figure, and only the times and what is kept for the backward pass.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

from reelworks.data.distributed import mesh
from reelworks.data.distributed.layout import Layout
from reelworks.models import factory, registry
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.api import DenoiserInputs
from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.testing import contract

WAYS: list[tuple[dict[str, Any], bool]] = [
    *(({"base": base}, False) for base in ("float32", "bfloat16", "float8", "int8", "nf4")),
    ({"base": "int8", "int8_products": True}, False),
    ({"base": "bfloat16"}, True),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = "wan-2.1-1.3b" if torch.cuda.is_available() else "wan-tiny"
    parser.add_argument("--model", default=default, help="one that needs no companions")
    parser.add_argument("--latent", type=int, nargs=3, default=(1, 64, 64), metavar=("T", "H", "W"))
    parser.add_argument("--steps", type=int, default=3, help="timed, after one that is not")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{args.model}, latent {'x'.join(map(str, args.latent))}, {name}, torch {torch.__version__}")
    print(f"{'base':13} {'weights in':10} {'peak GB':>8} {'kept MB':>8} {'s a step':>8}")
    for lora, offload in WAYS:
        peak, stays, seconds = measure(args, lora, offload)
        place = "CPU memory" if offload else str(device)
        base = "int8 products" if lora.get("int8_products") else lora["base"]
        print(f"{base:13} {place:10} {peak:>8} {stays:8.2f} {seconds:8.3f}", flush=True)


def measure(args: argparse.Namespace, lora: dict[str, Any], offload: bool) -> tuple[str, float, float]:
    """Peak of GPU memory, MB kept for the backward pass, and seconds of a step."""
    with mesh.join(offload=offload) as world:
        denoiser = factory.build_denoiser(
            ModelConfig(name=args.model, gradient_checkpointing=True),
            **beside(args.model),
            device=world.home,
            seed=0,
            compute=torch.bfloat16,
            lora=LoraConfig(**lora),
        )
        mesh.shard(
            denoiser.module,
            denoiser.sharding().units,
            denoiser.contract,
            world,
            Layout.from_strategy("fsdp", world.size),
        )
        given, boundary = inputs(args, world.device, denoiser.latent_channels), DtypeBoundary(denoiser)
        if world.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        stays, times = 0.0, []
        for _ in range(args.steps + 1):
            began = time.monotonic()
            with contract.counted() as activations:
                loss = boundary(given).square().mean()
            torch.autograd.backward(loss)
            if world.device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.monotonic() - began)
            stays = activations.bytes / 1e6
        peak = f"{torch.cuda.max_memory_allocated() / 1e9:.2f}" if world.device.type == "cuda" else "-"
        return peak, stays, sum(times[1:]) / args.steps


def beside(model: str) -> dict[str, Any]:
    parts = registry.PRESETS[model].parts
    return {
        "autoencoder": AutoencoderConfig(name=parts.autoencoder, weights="-"),
        "text": TextEncoderConfig(name=parts.text, weights="-"),
    }


def inputs(args: argparse.Namespace, device: torch.device, channels: int) -> DenoiserInputs:
    """One clip of zeros."""
    text: TextEncoderConfig = beside(args.model)["text"]
    T, H, W = args.latent
    one = torch.ones(1, device=device)
    latent = torch.zeros(1, channels, T, H, W, device=device)
    return DenoiserInputs(
        latent=latent,
        time=500 * one,
        text=torch.zeros(1, text.max_length, text.dim, device=device),
        text_mask=torch.ones(1, text.max_length, dtype=torch.bool, device=device),
        pooled=torch.zeros(1, text.pooled_dim, device=device),
        guidance=one,
        frame_mask=torch.ones(1, T, dtype=torch.bool, device=device),
        fps=24 * one,
        height=8.0 * H * one,
        width=8.0 * W * one,
        drop_text=torch.zeros(1, dtype=torch.bool, device=device),
    )


if __name__ == "__main__":
    main()
