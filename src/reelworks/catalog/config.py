"""The `[[dataset]]` entries of a recipe."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from reelworks.catalog import expression, template
from reelworks.catalog.expression_parts import NUMBERS, TEXTS
from reelworks.core.config import Config


class DatasetConfig(Config):
    """One folder of clips."""

    path: str = Field(min_length=1, description="Folder that is searched for videos and pictures.")
    name: str | None = Field(
        default=None,
        min_length=1,
        description="Name under which the clips keep their identity when the folder moves; "
        "the folder's own name unless given.",
    )
    repeats: int = Field(default=1, ge=1, description="How often each clip is shown in one epoch.")
    weight: float = Field(
        default=1.0,
        gt=0,
        le=1000,
        description="Showings of each clip in an epoch on average: 0.25 shows a quarter of the clips, other "
        "ones each epoch; 2.5 shows all twice and half of them a third time. Multiplies repeats.",
    )
    filter: str | None = Field(
        default=None,
        min_length=1,
        description="Trains only clips for which this holds, as in "
        "\"height >= 480 and fps > 20 and kind == 'video'\"; columns: "
        f"{', '.join((*NUMBERS, *TEXTS))}; also startswith(path, 'a/'), "
        "contains(caption, 'cat') and in [...].",
    )

    caption: str = Field(
        default="{text}",
        min_length=1,
        description="What the model is shown as a clip's caption: its own as {text}, and numbers of the "
        'catalog, as in "{text} frame rate: {fps:.0f}."; columns: '
        f"{', '.join(NUMBERS)}. A part up to a comma or full stop is left out for clips that lack its number.",
    )

    @field_validator("caption")
    @classmethod
    def _caption(cls, value: str) -> str:
        template.parse(value)
        return value

    @field_validator("filter")
    @classmethod
    def _filter(cls, value: str | None) -> str | None:
        if value is not None:
            expression.parse(value)
        return value

    @property
    def dataset_name(self) -> str:
        """`name`, or the last part of `path`."""
        return self.name or Path(self.path).resolve().name
