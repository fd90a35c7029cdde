"""The folder `exports/`: weights written along with checkpoints, with a retention rule of their own.

Runs cannot resume from them. Only files that this rule wrote are deleted, known by their exact name and header.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from safetensors import SafetensorError, safe_open

from reelworks.core import storage, units
from reelworks.core.log import logger
from reelworks.data.checkpoint import names
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run.folder import RunFolder
from reelworks.models.adapters.conventions import CONVENTIONS
from reelworks.models.export import export
from reelworks.models.export.config import ExportsConfig, Weights
from reelworks.models.export.lora import lora_file_of
from reelworks.models.export.safetensors_file import INDEX_SUFFIX

_KEPT_BY = ("kept_by", "exports.keep_last")
_NAME = re.compile(
    r"(step-\d{9,})-(ema|model)(?:-lora-([a-z0-9_]+))?(-transformer(?:_2)?)?(-\d{5}-of-\d{5})?\.safetensors"
)
_FEW = 3  # exports that stay where they take much of the disk
_FREE_SHARE = 0.1
_LEFTOVER = re.compile(rf"\.{_NAME.pattern}\.[0-9a-f]{{8}}\.tmp")


def path_of(run: RunFolder, step: int, weights: Weights, lora: str | None = None) -> Path:
    """Return the path of a step's weights; `lora` is the key convention of a LoRA, None for full weights."""
    kind = "" if lora is None else f"-lora-{lora}"
    return run.exports_folder / f"{names.of_step(step)}-{weights}{kind}.safetensors"


def write(
    run: RunFolder, checkpoint: Path, config: ExportsConfig, *, step: int, epoch: int, is_last: bool = False
) -> list[Path]:
    """Write a checkpoint's weights if the recipe's `[exports]` are due, or it is the last; on rank 0, right after the commit.

    The run's `recipe.toml` must be the present start's; `epoch` counts from 0. The files are returned without shard
    numbers where they were cut into shards. Raises as `export.export_checkpoint` does; the checkpoint is not affected.
    """
    weights = config.weights
    if weights is None:
        return []
    written = []
    with export.raising_export_failed(run.exports_folder):
        about = _about(run, config, step, epoch, is_last=is_last)
        if about is None:
            return []
        # Full weights give None for every convention, and are written once.
        files = list(dict.fromkeys(lora_file_of(run.recipe_file, format) for format in config.formats))
        for lora in files:
            target = path_of(run, step, weights, lora.format if lora else None)
            export.export_checkpoint(checkpoint, target, weights=weights, dtype=config.dtype, about=about, lora=lora)
            written += lora.files(target) if lora else [target]
        kept = _kept(run.exports_folder, config.keep_last, is_lora=None not in files)
        _retire(run.exports_folder, weights, step, kept)
    return written


def how_to_use(files: Sequence[Path]) -> list[str]:
    """Return a line for each file that `write` has written: where it lies, and how other programs load it."""
    lines = []
    for file in files:
        form = (match := _NAME.fullmatch(file.name)) and match[3]
        lines.append(
            f"{file}: {CONVENTIONS[form].how_to_use.format(file=file.as_posix())}"
            if form
            else f"{file}: the network's weights"
        )
    return lines


def _about(run: RunFolder, config: ExportsConfig, step: int, epoch: int, *, is_last: bool) -> dict[str, str] | None:
    """Return the texts of the file's header; None if no export is due at this save."""
    folder = run.exports_folder
    storage.mkdirs(folder)
    for path in folder.iterdir():
        if _LEFTOVER.fullmatch(path.name):  # of a process that died
            storage.unlink(path)
    assert config.weights is not None
    exported = max((earlier for earlier in _ours(folder, config.weights) if earlier < step), default=-1)
    saves = set[int]()
    for event in CheckpointFolder(run.checkpoints_folder).history():
        if event["event"] == "saved":
            saves.add(event["step"])
        elif event["event"] == "quarantined":  # such as one of a branch that the run left
            saves.discard(event["step"])
    if not is_last and sum(saved > exported for saved in saves | {step}) < config.every_n_saves:
        return None
    about = export.describe_run(run_id=run.info().id, recipe=run.recipe_file, step=step, epoch=epoch)
    return {**about, **dict([_KEPT_BY])}


def _kept(folder: Path, keep_last: int | Literal["auto"] | None, *, is_lora: bool) -> int | None:
    """Return how many exports stay; None for all."""
    if keep_last != "auto":
        return keep_last
    if not is_lora:
        return _FEW
    disk = shutil.disk_usage(folder)
    if disk.free >= _FREE_SHARE * disk.total:
        return None
    logger.warning(
        f"exports: less than {_FREE_SHARE:.0%} of the disk is free ({units.size(disk.free)}), so only the last "
        f"{_FEW} exports stay; exports.keep_last sets how many"
    )
    return _FEW


def _retire(folder: Path, weights: Weights, newest: int, keep_last: int | None) -> None:
    if keep_last is None:
        return
    # Files of later steps are from before the run went back, and do not count as newer.
    ours = {step: paths for step, paths in _ours(folder, weights).items() if step <= newest}
    for step in sorted(ours)[:-keep_last]:
        # The index first: without it, loaders do not find the shards.
        storage.rmtree_if_possible(folder / f"{names.of_step(step)}-{weights}.safetensors{INDEX_SUFFIX}")
        for path in ours[step]:
            storage.unlink(path)


def _ours(folder: Path, weights: Weights) -> dict[int, list[Path]]:
    """Return the files that this rule wrote, by step."""
    ours: dict[int, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        match = _NAME.fullmatch(path.name)
        step = names.parse_step(match[1]) if match and match[2] == weights else None
        if step is not None and _is_ours(path):
            ours.setdefault(step, []).append(path)
    return ours


def _is_ours(path: Path) -> bool:
    try:
        with safe_open(path, "numpy") as file:
            return _KEPT_BY in (file.metadata() or {}).items()
    except (OSError, SafetensorError):
        return False
