"""Export a run's weights as a file for other programs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

from reelworks.core import arguments, log
from reelworks.core.arguments import checked
from reelworks.core.errors import UserError
from reelworks.core.words import named
from reelworks.data.checkpoint import listing, locate
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import history
from reelworks.models.adapters.conventions import CONVENTIONS, LoraFormat
from reelworks.models.export.config import Dtype, Weights
from reelworks.models.export.export import (
    describe_run,
    export_checkpoint,
    export_state_dict,
    raising_export_failed,
    require_free_file,
)
from reelworks.models.export.lora import lora_file_of


@dataclass(frozen=True)
class Exported:
    """Result of an export."""

    step: int  # of the checkpoint
    weights: Weights  # "ema" for averaged or "model" for trained ones
    dtype: Dtype  # of floating-point tensors
    files: list[Path]  # the written file, or one for each expert


@named(output="target", checkpoint="source", step="source")
@checked(
    source=arguments.PATH,
    target=arguments.PATH,
    ema=arguments.FLAG,
    dtype=arguments.one_of(*get_args(Dtype)),
    format=arguments.optional(arguments.one_of(*CONVENTIONS)),
    merge=arguments.FLAG,
)
def export(
    source: str | Path,
    target: str | Path,
    *,
    ema: bool = True,
    dtype: Dtype = "bfloat16",
    format: LoraFormat | None = None,
    merge: bool = False,
) -> Exported:
    """Write the weights of a checkpoint, or of a run's newest one, to a file; for a LoRA run, the LoRA.

    Args:
        source: A run folder or a checkpoint's folder.
        target: A .safetensors file that does not exist yet.
        ema: Export the averaged weights instead of the trained ones.
        dtype: Dtype of floating-point tensors.
        format: Convention of a LoRA file; None for that of diffusers.
        merge: Export full weights with the LoRA added to its base, for a LoRA run.

    Raises:
        UserError: There is no run or checkpoint, the file exists, or an option does not fit the run.
        ExportFailed: The storage fails or is full.
    """
    source, target = Path(source), Path(target)
    require_free_file(target)
    run, step = locate.locate(source)
    info = CheckpointFolder(run.checkpoints_folder).info(step)
    recipe = history.recipe_of(run, step)
    about = describe_run(run_id=run.info().id, recipe=recipe, step=step, epoch=listing.epoch(info))
    weights: Weights = "ema" if ema else "model"
    lora = lora_file_of(recipe, format or "diffusers")
    if lora is None and format is not None:
        raise UserError(
            "the run trained full weights, and only LoRA files have several conventions",
            code="lora-format-without-lora",
            field="--format",
            value=format,
            remedy="leave it out",
        )
    if merge and (lora is None or format is not None):
        raise UserError(
            "the run trained full weights" if lora is None else "merged weights have the names of the base",
            code="merge-without-lora",
            field="--merge",
            remedy="leave it out" if lora is None else "leave --format out",
        )
    if merge:
        from reelworks.inference.generate.load_run import LoadedModel

        # The step that is told: a run in progress may have saved again meanwhile.
        loaded = LoadedModel.load(info.path, averaged=ema, to_merge=True)
        with log.stage("adding the LoRA to the model", at_once=True):
            write = partial(export_state_dict, loaded.merge())
    else:
        for file in [] if lora is None else lora.files(target):
            require_free_file(file)
        write = partial(export_checkpoint, info.path, lora=lora)
    with raising_export_failed(target, "--output"), log.stage(f"writing {target}", at_once=True):
        written = write(target, weights=weights, dtype=dtype, about=about)
    return Exported(step, weights, dtype, written)
