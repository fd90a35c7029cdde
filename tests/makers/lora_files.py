"""Small files of updates as several programs write them, and the dense updates that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

# Layers of different shapes, none of which is square.
SHAPES = {"blocks.0.self_attn.q": (12, 8), "blocks.0.ffn.0": (20, 12), "blocks.1.cross_attn.o": (8, 20)}

LYCORIS = {"ss_network_module": "lycoris.kohya", "ss_network_args": "{}"}  # in the headers of LoHas and LoKrs


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def lora(
    path: Path,
    shapes: Mapping[str, tuple[int, int]] = SHAPES,
    *,
    ranks: int | Mapping[str, int] = 4,
    alpha: float | None = None,
    prefix: str = "diffusion_model.",
    matrices: tuple[str, str] = ("lora_A", "lora_B"),
    dtype: torch.dtype = torch.float32,
    header: Mapping[str, str] | None = None,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Write a LoRA of random numbers and return the dense update of each layer, in float64."""
    tensors, updates = {}, {}
    for number, (layer, (rows, columns)) in enumerate(shapes.items()):
        rank = ranks if isinstance(ranks, int) else ranks[layer]
        A = random(rank, columns, seed=seed + 2 * number).to(dtype)
        B = random(rows, rank, seed=seed + 2 * number + 1).to(dtype)
        stem = prefix + (layer.replace(".", "_") if prefix.endswith("_") else layer)
        tensors |= {f"{stem}.{matrices[0]}.weight": A, f"{stem}.{matrices[1]}.weight": B}
        if alpha is not None:
            tensors[f"{stem}.alpha"] = torch.tensor(alpha)
        updates[layer] = B.double() @ A.double() * (1 if alpha is None else alpha / rank)
    save_file(tensors, path, dict(header or {}))
    return updates


def loha(path: Path, *, rank: int = 2, seed: int = 0) -> dict[str, Tensor]:
    """The same of a LoHa, with an alpha of 1."""
    tensors, updates = {}, {}
    for number, (layer, (rows, columns)) in enumerate(SHAPES.items()):
        a = [random(rows, rank, seed=seed + 10 * number + i) for i in range(2)]
        b = [random(rank, columns, seed=seed + 10 * number + 5 + i) for i in range(2)]
        stem = f"diffusion_model.{layer}"
        tensors |= {f"{stem}.hada_w{i + 1}_a": a[i] for i in range(2)}
        tensors |= {f"{stem}.hada_w{i + 1}_b": b[i] for i in range(2)}
        tensors[f"{stem}.alpha"] = torch.tensor(1.0)
        updates[layer] = (a[0].double() @ b[0].double()) * (a[1].double() @ b[1].double()) / rank
    save_file(tensors, path, LYCORIS)
    return updates


def lokr(path: Path, *, rank: int | None = 2, seed: int = 0) -> dict[str, Tensor]:
    """The same of a LoKr with a first factor of 4 x 2 and alpha 1; its second factor is whole without a rank."""
    tensors, updates = {}, {}
    for number, (layer, (rows, columns)) in enumerate(SHAPES.items()):
        w1, sides = random(4, 2, seed=seed + 10 * number), (rows // 4, columns // 2)
        stem = f"diffusion_model.{layer}"
        tensors[f"{stem}.lokr_w1"], tensors[f"{stem}.alpha"] = w1, torch.tensor(1.0)
        if rank is None:
            w2 = tensors[f"{stem}.lokr_w2"] = random(*sides, seed=seed + 10 * number + 1)
        else:
            a = tensors[f"{stem}.lokr_w2_a"] = random(sides[0], rank, seed=seed + 10 * number + 1)
            b = tensors[f"{stem}.lokr_w2_b"] = random(rank, sides[1], seed=seed + 10 * number + 2)
            w2 = a @ b / rank
        updates[layer] = torch.kron(w1.double(), w2.double())
    save_file(tensors, path, LYCORIS)
    return updates


def updates_of(path: Path) -> dict[str, Tensor]:
    """Return the dense updates of a file of LoRAs by layer, whatever its names; a reader of its own, without ours."""
    tensors, updates = load_file(path), {}
    for key, A in tensors.items():
        for a, b in (("lora_A", "lora_B"), ("lora_down", "lora_up")):
            if f".{a}." in key:
                stem = key.partition(f".{a}.")[0]
                B, alpha = tensors[key.replace(a, b)], tensors.get(f"{stem}.alpha")
                scale = 1.0 if alpha is None else float(alpha) / len(A)
                updates[stem] = B.double().flatten(1) @ A.double().flatten(1) * scale
    return updates


def header_of(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        return dict(file.metadata())
