"""The request of `reelworks train` and of `trainer.run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reelworks.core import requests, system
from reelworks.core.errors import UserError
from reelworks.core.requests import arg

if TYPE_CHECKING:
    from reelworks.training.recipe.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """A recipe to train, and how; the recipe may also be given as an object beside the request.

    Attributes:
        recipe: A recipe (a TOML file), unless --data and --model are given.
        output: Run folder in place of the recipe's.
        max_steps: Total number of optimizer steps, counted from the run's start.
        resume: auto: resume from the newest good checkpoint. never: refuse a folder with checkpoints. STEP: resume from
            exactly that step and set later checkpoints aside.
        load: Begin with another run's weights, average and optimizer; ignored once this run has a checkpoint.
        weights_only: Load only the weights of --load.
        restart_data: Begin the data again at epoch 0 and keep weights, optimizer and step count. Given again before
            these data are finished, it continues with them.
        debug: Log the clips of every step, and keep the stacks of GPU allocations.
        profile: Write a trace of these steps to the run folder, for https://ui.perfetto.dev.
    """

    recipe: Path | None = arg(None, metavar="RECIPE", is_option=False)
    data_path: Path | None = arg(None, requests.DATA_PATH)
    output: Path | None = arg(None)
    max_steps: int | None = arg(None, least=1)
    resume: str = arg("auto", metavar="auto|never|STEP")
    load: Path | None = arg(None, metavar="RUN|CHECKPOINT")
    weights_only: bool = arg(False)
    restart_data: bool = arg(False)
    overrides: tuple[str, ...] = arg((), requests.OVERRIDES, names=("--set",), metavar="A.B=V")
    debug: bool = arg(False)
    profile: str | None = arg(None, metavar="FIRST:LAST")

    def __post_init__(self) -> None:
        with requests.checked(self):
            if self.recipe is not None and self.recipe.is_dir():
                raise _not_a_recipe(self.recipe)
            for text in self.overrides:
                if text.partition("=")[0].strip() == "stage":
                    raise UserError(
                        "training goes through all stages, and knows by the run which one is next",
                        code="stage-chosen-for-training",
                        field="overrides",
                        value=text,
                        remedy="leave it out; to train it alone, write a recipe without [[stage]], of another output",
                    )
            if self.profile is not None and self.profiled_steps is None:
                raise UserError(
                    "not a first and a last step, counted from 1",
                    code="step-range-invalid",
                    field="profile",
                    value=self.profile,
                    remedy="write a range such as 10:20; one step is 7:7",
                )
            if self.weights_only and self.load is None:
                raise UserError(
                    "no checkpoint is named to take the weights from",
                    code="nothing-to-load",
                    field="weights_only",
                    remedy="add --load RUN|CHECKPOINT",
                )

    @property
    def profiled_steps(self) -> tuple[int, int] | None:
        """The first and the last step of `profile`; None if there is no such range."""
        first, _, last = (self.profile or "").partition(":")
        if first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last):
            return int(first), int(last)
        return None

    def load_recipe(self) -> Recipe:
        """Read the recipe with what is given in place of its values."""
        import tomli_w

        from reelworks.training.recipe import recipe_file

        assert self.recipe is not None
        changes = list(self.overrides)
        if self.output is not None:  # as a string, whatever it looks like: `2026-11-20` may be a folder
            changes.append(tomli_w.dumps({"output": str(self.output)}).rstrip())
        if self.max_steps is not None:
            changes.append(f"train.max_steps={self.max_steps}")
        return recipe_file.load(self.recipe, changes, self.data_path)


def _not_a_recipe(folder: Path) -> UserError:
    known = (folder / "run.json").is_file()
    return UserError(
        "this is a run folder, not a recipe" if known else "this is a folder, not a recipe",
        code="folder-for-a-recipe",
        field="recipe",
        value=str(folder),
        remedy="give the recipe that it was started with; the same command resumes it"
        if known
        else f"to train a LoRA on what it holds: reelworks train --data {system.quoted(str(folder))} --model NAME",
    )
