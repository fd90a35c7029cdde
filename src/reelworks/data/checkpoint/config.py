"""`[checkpoints]` of a recipe: when to save, and what to keep."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from reelworks.core import units
from reelworks.core.config import Config, Private, PublicConfig, Told
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import mixture

# Names of file system options that hold credentials: key, secret, token, password, account_key, ...
_SECRET = re.compile("key|secret|token|passw|credential|connection_string", re.IGNORECASE)


class KeepBest(PublicConfig):
    """Keep the checkpoints with the best values of one metric, or of a mixture; `mode` is never guessed from a name.

    Attributes:
        metric: Name of the metric: "validation/loss", "samples/NAME" for one of samples.metrics, or "eval/NAME" for one
            that `reelworks eval` adds; or a mixture such as "0.7 * samples/likeness-dinov2 - 0.3 * samples/closeness-dinov2",
            the sum of the raw values times these numbers, which a checkpoint has that has all of them.
        mode: Whether the lowest or the highest value is the best.
        n: Number of checkpoints to keep.

    Examples:
        >>> import reelworks as rw
        >>> rw.Retention(keep_best=rw.KeepBest(metric="accuracy", mode="max", n=2)).keep_last
        3
    """

    metric: str = Field(default="validation/loss", min_length=1)
    mode: Literal["min", "max"] = "min"
    n: int = Field(default=1, ge=1)

    @field_validator("metric")
    @classmethod
    def _is_understood(cls, value: str) -> str:
        mixture.terms(value)
        return value


class MirrorConfig(Config):
    """A second place that checkpoints are copied to after their save, with its own retention rules.

    Attributes:
        url: A folder, or an address that fsspec knows, such as "s3://bucket/run"; each run needs its own.
        options: Settings of fsspec's file system, such as endpoint_url. Credentials come from the environment.
        keep_last: How many of the newest checkpoints stay in the mirror.
        keep_best: Which of the best checkpoints stay in the mirror; None keeps none for their metrics.
        keep_every: Checkpoints of steps that are multiples of this stay in the mirror for good.
    """

    url: str = Field(min_length=1)
    options: dict[str, str | int | float | bool] = Field(default={})
    keep_last: int = Field(default=3, ge=1)
    keep_best: KeepBest | None = KeepBest()
    keep_every: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _no_secrets(self) -> Self:
        # The error omits the values, since errors are written into logs.
        secret = [f"options.{name}" for name in self.options if _SECRET.search(name)]
        if "@" in self.url and ":" in self.url.partition("://")[2].rpartition("@")[0]:
            secret.append("url")
        if secret:
            raise UserError(
                "a recipe must not hold credentials",
                code="credentials-in-recipe",
                field=f"checkpoints.mirror.{secret[0]}",
                remedy="remove them and set them in the environment, as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            )
        return self


class Retention(PublicConfig):
    """Rules that keep checkpoints, and limits on their number and size.

    Attributes:
        keep_last: How many of the newest checkpoints stay; `save_total_limit` replaces this rule.
        keep_best: Which of the best checkpoints stay; None keeps none for their metrics.
        keep_every: Checkpoints of steps that are multiples of this stay for good.
        keep_within: Checkpoints younger than this stay, such as "48h" or "7d".
        save_total_limit: How many checkpoints stay in all.
        max_disk: Most space that the folder `checkpoints/` may take, such as "500GB". Deleted checkpoints that are
            not unlinked yet, those set aside, and room for the next save count too.
        min_free: Space that must stay free on its file system while the next save is written, such as "50GB".

    Examples:
        >>> import reelworks as rw
        >>> rw.Retention(keep_last=2, keep_within="48h").keep_within_seconds
        172800.0
    """

    keep_last: int = Field(default=3, ge=1)
    keep_best: Private[KeepBest | None] = KeepBest()  # whose metric may be one that a published recipe does not measure
    keep_every: int | None = Field(default=None, ge=1)
    keep_within: Told[str | None] = None
    save_total_limit: int | None = Field(default=None, ge=1)
    max_disk: Told[str | None] = None
    min_free: Told[str | None] = None

    @property
    def keep_within_seconds(self) -> float | None:
        """`keep_within` in seconds."""
        return None if self.keep_within is None else units.duration_seconds(self.keep_within, "checkpoints.keep_within")

    @property
    def max_disk_bytes(self) -> int | None:
        """`max_disk` in bytes."""
        return None if self.max_disk is None else units.size_bytes(self.max_disk, "checkpoints.max_disk")

    @property
    def min_free_bytes(self) -> int | None:
        """`min_free` in bytes."""
        return None if self.min_free is None else units.size_bytes(self.min_free, "checkpoints.min_free")

    @model_validator(mode="after")
    def _quantities_are_understood(self) -> Self:
        _ = self.keep_within_seconds, self.max_disk_bytes, self.min_free_bytes
        return self


class CheckpointsConfig(Retention):
    """Times of saves, and rules for the checkpoints that stay.

    The union of `keep_last`, `keep_best`, `keep_every`, `keep_within`, pinned checkpoints and those in use stays.
    `save_total_limit` limits their number, best included; then `max_disk` and `min_free` delete the oldest. The
    newest, the best, pinned checkpoints and those in use stay whatever the limits.

    Attributes:
        every_steps: Optimizer steps between saves; None for no such interval. A run also saves at its end, on
            SIGTERM, SIGHUP and SIGUSR1, and when a file named `save` appears in its folder.
        every_minutes: Minutes between saves, in addition to every_steps.
        at_epoch_end: Also save at the end of each epoch.
        at_best: Also save after a validation that is the best by keep_best's metric.
        asynchronous: Continue training while a thread writes: true, false, or "auto" for states of 1 GB and more on
            a rank. A save that is due during another one is skipped; the run's last save always waits.
        grace_seconds: Time from SIGTERM until the process is killed; a run warns if a step, the longest step or pause
            before it, and a save take longer.
        on_full: What to do if a save does not fit on the disk: "wait" continues training and tries again every 30
            seconds, "weights-only" writes only the averaged weights to `exports/` and continues, "stop" ends the
            run with an error, as any value does at the end of the run.
        mirror: A second place that checkpoints are copied to, and fetched from if the run folder has none.
    """

    every_steps: int | None = Field(default=500, ge=1)
    every_minutes: float | None = Field(default=None, gt=0)
    at_epoch_end: bool = False
    at_best: bool = False
    asynchronous: Literal["auto"] | bool = "auto"
    grace_seconds: float | None = Field(default=None, gt=0)
    on_full: Literal["wait", "weights-only", "stop"] = "wait"
    mirror: Private[MirrorConfig | None] = None

    @model_validator(mode="after")
    def _rules_can_be_met(self) -> Self:
        if self.at_best and self.keep_best is None:
            raise UserError(
                "no metric is configured that decides which checkpoint is the best",
                code="no-metric",
                field="checkpoints.at_best",
                value=True,
                remedy='set keep_best, as in keep_best = { metric = "validation/loss", n = 1 }',
            )
        if self.keep_every and self.every_steps and self.keep_every % self.every_steps:
            raise UserError(
                f"not every multiple of it has a checkpoint: they are saved every {self.every_steps} steps",
                code="keep-every-never-met",
                field="checkpoints.keep_every",
                value=self.keep_every,
                remedy=f"set a multiple of {self.every_steps}, or change every_steps",
            )
        return self
