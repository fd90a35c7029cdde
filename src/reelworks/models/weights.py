"""Files of weights: found by path or hub id, read without running code, compared with a network and loaded into it."""

from __future__ import annotations

import importlib
import json
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from reelworks.core.errors import UserError, first_few

_PICKLED = (".pt", ".pth", ".bin")
_OF_WEIGHTS = ["*.safetensors", "*.json", "*.bin", "*.pt"]
_SHOWN = 3  # names or keys that an error lists; the first tell what is wrong
_POINTER = b"version https://git-lfs"  # begins the stand-in for a large file that git did not fetch


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
        place = _locate(source, _OF_WEIGHTS if part is None else [f"{part}/*"])
        if part is not None and place.is_dir():
            place = _part(source, place, part)
        for path in _files(place):
            state.update(_read_file(path))
    except UserError as error:
        raise UserError(
            error.problem, code=error.code, field=field, value=source, remedy=error.remedy
        ) from error
    return state


def require_there(source: str, field: str) -> None:
    """Refuse at once what is neither here nor on the hub: libraries ask for a minute or two before they give up.

    Args:
        source: Folder, file or hub id.
        field: The recipe's key that names it, for errors.

    Raises:
        UserError: It is neither, or the hub does not answer and nothing of it was fetched before.
    """
    _configs(source, field)


def _configs(source: str, field: str) -> Path:
    """Find a source's files on this machine, its configs at least."""
    try:
        return _locate(source, ["*.json"])
    except UserError as error:
        raise UserError(
            error.problem, code=error.code, field=field, value=source, remedy=error.remedy
        ) from error


def config(source: str, field: str, part: str) -> dict[str, Any] | None:
    """The config of diffusers that stands by weights: in the folder of a part, in the folder, or beside the file.

    Args:
        source: Folder, file or hub id.
        field: The recipe's key that names it, for errors.
        part: Folder of a pipeline that holds the weights, if the source is a pipeline.

    Returns:
        None where there is no config, or another one than of a class of diffusers.

    Raises:
        UserError: The source is neither here nor on the hub.
    """
    place = _configs(source, field)
    for folder in (place / part, place) if place.is_dir() else (place.parent,):
        try:
            found = json.loads((folder / "config.json").read_text())
        except (OSError, ValueError):
            continue
        if isinstance(found, dict) and "_class_name" in found:
            return found
    return None


def shapes(source: str, field: str) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of one `.safetensors` file, of which nothing else is read.

    Raises:
        UserError: It cannot be read.
    """
    path = Path(source).expanduser()
    try:
        try:
            _require_whole(path)
            with safe_open(path, framework="pt") as file:
                return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except (OSError, ValueError, SafetensorError) as error:
            raise _unreadable(path, str(error).partition("\n")[0]) from error
    except UserError as error:
        raise UserError(
            error.problem, code=error.code, field=field, value=source, remedy=error.remedy
        ) from error


def _locate(source: str, patterns: list[str]) -> Path:
    path = Path(source).expanduser()
    if path.exists():
        return path
    if re.fullmatch(r"[\w.-]+/[\w.-]+", source) and path.suffix not in (".safetensors", *_PICKLED):
        return _download(source, patterns)
    raise UserError(
        "no such file or folder, and not a hub id (owner/name)",
        code="weights-not-found",
        remedy="check the path",
    )


def _part(source: str, place: Path, part: str) -> Path:
    """The folder of a part: below a pipeline's, or the one that was named, if that is the part itself.

    Raises:
        UserError: It is a pipeline's and has no such part.
    """
    if (place / part).is_dir():
        return place / part
    if (place / "model_index.json").is_file():
        raise UserError(
            f"this pipeline has no folder {part}",
            code="weights-part-missing",
            remedy="name a folder or hub id that has it, or a file",
        )
    here = Path(source).expanduser().exists()
    return place if here else _download(source, _OF_WEIGHTS, without=["*/*"])


def _download(hub_id: str, patterns: list[str], without: list[str] | None = None) -> Path:
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise UserError(
            "no such path here, and hub ids need a package that is not installed",
            code="hub-package-missing",
            remedy="pip install huggingface_hub, or pass the path of a local copy",
        ) from error
    try:
        return Path(hub.snapshot_download(hub_id, allow_patterns=patterns, ignore_patterns=without))
    except (OSError, ValueError) as error:  # the hub's own errors, refused names and lost connections
        raise UserError(
            f"the hub did not answer with these weights ({str(error).partition(chr(10))[0]})",
            code="hub-failed",
            remedy="check the name and the connection, or pass the path of a local copy",
        ) from error


def _files(path: Path) -> list[Path]:
    """Choose what to read: the shards that an index names, `model.safetensors`, or the only file."""
    if path.is_file():
        return [path]
    indexes = sorted(path.glob("*.index.json"))
    if len(indexes) == 1:
        return _shards(indexes[0])
    if (path / "model.safetensors").is_file():
        return [path / "model.safetensors"]
    safe = sorted(path.glob("*.safetensors"))
    candidates = safe or sorted(p for p in path.iterdir() if p.suffix in _PICKLED)
    if len(candidates) != 1:
        found = ", ".join(p.name for p in candidates[:_SHOWN]) or "none"
        raise UserError(
            f"a folder must hold one file of weights or an index; found: {found}",
            code="weights-folder-ambiguous",
            remedy="name the file itself",
        )
    return candidates


def _shards(index: Path) -> list[Path]:
    """The files that an index names, all of which are there."""
    try:
        weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
        shards = sorted({index.parent / name for name in weight_map.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(index, "not an index of weights") from error
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise UserError(
            f"{len(missing)} of the {len(shards)} files that {index.name} names are not there: {first_few(missing)}",
            code="weights-shards-missing",
            remedy="download them too",
        )
    return shards


def _read_file(path: Path) -> dict[str, Tensor]:
    try:
        with path.open("rb") as file:
            begins = file.read(len(_POINTER))
        if begins == _POINTER:
            raise _unreadable(path, "it is a pointer of Git LFS; `git lfs pull` fetches what it points to")
        if path.suffix in _PICKLED:
            state = _unpickled(path, mapped=begins.startswith(b"PK"))
        else:
            _require_whole(path)
            state = load_file(path)
    except UserError:
        raise
    except pickle.UnpicklingError as error:  # whose text tells how to run what is in the file
        raise _unreadable(path, "it is not a file of tensors, or holds more than them") from error
    except Exception as error:  # damage leads the readers into errors of any kind
        raise _unreadable(path, str(error).partition("\n")[0] or type(error).__name__) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise _unreadable(path, "not a flat table of tensors")
    return state


def _unpickled(path: Path, mapped: bool) -> Any:
    """Read tensors, never more: a pickle can run programs. Files of today's torch are zips, and can be mapped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    nested = isinstance(state, dict) and isinstance(state.get("state_dict"), dict)
    return state["state_dict"] if nested else state


