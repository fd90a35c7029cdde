"""Choose the kernel of attention by name, or say why it cannot serve.

FlashAttention 3 and 4 take the place of the 2 within torch's own attention, with gradients, in networks of diffusers too:
diffusers itself calls the 3 without gradients, and would download the 4.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import attention as torch_attention
from torch.nn.attention import SDPBackend, sdpa_kernel

from reelworks.core.errors import UserError
from reelworks.models.api import Denoiser
from reelworks.models.attention.attention_calls import ATTEND
from reelworks.models.config import Attention

# Names in diffusers, which calls the kernels of its networks by them.
_IN_DIFFUSERS = {"cudnn": "_native_cudnn", "flash": "flash"}
_FLASH = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
# Torch's kernels for other networks, the first that can serve a call: not all take masks, or any width of heads.
_IN_TORCH = {
    "cudnn": [SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
    "flash": _FLASH,
    "flash-3": _FLASH,
    "flash-4": _FLASH,
}


class _Version(NamedTuple):
    """A version of FlashAttention that torch can call in place of its own."""

    torch_name: str
    module: str  # which the package has, and torch imports
    package: str
    capabilities: tuple[int, ...]  # major compute capabilities of GPUs, as in torch's `_fa3.py` and `_fa4.py`


_VERSIONS = {
    "flash-3": _Version("FA3", "flash_attn_interface", "flash-attn-3", (9,)),
    "flash-4": _Version("FA4", "flash_attn.cute", "flash-attn-4", (9, 10)),
}


def use(denoiser: Denoiser, name: Attention, device: torch.device) -> None:
    """Let a network of diffusers compute attention with a kernel; others follow `preferred`.

    Raises:
        UserError: The kernel cannot train this network on this device.
    """
    if name == "native":
        return
    networks = _of_diffusers(denoiser)
    if reason := _reason_against(name, denoiser, device, in_diffusers=bool(networks)):
        raise _refusal(name, reason)
    if name in _VERSIONS:
        return
    _set_backend(networks, _IN_DIFFUSERS[name])


def use_native(denoiser: Denoiser) -> None:
    """Let a network call torch's attention, whatever it was told to use."""
    _set_backend(_of_diffusers(denoiser), "native")


def _of_diffusers(denoiser: Denoiser) -> list[Any]:
    """Return the networks that choose their kernels by themselves."""
    return [one for one in denoiser.module.modules() if hasattr(one, "set_attention_backend")]


def _set_backend(networks: list[Any], name: str) -> None:
    # It warns on each call that this interface may change.
    level = logging.getLogger("diffusers.models.modeling_utils")
    former, level.level = level.level, logging.ERROR
    try:
        for network in networks:
            network.set_attention_backend(name)
    finally:
        level.level = former


def function_of(denoiser: Denoiser, name: Attention) -> Callable[..., Tensor]:
    """Return what computes attention in a network for which `use` was called, with the arguments of torch's function."""
    if name != "flash" or not _of_diffusers(denoiser):
        return ATTEND

    def attend(query: Tensor, key: Tensor, value: Tensor, **more: Any) -> Tensor:
        dispatch: Any = importlib.import_module("diffusers.models.attention_dispatch").dispatch_attention_fn
        tokens_first = [each.transpose(1, 2) for each in (query, key, value)]
        out: Tensor = dispatch(*tokens_first, **more, backend=_IN_DIFFUSERS[name])
        return out.transpose(1, 2)

    return attend


def package_versions() -> list[str]:
    """Return the versions of the packages of kernels that are installed."""
    found = {"flash-attn", *(version.package for version in _VERSIONS.values())}
    return sorted(f"{one.name} {one.version}" for one in importlib.metadata.distributions() if one.name in found)


@contextmanager
def prefer(name: Attention) -> Iterator[None]:
    """Prefer a kernel in torch's own attention while open, in recomputations of the backward pass too.

    Raises:
        UserError: The kernel's package is missing, or the kernel does not take what the network computes.
    """
    try:
        with ExitStack() as stack:
            if name in _IN_TORCH and torch.cuda.is_available():
                stack.enter_context(_active(name))
                stack.enter_context(sdpa_kernel(_IN_TORCH[name], set_priority=True))
            yield
    except ValueError as error:
        if "attn_mask" in str(error) and name != "native" and not isinstance(error, UserError):
            raise _refusal(name, "the network masks tokens, and this kernel takes no masks") from error
        raise
    except (RuntimeError, AssertionError) as error:
        if name in _VERSIONS and "supported" in str(error) and _is_of_kernel(error):
            raise _refusal(name, str(error)) from error
        raise


def _is_of_kernel(error: BaseException) -> bool:
    """Return whether an error was raised below torch's call of FlashAttention 3 or 4, and not elsewhere in training."""
    callers = {frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)}
    return not callers.isdisjoint({"torch.nn.attention._fa3", "torch.nn.attention._fa4"})


@contextmanager
def _active(name: Attention) -> Iterator[None]:
    """Let a version of FlashAttention take the place of torch's while open; other kernels need nothing."""
    if (version := _VERSIONS.get(name)) is None:
        yield
        return
    if reason := _reason_against_version(version):
        raise _refusal(name, reason)
    torch_attention.activate_flash_attention_impl(version.torch_name)
    try:
        yield
    finally:
        torch_attention.restore_flash_attention_impl()


def _reason_against(name: Attention, denoiser: Denoiser, device: torch.device, *, in_diffusers: bool) -> str:
    """Return why a kernel cannot train a network; empty if it can."""
    if device.type != "cuda":
        return f"it needs a CUDA GPU, and the network is on {device.type}"
    if torch.version.hip and name != "flash":
        return f"it is a kernel for NVIDIA's GPUs, and this torch is built for ROCm {torch.version.hip}"
    if denoiser.contract.compute not in (torch.bfloat16, torch.float16):
        return "it computes in bfloat16 only, and precision.compute is float32"
    if name in _VERSIONS:
        return _reason_against_version(_VERSIONS[name])
    # `flash_attn` alone may be that of FlashAttention 4.
    if name == "flash" and in_diffusers and not _is_installed("flash_attn.flash_attn_interface"):
        return "the package flash-attn is not installed, or does not fit this torch"
    return ""


def _reason_against_version(version: _Version) -> str:
    """Return why a version of FlashAttention cannot serve on this machine; empty if it can."""
    known: list[str] = getattr(torch_attention, "list_flash_attention_impls", list)()  # torch has it since 2.10
    if version.torch_name not in known:
        return f"torch {torch.__version__} cannot call it; torch 2.13 can"
    if not _is_installed(version.module):
        return f"the package {version.package} is not installed, or does not fit this torch"
    if (found := torch.cuda.get_device_capability())[0] not in version.capabilities:
        needed = " or ".join(f"{major}.0" for major in version.capabilities)
        return f"it needs a GPU of compute capability {needed}, and this one has {found[0]}.{found[1]}"
    return ""


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # of the package that it lies in
        return False


def _refusal(name: Attention, reason: str) -> UserError:
    return UserError(
        reason,
        code="attention-cannot-serve",
        field="model.attention",
        value=name,
        remedy='set it to "native", with which torch chooses a kernel that can; on CUDA, "cudnn" takes masks',
    )
