"""The footage of a history: files that are followed through edits, moves, renames and splits by an id of their own."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drills._histories import media

Json = dict[str, Any]
GOOD, DAMAGED, CUT, LOST, GONE = "good", "damaged", "cut", "lost", "gone"
WORDS = ("cat", "dog", "tree", "boat", "house")
FOLDERS = ("x", "y")


@dataclass
class File:
    """One file, whatever it is called today.

    Attributes:
        id: Permanent.
        dataset: Key of the dataset that it lies in.
        path: Below that dataset's folder.
        content: Number of what it shows; an edit gives another.
        caption: None for none.
        score: What a list says of it.
        state: `GOOD`, `DAMAGED` where no reader can open it, `CUT` where its end is missing, `LOST` where a list
            still names it, `GONE`.
    """

    id: str
    dataset: str
    path: str
    content: int
    caption: str | None
    score: float
    state: str = GOOD

    @property
    def group(self) -> int:
        """Of near-duplicates, as a list says it: every other two files in their order are some, of the rank of their score."""
        number = int(self.id[1:])
        return number // 2 if number % 4 < 2 else 1000 + number

    @property
    def suffix(self) -> str:
        """Of its name, which tells pictures and clips apart."""
        return Path(self.path).suffix


@dataclass
class Dataset:
    """One entry of the recipe.

    Attributes:
        key: Permanent.
        name: As the recipe has it today.
        folder: Where its files lie, below the folder of all footage.
        list_name: Of the list that names its files and has their captions; None where the folder is searched.
        settings: Other keys of the recipe's entry.
        used: False while the recipe does not name it.
    """

    key: str
    name: str
    folder: str
    list_name: str | None = None
    settings: Json = field(default_factory=dict)
    used: bool = True


class Disk:
    """Files and datasets, and the folder that they lie in.

    Attributes:
        footage: Folder of all footage; it may move.
        files: By id.
        datasets: By key, in the recipe's order.
    """

    def __init__(self, footage: Path) -> None:
        self.footage = footage
        self.files: dict[str, File] = {}
        self.datasets: dict[str, Dataset] = {}
        self._contents = 0

    def add_dataset(self, dataset: Dataset) -> None:
        """Take in a dataset, without files yet."""
        self.datasets[dataset.key] = dataset
        (self.footage / dataset.folder).mkdir(parents=True, exist_ok=True)

    def add_file(self, dataset: str, chance: random.Random, *, name: str | None = None) -> File:
        """Make a file with new content and a caption; `name` is for files whose name another dataset has too."""
        suffix = media.PICTURE if chance.random() < 0.6 else media.CLIP
        if name is not None:
            suffix = Path(name).suffix
        number = len(self.files)
        identity = f"f{number:03d}"
        path = f"{chance.choice(FOLDERS)}/{identity}{suffix}" if name is None else name
        caption = None if chance.random() < 0.06 else f"{chance.choice(WORDS)} number {number}"
        file = File(identity, dataset, path, self.new_content(), caption, round(chance.uniform(0, 10), 2))
        self.files[identity] = file
        self.write(file)
        return file

    def new_content(self) -> int:
        """Return the number of a content that no file had yet."""
        self._contents += 1
        return self._contents

    def place(self, file: File) -> Path:
        """Where a file lies now."""
        return self.footage / self.datasets[file.dataset].folder / file.path

    def there(self, *, used: bool = True) -> list[File]:
        """Files that are not gone; with `used` only those of datasets that the recipe names."""
        return [f for f in self.files.values() if f.state != GONE and (not used or self.datasets[f.dataset].used)]

    def write(self, file: File) -> None:
        """Bring the disk in line with a file's state and caption."""
        place = self.place(file)
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.state in (LOST, GONE):
            place.unlink(missing_ok=True)
        else:
            place.write_bytes(self._bytes(file))
        self.write_caption(file)

    def write_caption(self, file: File) -> None:
        """Bring the text beside a file in line with its caption; lists have theirs in a column."""
        beside = self.place(file).with_suffix(".txt")
        listed = self.datasets[file.dataset].list_name is not None
        if file.caption is None or file.state == GONE or listed:
            beside.unlink(missing_ok=True)
        else:
            beside.write_text(file.caption, encoding="utf-8")

    def _bytes(self, file: File) -> bytes:
        whole = media.make(file.suffix, file.content)
        if file.state == DAMAGED:
            return b"damaged" + whole[::-1][:40]
        return whole[: len(whole) * 2 // 3] if file.state == CUT else whole

    def move(self, file: File, dataset: str, path: str) -> None:
        """Move a file into another dataset or to another path."""
        before = self.place(file)
        file.dataset, file.path = dataset, path
        after = self.place(file)
        if before != after and before.exists():
            after.parent.mkdir(parents=True, exist_ok=True)
            for end in (before.suffix, ".txt"):
                if before.with_suffix(end).exists():
                    before.with_suffix(end).rename(after.with_suffix(end))

    def move_all(self, footage: Path) -> None:
        """Move the folder of all footage."""
        shutil.move(self.footage, footage)
        self.footage = footage

    def write_lists(self) -> None:
        """Write the lists of all datasets that have one."""
        for dataset in self.datasets.values():
            if dataset.list_name is not None:
                rows = [f for f in self.files.values() if f.dataset == dataset.key and f.state != GONE]
                values = [
                    {
                        "path": f.path,
                        "text": f.caption,
                        "aes": f.score,
                        "duplicate_group": f.group,
                        "duplicate_rank": f.score,
                    }
                    for f in rows
                ]
                (self.footage / dataset.list_name).write_text(_listed(dataset.list_name, values), encoding="utf-8")

    def entries(self) -> list[Json]:
        """Entries of the recipe."""
        return [self._entry(dataset) for dataset in self.datasets.values() if dataset.used]

    def _entry(self, dataset: Dataset) -> Json:
        folder = str(self.footage / dataset.folder)
        where = {"path": folder}
        if dataset.list_name is not None:
            where = {"path": str(self.footage / dataset.list_name), "root": folder}
        return {**where, "name": dataset.name, **dataset.settings}

    def by_place(self) -> dict[str, str]:
        """Ids by the absolute path on disk."""
        return {str(self.place(file)): file.id for file in self.there(used=False)}

    def by_name(self) -> dict[str, str]:
        """Ids by "dataset/path", as reports print it, for what the recipe names."""
        return {f"{self.datasets[f.dataset].name}/{f.path}": f.id for f in self.there()}


def _listed(name: str, rows: list[Json]) -> str:
    if name.endswith(".jsonl"):
        return "".join(json.dumps(row) + "\n" for row in rows)
    columns = ("path", "text", "aes", "duplicate_group", "duplicate_rank")
    lines = [columns, *(["" if row[name] is None else row[name] for name in columns] for row in rows)]
    return "".join(",".join(map(str, line)) + "\n" for line in lines)
