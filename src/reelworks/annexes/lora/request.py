"""The requests of `reelworks lora` and of the functions of this package; torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from reelworks.core import requests, units
from reelworks.core.errors import UserError
from reelworks.core.requests import arg
from reelworks.models.adapters.conventions import LoraFormat
from reelworks.models.export.config import Dtype, Weights

_FILE = "A LoRA, LoKr, LoHa or OFT as .safetensors, or its place on the hub: owner/name/file.safetensors."
_OUTPUT = "The .safetensors file to write."
_DTYPE = "Dtype of the written numbers; default: that of each layer in the input."
_OVERWRITE = "Replace the output if it exists."
_MODEL = "The base model, such as wan-2.1-14b; default: the one that the header names or that the layers fit."
_PART = "Folder of the network if weights are a pipeline in diffusers' layout; default: transformer, or unet."
# Above it, weights would fall more slowly towards the past than all alike, which σ = 1 / √12 is.
_MOST_SIGMA = 0.28


def _named(*names: str) -> dict[str, tuple[str, ...]]:
    return {"names": names}


class _Request:
    """A request whose fields are checked when it is made."""

    def __post_init__(self) -> None:
        with requests.checked(self):
            self._check()

    def _check(self) -> None:
        """Refuse fields that do not go together."""


@dataclass(frozen=True, kw_only=True)
class LoraInfoRequest(_Request):
    """A file to tell about."""

    file: Path = arg(..., _FILE, metavar="FILE", is_option=False)
    model: str | None = arg(None, _MODEL)


@dataclass(frozen=True, kw_only=True)
class ConvertLoraRequest(_Request):
    """A file to write in another convention."""

    file: Path = arg(..., _FILE, metavar="FILE", is_option=False)
    to: LoraFormat = arg(..., "Convention of the written file.")
    output: Path = arg(..., _OUTPUT, **_named("--output", "-o"))
    model: str | None = arg(None, _MODEL)
    dtype: Dtype | None = arg(None, _DTYPE)
    overwrite: bool = arg(False, _OVERWRITE)


class WeightedFile(NamedTuple):
    """A file, and the number that its update is multiplied by."""

    path: str
    weight: float

    @classmethod
    def parse(cls, text: str) -> WeightedFile:
        """Read `FILE` or `FILE=0.7`; without a number the weight is 1."""
        path, is_weighted, number = text.rpartition("=")
        if Path(text).exists() or not is_weighted or not path:
            return cls(text, 1.0)
        try:
            return cls(path, float(number))
        except ValueError:
            return cls(text, 1.0)


class _WeightedFiles(_Request):
    """A request for several files, each with a number."""

    files: tuple[str, ...]

    @property
    def weighted(self) -> tuple[WeightedFile, ...]:
        """The files with their numbers."""
        return tuple(map(WeightedFile.parse, self.files))

    def _check(self) -> None:
        """Refuse files whose number would add nothing, or no number."""
        for text, (_, weight) in zip(self.files, self.weighted, strict=True):
            if not math.isfinite(weight) or weight == 0:
                raise UserError(
                    "the number that a file is multiplied by is finite, and not 0",
                    code="merge-weight-invalid",
                    field="files",
                    value=text,
                    remedy="write FILE=0.7, or leave the file out",
                )


@dataclass(frozen=True, kw_only=True)
class MergeLorasRequest(_WeightedFiles):
    """Files whose updates are added, each times a number."""

    files: tuple[str, ...] = arg(
        ...,
        "A LoRA and the number that it counts, which may be negative; default: 1.",
        metavar="FILE=WEIGHT",
        is_option=False,
    )
    output: Path = arg(..., _OUTPUT, **_named("--output", "-o"))
    rank: int | None = arg(
        None, "Rank of the sum, by singular values; default: the sum of all ranks, which is exact.", least=1
    )
    model: str | None = arg(None, _MODEL)
    dtype: Dtype | None = arg(None, "Dtype of the written numbers; default: one that holds those of the files.")
    overwrite: bool = arg(False, _OVERWRITE)


@dataclass(frozen=True, kw_only=True)
class ResizeLoraRequest(_Request):
    """A file whose updates get lower ranks."""

    file: Path = arg(..., _FILE, metavar="FILE", is_option=False)
    output: Path = arg(..., _OUTPUT, **_named("--output", "-o"))
    rank: int | None = arg(None, "Highest rank of a layer.", least=1)
    keep: float | None = arg(
        None,
        "Share of each layer's squared Frobenius norm that stays, such as 0.98; layers get ranks of their own.",
        least=0,
        most=1,
    )
    dtype: Dtype | None = arg(None, _DTYPE)
    overwrite: bool = arg(False, _OVERWRITE)

    def _check(self) -> None:
        if (self.rank is None) == (self.keep is None):
            raise UserError(
                "the ranks follow from --rank or from --keep",
                code="rank-not-given",
                field="rank",
                value=self.rank,
                remedy="give one of the two",
            )
        if self.keep == 0:
            raise UserError(
                "nothing would stay",
                code="rank-not-given",
                field="keep",
                value=self.keep,
                remedy="give a share above 0, such as 0.98",
            )


@dataclass(frozen=True, kw_only=True)
class ExtractLoraRequest(_Request):
    """Two sets of full weights, of whose difference a LoRA is made."""

    base: Path = arg(
        ..., "Weights as .safetensors, a folder of shards or a pipeline, or a run.", metavar="BASE", is_option=False
    )
    tuned: Path = arg(..., "Weights of the same network, tuned.", metavar="TUNED", is_option=False)
    output: Path = arg(..., _OUTPUT, **_named("--output", "-o"))
    rank: int = arg(..., "Rank of each layer.", least=1)
    model: str | None = arg(None, "The network, such as wan-2.1-14b; default: the one that the weights fit.")
    part: str | None = arg(None, _PART)
    dtype: Dtype | None = arg(None, "Dtype of the written numbers; default: that of each layer in the base.")
    overwrite: bool = arg(False, _OVERWRITE)


@dataclass(frozen=True, kw_only=True)
class ApplyLorasRequest(_WeightedFiles):
    """Full weights, and files whose updates are added to them."""

    base: Path = arg(
        ..., "Weights as .safetensors, or a folder of shards or a pipeline.", metavar="BASE", is_option=False
    )
    files: tuple[str, ...] = arg(
        ...,
        "A LoRA, LoKr, LoHa or OFT, and its strength, which may be negative; default: 1.",
        metavar="FILE=STRENGTH",
        is_option=False,
    )
    output: Path = arg(..., "The folder to write: shards, an index, and the base's config.", **_named("--output", "-o"))
    model: str | None = arg(None, _MODEL)
    part: str | None = arg(None, f"{_PART} That of a text encoder takes the layers that files have of it.")
    shard_size: str = arg("5GB", "Most bytes of a shard.", metavar="SIZE")
    overwrite: bool = arg(False, _OVERWRITE)

    def _check(self) -> None:
        _ = self.shard_bytes
        super()._check()

    @property
    def shard_bytes(self) -> int:
        """Most bytes of a shard."""
        return units.size_bytes(self.shard_size, "shard_size")


@dataclass(frozen=True, kw_only=True)
class AverageRunRequest(_Request):
    """A run whose checkpoints are averaged."""

    run: Path = arg(..., "A run folder.", metavar="RUN", is_option=False)
    output: Path = arg(..., _OUTPUT, **_named("--output", "-o"))
    sigma_rel: float = arg(
        0.1,
        "Width of the average as a share of the steps: larger ones reach further back.",
        least=0.001,
        most=_MOST_SIGMA,
    )
    of: Weights | None = arg(
        None,
        "Average the stored averages (ema), or the trained weights (model); default: the former, where there are any.",
    )
    until: int | None = arg(None, "Last step to average; default: that of the newest checkpoint.", least=1)
    format: LoraFormat | None = arg(None, "Convention of a LoRA's file; default: diffusers.")
    dtype: Dtype = arg("bfloat16", "Dtype of the written numbers.")
    overwrite: bool = arg(False, _OVERWRITE)
