"""Recipe keys of the bucket table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, field_validator, model_validator

from reelworks.core import units
from reelworks.core.config import Place, PublicConfig, Told
from reelworks.core.errors import UserError
from reelworks.data.buckets.entry import Draws, Entry
from reelworks.data.buckets.opensora import parse
from reelworks.data.buckets.opensora.ratios import COMPUTED_MULTIPLE

DEFAULT_ASPECT_RATIOS = ["21:9", "16:9", "3:2", "4:3", "1:1", "3:4", "2:3", "9:16", "9:21"]
MOST_EXTREME = 20  # no footage is wider; beyond it one side would have only a few pixels


class BucketEntryConfig(PublicConfig):
    """One `[[bucket]]`: a resolution crossed with frame counts.

    Attributes:
        resolution: "480p" (480 lines at 16:9), "512px" (512 × 512 pixels in total), one size as "480x854" (height x
            width); 512 is read as 512px.
        num_frames: Frame counts; 1 takes pictures, all others take videos.
        batch_size: Clips per micro-batch on one GPU; "auto": by `buckets.tuned`, within `train.step_seconds`.
        keep_prob: Chance that a fitting clip is assigned here.
        sequence_degree: Ranks that share the tokens of a clip; default: `parallel.sequence_degree`, of which it is a
            divisor. Groups of fewer ranks train micro-batches of the bucket side by side.
    """

    resolution: Told[str]
    num_frames: int | list[int]
    batch_size: int | list[int] | Literal["auto"] | None = None
    keep_prob: float | list[float] = 1.0
    sequence_degree: int | list[int] | None = None

    @field_validator("resolution", mode="before")
    @classmethod
    def _side(cls, value: Any) -> Any:
        """Take a number as the side of a square, as other trainers write it."""
        return f"{value}px" if isinstance(value, str | int) and str(value).isdecimal() else value

    @model_validator(mode="after")
    def _check(self) -> BucketEntryConfig:
        frames = self.frames()
        for name in ("batch_size", "keep_prob", "sequence_degree"):
            values = getattr(self, name)
            if isinstance(values, list) and len(values) != len(frames):
                remedy = (
                    f"list {units.plural(len(frames), 'value')}, one for each of num_frames, or give one number for all"
                )
                raise _bad_entry(
                    name,
                    values,
                    f"{units.plural(len(values), 'value')} for {units.plural(len(frames), 'frame count')}",
                    remedy,
                )
        if not frames:
            raise _bad_entry("num_frames", [], "the list is empty", "list at least one, as in [1, 17]")
        _check_each("num_frames", frames, 1, math.inf, "give a whole number of at least 1")
        sizes = [b for b in self.batch_sizes() if isinstance(b, int)]
        _check_each("batch_size", sizes, 1, parse.MOST_CLIPS, f"give a whole number from 1 to {parse.MOST_CLIPS}")
        _check_each("keep_prob", self.keep_probs(), 0, 1, "give a probability from 0 to 1")
        degrees = [degree for degree in self.sequence_degrees() if degree is not None]
        _check_each("sequence_degree", degrees, 1, math.inf, "give a whole number of at least 1")
        return self

    def frames(self) -> list[int]:
        """Return the frame counts as a list."""
        return self.num_frames if isinstance(self.num_frames, list) else [self.num_frames]

    def batch_sizes(self) -> list[int | Literal["auto"] | None]:
        """Return the batch size for each frame count."""
        return list(self.batch_size) if isinstance(self.batch_size, list) else [self.batch_size] * len(self.frames())

    def keep_probs(self) -> list[float]:
        """Return the keep probability for each frame count."""
        return self.keep_prob if isinstance(self.keep_prob, list) else [self.keep_prob] * len(self.frames())

    def sequence_degrees(self) -> list[int | None]:
        """Return the sequence degree for each frame count."""
        degree = self.sequence_degree
        return list(degree) if isinstance(degree, list) else [degree] * len(self.frames())


def _check_each(name: str, values: Sequence[float], low: float, high: float, remedy: str) -> None:
    for value in values:
        if not low <= value <= high:  # which is False for NaN
            raise _bad_entry(name, value, "out of range", remedy)


def _bad_entry(name: str, value: object, problem: str, remedy: str) -> UserError:
    return UserError(problem, code="bucket-entry-invalid", field=f"bucket.{name}", value=value, remedy=remedy)


# Keys that only a recipe uses, for which entries are proposed and batch sizes measured.
OF_RECIPES = {"max_tokens", "max_batch_size", "tuned"}


class BucketsConfig(PublicConfig):
    """`[buckets]`: settings of all entries. `buckets = "auto"` is short for `entries = "auto"` in this table.

    Attributes:
        entries: "recipe": the recipe's `[[bucket]]` entries. "auto": entries proposed from datasets, model and
            max_tokens; a resumed run keeps its first proposal. "refresh": a new proposal, even if the run already has
            one. "keep": written by a run into its own recipe, together with the `[[bucket]]` entries in use.
        max_tokens: With proposed entries: maximum of latent tokens per micro-batch. The default is one clip of 480p × 81
            frames with an autoencoder that encodes 4 frames as one.
        max_batch_size: With proposed entries: maximum of clips per micro-batch.
        batch_size: Batch size of entries without one.
        tuned: File of `reelworks tune`, for entries whose batch_size is "auto".
        gradient_checkpointing: With `model.gradient_checkpointing = "auto"`: what the backward passes of entries compute
            again, by names such as "480p ×17". false: nothing. "selective": all but matrix products and attention. true:
            all but the inputs of blocks. 0.5: half of the blocks as with true, the others as with "selective". For an
            entry that is not named, a run chooses the least with which it fits into the GPU's memory, and keeps that in
            its recipe.
        incomplete_batch: How to treat the incomplete last micro-batch of a bucket. "partial": keep it with fewer clips.
            "pad": fill it with copies of weight 0. "merge": move its clips to a smaller bucket that can take them.
            "repeat": fill it with clips of the bucket that are trained once more. With train.compile the default is
            "pad".
        aspect_ratios: Aspect ratios as width:height.
        token_families: Choose sizes so that the aspect ratios of a resolution have as few different token counts as
            token_family_crop allows, one where possible, since a graph is compiled for each. Default: true with
            train.compile, else false. Does not apply to single sizes and to a table of Open-Sora, which keep theirs.
        token_family_crop: With token_families: the largest share of a frame of one of the aspect_ratios that its size may
            crop away; a ratio that would lose more gets another token count.
        upscale: Enlarge clips that are smaller than a bucket.
        max_crop: Largest share of a frame that may be cropped away.
        probability: Meaning of the pair of probabilities in `opensora`. "opensora-1.2" (also for 1.1): to stay at this
            resolution, and to stay at this length. "opensora-2.0": to stay at this resolution, and to be shortened.
            "downgrade": to move to a lower resolution, and else to be shortened.
        opensora_drop_exact_length: Exclude clips of exactly an entry's frame count, as Open-Sora 1.1 and 1.2 do.
        opensora: A bucket table of Open-Sora instead of `[[bucket]]`, as in "240p" = { 1 = [0.3, 297], 51 = [[0.4, 0.33],
            20], 408 = [0.0, "none"] }; its sizes and its minimum clip size follow the rules of Open-Sora, so that
            aspect_ratios, upscale and max_crop are not used.
    """

    entries: Literal["recipe", "auto", "refresh", "keep"] = "recipe"
    max_tokens: int = Field(default=36_864, ge=1)
    max_batch_size: int = Field(default=64, ge=1, le=parse.MOST_CLIPS)
    batch_size: int | Literal["auto"] = 1
    tuned: Place[str | None] = Field(default=None, min_length=1)
    gradient_checkpointing: Told[dict[str, StrictBool | Literal["selective"] | Annotated[float, Field(gt=0, lt=1)]]] = (
        Field(default={})
    )
    incomplete_batch: Literal["partial", "pad", "merge", "repeat"] = "partial"
    aspect_ratios: Told[list[str]] = Field(default=DEFAULT_ASPECT_RATIOS, min_length=1)
    token_families: bool | None = None
    token_family_crop: float = Field(default=0.1, ge=0, lt=1)
    upscale: bool = False
    max_crop: float = Field(default=0.5, gt=0, lt=1)
    probability: Literal["native", "opensora-1.2", "opensora-2.0", "downgrade"] = "native"
    opensora_drop_exact_length: bool = False
    opensora: Told[dict[str, dict[str, parse.Value]] | None] = None

    @property
    def proposes(self) -> bool:
        """Whether the entries are to be proposed."""
        return self.entries in ("auto", "refresh")

    @field_validator("batch_size")
    @classmethod
    def _batch_size_is_possible(cls, value: int | str) -> int | str:
        if isinstance(value, str) or 1 <= value <= parse.MOST_CLIPS:
            return value
        raise UserError(
            "no micro-batch can have so many clips",
            code="batch-size-invalid",
            field="buckets.batch_size",
            value=value,
            remedy=f'give a whole number from 1 to {parse.MOST_CLIPS}, or "auto"',
        )

    @field_validator("opensora", mode="before")
    @classmethod
    def _as_toml(cls, value: object) -> object:
        return None if value is None else parse.normal_form(value)

    @model_validator(mode="after")
    def _opensora_is_sound(self) -> BucketsConfig:
        if self.opensora is not None:
            if self.token_families:
                raise UserError(
                    "a bucket table of Open-Sora keeps its sizes",
                    code="opensora-sizes-are-fixed",
                    field="buckets.token_families",
                    value=True,
                    remedy="leave it out, or write [[bucket]] entries instead of the table",
                )
            self.opensora_entries()
            return self
        for key, unset in (("probability", "native"), ("opensora_drop_exact_length", False)):
            if (value := getattr(self, key)) != unset:
                raise UserError(
                    "this key needs a bucket table of Open-Sora, and the recipe has none",
                    code="opensora-table-missing",
                    field=f"buckets.{key}",
                    value=value,
                    remedy="add [buckets.opensora], or remove this key",
                )
        return self

    def opensora_entries(self, multiple: int = COMPUTED_MULTIPLE) -> tuple[tuple[Entry, ...], Draws]:
        """Return the entries of the table of Open-Sora, whose computed sizes are multiples of `multiple`."""
        assert self.opensora is not None
        drops_exact = self.opensora_drop_exact_length
        return parse.parse(self.opensora, self.probability, drop_exact_length=drops_exact, multiple=multiple)

    @field_validator("aspect_ratios")
    @classmethod
    def _ratios(cls, value: list[str]) -> list[str]:
        for text in value:
            parse_ratio(text)
        return value


def as_table(value: Any) -> Any:
    """Return the table that `buckets = "auto"` is short for, and any other value unchanged."""
    return {"entries": "auto"} if value == "auto" else value


# Type of the recipe key `buckets`: a table, or "auto".
BucketsField = Annotated[
    BucketsConfig, BeforeValidator(as_table, json_schema_input_type=BucketsConfig | Literal["auto"])
]


def parse_ratio(text: str) -> float:
    """Return an aspect ratio such as `"16:9"` (width:height, from 1:20 to 20:1) as a number."""
    try:
        width, height = (float(part) for part in text.split(":"))
    except ValueError:
        raise _bad_ratio(text, "an aspect ratio has the form width:height") from None
    # These comparisons are False for NaN.
    if not (0 < width < math.inf and 0 < height < math.inf):
        raise _bad_ratio(text, "both sides of an aspect ratio are positive numbers")
    if not (width <= MOST_EXTREME * height and height <= MOST_EXTREME * width):
        raise _bad_ratio(text, f"an aspect ratio lies between 1:{MOST_EXTREME} and {MOST_EXTREME}:1")
    return width / height


def _bad_ratio(text: str, problem: str) -> UserError:
    return UserError(
        problem, code="aspect-ratio-invalid", field="buckets.aspect_ratios", value=text, remedy='give e.g. "16:9"'
    )
