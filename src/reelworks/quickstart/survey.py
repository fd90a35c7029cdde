"""Survey the contents of folders that a recipe for them depends on."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.core import units
from reelworks.core.errors import UserError
from reelworks.data.catalog.config import DatasetConfig, Source
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.media import decode, formats
from reelworks.data.media.config import DataConfig


@dataclass(frozen=True)
class FolderSurvey:
    """The contents of the folders."""

    pictures: NDArray[np.int64]  # `[N, 2]`: height and width
    videos: NDArray[np.int64]  # `[N, 3]`: frames (at the model's frame rate, if it has one), height and width
    showings: int  # clips of an epoch, including repeats
    uncaptioned: int = 0  # clips without a caption of their own
    picture_names: tuple[str, ...] = ()
    video_names: tuple[str, ...] = ()
    captions: tuple[str, ...] = ()  # the first two by name, for previews
    silent: int = 0  # videos without sound
    left_out_names: tuple[str, ...] = ()  # of the kind that the model does not take, beside those that it does

    @property
    def clips(self) -> int:
        """Number of pictures and videos."""
        return len(self.pictures) + len(self.videos)

    def to_text(self) -> str:
        """Return the counts as readable text."""
        counts = ((len(self.pictures), "picture"), (len(self.videos), "clip"))
        return " and ".join(units.plural(n, noun) for n, noun in counts if n)


PLACEHOLDER_CLIPS = FolderSurvey(
    pictures=np.zeros((0, 2), dtype=np.int64), videos=np.array([[121, 768, 1344]] * 20), showings=20
)
PLACEHOLDER = FolderSurvey(pictures=np.full((20, 2), 1024), videos=np.zeros((0, 3), dtype=np.int64), showings=20)


def survey(
    rows: CatalogRows,
    datasets: Sequence[DatasetConfig],
    fps: float | None = None,
    *,
    takes_clips: bool = True,
    takes_pictures: bool = True,
) -> FolderSurvey:
    """Count and measure the readable rows of some datasets in a catalog; frames are those read at the rate `fps`.

    For a model that takes no clips, those beside pictures are left out and named, and so are pictures for one that takes
    clips alone.
    """
    repeats = {dataset.dataset_name: dataset.repeats for dataset in datasets}
    # Rows of other datasets in the catalog have 0 repeats.
    by_index = np.array([repeats.get(name, 0) for name in rows.dataset.dictionary.to_pylist()], dtype=np.float64)
    row_repeats = by_index[rows.dataset.indices.to_numpy(zero_copy_only=False)]
    good = rows.take(rows.readable & (row_repeats > 0))
    if not len(good):
        raise UserError(
            f"none of the {int((row_repeats > 0).sum())} files can be read",
            code="no-readable-media",
            field="--data",
            remedy="run `reelworks scan DIR -o CATALOG`, which reports the reason for each file",
        )
    taken = np.where(good.is_video, takes_clips, takes_pictures)
    taken = taken | (not taken.any())  # of one kind alone: whoever asks tells that the model does not take it
    left_out, good = good.take(~taken), good.take(taken)
    video = good.is_video
    rates = np.maximum(good.fps, 1e-6)
    frames = decode.frames_available(good.num_frames, rates, DataConfig(fps=fps), good.variable_fps)
    sizes = np.stack([frames, good.height, good.width], axis=1).astype(np.int64)
    captions = good.caption.fill_null("")
    uncaptioned = pc.sum(pc.equal(captions, "")).as_py()
    showings = round(by_index[good.dataset.indices.to_numpy(zero_copy_only=False)].sum())
    labels = np.array(good.labels(np.arange(len(good))), dtype=object)
    captioned = np.flatnonzero(np.asarray(pc.not_equal(captions, "")))
    first = captioned[np.argsort(labels[captioned])[:2]]
    return FolderSurvey(
        sizes[~video][:, 1:],
        sizes[video],
        showings,
        uncaptioned or 0,
        tuple(labels[~video]),
        tuple(labels[video]),
        tuple(text.strip() for text in captions.take(pa.array(first)).to_pylist()),
        int((good.is_video & ~good.has_sound).sum()),
        tuple(left_out.labels(np.arange(len(left_out)))),
    )


_KOHYA = re.compile(r"([1-9][0-9]*)_(.+)")


def datasets(folders: Sequence[Path]) -> tuple[list[DatasetConfig], list[str]]:
    """Return the datasets of folders, each with a unique name, and remarks on files and folders that are left out.

    A folder named `REPEATS_WORDS`, or each such folder in a given one, is a dataset as for kohya's tools: its pictures
    are repeated `REPEATS` times per epoch, and those without a text file have `WORDS` as their caption.
    A folder that is listed twice, or lies in another one, is refused, since its clips would be trained twice.
    """
    result, remarks = list[DatasetConfig](), list[str]()
    for folder in folders:
        inside = [child for child in _folders(folder) if _KOHYA.fullmatch(child.name)]
        for path in inside or [folder]:
            _refuse_overlap(path, [Path(dataset.path) for dataset in result])
            match = _KOHYA.fullmatch(path.resolve().name)
            repeats, words = (int(match[1]), match[2].strip()) if match else (1, None)
            # Names of datasets identify clips.
            own, taken = Source.from_path(path).name, {dataset.dataset_name for dataset in result}
            numbered = (f"{own}-{i}" for i in range(2, len(taken) + 3))
            name = next(candidate for candidate in (own, *numbered) if candidate not in taken)
            result.append(DatasetConfig(path=str(path), name=name, repeats=repeats, missing_caption=words))
        remarks += _left_out(folder, inside)
    return result, remarks


def _refuse_overlap(folder: Path, others: Sequence[Path]) -> None:
    resolved = folder.resolve()
    for other in others:
        taken = other.resolve()
        if resolved.is_relative_to(taken) or taken.is_relative_to(resolved):
            raise UserError(
                "it is given twice" if resolved == taken else f"one of this and {other} lies in the other",
                code="folders-overlap",
                field="--data",
                value=str(folder),
                remedy="give only the outer one; to repeat clips, set `repeats` of a [[dataset]] in the recipe",
            )


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []  # the scan reports it
    with os.scandir(folder) as entries:
        return sorted(Path(e.path) for e in entries if e.is_dir() and not e.name.startswith("."))


def _left_out(folder: Path, inside: Sequence[Path]) -> list[str]:
    """Return a remark on the contents of a folder that are outside its folders for kohya's tools, if any."""
    if not inside:
        return []
    with os.scandir(folder) as entries:
        loose = [e.name for e in entries if e.is_file() and formats.kind_of(e.name) is not None]
    others = [child.name for child in _folders(folder) if child not in inside]
    if not loose and not others:
        return []
    parts = [f"{len(loose)} file{'s' * (len(loose) > 1)}"] * bool(loose)
    parts += [f"the folder {name}" for name in others]
    return [f"left out, because {folder} has folders named REPEATS_WORDS: {', '.join(parts)}"]
