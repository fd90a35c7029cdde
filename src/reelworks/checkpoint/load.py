"""Loading: into tensors that are there, by any number of ranks, after the keys were compared.

torch.distributed.checkpoint keeps its metadata and plain values pickled, so a checkpoint can run code
when it is read. Only folders whose manifest is ours are opened, and the metadata must have the digest
that the manifest gives; that guards against damage, not against malice: load checkpoints only of people
whose code you would run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_shards

from reelworks.checkpoint import manifest, names
from reelworks.checkpoint.manifest import BadCheckpoint, FileEntry
from reelworks.checkpoint.save import quiet
from reelworks.checkpoint.verify import check_file
from reelworks.core.errors import UserError
from reelworks.distributed import collectives

# How many differing keys an error names.
_SHOWN = 5


def load(path: Path, state: dict[str, Any]) -> None:
    """Load a checkpoint into `state`, in place. Collective over the default process group, if there is one.

    The world and the sharding may differ from those of the save: DTensors and plain tensors of one
    global shape are interchangeable. Values are cast to the dtype of the tensor they are loaded into.

    Args:
        path: The checkpoint's folder; verify it before (`verify.newest_valid`, `verify.named`).
        state: Nested dicts of tensors, DTensors and plain values. Only the top-level keys that it has are
            loaded, so `{"model": ...}` takes the weights alone; below them all keys must agree.

    Raises:
        UserError: This is no checkpoint of ours, or one of another model; names the keys that differ.
    """
    problem, remedy = collectives.on_first(lambda: _inspect(path))
    if not problem:
        problem, remedy = next(
            (p for p in collectives.on_all(lambda: _compare(path, state)) if p[0]), ("", "")
        )
    if problem:
        raise UserError(
            problem, code="checkpoint-state-differs", field="checkpoint", value=str(path), remedy=remedy
        )
    with quiet():
        load_shards(
            state, storage_reader=FileSystemReader(path / names.DCP), no_dist=not collectives.is_distributed()
        )


def read_extra(path: Path, name: str) -> bytes:
    """Read a small file that was saved along, such as `cursor.json`.

    Raises:
        UserError: The checkpoint has no such file.
        BadCheckpoint: The file is not what was written.
    """
    check_file(path, _find(path, name), full=True)
    return (path / name).read_bytes()


def has_extra(path: Path, name: str) -> bool:
    """Say whether a small file was saved along."""
    return any(entry.path == name for entry in manifest.read(path).files)


def _find(path: Path, name: str) -> FileEntry:
    entries = {entry.path: entry for entry in manifest.read(path).files}
    if name not in entries:
        raise UserError(
            f"the checkpoint has no {name}",
            code="checkpoint-part-missing",
            field="checkpoint",
            value=str(path),
            remedy="it holds " + ", ".join(sorted(entries)),
        )
    return entries[name]


def _inspect(path: Path) -> tuple[str, str]:
    """Return a problem and its remedy, or twice nothing, before anything pickled is opened."""
    try:
        metadata = next(e for e in manifest.read(path).files if e.path == f"{names.DCP}/.metadata")
        check_file(path, metadata, full=True)
    except (BadCheckpoint, StopIteration) as error:
        reason = error.reason if isinstance(error, BadCheckpoint) else "it holds no tensors"
        return f"this is no checkpoint to load: {reason}", "give the folder of one, such as step-000001000"
    return "", ""


def _compare(path: Path, state: dict[str, Any]) -> tuple[str, str]:
    """Return what differs between a checkpoint and a state and what to do, or twice nothing."""
    metadata = FileSystemReader(path / names.DCP).read_metadata()
    planner = DefaultLoadPlanner()
    planner.set_up_planner(state, metadata)
    here = {key: _kind(value) for key, value in planner.state_dict.items()}
    there = {key: _kind(value) for key, value in metadata.state_dict_metadata.items() if _wanted(key, state)}
    differing = [key for key in here.keys() | there.keys() if here.get(key) != there.get(key)]
    # Weights first: the average and the optimizer differ because they do.
    differing.sort(key=lambda key: (not key.startswith("model."), key))
    if not differing:
        return "", ""
    lines = [
        f"\n    {key}: {here.get(key, 'none')} here, {there.get(key, 'none')} in the checkpoint"
        for key in differing[:_SHOWN]
    ]
    if len(differing) > _SHOWN:
        lines.append(f"\n    and {len(differing) - _SHOWN} more")
    part = differing[0].partition(".")[0]
    return (
        f"this is a checkpoint of another {part}:{''.join(lines)}",
        "load it with the recipe that it was trained with, or choose another checkpoint",
    )


def _wanted(key: str, state: dict[str, Any]) -> bool:
    return any(key == top or key.startswith(f"{top}.") for top in state)


def _kind(value: Any) -> str:
    """Describe a value, or its metadata, as far as it must agree: a tensor's shape, or a plain value."""
    if isinstance(value, Tensor | TensorStorageMetadata):
        size = value.shape if isinstance(value, Tensor) else value.size
        return f"[{', '.join(map(str, size))}]"
    return "a value"
