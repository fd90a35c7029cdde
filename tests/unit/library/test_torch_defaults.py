"""Defaults that a program sets in torch change nothing: tensors that the library makes name their dtype and device."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import reelworks as rw
from reelworks.models.objectives import ddpm, iddpm
from reelworks.testing import sample_dataset

_SOURCES = Path(rw.__file__).parent
_MAKE = frozenset((
    "arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "ones", "rand",
    "randint", "randn", "randperm", "scalar_tensor", "tensor", "zeros",
))  # fmt: skip


@pytest.mark.parametrize("folder", ["core", "data", "models/objectives", "models/precision"])
def test_what_makes_a_tensor_names_dtype_and_device(folder: str) -> None:
    unnamed = [
        f"{file.relative_to(_SOURCES)}:{call.lineno}"
        for file in sorted((_SOURCES / folder).rglob("*.py"))
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and ast.unparse(call.func.value) == "torch"
        and call.func.attr in _MAKE
        and not {"dtype", "device"} <= {keyword.arg for keyword in call.keywords}
    ]
    assert unnamed == []


@contextmanager
def defaults(dtype: torch.dtype, device: str) -> Iterator[None]:
    former = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(former)


def what_the_library_gives(folder: Path) -> list[Any]:
    """Return numbers of loader, store, objectives and samplers, from tensors of the caller's."""
    for table in (ddpm.share_kept, iddpm.schedule):  # they are kept
        table.cache_clear()
    x = torch.linspace(-1, 1, 4, dtype=torch.float32, device="cpu").reshape(1, 4, 1, 1, 1)
    drawn = torch.Generator("cpu").manual_seed(0)
    samples = [
        rw.samplers.flow(lambda z, t: z * t[:, None, None, None, None] / 2000, x, steps=3, shift=3.0),
        rw.samplers.ddim(lambda z, t: z * t[:, None, None, None, None] / 2000, x, steps=7),
        rw.samplers.iddpm(lambda z, t: torch.cat([z, z], 1) * 0.1, x, steps=5, generator=drawn),
    ]
    times = torch.tensor([0.2, 0.7], dtype=torch.float32, device="cpu")
    drawn_times = [made.times(times, 1.7)[1] for made in (rw.objectives.RectifiedFlow(), rw.objectives.Ddpm("v"))]
    losses = [m.loss_weight for step in rw.Loader(sample_dataset(), micro_batches_per_step=2) for m in step]
    net = nn.Linear(2, 2, dtype=torch.float64, device="cpu")  # values are cast
    store = rw.CheckpointStore(folder)
    store.load(1, {"net": net})
    read = store.read(1)
    store.save(2, read)
    tensors = [*samples, *drawn_times, *losses, *net.state_dict().values(), *read["net"].values()]
    return [read["bytes"], *((tensor.dtype, tensor.device.type, tensor.tolist()) for tensor in tensors)]


def test_defaults_of_torch_change_no_number_and_no_device(tmp_path: Path) -> None:
    rw.CheckpointStore(tmp_path).save(1, {"net": nn.Linear(2, 2), "bytes": bytes(5000)})
    wanted = what_the_library_gives(tmp_path)
    for dtype, device in ((torch.bfloat16, "cpu"), (torch.float64, "cpu"), (torch.float32, "meta")):
        with defaults(dtype, device):
            assert what_the_library_gives(tmp_path) == wanted, f"{dtype} {device}"
