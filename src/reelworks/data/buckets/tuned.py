"""The file that `reelworks tune` writes: batch sizes by entry, milliseconds per clip by bucket, and the fitted time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from reelworks.core import user_files
from reelworks.core.errors import UserError
from reelworks.data.buckets.config import BucketEntryConfig, BucketsConfig
from reelworks.data.buckets.degrees import RankLimits
from reelworks.data.buckets.entry import Recomputation
from reelworks.data.buckets.opensora import parse
from reelworks.data.schedule import cost_fit
from reelworks.data.schedule.cost_fit import CostModel


def read(path: str, step_seconds: float | None = None) -> dict[str, int]:
    """Return the measured batch sizes by entry, such as "480p ×17".

    With `step_seconds`, they are lowered to those whose fitted time is not longer, but not below one clip.
    """
    with _reading(path) as value:
        sizes = value["batch_sizes"]
        for n in sizes.values():
            if type(n) is not int or not 0 <= n <= parse.MOST_CLIPS:
                raise _bad(path, f"{n!r} is not a number of clips")
        if step_seconds is not None:
            model = CostModel(**value["model_ms"])
            # A bucket's name is that of its entry, with an aspect ratio in the middle.
            tokens = {" ".join(trial["bucket"].split(" ")[::2]): int(trial["tokens"]) for trial in value["trials"]}
            sizes = {
                entry: min(size, max(model.most_clips(tokens[entry], 1000 * step_seconds), 1)) if size else 0
                for entry, size in sizes.items()
            }
        return dict(sizes)


def read_recomputation(path: str) -> dict[str, Recomputation]:
    """Return what the backward passes of entries compute again, where it was measured."""
    with _reading(path) as value:
        found = value.get("recomputation", {})
        wrong = [each for each in found.values() if not (isinstance(each, bool) or each == "selective")]
        if wrong:
            raise _bad(path, f"{wrong[0]!r} is nothing that is recomputed")
        return dict(found)


def read_limits(path: str, step_seconds: float | None = None) -> tuple[CostModel, RankLimits]:
    """Return the fitted time of a micro-batch on one rank, and the limits of a rank that trains a share of clips.

    Memory grows with the tokens, from what a rank needs without any, such that no measurement took more.
    """
    with _reading(path) as value:
        measured = [(t["batch_size"] * t["tokens"], t["peak_bytes"]) for t in value["trials"]]
        tokens, peak = np.array(measured, np.float64).T
        # A single measurement tells nothing of what tokens do not need: then all of it is theirs.
        columns = np.stack([tokens, np.ones_like(tokens)], axis=1)
        scale = columns.max(axis=0)
        per_token, fixed = cost_fit.nonnegative(columns / scale / peak[:, None]) / scale
        least = float((peak / (columns @ [per_token, fixed])).max())
        limits, seconds = value["limits"], math.inf if step_seconds is None else step_seconds
        activations, each = limits["memory_bytes"] - least * fixed, least * per_token
        if not (math.isfinite(activations) and 0 < each < math.inf and 0 < limits["clips"] <= parse.MOST_CLIPS):
            raise _bad(path, "its measurements of memory tell nothing of clips")
        return CostModel(**value["model_ms"]), RankLimits(activations, each, seconds, limits["clips"])


def read_peak_bytes(path: str) -> dict[int, int]:
    """Return the measured peak memory by latent tokens of a micro-batch, fewest first."""
    with _reading(path) as value:
        measured: dict[int, int] = {}
        for trial in value["trials"]:
            tokens = int(trial["tokens"]) * int(trial["batch_size"])
            measured[tokens] = max(int(trial["peak_bytes"]), measured.get(tokens, 0))
        return dict(sorted(measured.items()))


@contextmanager
def _reading(path: str) -> Iterator[Any]:
    """Give the values of a file; a value that is missing in it or wrong is an error of the file."""
    try:
        yield user_files.read_json(Path(path))
    except OSError as error:
        raise _bad(path, f"it cannot be read ({error.strerror})") from error
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _bad(path, "it is not a file of measured batch sizes") from error


def with_numbers(
    entries: Sequence[BucketEntryConfig], config: BucketsConfig, size_of: Callable[[str], int]
) -> tuple[list[BucketEntryConfig], BucketsConfig]:
    """Return entries and settings with a number for each batch size that is "auto"."""

    def of_entry(entry: BucketEntryConfig) -> BucketEntryConfig:
        wanted = entry.batch_size or config.batch_size
        if wanted != "auto":
            return entry
        sizes = [size_of(f"{entry.resolution} ×{frames}") for frames in entry.frames()]
        return entry.model_copy(update={"batch_size": sizes if isinstance(entry.num_frames, list) else sizes[0]})

    default = {"batch_size": 1} if config.batch_size == "auto" else {}
    return [of_entry(entry) for entry in entries], config.model_copy(update={"tuned": None, **default})


def measured(
    entries: Sequence[BucketEntryConfig], config: BucketsConfig, step_seconds: float | None = None
) -> tuple[list[BucketEntryConfig], BucketsConfig]:
    """Return entries and settings with the numbers of the file `config.tuned`, within `step_seconds` if given."""
    return with_numbers(entries, config, lambda entry: _batch_size(entry, config.tuned, step_seconds))


def unmeasured(
    entries: Sequence[BucketEntryConfig], config: BucketsConfig
) -> tuple[list[BucketEntryConfig], BucketsConfig]:
    """Return entries and settings with 1 for each batch size to be measured; the file is not read."""
    return with_numbers(entries, config, lambda entry: 1)


def _batch_size(entry: str, path: str | None, step_seconds: float | None) -> int:
    if path is None:
        raise _not_measured(f'{entry} has batch_size = "auto", and the recipe names no file of measured ones', path)
    size = read(path, step_seconds).get(entry)
    if size is None:
        raise _not_measured(f'the file does not have {entry}, whose batch_size is "auto"', path)
    if not size:
        raise _not_measured(f"not even one clip of {entry} kept the limits when it was measured", path)
    return size


def _not_measured(problem: str, path: str | None) -> UserError:
    return UserError(
        problem,
        code="batch-size-not-measured",
        field="buckets.tuned",
        value=path,
        remedy="run `reelworks tune` on the recipe, or give the entry a batch_size",
    )


def _bad(path: str, problem: str) -> UserError:
    return UserError(
        problem, code="tuned-file-invalid", field="buckets.tuned", value=path, remedy="write it with `reelworks tune`"
    )
