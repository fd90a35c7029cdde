"""The `[[dataset]]` entries of a recipe."""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator

from reelworks.catalog import filter_expression, template
from reelworks.catalog.filter_expression import NUMBERS, TEXTS
from reelworks.catalog.source import Source, is_list
from reelworks.core.config import Config
from reelworks.core.errors import UserError


class DatasetConfig(Config):
    """One folder or list of clips."""

    path: str = Field(
        min_length=1,
        description="Folder that is searched for videos and pictures, or a list of them (.csv, .parquet, .jsonl) "
        "with a column path; its column text (or caption) has the captions, and every other column of numbers is "
        "a score, such as aes or flow.",
    )
    name: str | None = Field(
        default=None,
        min_length=1,
        description="Name under which the clips keep their identity when the folder moves; "
        "the folder's own name, or the list's without its ending, unless given.",
    )
    root: str | None = Field(
        default=None,
        min_length=1,
        description="Folder that a list's paths are relative to, and that absolute ones lie in; "
        "the list's own folder unless given.",
    )
    repeats: int | float = Field(
        default=1,
        gt=0,
        description="How often each clip is shown in one epoch, on average: 0.25 shows a quarter of the clips, other "
        "ones each epoch; 2.5 shows all twice and half of them a third time.",
    )
    filter: str | None = Field(
        default=None,
        min_length=1,
        description="Trains only clips for which this holds, as in "
        "\"height >= 480 and fps > 20 and kind == 'video'\"; columns: "
        f"{', '.join((*NUMBERS, *TEXTS))}, and the scores of a list (a clip without one does not pass); "
        "also startswith(path, 'a/'), "
        "contains(caption, 'cat') and in [...].",
    )

    caption: str = Field(
        default="{text}",
        min_length=1,
        description="What the model is shown as a clip's caption: its own as {text}, and numbers of the "
        'catalog, as in "{text} frame rate: {fps:.0f}."; columns: '
        f"{', '.join(NUMBERS)}, and the scores of a list. A part up to a comma or full stop is left out "
        "for clips that lack its number.",
    )

    missing_caption: str | None = Field(
        default=None,
        description="Stands for {text} of clips whose caption file is missing or empty; it may be an empty text. "
        "Left out: such clips are not trained.",
    )
    control: str | None = Field(
        default=None,
        min_length=1,
        description="Folder of pictures or clips that steer the dataset's, such as edges, depth or poses: of each the "
        "file of the same path and name, with any suffix of a picture or clip. A picture stands for all frames of a "
        "clip. For models that are shown a control (docs/reference/models.md).",
    )
    source: str | None = Field(
        default=None,
        min_length=1,
        description="Folder of what the dataset's clips are edits of, found in the same way; the caption is then the "
        "instruction. For models that are shown a source.",
    )
    loss_mask: str | None = Field(
        default=None,
        min_length=1,
        description="Folder of masks, found in the same way: white counts in the loss, black does not, grey in part. "
        "For all models.",
    )

    prior_prediction: bool = Field(
        default=False,
        description="Of these clips a LoRA is taught what the base says of them without it, instead of what they are, so "
        "that other things of their kind stay as they were.",
    )

    @field_validator("root")
    @classmethod
    def _root(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and not _is_list(info):
            raise UserError(
                "a folder's files lie in it",
                code="root-without-list",
                field="dataset.root",
                value=value,
                remedy="leave it out, or name a list as path",
            )
        return value

    @field_validator("caption")
    @classmethod
    def _caption(cls, value: str, info: ValidationInfo) -> str:
        template.parse(value, None if _is_list(info) else frozenset())
        return value

    @field_validator("filter")
    @classmethod
    def _filter(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None:
            filter_expression.parse(value, scores=None if _is_list(info) else frozenset())
        return value

    @property
    def place(self) -> Source:
        """The folder or list that names the clips."""
        return Source.from_path(self.path, self.name, self.root)

    @property
    def companions(self) -> dict[str, str]:
        """Folders of companions by kind."""
        folders = {"control": self.control, "source": self.source, "loss_mask": self.loss_mask}
        return {kind: folder for kind, folder in folders.items() if folder is not None}

    @property
    def dataset_name(self) -> str:
        """`name`, or what `path` names."""
        return self.place.name


def _is_list(info: ValidationInfo) -> bool:
    """Tell whether names that no catalog has may be scores; which a list has is known once it is read."""
    return is_list(info.data.get("path", ""))
