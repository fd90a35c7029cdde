"""The request of `reelworks eval` and of `evaluate.evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reelworks.core import requests
from reelworks.core.errors import UserError
from reelworks.core.requests import arg

# Sections of a recipe that say on which clips, and how, a checkpoint is measured; the others made it what it is.
_FREE_SECTIONS = ("validation", "data", "dataset", "bucket", "buckets", "encode", "catalog", "exclude_file")


@dataclass(frozen=True, kw_only=True)
class EvalRequest:
    """A model to measure on held-out clips, or generated clips to measure.

    Attributes:
        source: A run folder, one checkpoint, or a recipe, for the weights that it begins with.
        step: Checkpoint of the run; default: the newest good one.
        best: Use the best checkpoint by the recipe's keep_best.
        raw_weights: Use the trained weights instead of their average.
        checkpoints: Measure these checkpoints of the run alike: all, steps such as 500,1000, or every=500.
        prompts: With --checkpoints: generate from the lines of this file; default: samples.prompts of the recipe.
        seed: With --checkpoints: seed of the noise of generated clips; default: that of the recipe.
        timesteps: Measure at N timesteps in equal distances; 0 for those of validation.timesteps.
        max_clips: Most clips to measure on; default: validation.max_clips, or all of --data-path.
        batch_size: Timesteps of a clip that run as one batch; default: the batch size of its bucket.
        data_path: Measure on all clips of this folder or list in place of held-out ones.
        generated: Measure clips and pictures of this folder; no model is loaded.
        reference: Compare them with these; those of the same name are compared pixel by pixel.
        metrics: A metric, or a class of your own, as in my_metrics.py:Sharpness; several times for several. Default:
            all.
        weights: Local weights of a network that metrics need: clip, dinov2, videomae (folders), inception (a file).
        min_samples: Fewest frames, or clips, of each set that FID, KID and FVD are computed from.
        prompts_in_names: Prompts are in the names of the clips, PROMPT-0.mp4, as VBench has them.
        vbench: Show the results that VBench wrote, NAME_eval_results.json, too.
        record: Add the values to the metrics of this checkpoint, for keep_best: as eval/NAME, and VBench's as
            vbench/NAME.
        out: Also write the result to this JSON file.
    """

    source: Path | None = arg(None, metavar="RUN|CHECKPOINT|RECIPE", is_option=False)
    step: int | None = arg(None, least=0)
    best: bool = arg(False)
    raw_weights: bool = arg(False)
    checkpoints: str | None = arg(None, metavar="all|STEPS|every=N")
    prompts: Path | None = arg(None, metavar="FILE")
    seed: int | None = arg(None, least=0, most=2**63 - 1)
    timesteps: int = arg(10, least=0, most=1000, metavar="N")
    max_clips: int | None = arg(None, least=1, metavar="N")
    batch_size: int | None = arg(None, least=1, metavar="N")
    data_path: Path | None = arg(None)
    generated: Path | None = arg(None, metavar="FOLDER")
    reference: Path | None = arg(None, metavar="FOLDER")
    metrics: tuple[str, ...] = arg((), names=("--metric",), metavar="NAME")
    weights: tuple[str, ...] = arg((), metavar="NAME=PATH")
    min_samples: int = arg(100, least=2, metavar="N")
    prompts_in_names: bool = arg(False)
    vbench: Path | None = arg(None, metavar="FILE")
    record: Path | None = arg(None, metavar="RUN|CHECKPOINT")
    out: Path | None = arg(None, names=("--out", "-o"), metavar="FILE")
    overrides: tuple[str, ...] = arg((), requests.OVERRIDES, names=("--set",), metavar="A.B=V")

    def __post_init__(self) -> None:
        with requests.checked(self):
            self._check_subject()
            self._check_checkpoints()
            if self.is_recipe:
                if self.step is not None or self.best or self.raw_weights:
                    raise UserError(
                        "a recipe has no checkpoints: its model is measured as training would begin with it",
                        code="recipe-without-checkpoints",
                        field="step" if self.step is not None else "best" if self.best else "raw_weights",
                        remedy="leave it out, or name a run",
                    )
            elif self.source is not None:
                self._refuse_other_settings()

    @property
    def of_clips(self) -> bool:
        """Whether clips are measured, and not a model."""
        return self.generated is not None or self.vbench is not None

    @property
    def is_recipe(self) -> bool:
        """Whether the model is that of a recipe, and of no checkpoint."""
        return self.source is not None and self.source.suffix == ".toml"

    def _check_subject(self) -> None:
        if self.of_clips == (self.source is not None):
            raise UserError(
                "a model or clips are measured, not both" if self.of_clips else "nothing is named to be measured",
                code="what-to-evaluate",
                field="source",
                value=None if self.source is None else str(self.source),
                remedy="name a run, a checkpoint or a recipe, or clips with --generated",
            )
        if self.reference is not None and self.generated is None:
            raise UserError(
                "it has no effect without --generated",
                code="key-without-effect",
                field="reference",
                value=str(self.reference),
                remedy="leave it out, or name the clips to compare with it by --generated",
            )

    def _check_checkpoints(self) -> None:
        of_one = {"step": self.step, "best": self.best or None, "data_path": self.data_path, "record": self.record}
        of_several = {"prompts": self.prompts, "seed": self.seed}
        if self.checkpoints is None:
            others, remedy = of_several, "leave it out, or choose checkpoints of a run with --checkpoints"
        else:
            others, remedy = of_one, "leave it out, or leave --checkpoints out"
            if self.is_recipe or self.of_clips:
                raise UserError(
                    "checkpoints are those of a run",
                    code="what-to-evaluate",
                    field="checkpoints",
                    value=self.checkpoints,
                    remedy="name a run folder",
                )
        for name, value in others.items():
            if value is not None:
                raise UserError(
                    "it has no effect here", code="key-without-effect", field=name, value=str(value), remedy=remedy
                )

    def _refuse_other_settings(self) -> None:
        for override in self.overrides:
            key = override.partition("=")[0].strip()
            if key.partition(".")[0] not in _FREE_SECTIONS:
                problem = "the checkpoint was trained with the value of its own recipe"
                remedy = f"leave it out; sections that can be set: {', '.join(_FREE_SECTIONS)}"
                if key == "stage":
                    problem = "a checkpoint is of the stage that trained it"
                    remedy = "leave it out, and choose a checkpoint of that stage"
                raise UserError(
                    problem, code="setting-of-a-checkpoint", field="overrides", value=override, remedy=remedy
                )
