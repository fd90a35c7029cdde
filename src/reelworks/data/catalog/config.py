"""The `[[dataset]]` entries of a recipe."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from reelworks.core.config import Place, Private, PublicConfig, Told
from reelworks.core.errors import UserError
from reelworks.data.catalog import filter_expression, sources
from reelworks.data.catalog.filter_expression import NUMBERS, TEXTS
from reelworks.data.catalog.query import template
from reelworks.data.catalog.store import measured_columns
from reelworks.data.media import formats, storages
from reelworks.data.media.location import Location, MediaPath

_Text = Annotated[str, Field(min_length=1)]
_OptionalText = Annotated[str | None, Field(min_length=1)]


@dataclass(frozen=True)
class Source:
    """A folder of clips, or a list of files in it, under a name, which is part of the clips' identity."""

    name: str
    root: Path  # meaningless if there is a `url`
    list_file: MediaPath | None = None
    url: str | None = None  # address of the folder, if it is not on this machine
    trust_list: bool = False  # whether files are not opened whose measures the list states
    cut: str = ""  # how videos are cut into clips, as `clip_ranges` reads it; "" leaves them whole

    def __post_init__(self) -> None:
        for url in (self.url, getattr(self.list_file, "file", None)):
            storages.require_no_password(url or "")
        if self.url is not None and formats.unsigned(self.url) != self.url:
            raise UserError(
                "the address of a folder has a query, as a signed one, which the addresses of its files would not have",
                code="query-of-folder",
                field="dataset.path" if self.list_file is None else "dataset.root",
                value=formats.unsigned(self.url),
                remedy="leave the query out, or give the storage's own address, as az://container/clips, and its key in the environment",
            )
        for text in (self.address, str(self.list_file), self.name):
            if (value := formats.with_readable_bytes(text)) != text:
                field, remedy = f"dataset {self.name!r}", "rename it in UTF-8"
                raise UserError("the path is not UTF-8", code="not-utf-8", field=field, value=value, remedy=remedy)

    @classmethod
    def from_path(cls, path: str | Path, name: str | None = None, root: str | Path | None = None) -> Source:
        """Make a source from the values of a recipe or command line; `DatasetConfig` has their meanings."""
        url = storages.trimmed(formats.unsigned(str(path))) if storages.is_url(str(path)) else ""
        folder, _, last = url.rpartition("/")
        is_list, file = formats.is_list(last or path), Path(path)
        name = name or (formats.list_stem(last or file.name) if is_list else last or file.resolve().name)
        if name.endswith(tuple(f":{kind}" for kind in sources.KINDS)):
            field, remedy = "dataset.name", "give the dataset another name, or rename its folder or list"
            raise UserError(
                "companions have such names", code="dataset-name-reserved", field=field, value=name, remedy=remedy
            )
        if not is_list:
            return cls(name, Path() if url else file, url=storages.trimmed(str(path)) if url else None)
        address = storages.trimmed(str(root)) if root is not None and (url or storages.is_url(str(root))) else folder
        if url:
            return cls(name, Path(), Location(str(path), last), address or None)
        return cls(name, file.parent if address or root is None else Path(root), file, address or None)

    @property
    def address(self) -> str:
        """Absolute path, with slashes, or address of the folder, which a catalog's rows name as their root."""
        return self.url or self.root.resolve().as_posix()


def same_name(name: str, sources: Iterable[Source]) -> UserError:
    """Return the error for sources that have one name, though their clips are others."""
    folders = ", ".join(f"{s.url or s.root}" + (f" (cut: {s.cut})" if s.cut else "") for s in sources)
    return UserError(
        f"two datasets have the same name: {folders}",
        code="duplicate-dataset-name",
        field="dataset.name",
        value=name,
        remedy="give each [[dataset]] its own name, by which clips are identified",
    )


