"""`[coverage]` of a recipe: how much room the records of former epochs may take."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from reelworks.core import units
from reelworks.core.config import Config


class CoverageConfig(Config):
    """`[coverage]`: what a run keeps of the account of its clips."""

    max_disk: str | None = Field(
        "20GB",
        description="what the records of segments may take, a record of ten million clips being some 30 MB; then those "
        "of the oldest epochs go, with a line that says so, and their totals stay",
    )

    @property
    def max_disk_bytes(self) -> int | None:
        """`max_disk` in bytes."""
        return None if self.max_disk is None else units.size_bytes(self.max_disk, "coverage.max_disk")

    @model_validator(mode="after")
    def _readable(self) -> Self:
        _ = self.max_disk_bytes
        return self
