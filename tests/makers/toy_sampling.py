"""The toy model that references of samplers were run with, and the cases of a golden file."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor


class Cases:
    """Tensors of a golden file by case."""

    def __init__(self, name: str) -> None:
        self._tensors = load_file(Path(__file__).parents[1] / "golden" / f"{name}.safetensors")

    def __call__(self, case: str) -> dict[str, Tensor]:
        return {k.split("/")[1]: v for k, v in self._tensors.items() if k.startswith(f"{case}/")}


class ToyModel:
    """A linear model of latents, texts, times and masks, which also records what it was fed."""

    def __init__(self, cases: Cases) -> None:
        self.given = cases("sample")
        self.fed: list[tuple[Tensor, Tensor, Tensor | None]] = []

    def __call__(self, z_2B: Tensor, t_2B: Tensor, frame_mask_2B: Tensor | None) -> Tensor:
        self.fed.append((z_2B, t_2B, frame_mask_2B))
        g = self.given
        text = torch.cat([g["y"], g["y_null"]])[:, 0].mean(dim=1) @ g["P"].T
        bias = text + t_2B[:, None] / 1000 * g["u"]
        out = torch.einsum("oc,bcthw->bothw", g["W"], z_2B) + bias[:, :, None, None, None]
        if frame_mask_2B is not None:
            out = out + g["q"][:, None, None, None] * frame_mask_2B.float()[:, None, :, None, None]
        return out


def assert_same(ours: Tensor, golden: Tensor) -> None:
    assert (ours - golden).abs().max() <= 1e-5 * golden.abs().max()
