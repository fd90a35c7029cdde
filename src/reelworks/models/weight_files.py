"""Files of weights: found by path or hub id, read without running what is in them."""

from __future__ import annotations

import importlib
import json
import pickle
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from reelworks.core.errors import UserError

_PICKLED = (".pt", ".pth", ".bin")
_SHOWN = 5  # names that an error lists


def read(source: str) -> dict[str, Tensor]:
    """Read all tensors of a source on the CPU; files are mapped, so that only what is used is read.

    Raises:
        UserError: If nothing readable is found.
    """
    state: dict[str, Tensor] = {}
    for path in _files(_locate(source), source):
        state.update(_read_file(path, source))
    return state


def _locate(source: str) -> Path:
    path = Path(source).expanduser()
    if path.exists():
        return path
    if re.fullmatch(r"[\w.-]+/[\w.-]+", source) and path.suffix not in (".safetensors", *_PICKLED):
        return _download(source)
    raise UserError(
        "no such file or folder, and not a hub id (owner/name)",
        field="model.weights",
        value=source,
        remedy="check the path",
    )


def _download(hub_id: str) -> Path:
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise UserError(
            "no such path here, and hub ids need a package that is not installed",
            field="model.weights",
            value=hub_id,
            remedy="pip install huggingface_hub, or pass the path of a local copy",
        ) from error
    try:
        return Path(
            hub.snapshot_download(hub_id, allow_patterns=["*.safetensors", "*.json", "*.bin", "*.pt"])
        )
    except (OSError, ValueError) as error:  # the hub's own errors, refused names and lost connections
        raise UserError(
            f"the hub did not answer with these weights ({error})",
            field="model.weights",
            value=hub_id,
            remedy="check the name and the connection, or pass the path of a local copy",
        ) from error


def _files(path: Path, source: str) -> list[Path]:
    """Choose what to read: the shards that an index names, `model.safetensors`, or the only file."""
    if path.is_file():
        return [path]
    indexes = sorted(path.glob("*.index.json"))
    if len(indexes) == 1:
        return sorted(path / name for name in set(_weight_map(indexes[0], source).values()))
    if (path / "model.safetensors").is_file():
        return [path / "model.safetensors"]
    safe = sorted(path.glob("*.safetensors"))
    candidates = safe or sorted(p for p in path.iterdir() if p.suffix in _PICKLED)
    if len(candidates) != 1:
        found = ", ".join(p.name for p in candidates[:_SHOWN]) or "none"
        raise UserError(
            f"a folder must hold one file of weights or an index; found: {found}",
            field="model.weights",
            value=source,
            remedy="name the file itself",
        )
    return candidates


def _weight_map(index: Path, source: str) -> dict[str, str]:
    try:
        weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
    except (ValueError, KeyError) as error:
        raise _unreadable(index, source, "not an index of weights") from error
    return weight_map


def _read_file(path: Path, source: str) -> dict[str, Tensor]:
    try:
        if path.suffix in _PICKLED:
            # Never more than tensors: a pickle can run programs.
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        else:
            state = load_file(path)
    except (OSError, RuntimeError, SafetensorError, pickle.UnpicklingError) as error:
        raise _unreadable(path, source, str(error).split("\n")[0]) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise _unreadable(path, source, "not a flat table of tensors")
    return state


def _unreadable(path: Path, source: str, why: str) -> UserError:
    return UserError(
        f"{path.name} cannot be read: {why}",
        field="model.weights",
        value=source,
        remedy="download or export it again, as .safetensors or a plain state dict",
    )
