"""Survey folders, as far as a recipe for them depends on their contents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.catalog.config import DatasetConfig
from reelworks.catalog.rows import CatalogRows
from reelworks.core.errors import UserError


@dataclass(frozen=True)
class FolderSurvey:
    """Contents of the folders.

    Attributes:
        pictures: Height and width of each, `[N, 2]`.
        videos: Frames, height and width of each, `[N, 3]`.
        uncaptioned: Clips without a caption of their own.
        triggered: Captions that hold the trigger word already.
        showings: Of an epoch; repeats count.
    """

    pictures: NDArray[np.int64]
    videos: NDArray[np.int64]
    showings: int
    uncaptioned: int = 0
    triggered: int = 0

    @property
    def clips(self) -> int:
        """All of them."""
        return len(self.pictures) + len(self.videos)

    def to_text(self) -> str:
        """The counts as people say them."""
        counts = ((len(self.pictures), "picture"), (len(self.videos), "clip"))
        return " and ".join(f"{n} {noun}{'s' * (n != 1)}" for n, noun in counts if n)


PLACEHOLDER = FolderSurvey(
    pictures=np.full((20, 2), 1024), videos=np.zeros((0, 3), dtype=np.int64), showings=20
)


def survey(rows: CatalogRows, datasets: Sequence[DatasetConfig], trigger: str | None) -> FolderSurvey:
    """Count and measure the readable rows that a catalog has of some datasets.

    Raises:
        UserError: There is none.
    """
    repeats = {dataset.dataset_name: dataset.repeats for dataset in datasets}
    names = np.array([repeats.get(name, 0) for name in rows.dataset.dictionary.to_pylist()], dtype=np.float64)
    shown = names[
        rows.dataset.indices.to_numpy(zero_copy_only=False)
    ]  # the catalog may hold other datasets too
    good = rows.take(rows.readable & (shown > 0))
    if not len(good):
        raise UserError(
            f"none of the {int((shown > 0).sum())} files can be read",
            code="no-readable-media",
            field="--data",
            remedy="`reelworks scan DIR -o CATALOG` says why of each",
        )
    video = good.is_video
    sizes = np.stack([good.num_frames, good.height, good.width], axis=1).astype(np.int64)
    captions = good.caption.fill_null("")
    has = pc.sum(pc.match_substring(captions, trigger)).as_py() if trigger else 0
    blank = pc.sum(pc.equal(captions, "")).as_py()
    showings = round(shown[rows.readable].sum())
    return FolderSurvey(sizes[~video][:, 1:], sizes[video], showings, int(blank or 0), int(has or 0))
