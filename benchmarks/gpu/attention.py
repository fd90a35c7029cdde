"""Attention kernels against exact attention, for the calls of every family: its own sizes, masks and memory layouts.

A network in full size has one clip of 17 frames in 480p, or one picture of 1024²; tiny ones have the shapes of the tests. Calls are
recorded on the meta device, and run on the GPU in the kernel that torch chooses and in each of the others that takes them; then they
are timed, and what a training would choose is told.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu import steps
from benchmarks.gpu.steps import Case
from reelworks.models import components, registry
from reelworks.models.attention import attention_audit
from reelworks.models.attention.attention_calls import ATTEND, AttentionCall
from reelworks.models.config import ModelConfig
from reelworks.models.precision import audit
from reelworks.testing import contract
from reelworks.training.preflight import kernels

_KERNELS = {
    "chosen": None,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
_TINY = ("flux-tiny", "stdit3-tiny")


def rows(_: str, device: str, tiny: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for each network and kernel."""
    for name in _TINY if tiny else (*_full_sizes(), *contract.FAMILIES):
        try:
            calls = _calls(name)
        except Exception as error:  # of one network; the others go on
            yield {"network": name, "error": f"{type(error).__name__}: {error}"[:400]}
            continue
        for kernel, backend in _KERNELS.items():
            with warnings.catch_warnings(), nullcontext() if backend is None else sdpa_kernel(backend):
                warnings.simplefilter("ignore")  # torch says why a kernel does not take a call
                yield {"network": name, "kernel": kernel, **_compared(calls, torch.device(device))}
        yield {"network": name, "kernel": "timed", **_timed(calls, torch.device(device))}


def _full_sizes() -> list[str]:
    """Return a preset of each family; with sound, attention is that of the tiny networks, of which all are compared."""
    first: dict[str, str] = {}
    for name in registry.PRESETS:
        if not name.endswith("-tiny") and not components.conditioning(ModelConfig(name=name)).sound:
            first.setdefault(registry.family_of(name).name, name)
    return list(first.values())


def _calls(name: str) -> list[AttentionCall]:
    """Return what a network calls."""
    if name.endswith("-tiny"):
        denoiser = contract.build(name, compute=torch.bfloat16)
        shapes = [audit.on_meta(contract.example(shape, name)) for shape in contract.shapes(name)]
        return kernels.calls_of(denoiser, None, shapes)
    video = Case(name, "480p", 17, 1, ())
    return steps.calls(video if video.geometry.accepts_frames(17) else Case(name, "1024px", 1, 1, (), ("1:1",)))


def _timed(calls: Sequence[AttentionCall], device: torch.device) -> dict[str, Any]:
    """Return what a training would choose."""
    report = attention_audit.audit(calls, device, times=True)
    return {"quicker": list(report.quicker_lines()), "planning_s": round(report.planning_seconds, 2)}


def _compared(calls: Sequence[AttentionCall], device: torch.device) -> dict[str, Any]:
    refused = []

    def attend(query: Tensor, key: Tensor, value: Tensor, **more: Any) -> Tensor:
        try:
            return ATTEND(query, key, value, **more)
        except RuntimeError as error:
            if "No available kernel" in str(error) or "No viable backend" in str(error):
                refused.append(error)
            raise

    report = attention_audit.audit(calls, device, attend)
    wrong = [fault for fault in report.faults if not fault.problem.startswith("it fails (No ")]
    taken = report.calls - len(refused)
    return {
        "calls": len(calls),
        "taken": taken,
        "wrong": len(wrong),
        "worst": round(report.worst, 4) if taken > len(wrong) else None,
        "first_wrong": f"{wrong[0].problem}: {wrong[0].call}" if wrong else None,
    }
