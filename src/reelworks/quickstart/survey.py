"""Survey the contents of folders that a recipe for them depends on."""

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
    """The contents of the folders.

    Attributes:
        pictures: Height and width of each picture, `[N, 2]`.
        videos: Frames, height and width of each video, `[N, 3]`.
        uncaptioned: Clips without a caption of their own.
        triggered: Captions that already contain the trigger word.
        showings: Clips of an epoch, including repeats.
    """

    pictures: NDArray[np.int64]
    videos: NDArray[np.int64]
    showings: int
    uncaptioned: int = 0
    triggered: int = 0

    @property
    def clips(self) -> int:
        """Number of pictures and videos."""
        return len(self.pictures) + len(self.videos)

    def to_text(self) -> str:
        """Return the counts as readable text."""
        counts = ((len(self.pictures), "picture"), (len(self.videos), "clip"))
        return " and ".join(f"{n} {noun}{'s' * (n != 1)}" for n, noun in counts if n)


PLACEHOLDER = FolderSurvey(
    pictures=np.full((20, 2), 1024), videos=np.zeros((0, 3), dtype=np.int64), showings=20
)


def survey(rows: CatalogRows, datasets: Sequence[DatasetConfig], trigger: str | None) -> FolderSurvey:
    """Count and measure the readable rows of some datasets in a catalog.

    Raises:
        UserError: No row is readable.
    """
    repeats = {dataset.dataset_name: dataset.repeats for dataset in datasets}
    dataset_names = rows.dataset.dictionary.to_pylist()
    repeats_by_index = np.array([repeats.get(name, 0) for name in dataset_names], dtype=np.float64)
    # Rows of other datasets in the catalog have 0 repeats.
    row_repeats = repeats_by_index[rows.dataset.indices.to_numpy(zero_copy_only=False)]
    good = rows.take(rows.readable & (row_repeats > 0))
    if not len(good):
        raise UserError(
            f"none of the {int((row_repeats > 0).sum())} files can be read",
            code="no-readable-media",
            field="--data",
            remedy="run `reelworks scan DIR -o CATALOG`, which reports the reason for each file",
        )
    video = good.is_video
    sizes = np.stack([good.num_frames, good.height, good.width], axis=1).astype(np.int64)
    captions = good.caption.fill_null("")
    triggered = pc.sum(pc.match_substring(captions, trigger)).as_py() if trigger else 0
    uncaptioned = pc.sum(pc.equal(captions, "")).as_py()
    showings = round(row_repeats[rows.readable].sum())
    return FolderSurvey(sizes[~video][:, 1:], sizes[video], showings, uncaptioned or 0, triggered or 0)
