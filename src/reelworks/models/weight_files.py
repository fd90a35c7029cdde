"""Files of weights: found by path or hub id, read without running what is in them."""

from __future__ import annotations

import importlib
import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from reelworks.core.errors import UserError

_PICKLED = (".pt", ".pth", ".bin")
_SHOWN = 5  # names or keys that an error lists; the first tell what is wrong


def read(source: str, field: str = "model.weights", part: str | None = None) -> dict[str, Tensor]:
    """Read all tensors of a source on the CPU; files are mapped, so that only what is used is read.

    Args:
        source: Folder, file or hub id.
        field: The recipe's key that names it, for errors.
        part: Folder of a pipeline that holds them, if the source is a pipeline.

    Raises:
        UserError: If nothing readable is found.
    """
    state: dict[str, Tensor] = {}
    try:
        place = _locate(source, part)
        if part is not None and (place / part).is_dir():
            place = place / part
        for path in _files(place, source):
            state.update(_read_file(path, source))
    except UserError as error:
        raise UserError(error.problem, field=field, value=source, remedy=error.remedy) from error
    return state


def _locate(source: str, part: str | None) -> Path:
    path = Path(source).expanduser()
    if path.exists():
        return path
    if re.fullmatch(r"[\w.-]+/[\w.-]+", source) and path.suffix not in (".safetensors", *_PICKLED):
        return _download(source, part)
    raise UserError(
        "no such file or folder, and not a hub id (owner/name)",
        remedy="check the path",
    )


def _download(hub_id: str, part: str | None) -> Path:
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise UserError(
            "no such path here, and hub ids need a package that is not installed",
            remedy="pip install huggingface_hub, or pass the path of a local copy",
        ) from error
    try:
        patterns = ["*.safetensors", "*.json", "*.bin", "*.pt"] if part is None else [f"{part}/*"]
        return Path(hub.snapshot_download(hub_id, allow_patterns=patterns))
    except (OSError, ValueError) as error:  # the hub's own errors, refused names and lost connections
        raise UserError(
            f"the hub did not answer with these weights ({error})",
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
            if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
                state = state["state_dict"]
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
        remedy="download or export it again, as .safetensors or a plain state dict",
    )


def load_into(
    module: nn.Module, state: Mapping[str, Tensor], source: str, field: str = "model.weights"
) -> None:
    """Load a state into a module whose keys and shapes it has, in the dtypes of the module.

    Raises:
        UserError: If keys or shapes differ; the first are listed, and nothing is loaded.
    """
    own = module.state_dict()
    problems = _differences(own, state)
    if problems:
        more = "" if len(problems) <= _SHOWN else f"; {len(problems)} in all"
        raise UserError(
            f"these weights do not fit the model: {'; '.join(problems[:_SHOWN])}{more}",
            field=field,
            value=source,
            remedy="choose the model, autoencoder and text encoder that the weights were trained with",
        )
    module.load_state_dict({key: value.to(own[key].dtype) for key, value in state.items()}, strict=True)


def _differences(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> list[str]:
    """Describe keys that are missing, unexpected or of another shape, in the model's order."""
    missing = [f"missing {key}" for key in own if key not in state]
    unexpected = [f"unexpected {key}" for key in state if key not in own]
    misshapen = [
        f"{key} has shape {list(state[key].shape)}, the model's has {list(value.shape)}"
        for key, value in own.items()
        if key in state and state[key].shape != value.shape
    ]
    return missing + unexpected + misshapen
