"""Ways to write captions as people really do, each with what a person would read there.

A module of this package is a kind (lists, archives, texts); its `CASES` are made by functions that write files into an empty
folder. What is right is written down by hand beside each, and nothing of it comes from the program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

PICTURES = tuple(f"{i}.png" for i in range(4))
SIZE = 32


@dataclass(frozen=True)
class Case:
    """A way to write captions.

    Attributes:
        name: What it shows, as its kind's module names it.
        write: Writes files into an empty folder; returns the path of the dataset, a folder or a list.
        expected: Caption of each clip as trained, by its path below the dataset's folder; None for a clip that is not trained,
            as it has no caption. None if the dataset is to be refused.
        says: Pattern that is in the scan's messages, or in the refusal: what a person must be told. "" for nothing.
    """

    name: str
    write: Callable[[Path], Path]
    expected: Mapping[str, str | None] | None
    says: str = ""


@dataclass
class Cases:
    """Collects the cases of a module by a decorator of the functions that write them."""

    cases: list[Case] = field(default_factory=list)

    def add(
        self, expected: Mapping[str, str | None] | None, says: str = ""
    ) -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
        """Return a decorator; the function's name is the case's."""

        def decorate(write: Callable[[Path], Path]) -> Callable[[Path], Path]:
            self.cases.append(Case(write.__name__.strip("_"), write, expected, says))
            return write

        return decorate


def pictures(folder: Path, names: Sequence[str] = PICTURES) -> None:
    """Write small pictures, each of another colour."""
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (SIZE, SIZE), (40 * i % 256, 90, 30)).save(folder / name)


def problem(case: Case, folder: Path) -> str:
    """Try a case in an empty folder; return what is wrong, "" if all is right."""
    from reelworks.core.errors import UserError

    (folder / "data").mkdir()
    place = case.write(folder / "data")
    try:
        trained, known, notes = _trained(place, folder / "catalog")
    except UserError as error:
        said = f"{error.problem} {error.remedy}"
        if case.expected is not None:
            return f"refused: {said}"
        return _unsaid(case, said)
    if case.expected is None:
        return f"not refused, but read as {trained}"
    wanted = {path: caption for path, caption in case.expected.items() if caption is not None}
    if trained != wanted:
        return f"trained {trained}, not {wanted}"
    if known != set(case.expected):
        return f"the catalog has {sorted(known)}, not {sorted(case.expected)}"
    return _unsaid(case, notes)


def _unsaid(case: Case, said: str) -> str:
    return "" if re.search(case.says, said) else f"{case.says!r} is not said: {said}"


def _trained(place: Path, catalog_folder: Path) -> tuple[dict[str, str], set[str], str]:
    """Scan a dataset and train it for an epoch; return captions as trained, all readable clips, and the scan's messages."""
    import reelworks as rw
    from reelworks.data.catalog.scan.scan import scan_sources

    config = rw.DatasetConfig(path=str(place))
    result = scan_sources([config.place], catalog_folder, workers=1)
    catalog = rw.Catalog.open(catalog_folder)
    rows = catalog.live()
    known = {path for path, good in zip(rows.path.to_pylist(), rows.readable.tolist(), strict=True) if good}
    trained: dict[str, str] = {}
    if (rows.captioned & rows.readable).any():
        entry = rw.BucketEntry(f"{SIZE}px", num_frames=[1], batch_size=[1])
        table = rw.BucketTable.from_entries([entry], geometry=rw.Geometry((4, 8, 8), (1, 2, 2)))
        dataset = rw.Dataset(catalog, table, rw.DataSpec((config,)))
        for step in rw.Loader(dataset, micro_batches_per_step=1):
            for micro_batch in step:
                trained |= dict(zip((m["path"] for m in micro_batch.metadata), micro_batch.captions, strict=True))
    return trained, known, "\n".join(result.notes)
