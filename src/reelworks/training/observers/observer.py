"""Observers of a training: they look at it between its steps, and change nothing of what is trained."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from reelworks.core import annexes, named_code
from reelworks.data.distributed.mesh import World
from reelworks.data.loader.failures import FailedClip
from reelworks.data.loader.position import DataPosition
from reelworks.data.loader.step_source import StepSource
from reelworks.data.media.decode_pool import DecodePool
from reelworks.data.run.folder import RunFolder
from reelworks.training.assembly.build import TrainedModel
from reelworks.training.coverage.speed import Speed
from reelworks.training.encoding.batch_encoder import BatchEncoder
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step.train_step import StepResult

T = TypeVar("T")


@dataclass(frozen=True)
class TrainedStep:
    """A step that was trained, or left out.

    Attributes:
        position: Its place in the plan.
        failed: Clips of all ranks that could not be decoded.
        seconds: Wall time.
        waited_seconds: The part of it in which clips were waited for, of this step or the next.
    """

    position: DataPosition
    result: StepResult
    failed: list[FailedClip]
    seconds: float
    waited_seconds: float

    @property
    def number(self) -> int:
        """Number of the step, from 1."""
        return self.position.global_step + 1

    @property
    def speed(self) -> Speed:
        """Its clips that count, and its time."""
        return Speed(self.result.clips if self.result.applied else 0, self.seconds, self.waited_seconds)


@dataclass(frozen=True)
class Pause:
    """A place between two steps, at which observers may take their time.

    Attributes:
        is_new: Whether nothing has been trained in this run.
        begins_stage: Whether a stage begins here, or the run.
        is_over: Tells whether training ends here; a validation may decide it.
        is_saved: Whether this step has a new checkpoint.
    """

    position: DataPosition
    pool: DecodePool
    is_over: Callable[[], bool]
    is_new: bool = False
    begins_stage: bool = False
    is_saved: bool = False

    @property
    def step(self) -> int:
        """Number of steps done."""
        return self.position.global_step


class StepObserver:
    """An observer, of which every rank has one; calls are equal on all ranks, and each does nothing unless it is overridden."""

    def make_up(self, now: Pause) -> None:
        """Measure what the checkpoint of this step lacks, because a signal left no time for it."""

    def begin(self, now: Pause) -> None:
        """Look at the model before the first step of this start, or where none is left."""

    def before_step(self, step: int) -> None:
        """Prepare for a step."""

    def after_step(self, step: TrainedStep) -> None:
        """Take the result of a step."""

    def metrics(self, now: Pause) -> dict[str, float]:
        """Measure what belongs into a checkpoint of this step."""
        return {}

    def files(self, step: int) -> dict[str, bytes]:
        """Return what a checkpoint of this step is to keep, by the names of files. Collective.

        After a resume, `model.state.observed` has them until all observers have begun.
        """
        return {}

    def after_save(self, now: Pause) -> None:
        """Do what may fail or last, now that the checkpoint of this step is written, if one was due."""

    def end(self, now: Pause) -> None:
        """Close what is open: no step follows."""


class RunLog(Protocol):
    """A log to which observers tell what they have seen."""

    def event(self, kind: str, **fields: Any) -> None:
        """Append an event to the run's events."""

    def curves(self, step: int, values: dict[str, float]) -> None:
        """Add values to the curves of trackers."""

    def show(self, step: int, files: Sequence[Path], prompts: Sequence[str]) -> None:
        """Show clips in trackers."""


class CheckpointMetrics(Protocol):
    """The metrics of a run's checkpoints.

    Attributes:
        measured_on: By metric, a digest of what it is measured on now: only metrics with equal ones, or none, are compared.
    """

    measured_on: dict[str, str]

    def has_metrics(self, step: int, names: Collection[str]) -> bool:
        """Whether the checkpoint of a step has one of these; an observer asks for its own. Collective."""

    def record_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Add metrics to the checkpoint of a step."""


@dataclass(frozen=True)
class Training:
    """A training, as far as observers see it.

    Attributes:
        folder: Its run folder.
        encoder: Of the micro-batches that it trains.
        source: Of its steps.
        stops: Whether what a pause does is to be cut short, since a signal came to any rank: what lasts asks it between its
            parts, equally on all ranks, and leaves the rest to the next start. Collective, unless `alone=True`.
    """

    folder: RunFolder
    world: World
    data: RecipeData
    model: TrainedModel
    encoder: BatchEncoder[Any]
    source: StepSource
    log: RunLog
    checkpoints: CheckpointMetrics
    stops: Callable[..., bool] = lambda alone=False: False


class ObserverKind(Protocol):
    """A class of observers from outside this wing."""

    def require(self, recipe: Recipe) -> None:
        """Refuse what cannot be observed in a training of a recipe; reads no footage.

        Raises:
            UserError: Names the key.
        """

    def prepare(self, data: RecipeData) -> Callable[[Training], StepObserver] | None:
        """Read the files that the recipe asks for, before any model is built; None if there is nothing to observe.

        Raises:
            UserError: A file cannot be read.
        """


# Module and name; they are imported when a training begins. Previews generate clips, which lies above training.
_KINDS: dict[str, str] = {"previews": "reelworks.inference.previews:KIND"}


def register(name: str, place: str) -> None:
    """Add a kind of observers, `module:name`, to all trainings of this process."""
    _KINDS[name] = place


def require(recipe: Recipe) -> None:
    """Refuse what no observer can observe in a training of a recipe."""
    _of_each_kind(lambda kind: kind.require(recipe))


def prepare(data: RecipeData) -> list[Callable[[Training], StepObserver]]:
    """Read what the recipe asks to be observed, and return what makes the observers when a model is there."""
    return [make for make in _of_each_kind(lambda kind: kind.prepare(data)) if make is not None]


def _of_each_kind(asked: Callable[[ObserverKind], T]) -> list[T]:
    return [*(asked(named_code.load(place)) for place in _KINDS.values()), *annexes.use_each("observers", asked)]
