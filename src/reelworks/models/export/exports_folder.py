"""The folder `exports/`: weights written along with checkpoints, with a retention rule of their own.

Runs cannot resume from them. Only files that this rule wrote are deleted, known by their exact name and header.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

from safetensors import SafetensorError, safe_open

from reelworks.core import storage, units, user_files
from reelworks.core.log import logger
from reelworks.data.checkpoint import names, verify
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import history
from reelworks.data.run.folder import RunFolder
from reelworks.models.adapters.config import LoraConfig
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


def path_of(run: RunFolder, step: int, weights: Weights, lora: str | None = None) -> Path:
    """Return the path of a step's weights; `lora` is the key convention of a LoRA, None for full weights."""
    kind = "" if lora is None else f"-lora-{lora}"
    return run.exports_folder / f"{names.of_step(step)}-{weights}{kind}.safetensors"


def write(
    run: RunFolder,
    checkpoint: Path,
    config: ExportsConfig,
    *,
    step: int,
    epoch: int,
    is_last: bool = False,
    told: Collection[str] = (),
) -> list[Path]:
    """Write a checkpoint's weights if the recipe's `[exports]` are due, or it is the last, unless they are there; on rank 0.

    `epoch` counts from 0; `told` are names of files that were written of this checkpoint before, wherever they are now. The files are returned without shard numbers where they were cut into shards. Raises as
    `export.export_checkpoint` does; the checkpoint is not affected.
    """
    weights, folder = config.weights, run.exports_folder
    if weights is None:
        return []
    with export.raising_export_failed(folder):
        storage.mkdirs(folder)
        recipe = history.recipe_of(run, step)
        # Full weights give None for every convention, and are written once.
        loras = dict.fromkeys(lora_file_of(recipe, format) for format in config.formats)
        targets = {path_of(run, step, weights, lora.format if lora else None): lora for lora in loras}
        files = [file for target, lora in targets.items() for file in (lora.files(target) if lora else [target])]
        marks = dict([_KEPT_BY, ("save_id", verify.save_id(checkpoint))])
        are_there = all(file.name in told or marks.items() <= _header(file).items() for file in files)
        if are_there or not (is_last or _is_due(run, weights, config.every_n_saves, step)):
            return []
        about = export.describe_run(run_id=run.info().id, recipe=recipe, step=step, epoch=epoch) | marks
        for target, lora in targets.items():
            export.export_checkpoint(checkpoint, target, weights=weights, dtype=config.dtype, about=about, lora=lora)
        _retire(folder, weights, step, _kept(folder, config.keep_last, is_lora=None not in loras))
    return files


def how_to_use(files: Sequence[Path], lora: LoraConfig | None, part: str) -> list[str]:
    """Return a line for each file that `write` has written: where it lies, and how other programs load it.

    `part` is the folder of the network in a pipeline of diffusers; each of two experts has one of its own.
    """
    lines = []
    for file in files:
        match, how = _NAME.fullmatch(file.name), "the network's weights"
        if match and lora is not None:
            convention, network = CONVENTIONS[match[3]], (match[4] or part).removeprefix("-")
            call = lora.kind.call_in_diffusers(lora, file.as_posix(), network, part) if convention.is_peft else None
            how = f"for diffusers, {call}" if call else convention.how_to_use.format(file=file.as_posix())
        lines.append(f"{file}: {how}")
    return lines


def _is_due(run: RunFolder, weights: Weights, every_n_saves: int, step: int) -> bool:
    """Whether a save is the n-th one since the last export before it."""
    exported = max((earlier for earlier in _ours(run.exports_folder, weights) if earlier < step), default=-1)
    told = CheckpointFolder(run.checkpoints_folder).history()
    # Saves of a branch that the run left are quarantined.
    told = [one for one in told if one["event"] in ("saved", "quarantined")]
    is_there: dict[int, bool] = {one["step"]: one["event"] == "saved" for one in told} | {step: True}
    return sum(there for saved, there in is_there.items() if saved > exported) >= every_n_saves


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
        if step is not None and _KEPT_BY in _header(path).items():
            ours.setdefault(step, []).append(path)
    return ours


def _header(path: Path) -> dict[str, str]:
    """Return the texts in the header of a file, or in the index of one that was cut into shards; none if there is none."""
    index = path.with_name(path.name + INDEX_SUFFIX)
    try:
        if index.is_file():
            return dict(user_files.read_json(index)["metadata"])
        with safe_open(path, "numpy") as file:
            return file.metadata() or {}
    except (OSError, SafetensorError, ValueError, TypeError, KeyError):
        return {}
