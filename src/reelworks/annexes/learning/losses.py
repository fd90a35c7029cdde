"""Losses of each clip so far, as a checkpoint holds them beside the weights that they belong to.

They lie in the checkpoint, as `clip_losses.parquet`: so they are of exactly its step, whichever one a run resumes from, and
are saved, mirrored and deleted with it. The file has a row for each clip that was trained or measured, by ascending key:
some 18 bytes where all have been trained, fewer where few have.

A loss is normalised as the logarithm of its ratio to the usual loss, that of all clips of its bucket at its timestep at that
time (`Usual`), so that clips of different buckets, steps and timesteps can be compared: 0 is usual, -0.1 is 10 % lower.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import TypeAdapter

from reelworks.core import files, user_files
from reelworks.core.arrays import F32, F64, U64

FILE = "clip_losses.parquet"
FORMAT_VERSION = 2
MEASURED = 8  # measurements over which means of a clip reach back
DOUBTED = 0.1  # share of the clips, those of the least gain, that are measured so often

_ABOUT = b"reelworks"
_SPLIT = "BYTE_STREAM_SPLIT"  # for numbers whose upper bytes alone are alike
_ASCENDING = "DELTA_BINARY_PACKED"


class ClipLossError(Exception):
    """Losses of clips cannot be read; the message says why."""


@dataclass
class Usual:
    """Usual loss of a clip by its bucket and timestep, as it is now: a running mean over recent clips.

    It is the mean at knots between which it is linear, times a factor for each bucket: few clips train each bucket at each
    timestep, and many train one of them.

    Attributes:
        mean, weight: Loss at each knot of timesteps, and the clips that it is a mean of.
        factor, factor_weight: The same of each bucket's loss as a multiple of that.
    """

    mean: list[float] = field(default_factory=list)
    weight: list[float] = field(default_factory=list)
    factor: dict[str, float] = field(default_factory=dict)
    factor_weight: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class LossesAbout:
    """Position of a table of losses in its run, and the usual losses that its are relative to.

    Attributes:
        step: Optimizer steps done.
        trained: Clips that all steps trained, repeats included.
        visits: Measurements of clips with fixed noise.
        last: Step of the last of them, -1 before the first.
        course: Step and usual loss at each knot of timesteps, 0 where few clips tell it, now and then, oldest first.
    """

    step: int = 0
    trained: int = 0
    visits: int = 0
    last: int = -1
    buckets: tuple[str, ...] = ()
    usual: Usual = field(default_factory=Usual)
    course: tuple[tuple[int, tuple[float, ...]], ...] = ()

    def usual_change(self, since: NDArray[np.integer]) -> F64:
        """Return how the usual loss changed since some steps: the mean logarithm over the knots that are known then and now."""
        if not self.course:
            return np.zeros(len(since))
        steps, losses = (np.array(values) for values in zip(*self.course, strict=True))
        both = (losses > 0) & (losses[-1] > 0)
        ratio = np.log(np.where(both, losses[-1], 1) / np.where(both, losses, 1))
        change = ratio.sum(axis=1) / np.maximum(both.sum(axis=1), 1)
        return np.asarray(change[np.minimum(np.searchsorted(steps, since), len(steps) - 1)])


@dataclass(frozen=True)
class ClipLosses:
    """Losses of clips by ascending key; all arrays have an element for each clip.

    Attributes:
        key: Key of each clip: the uid under which the run first saw it.
        bucket: Index into `about.buckets` of the last bucket that it was trained or measured in.
        held_out: True for a clip that was held out when it was measured last.
        shown: Times that it was trained with its caption.
        first, settled: Mean normalised loss of its first times, and the step of the last of them.
        longer, recent: Mean normalised losses of its last times, weighted exponentially; `recent` forgets faster.
        measured: Times that it was measured with fixed noise.
        level: Mean normalised loss of its last measurements, with its caption.
        gain: By how much its caption lowers the loss: mean logarithm of the loss without it over that with it.
        by_heart: By how much a LoRA lowered the loss without its caption when it was measured first: logarithm of that of the
            base over that of the trained network. NaN where the base was not measured.
    """

    about: LossesAbout
    key: U64
    bucket: NDArray[np.int16]
    held_out: NDArray[np.bool_]
    shown: NDArray[np.int32]
    first: F32
    settled: NDArray[np.int32]
    longer: F32
    recent: F32
    measured: NDArray[np.int16]
    level: F32
    gain: F32
    by_heart: F32

    @classmethod
    def empty(cls, about: LossesAbout | None = None, rows: int = 0) -> ClipLosses:
        """Return a table of so many clips without losses."""
        columns = {name: np.zeros(rows, dtype) for name, dtype in _TYPES.items()}
        columns["by_heart"][:] = np.nan
        return cls(about or LossesAbout(), **columns)

    def __len__(self) -> int:
        return len(self.key)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {name: getattr(self, name) for name in _TYPES}

    def take(self, where: Any) -> ClipLosses:
        """Return some clips, by a mask or by indices."""
        return ClipLosses(self.about, **{name: values[where] for name, values in self.columns().items()})

    def to_bytes(self) -> bytes:
        """Return the clips that were trained or measured as a Parquet file; equal tables give equal bytes."""
        known = np.flatnonzero((self.shown > 0) | (self.measured > 0))
        table = self.take(known[np.argsort(self.key[known])])
        text = files.to_json({"format": FORMAT_VERSION, **vars(self.about)})
        rows = pa.table(table.columns()).replace_schema_metadata({_ABOUT: text})
        file = io.BytesIO()
        split = {name: _SPLIT for name, dtype in _TYPES.items() if dtype is np.float32}
        pq.write_table(
            rows,
            file,
            compression="zstd",
            compression_level=1,
            use_dictionary=["bucket", "held_out", "shown", "measured"],
            column_encoding=split | {"key": _ASCENDING},
            write_statistics=False,
        )
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> ClipLosses:
        """Read what `to_bytes` returned.

        Raises:
            ClipLossError: It is damaged, or another version of Reelworks wrote it.
        """
        try:
            rows = pq.read_table(io.BytesIO(data))
            values = user_files.parse_json((rows.schema.metadata or {})[_ABOUT].decode())
            if values.pop("format") != FORMAT_VERSION:
                raise ClipLossError("another version of Reelworks wrote them")
            about = TypeAdapter(LossesAbout).validate_python(values)
            columns = {name: rows.column(name).to_numpy().astype(dtype) for name, dtype in _TYPES.items()}
        except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
            raise ClipLossError(f"they cannot be read ({error})") from error
        return cls(about, **columns)


# The types of elements by column: NDArray[np.float32] stands for ndarray[…, dtype[float32]].
_TYPES: Mapping[str, Any] = {
    name: get_args(get_args(hint)[1])[0] for name, hint in get_type_hints(ClipLosses).items() if name != "about"
}
