"""Choose the kernel of attention by name, or say why it cannot serve."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from reelworks.core.errors import UserError
from reelworks.models.api import Denoiser
from reelworks.models.config import Attention

# Names in diffusers, which calls the kernels of its networks by them.
_IN_DIFFUSERS = {"cudnn": "_native_cudnn", "flash": "flash"}
# Torch's kernels for other networks, the first that can serve a call: not all take masks, or any width of heads.
_IN_TORCH = {
    "cudnn": [SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
    "flash": [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
}


def use(denoiser: Denoiser, name: Attention, device: torch.device) -> None:
    """Let a network of diffusers compute attention with a kernel; others follow `preferred`.

    Raises:
        UserError: The kernel cannot train this network on this device.
    """
    if name == "native":
        return
    module: Any = denoiser.module
    networks = [one for one in module.modules() if hasattr(one, "set_attention_backend")]
    if reason := _reason_against(name, denoiser, device, in_diffusers=bool(networks)):
        raise _refusal(name, reason)
    # It warns on each call that this interface may change.
    level = logging.getLogger("diffusers.models.modeling_utils")
    former, level.level = level.level, logging.ERROR
    try:
        for network in networks:
            network.set_attention_backend(_IN_DIFFUSERS[name])
    finally:
        level.level = former


@contextmanager
def preferred(name: Attention) -> Iterator[None]:
    """Prefer a kernel in torch's own attention while open, in recomputations of the backward pass too.

    Raises:
        UserError: A network of diffusers has masks, which the kernel does not take.
    """
    try:
        if name in _IN_TORCH and torch.cuda.is_available():
            with sdpa_kernel(_IN_TORCH[name], set_priority=True):
                yield
        else:
            yield
    except ValueError as error:
        if "attn_mask" in str(error) and name != "native" and not isinstance(error, UserError):
            raise _refusal(name, "the network masks tokens, and this kernel takes no masks") from error
        raise


def _reason_against(name: Attention, denoiser: Denoiser, device: torch.device, *, in_diffusers: bool) -> str:
    """Return why a kernel cannot train a network; empty if it can."""
    if name == "flash-3":
        return "diffusers calls FlashAttention 3 without gradients, so it cannot train"
    if name == "flash-4":
        return "diffusers has FlashAttention 4 only as code that it downloads, which is never run"
    if device.type != "cuda":
        return f"it needs a CUDA GPU, and the network is on {device.type}"
    if denoiser.contract.compute not in (torch.bfloat16, torch.float16):
        return "it computes in bfloat16 only, and precision.compute is float32"
    if name == "flash" and in_diffusers and importlib.util.find_spec("flash_attn") is None:
        return "the package flash-attn is not installed"
    return ""


def _refusal(name: Attention, reason: str) -> UserError:
    return UserError(
        reason,
        code="attention-cannot-serve",
        field="model.attention",
        value=name,
        remedy='set it to "native", with which torch chooses a kernel that can; on CUDA, "cudnn" takes masks',
    )
