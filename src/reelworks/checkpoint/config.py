"""`[checkpoints]` and `[exports]` of a recipe: when to save, what to keep, what to give out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, Self, TypeVar

from pydantic import Field, model_validator

from reelworks.core import units
from reelworks.core.config import Config
from reelworks.core.errors import UserError

Weights = Literal["ema", "model"]
Dtype = Literal["bfloat16", "float16", "float32"]
LoraFormat = Literal["diffusers", "comfyui", "kohya"]


T = TypeVar("T")


def _maybe(read: Callable[[str, str], T], text: str | None, field: str) -> T | None:
    return None if text is None else read(text, field)


# Names under which file systems take credentials: key, secret, token, password, account_key, connection_string, ...
_SECRET = re.compile("key|secret|token|passw|credential|connection_string", re.IGNORECASE)


class KeepBest(Config):
    """Keep the checkpoints with the best values of one metric.

    The direction is stated, never guessed from the metric's name.
    """

    metric: str = Field("validation/loss", min_length=1)
    mode: Literal["min", "max"] = "min"
    n: int = Field(1, ge=1)


class MirrorConfig(Config):
    """A second place that checkpoints are copied to after their save, with its own rules of what to keep.

    Attributes:
        url: A folder, or an address that fsspec knows, such as "s3://bucket/run"; for this run alone.
        options: Settings of fsspec's file system, such as endpoint_url. Credentials come from the environment.
        keep_last: How many of the newest stay in the mirror.
        keep_best: Which of the best stay in the mirror; None for none.
        keep_every: Checkpoints of steps that are multiples of this stay in the mirror for good.
    """

    url: str = Field(min_length=1)
    options: dict[str, str | int | float | bool] = Field({})
    keep_last: int = Field(3, ge=1)
    keep_best: KeepBest | None = KeepBest()
    keep_every: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _no_secrets(self) -> Self:
        # Named without their values: recipes are written into run folders, and errors into logs.
        secret = [f"options.{name}" for name in self.options if _SECRET.search(name)]
        if "@" in self.url and ":" in self.url.partition("://")[2].rpartition("@")[0]:
            secret.append("url")
        if secret:
            raise UserError(
                "a recipe must not hold credentials",
                code="credentials-in-recipe",
                field=f"checkpoints.mirror.{secret[0]}",
                remedy="leave them out and set them in the environment, such as AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY",
            )
        return self


class Retention(Config):
    """Which checkpoints stay: those that some rule keeps, less what limits let go.

    Attributes:
        keep_last: How many of the newest stay; under `save_total_limit` the limit decides instead.
        keep_best: Which of the best stay; None for none.
        keep_every: Checkpoints of steps that are multiples of this stay for good.
        keep_within: Checkpoints younger than this stay, such as "48h" or "7d".
        save_total_limit: How many stay in all.
        max_disk: What the folder `checkpoints/` may take, such as "500GB", with deleted ones that are not unlinked
            yet, those set aside, and room for the next save.
        min_free: What its file system is to have free, such as "50GB", while the next save is written.

    Examples:
        >>> import reelworks as rw
        >>> rw.Retention(keep_last=2, keep_within="48h").keep_within_seconds
        172800.0
    """

    keep_last: int = Field(3, ge=1)
    keep_best: KeepBest | None = KeepBest()
    keep_every: int | None = Field(None, ge=1)
    keep_within: str | None = None
    save_total_limit: int | None = Field(None, ge=1)
    max_disk: str | None = None
    min_free: str | None = None

    @property
    def keep_within_seconds(self) -> float | None:
        """`keep_within` in seconds."""
        return _maybe(units.duration_seconds, self.keep_within, "checkpoints.keep_within")

    @property
    def max_disk_bytes(self) -> int | None:
        """`max_disk` in bytes."""
        return _maybe(units.size_bytes, self.max_disk, "checkpoints.max_disk")

    @property
    def min_free_bytes(self) -> int | None:
        """`min_free` in bytes."""
        return _maybe(units.size_bytes, self.min_free, "checkpoints.min_free")

    @model_validator(mode="after")
    def _quantities_are_understood(self) -> Self:
        _ = self.keep_within_seconds, self.max_disk_bytes, self.min_free_bytes
        return self


class CheckpointsConfig(Retention):
    """When checkpoints are written, and which of them stay.

    What stays is the union of `keep_last`, `keep_best`, `keep_every`, `keep_within`, pinned checkpoints and
    those in use. `save_total_limit` makes it that many in all, best included; then `max_disk` and `min_free`
    let the oldest go, of those that only a rule keeps. The newest, the best, pinned ones and those in use stay
    whatever the limits.

    Attributes:
        every_steps: Optimizer steps between saves; None for no such interval. A run also saves at its end, on
            SIGTERM and SIGUSR1, and where a file named `save` appears in its folder.
        every_minutes: Minutes between saves, beside every_steps.
        at_epoch_end: Also save at the end of each epoch.
        at_best: Also save after a validation that is the best by keep_best's metric.
        asynchronous: Go on training while a thread writes: true, false, or "auto" for states of 1 GB and more on a
            rank. A save that is due while one is written is left out; the last one always waits.
        grace_seconds: Time from SIGTERM until the process is killed; told when two steps and a save take longer.
        on_full: What to do where a save does not fit: "wait" goes on training and tries again every 30 seconds,
            "weights-only" writes the averaged weights alone to `exports/` and goes on, "stop" ends the run with an
            error.
        mirror: A second place that checkpoints are copied to, and fetched from where the run folder has none.
    """

    every_steps: int | None = Field(500, ge=1)
    every_minutes: float | None = Field(None, gt=0)
    at_epoch_end: bool = False
    at_best: bool = False
    asynchronous: Literal["auto"] | bool = "auto"
    grace_seconds: float | None = Field(None, gt=0)
    on_full: Literal["wait", "weights-only", "stop"] = "wait"
    mirror: MirrorConfig | None = None

    @model_validator(mode="after")
    def _the_best_is_defined(self) -> Self:
        if self.at_best and self.keep_best is None:
            raise UserError(
                "there is no metric to be the best by",
                code="no-metric",
                field="checkpoints.at_best",
                value=True,
                remedy='give keep_best, as in keep_best = { metric = "validation/loss", n = 1 }',
            )
        return self

    @model_validator(mode="after")
    def _milestones_are_saved(self) -> Self:
        if self.keep_every and self.every_steps and self.keep_every % self.every_steps:
            raise UserError(
                f"no checkpoint falls on each multiple of it: they are saved every {self.every_steps} steps",
                code="keep-every-never-met",
                field="checkpoints.keep_every",
                value=self.keep_every,
                remedy=f"give a multiple of {self.every_steps}, or change every_steps",
            )
        return self


class ExportsConfig(Config):
    """Weights for use, written to `exports/` as .safetensors along with checkpoints. They cannot be resumed from.

    Attributes:
        weights: The average ("ema") or the trained weights ("model"); None writes none.
        dtype: Of what is written; numbers that are not floating point stay as they are.
        formats: Conventions that a LoRA is written in, a file each: "diffusers", "comfyui", "kohya".
        every_n_saves: Written with each so many-th save.
        keep_last: How many stay; None for all. Other files in the folder are never touched.
    """

    weights: Weights | None = None
    dtype: Dtype = "bfloat16"
    formats: list[LoraFormat] = Field(["diffusers"], min_length=1)
    every_n_saves: int = Field(1, ge=1)
    keep_last: int | None = Field(3, ge=1)
