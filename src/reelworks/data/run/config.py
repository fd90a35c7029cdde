"""`[coverage]` and `[logging]` of a recipe: the disk space for records of former epochs, and trackers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from reelworks.core import units
from reelworks.core.config import Config, Told, open_set
from reelworks.core.errors import UserError

# Trackers that a program adds; see `training.observers.trackers.register`.
ADDED_TRACKERS: dict[str, Callable[..., Any]] = {}


class CoverageConfig(Config):
    """`[coverage]`: how long a run keeps its records of clips.

    Attributes:
        max_disk: Disk space for the records of which clips each epoch trained (about 30 MB for ten million clips); above
            it, the records of the oldest epochs are deleted with a message, and only their totals are kept, and copies of
            the catalog that no other record needs are deleted with them.
    """

    max_disk: Told[str | None] = "20GB"

    @property
    def max_disk_bytes(self) -> int | None:
        """`max_disk` in bytes."""
        return None if self.max_disk is None else units.size_bytes(self.max_disk, "coverage.max_disk")

    @model_validator(mode="after")
    def _readable(self) -> Self:
        _ = self.max_disk_bytes
        return self


class LoggingConfig(Config):
    """`[logging]`: trackers beside TensorBoard, which get the same curves, the previews and the recipe.

    Attributes:
        trackers: Weights & Biases and Trackio (extras `wandb`, `trackio`), which get the recipe too, with the last names of
            its folders and addresses; training goes on if one fails.
        project: Project of the trackers.
        name: Name of the run there; default: that of the run folder.
        entity: User or team of Weights & Biases.
        tags: Tags of the run in Weights & Biases.
        offline: Keep what Weights & Biases logs in the run folder for `wandb sync`; so does a run that cannot log in.
    """

    trackers: list[Annotated[Literal["wandb", "trackio"], open_set(ADDED_TRACKERS)]] = Field(default=[])
    project: str = Field(default="reelworks", min_length=1)
    name: str | None = Field(default=None, min_length=1)
    entity: str | None = Field(default=None, min_length=1)
    tags: list[str] = Field(default=[])
    offline: bool = False

    @model_validator(mode="after")
    def _check_trackers(self) -> Self:
        changed = self.model_fields_set - {"trackers"}
        if not self.trackers and any(getattr(self, key) != LoggingConfig.model_fields[key].default for key in changed):
            raise UserError(
                "it is for trackers, and there is none",
                code="key-without-effect",
                field=f"logging.{sorted(changed)[0]}",
                remedy='leave it out, or set logging.trackers = ["wandb"]',
            )
        return self
