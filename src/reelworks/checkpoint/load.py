"""Load a checkpoint into existing tensors, on any number of ranks, after comparing the keys.

torch.distributed.checkpoint pickles its metadata and plain values, so a checkpoint can run code when it is read.
Only folders with a manifest of ours are opened, and the metadata must have the manifest's digest. That guards
against damage, not against malice: load checkpoints only from people whose code you would run.
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
from reelworks.checkpoint.manifest import BadCheckpoint
from reelworks.checkpoint.save import quiet
from reelworks.checkpoint.verify import check_file
from reelworks.core.errors import UserError
from reelworks.distributed import collectives

# Number of differing keys that an error names.
_NAMED_KEYS = 5


def load(path: Path, state: dict[str, Any]) -> None:
    """Load a checkpoint into `state`, in place. Collective over the default process group, if there is one.

    The number of ranks and the sharding may differ from those of the save: DTensors and plain tensors of one
    global shape are interchangeable. Values are cast to the dtype of the tensor they are loaded into.

    Args:
        path: The checkpoint's folder; verify it before (`verify.newest_valid`, `verify.named`).
        state: Nested dicts of tensors, DTensors and plain values. Only its top-level keys are loaded, so
            `{"model": ...}` loads the weights alone; below them all keys must agree.

    Raises:
        UserError: The folder holds no checkpoint of ours, or one of another model; names the keys that differ.
    """
    problem, remedy = collectives.on_first(lambda: _inspect(path))
    if not problem:
        problem, remedy = next((p for p in collectives.on_all(lambda: _compare(path, state)) if p[0]), ("", ""))
    if problem:
        raise UserError(problem, code="checkpoint-state-differs", field="checkpoint", value=str(path), remedy=remedy)
    with quiet():
        load_shards(state, storage_reader=FileSystemReader(path / names.DCP), no_dist=not collectives.is_distributed())


def read_extra(path: Path, name: str) -> bytes:
    """Read a checkpoint's extra file, such as `cursor.json`; raises `BadCheckpoint` if it has changed."""
    entries = {entry.path: entry for entry in manifest.read(path).files}
    if name not in entries:
        raise UserError(
            f"the checkpoint has no {name}",
            code="checkpoint-part-missing",
            field="checkpoint",
            value=str(path),
            remedy="its files are " + ", ".join(sorted(entries)),
        )
    check_file(path, entries[name], full=True)
    return (path / name).read_bytes()


def has_extra(path: Path, name: str) -> bool:
    """Whether a checkpoint has an extra file."""
    return any(entry.path == name for entry in manifest.read(path).files)


def _inspect(path: Path) -> tuple[str, str]:
    """Return a problem and its remedy, or two empty strings, before anything pickled is opened."""
    try:
        metadata = next(e for e in manifest.read(path).files if e.path == f"{names.DCP}/.metadata")
        check_file(path, metadata, full=True)
    except (BadCheckpoint, StopIteration) as error:
        reason = error.reason if isinstance(error, BadCheckpoint) else "it holds no tensors"
        return f"this is no checkpoint to load: {reason}", "name a checkpoint's folder, such as step-000001000"
    return "", ""


def _compare(path: Path, state: dict[str, Any]) -> tuple[str, str]:
    """Return how a checkpoint and a state differ and the remedy, or two empty strings."""
    metadata = FileSystemReader(path / names.DCP).read_metadata()
    planner = DefaultLoadPlanner()
    planner.set_up_planner(state, metadata)
    own = {key: _kind(value) for key, value in planner.state_dict.items()}
    wanted = metadata.state_dict_metadata.items()
    saved = {key: _kind(value) for key, value in wanted if any(f"{key}.".startswith(f"{top}.") for top in state)}
    differing = [key for key in own.keys() | saved.keys() if own.get(key) != saved.get(key)]
    # Weights first, since they are why the average and the optimizer differ.
    differing.sort(key=lambda key: (not key.startswith("model."), key))
    if not differing:
        return "", ""
    text = f"this is a checkpoint of another {differing[0].partition('.')[0]}:"
    for key in differing[:_NAMED_KEYS]:
        text += f"\n    {key}: {own.get(key, 'none')} expected, {saved.get(key, 'none')} in the checkpoint"
    if len(differing) > _NAMED_KEYS:
        text += f"\n    and {len(differing) - _NAMED_KEYS} more"
    return text, "load it with the recipe that it was trained with, or choose another checkpoint"


def _kind(value: Any) -> str:
    """Return what must agree of a value or its metadata: a tensor's shape, or that it is a plain value."""
    if isinstance(value, Tensor | TensorStorageMetadata):
        size = value.shape if isinstance(value, Tensor) else value.size
        return f"[{', '.join(map(str, size))}]"
    return "a value"