def _require_whole(path: Path) -> None:
    """Refuse a .safetensors file that is shorter than its header says, as broken downloads are."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= size - 8:
            raise _unreadable(path, "it has no header of a .safetensors file, or was cut off within it")
        tensors = json.loads(file.read(length))
    whole = 8 + length + max(one["data_offsets"][1] for key, one in tensors.items() if key != "__metadata__")
    if size < whole:
        raise _unreadable(path, f"it was cut off: {size:,} of {whole:,} bytes are there")


def _unreadable(path: Path, why: str) -> UserError:
    return UserError(
        f"{path.name} cannot be read: {why}",
        code="weights-unreadable",
        remedy="download or export it again, as .safetensors or a plain state dict",
    )


Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of tensors by name."""


class ShapeMismatch(UserError):  # noqa: N818
    """Weights of another network than the one that they are for; `known.explained` says of which.

    Attributes:
        shapes: Of the tensors that were given, by name.
    """

    def __init__(self, own: Shapes, given: Shapes, field: str, source: str) -> None:
        self.shapes = given
        super().__init__(
            f"these weights do not fit the model: {_differences(own, given)}",
            code="weights-do-not-fit",
            field=field,
            value=source,
            remedy="choose the model, autoencoder and text encoder that the weights were trained with",
        )


def shapes_of(state: Mapping[str, Tensor]) -> Shapes:
    """Shapes of tensors by name."""
    return {name: tuple(value.shape) for name, value in state.items()}


def require_fit(own: Shapes, given: Shapes, source: str, field: str) -> None:
    """Refuse weights whose names and shapes are not those of a network.

    Raises:
        ShapeMismatch: Says how many are missing, unexpected or of another shape, and the first of each.
    """
    if own != given:
        raise ShapeMismatch(own, given, field, source)


def load_into(
    module: nn.Module, state: Mapping[str, Tensor], source: str, field: str = "model.weights"
) -> None:
    """Load a state into a module whose keys and shapes it has, in the dtypes of the module.

    Parameters on `meta` are replaced by the state's tensors, in the dtypes and places that those have.

    Raises:
        ShapeMismatch: If keys or shapes differ; nothing is loaded then.
    """
    own = module.state_dict()
    require_fit(shapes_of(own), shapes_of(state), source, field)
    if any(parameter.is_meta for parameter in module.parameters()):
        module.load_state_dict(state, strict=True, assign=True)
    else:
        module.load_state_dict({key: value.to(own[key].dtype) for key, value in state.items()}, strict=True)


def _differences(own: Shapes, given: Shapes) -> str:
    """Say how much differs, then name the first of each kind, in the model's order."""
    kinds = {
        "missing": [key for key in own if key not in given],
        "unexpected": [key for key in given if key not in own],
        "of another shape": [
            f"{key} {list(given[key])} instead of {list(shape)}"
            for key, shape in own.items()
            if given.get(key, shape) != shape
        ],
    }
    found = {kind: names for kind, names in kinds.items() if names}
    counts = ", ".join(f"{len(names):,} {kind}" for kind, names in found.items())
    lines = "".join(f"\n    {kind}: {first_few(names)}" for kind, names in found.items())
    return f"{counts} of {len(own):,} tensors{lines}"