class DatasetConfig(PublicConfig):
    """A folder of clips or a list of them.

    Attributes:
        path: Folder that is searched for videos and pictures, also inside tar archives; an address of one, such as
            s3://bucket/clips or hf://datasets/user/name; or a list of files (.csv, .tsv, .parquet, .jsonl, .json) with a
            column path (or file_name, video_path, image_path). A list's column text (or caption, prompt) holds the
            captions, and every other column of numbers is a score, such as aes or flow.
        name: Name of the dataset, by which its clips are recognised when the folder moves; default: the name of the
            folder, or of the list without its extension.
        root: Folder or address of a list's relative paths, below which its absolute ones lie; default: its folder.
        trust_list: Take the sizes that a list states in columns num_frames, height, width and fps, and do not open these
            files in a scan. A clip that turns out to be otherwise when it is read counts as failed, and is named.
        repeats: Average number of times that each clip is used in one epoch: 0.25 uses a quarter of the clips, different
            ones in each epoch; 2.5 uses all clips twice and half of them a third time.
        resolutions: Resolutions of bucket entries at each of which every clip that fills it is used once in an epoch, as
            in ["512px", "1024px"]; repeats count for each. Default: a clip takes the largest entry that it fills.
        lengths: Frame counts of bucket entries at each of which every video that is long enough is used once in an epoch,
            likewise. Pictures have one length.
        filter: Condition that a clip must meet to be trained, as in "height >= 480 and fps > 20 and kind == 'video'";
            columns: num_frames, height, width, fps, duration_seconds, size_bytes, bit_depth, caption_length, kind, codec,
            path, caption, the scores of a list, and the columns of `reelworks measure` (a clip that lacks one does not
            meet conditions on it); also startswith(path, 'a/'), contains(caption, 'cat') and in [...].
        duplicates: Near-duplicates, by the catalog's columns duplicate_group and duplicate_rank: "keep" trains all of
            them, "best" the one of the least rank of each group, and "weight" another one of each group in every epoch,
            so that together they count as one clip.
        caption: Template of the captions that the model is given: {text} is the clip's own caption, and numbers of the
            catalog can be added, as in "{text} frame rate: {fps:.0f}."; columns: num_frames, height, width, fps,
            duration_seconds, size_bytes, bit_depth, caption_length, the scores of a list, and the columns of `reelworks
            measure`. Where a clip lacks a number, the part of the template with it, up to a comma or full stop, is left
            out.
        missing_caption: Caption of clips whose caption file is missing or empty, used for {text}; it may be an empty
            text. Without this key, such clips are not trained.
        control: Folder of control pictures or videos for the dataset's clips, such as edges, depth or poses. The control
            of a clip has the same path and name, with the suffix of any picture or video format. A picture is used for
            all frames of a clip. For models that take a control (docs/reference/models.md).
        source: Folder of the originals that the dataset's clips are edits of, with names as for control; the caption is
            then the editing instruction. For models that take a source; a list of up to 12 folders, in the order in which
            captions refer to them, for models that take several. For VACE, reference pictures; for MiniMax-H3,
            references, with sound also sounds.
        min_sources: Number of sources that a clip must have. It may lack the files of other folders, and is then trained
            with fewer sources, in the same order; by default it needs one of each folder.
        mask: Folder of masks, with names as for control: white areas of a clip are generated, black ones are given to the
            model. For models that take a mask (docs/reference/models.md).
        loss_mask: Folder of loss masks, with names as for control: white areas count, black ones do not, grey ones in
            part.
        rejected: Folder of worse versions of the dataset's clips, with names as for control: a LoRA learns to prefer the
            clips to them (Diffusion-DPO). All datasets of a recipe have one, or none. For all models.
        clip_seconds: Cut each video into clips of this length, which are trained like separate files. A rest of less than
            half of it belongs to the clip before. The validation split keeps the clips of a video together.
        scene_cuts: Cut each video into its scenes, which the network TransNet V2 finds during the scan (`pip install
            'reelworks[scenes]'`); with clip_seconds, scenes are cut further.
        prior_prediction: Train a LoRA on these clips to predict what the base model predicts without it, instead of the
            clips themselves. This regularises: it keeps the model's knowledge of similar subjects from drifting. No clip
            of them alone is held out for validation, and metrics do not compare generated clips with them.
        trigger: Word for what a LoRA learns. It takes the place of [trigger] and [name] in captions, and is put before
            those without it; an empty text takes [trigger] and [name] out. Without this key, both stay as they are.
            Prompts of previews and of generate get the word in their place if all datasets that have one, and no
            prior_prediction, have the same.
        captions: "lines": each line of a clip's text is a caption of its own, and each use of the clip draws one of them;
            "first": the first line is the caption; "whole": the text is one caption. Caption files with a number
            (cat.txt, cat.1.txt, cat.2.txt, …) and the texts of a list's column of lists are a line each.
        shuffle_tags: Put the tags of a caption into another order at each use; for captions of tags.
        tag_dropout: Probability of each tag to be left out of the caption at a use of the clip.
        keep_tags: Number of tags at the beginning of a caption that shuffle_tags and tag_dropout leave in place.
        tag_separator: Text between two tags.
        flip: Probability that a use of a clip swaps left and right; not where writing or a caption tells the sides.
        rotate_degrees: Largest rotation, clockwise or against it; each use of a clip draws its own. A rotated clip shows
            a smaller part of the file, so that it has no empty corners.
        jitter_brightness: Largest change of brightness at a use of a clip: 0.1 for factors of 0.9 to 1.1.
        jitter_contrast: Largest change of contrast, likewise.
        jitter_saturation: Largest change of saturation, likewise; 1 may leave no colour.
        jitter_hue: Largest turn of the colours, as a share of the full circle.

    Examples:
        >>> import reelworks as rw
        >>> rw.DatasetConfig(path="footage/cats", repeats=2, filter="height >= 480").dataset_name
        'cats'
    """

    path: Place[_Text]
    name: Private[_OptionalText] = None
    root: Private[_OptionalText] = None
    trust_list: bool = False
    repeats: int | float = Field(default=1, ge=0.001)
    resolutions: Told[list[_Text] | None] = Field(default=None, min_length=1)
    lengths: list[int] | None = Field(default=None, min_length=1)
    filter: Private[_OptionalText] = None
    duplicates: Literal["keep", "best", "weight"] = "keep"
    caption: Told[_Text] = "{text}"
    missing_caption: Told[str | None] = None
    control: Place[_OptionalText] = None
    source: Place[str | list[_Text] | None] = Field(default=None, min_length=1)
    min_sources: int | None = Field(default=None, ge=0)
    mask: Place[_OptionalText] = None
    loss_mask: Place[_OptionalText] = None
    rejected: Place[_OptionalText] = None
    clip_seconds: float | None = Field(default=None, gt=0)
    scene_cuts: bool = False
    prior_prediction: bool = False
    trigger: Told[str | None] = None
    captions: Literal["whole", "lines", "first"] = "whole"
    shuffle_tags: bool = False
    tag_dropout: float = Field(default=0.0, ge=0, le=1)
    keep_tags: int = Field(default=0, ge=0)
    tag_separator: Told[_Text] = ","
    flip: float = Field(default=0.0, ge=0, le=1)
    rotate_degrees: float = Field(default=0.0, ge=0, le=45)
    jitter_brightness: float = Field(default=0.0, ge=0, le=1)
    jitter_contrast: float = Field(default=0.0, ge=0, le=1)
    jitter_saturation: float = Field(default=0.0, ge=0, le=1)
    jitter_hue: float = Field(default=0.0, ge=0, le=0.5)

    @field_validator("root", "trust_list")
    @classmethod
    def _of_list(cls, value: str | bool | None, info: ValidationInfo) -> str | bool | None:
        if value and not _is_list(info):
            raise UserError(
                "the path is a folder, and only a list can have it",
                code="key-without-list",
                field=f"dataset.{info.field_name}",
                value=value,
                remedy=f"leave {info.field_name} out, or give a list as path",
            )
        return value

    @field_validator("resolutions", mode="before")
    @classmethod
    def _sides(cls, value: Any) -> Any:
        """Take numbers as sides of squares, as entries do."""
        if not isinstance(value, list):
            return value
        return [f"{one}px" if isinstance(one, str | int) and str(one).isdecimal() else one for one in value]

    @field_validator("resolutions", "lengths")
    @classmethod
    def _once(cls, value: list[str] | list[int] | None, info: ValidationInfo) -> list[str] | list[int] | None:
        if value is not None and len(set(value)) < len(value):
            raise UserError(
                "one of them is named twice",
                code="named-twice",
                field=f"dataset.{info.field_name}",
                value=value,
                remedy="name each once; repeats use a clip more often",
            )
        return value

    @field_validator("caption")
    @classmethod
    def _caption(cls, value: str, info: ValidationInfo) -> str:
        template.parse(value, _known_scores(info, template.names(value)))
        return value

    @field_validator("source")
    @classmethod
    def _source(cls, value: str | list[str] | None) -> str | list[str] | None:
        if isinstance(value, list) and len(value) > len(sources.SOURCES):
            raise UserError(
                f"a clip may have {len(sources.SOURCES)} sources, and there are {len(value)} folders",
                code="too-many-sources",
                field="dataset.source",
                value=value,
                remedy="leave some out",
            )
        return value

    @field_validator("min_sources")
    @classmethod
    def _min_sources(cls, value: int | None, info: ValidationInfo) -> int | None:
        folders = len(sources.named(info.data.get("source")))
        if value is not None and value > folders:
            raise UserError(
                f"dataset.source names {folders} folder{'s' * (folders != 1)}",
                code="too-few-sources",
                field="dataset.min_sources",
                value=value,
                remedy="lower it, or name further folders",
            )
        return value

    @field_validator("filter")
    @classmethod
    def _filter(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None:
            named = filter_expression.names_in(filter_expression.parse(value, scores=None))
            filter_expression.parse(value, _known_scores(info, named))
        return value

    @property
    def place(self) -> Source:
        """Source of the clips: a folder or a list."""
        return replace(Source.from_path(self.path, self.name, self.root), trust_list=self.trust_list, cut=self.cut)

    @property
    def cut(self) -> str:
        """The cut of videos into clips: "", "scenes", "5.0s" or "scenes 5.0s"."""
        length = f"{self.clip_seconds!r}s" if self.clip_seconds is not None else ""
        return f"{'scenes' * self.scene_cuts} {length}".strip()

    @property
    def companions(self) -> dict[str, str]:
        """Folders of companions by kind."""
        folders = {"control": self.control, **sources.named(self.source), "mask": self.mask}
        folders |= {"loss_mask": self.loss_mask, "rejected": self.rejected}
        return {kind: folder for kind, folder in folders.items() if folder is not None}

    def absolute(self) -> DatasetConfig:
        """Return the dataset with an absolute path, for processes that have another working directory."""
        if storages.is_url(self.path):
            return self
        return self.model_copy(update={"path": str(Path(self.path).absolute())})

    @property
    def dataset_name(self) -> str:
        """Name of the dataset: `name`, or the name of the folder or list."""
        return self.place.name


# Keys by which the frames or the caption of a clip are drawn anew at each use.
DRAWN = frozenset(
    (
        *("captions", "shuffle_tags", "tag_dropout", "flip", "rotate_degrees"),
        *("jitter_brightness", "jitter_contrast", "jitter_saturation", "jitter_hue"),
    )
)
# Keys that change how clips and captions are shown, but not which clips are trained or when.
SHOWING = DRAWN | {"caption", "keep_tags", "tag_separator", "trigger"}


def _is_list(info: ValidationInfo) -> bool:
    return formats.is_list(info.data.get("path", ""))


def _known_scores(info: ValidationInfo, named: Iterable[str]) -> frozenset[str] | None:
    """Return the names that may be scores; None for any: the scores of a list are known only once it is read."""
    return None if _is_list(info) else measured_columns.names_in_filters({*named} - {*NUMBERS, *TEXTS})
