"""`[coverage]` of a recipe: the disk space for the records of former epochs."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from reelworks.core import units
from reelworks.core.config import Config


class CoverageConfig(Config):
    """`[coverage]`: how long a run keeps its records of clips."""

    max_disk: str | None = Field(
        "20GB",
        description="disk space for the records of which clips each epoch trained (about 30 MB for ten million clips); "
        "above it, the records of the oldest epochs are deleted with a message, and only their totals are kept",
    )

    @property
    def max_disk_bytes(self) -> int | None:
        """`max_disk` in bytes."""
        return None if self.max_disk is None else units.size_bytes(self.max_disk, "coverage.max_disk")

    @model_validator(mode="after")
    def _readable(self) -> Self:
        _ = self.max_disk_bytes
        return self
