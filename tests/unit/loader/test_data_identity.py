"""A file is the clip that it was, whatever its dataset is called now; what was trained of it stays trained."""

from __future__ import annotations

import functools
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from catalog_rows import rows as make_rows
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reelworks.core import hash_rng
from reelworks.data.catalog.store import part_files
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.loader import identity
from reelworks.data.loader.identity import Identity, Segment
from reelworks.data.media.config import RenamedClips
from reelworks.data.schedule.cursor import Aliases, Excluded

Files = Mapping[str, str]  # content by "dataset/path"
Places = set[tuple[str, int]]


@pytest.fixture(autouse=True, scope="module")
def no_waiting_for_the_disk() -> Iterator[None]:
    """A part of a catalog never changes, so that it need not be read again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(part_files, "read_table", functools.cache(part_files.read_table))
        yield


def _of_another_process(work: Callable[[], Any]) -> Any:
    """What a rank gets of the one that called a function."""
    return pickle.loads(pickle.dumps(work()))


@dataclass
class Run:
    """Knows clips from segment to segment, as a resume does; clips go by the name of their first file."""

    folder: Path
    how: RenamedClips = "same"
    roots: dict[str, str] = field(default_factory=dict)
    former: list[Segment] = field(default_factory=list)
    older: list[Segment] = field(default_factory=list)
    found: Identity | None = None
    excluded: Excluded = field(default_factory=Excluded)
    names: dict[int, str] = field(default_factory=dict)

    def see(self, files: Files) -> dict[str, str]:
        """Scan files and begin a segment with them; returns for each which clip it is."""
        rows = (catalog := self._scan(files)).live()
        if self.former:
            self.found = identity.identify(rows, catalog, self.former, self.how, self.older, _of_another_process)
            latest = self.former[0]
            self.excluded = identity.carry_over(self.found, latest, *self.excluded.places(), self.excluded)
        aliases = self.found.aliases if self.found else Aliases()
        self.former.insert(0, Segment(catalog, rows.ordinal, aliases))
        keys = self.keys().values()
        assert len(set(keys)) == len(keys), "two files are one clip"
        for name in files:
            self.names.setdefault(_uid(name), name)
        return {name: self.names.get(key, "another") for name, key in self.keys().items()}

    def _scan(self, files: Files) -> Catalog:
        """Append rows for what is new or has another content, as a scan does."""
        catalog = Catalog.open_or_new(self.folder)
        live = catalog.live() if catalog.version else None
        old: dict[int, tuple[str, int]] = {}
        if live is not None:
            content = live.fingerprint.to_pylist()
            old = dict(zip(live.uid.tolist(), zip(content, live.ordinal.tolist(), strict=True), strict=True))
        now = {_uid(name): name for name in files}
        new = [uid for uid, name in now.items() if uid not in old or old[uid][0] != files[name]]
        retired = [o for uid, (text, o) in old.items() if uid not in now or files[now[uid]] != text]
        values = []
        for uid in new:
            dataset, path = now[uid].split("/", 1)
            where = {"dataset": dataset, "root": self.roots.get(dataset, f"/{dataset}"), "path": path}
            values.append({**where, "uid": uid, "fingerprint": files[now[uid]], "caption": path})
        if not new and not retired:
            return catalog
        self.folder.mkdir(parents=True, exist_ok=True)
        return catalog.append(make_rows(*values).to_table(), np.array(retired, dtype=np.int64), [])

    def begin_epoch(self) -> None:
        """Begin the next epoch, with the files of this one and nothing trained of them."""
        self.former, self.older = self.former[:1], self.former[1:] + self.older
        self.excluded = Excluded()

    def keys(self) -> dict[str, int]:
        """Return the key of each file of now."""
        rows = self.former[0].catalog.live()
        keys = self.former[0].keys(rows.ordinal).tolist()
        return dict(zip(rows.labels(np.arange(len(rows))), keys, strict=True))

    def lose_the_catalog(self) -> None:
        """Let the next scan make another one; the run keeps the former."""
        self.folder = self.folder.with_name(self.folder.name + "+")

    def consume(self, *places: tuple[str, int]) -> None:
        """Train files, each with a copy."""
        rows = self.former[0].catalog.live()
        uids = np.array([_uid(name) for name, _ in places], dtype=np.uint64)
        copy = np.array([copy for _, copy in places], dtype=np.int64)
        self.excluded = self.excluded.with_places(rows.ordinal[rows.find(uids)], copy)

    def consumed(self) -> Places:
        """Files of now, and copies, that count as trained."""
        ordinal, copy = self.excluded.places()
        rows = self.former[0].catalog.rows_at(ordinal)
        return set(zip(rows.labels(np.arange(len(rows))), copy.tolist(), strict=True))

    def changes(self) -> tuple[int, int, int]:
        """Clips added, removed and edited."""
        assert self.found is not None
        return self.found.added, self.found.removed, self.found.edited

    def lines(self) -> list[str]:
        assert self.found is not None
        return self.found.lines(self.how)


def _uid(name: str) -> int:
    return hash_rng.hash_int(*name.split("/", 1))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "catalog")


ONE = {"a/x": "1", "a/sub/y": "2", "a/z": "3"}


def renamed(files: Files, before: str, now: str) -> dict[str, str]:
    return {now + name.removeprefix(before): content for name, content in files.items()}


def test_nothing_changed(run: Run) -> None:
    run.see(ONE)
    assert run.see(ONE) == {name: name for name in ONE}
    assert run.changes() == (0, 0, 0)
    assert run.lines() == []
    assert not run.former[0].aliases


def test_a_renamed_dataset_has_the_clips_that_it_had(run: Run) -> None:
    run.see(ONE)
    run.consume(("a/x", 0), ("a/z", 1))
    assert run.see(renamed(ONE, "a", "b")) == {"b/x": "a/x", "b/sub/y": "a/sub/y", "b/z": "a/z"}
    assert run.consumed() == {("b/x", 0), ("b/z", 1)}
    assert run.changes() == (0, 0, 0)
    assert run.lines() == [
        "dataset `a` seems to be `b` now: 3 clips are the same files; clips already trained in this epoch are not "
        'trained again (set data.renamed_clips = "new" to train them)'
    ]
    assert run.see(renamed(ONE, "a", "c")) == {"c/x": "a/x", "c/sub/y": "a/sub/y", "c/z": "a/z"}
    assert run.see(ONE) == {name: name for name in ONE}
    assert run.consumed() == {("a/x", 0), ("a/z", 1)}
    assert not run.former[0].aliases


def test_with_renamed_clips_new_they_are_new_ones_and_that_is_told(run: Run) -> None:
    run.how = "new"
    run.see(ONE)
    run.consume(("a/x", 0))
    assert run.see(renamed(ONE, "a", "b")) == {name: name for name in renamed(ONE, "a", "b")}
    assert run.consumed() == set()
    assert run.changes() == (3, 3, 0)
    assert run.lines() == [
        "dataset `a` seems to be `b` now: 3 clips are the same files; they are trained as new clips "
        'because of data.renamed_clips = "new"'
    ]
    assert run.see(ONE) == {name: name for name in ONE}
    assert run.consumed() == {("a/x", 0)}  # they came back


def test_a_split_dataset(run: Run) -> None:
    """Into a part that keeps the name and one below another folder; and each file whose folder is gone from its path."""
    run.see(ONE)
    run.consume(("a/sub/y", 0))
    assert run.see({"a/x": "1", "b/y": "2", "c/z": "3"}) == {"a/x": "a/x", "b/y": "a/sub/y", "c/z": "a/z"}
    assert run.consumed() == {("b/y", 0)}
    assert run.changes() == (0, 0, 0)
    assert [line.split(";")[0] for line in run.lines()] == [
        "dataset `a` seems to be `b` now: 1 clip is the same file",
        "dataset `a` seems to be `c` now: 1 clip is the same file",
    ]
    assert run.see(ONE) == {name: name for name in ONE}  # and joined again


@pytest.mark.parametrize("roots_stay", [False, True])
def test_two_datasets_that_swap_their_names(run: Run, roots_stay: bool) -> None:
    """In the recipe, so that each file keeps its place on disk, or of their folders."""
    run.see({"a/x": "1", "a/y": "2", "b/x": "3", "b/z": "4"})
    run.consume(("a/x", 0), ("b/z", 0))
    if roots_stay:
        run.roots = {"a": "/b", "b": "/a"}
    assert run.see({"b/x": "1", "b/y": "2", "a/x": "3", "a/z": "4"}) == {
        "b/x": "a/x",
        "b/y": "a/y",
        "a/x": "b/x",
        "a/z": "b/z",
    }
    assert run.consumed() == {("b/x", 0), ("a/z", 0)}
    assert run.changes() == (0, 0, 0)
    assert len(run.lines()) == 2


@pytest.mark.parametrize(("before", "now"), [("1", "1"), (f"5f5e100-1-{'a' * 32}", f"5f5e100-2-{'a' * 32}")])
def test_a_file_is_known_by_its_place_on_disk_where_neither_path_nor_name_of_the_dataset_stays(
    run: Run, before: str, now: str
) -> None:
    """A dataset that there was before is given a folder below that of another one; large files were copied there."""
    run.see({"a/sub/y": before, "a/x": "2", "b/z": "3"})
    run.consume(("a/sub/y", 0))
    run.roots = {"b": "/a/sub"}
    assert run.see({"a/x": "2", "b/y": now}) == {"a/x": "a/x", "b/y": "a/sub/y"}
    assert run.consumed() == {("b/y", 0)}
    assert run.changes() == (0, 1, 0)


def test_swapped_datasets_of_equal_files_are_what_they_were(run: Run) -> None:
    run.see(files := {"a/x": "1", "b/x": "1"})
    assert run.see(files) == {"a/x": "a/x", "b/x": "b/x"}
    assert run.lines() == []


def test_a_dataset_renamed_while_files_are_edited_added_and_removed(run: Run) -> None:
    """Those of other content are edited where their path is the same, and new where they are renamed themselves."""
    run.see(files := {f"a/{i}": f"content {i}" for i in range(6)})
    run.consume(*((name, 0) for name in files))
    after = renamed(files, "a", "b") | {"b/2": "edited", "b/new": "added", "b/3x": "content 3"}
    del after["b/3"], after["b/4"]
    assert run.see(after) == {"b/0": "a/0", "b/1": "a/1", "b/2": "a/2", "b/5": "a/5", "b/new": "b/new", "b/3x": "b/3x"}
    assert run.consumed() == {("b/0", 0), ("b/1", 0), ("b/2", 0), ("b/5", 0)}
    assert run.changes() == (2, 2, 1)
    assert run.lines()[0].startswith("dataset `a` seems to be `b` now: 3 clips are")


def test_a_folder_made_a_dataset_while_some_of_its_files_are_edited(run: Run) -> None:
    """Its paths are the ends of the former ones; a name that two files had tells nothing."""
    run.see({"a/x/1": "1", "a/x/2": "2", "a/x/3": "3", "a/x/4": "4", "a/y/2": "other", "a/x/z/4": "5"})
    run.consume(("a/x/2", 0))
    after = {"ax/1": "1", "ax/2": "edited", "ax/3": "", "ax/q/4": "edited", "a/y/2": "other", "b/x/2": "b"}
    assert run.see(after) == {
        "ax/1": "a/x/1",
        "ax/2": "a/x/2",
        "ax/3": "a/x/3",
        "ax/q/4": "ax/q/4",
        "a/y/2": "a/y/2",
        "b/x/2": "b/x/2",
    }
    assert run.consumed() == {("ax/2", 0)}


def test_an_edited_file_is_the_clip_that_it_was_and_a_renamed_one_is_new(run: Run) -> None:
    run.see(ONE)
    run.consume(("a/x", 0), ("a/z", 0))
    after = {"a/x": "edited", "a/other/y": "2", "a/Z": "3"}
    assert run.see(after) == {name: name for name in after}
    assert run.consumed() == {("a/x", 0)}
    assert run.changes() == (2, 2, 1)
    assert run.lines() == []


def test_files_of_the_same_bytes_stay_as_many_clips(run: Run) -> None:
    run.see({"a/x": "same", "a/y": "same", "a/sub/x": "same"})
    run.consume(("a/y", 0))
    assert run.see({"b/x": "same", "b/y": "same", "b/sub/x": "same"}) == {
        "b/x": "a/x",
        "b/y": "a/y",
        "b/sub/x": "a/sub/x",
    }
    assert run.consumed() == {("b/y", 0)}
    assert run.see({"c/x": "same", "c/sub/x": "same"}) == {"c/x": "a/x", "c/sub/x": "a/sub/x"}
    assert run.consumed() == set()
    assert run.changes() == (0, 1, 0)
    # One more than there ever were is a new clip, and the one that was trained comes back as itself.
    assert run.see({"c/x": "same", "c/sub/x": "same", "c/y": "same", "c/w": "same"}) == {
        "c/x": "a/x",
        "c/sub/x": "a/sub/x",
        "c/y": "a/y",
        "c/w": "c/w",
    }
    assert run.consumed() == {("c/y", 0)}


def test_files_of_the_same_bytes_and_path_in_two_datasets_stay_two_clips(run: Run) -> None:
    """Nothing tells which of them is which when both datasets are renamed."""
    run.see({"a/x": "same", "b/x": "same"})
    run.consume(("a/x", 0))
    assert set(run.see({"c/x": "same", "d/x": "same"}).values()) == {"a/x", "b/x"}
    assert len(run.consumed()) == 1
    assert run.changes() == (0, 0, 0)
    assert set(run.see({"e/x": "same", "f/x": "same", "g/x": "same"}).values()) > {"a/x", "b/x"}
    assert len(run.consumed()) == 1
    assert run.changes() == (1, 0, 0)


def test_files_that_cannot_be_read_have_no_content_to_be_known_by(run: Run) -> None:
    run.see({"a/x": "", "a/y": "", "a/z": "3"})
    run.consume(("a/x", 0))
    assert run.see({"a/x": "", "a/y": "mended", "a/z": "3"}) == {"a/x": "a/x", "a/y": "a/y", "a/z": "a/z"}
    assert run.consumed() == {("a/x", 0)}
    assert run.see({"b/x": "", "a/y": "mended", "a/z": "3"}) == {"b/x": "b/x", "a/y": "a/y", "a/z": "a/z"}
    assert run.consumed() == set()


def test_a_new_file_under_the_name_of_a_clip_that_goes_by_another_is_a_new_clip(run: Run) -> None:
    """Dataset `a` is `b` now, and another `a` begins beside it."""
    run.see({"a/x": "1"})
    run.consume(("a/x", 0))
    assert run.see({"b/x": "1", "a/x": "2"}) == {"b/x": "a/x", "a/x": "another"}
    assert run.consumed() == {("b/x", 0)}
    assert run.changes() == (1, 0, 0)
    run.consume(("a/x", 0))
    assert run.see({"b/x": "1", "a/x": "edited"}) == {"b/x": "a/x", "a/x": "another"}
    assert run.consumed() == {("b/x", 0), ("a/x", 0)}


@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_a_clip_comes_back_with_its_renamed_dataset_after_epochs_without_it(run: Run, epochs: int) -> None:
    """Another file that has its first name by then is none of it, in the same epoch or a later one."""
    run.see(ONE)
    run.see({"a/z": "3"})
    for _ in range(epochs):
        run.begin_epoch()
    run.see({"b/z": "3"})
    assert run.see({"b/z": "3", "b/x": "1"}) == {"b/z": "a/z", "b/x": "a/x"}
    assert run.see({"b/z": "3", "a/x": "another file"}) == {"b/z": "a/z", "a/x": "another"}


@pytest.mark.parametrize("anew", [False, True])
def test_a_clip_that_is_gone_comes_back_as_trained_as_it_was(run: Run, anew: bool) -> None:
    """In the next segment or later, under its name or with its renamed dataset, in the same catalog or one made anew."""
    run.see(ONE)
    run.consume(("a/x", 0), ("a/x", 2), ("a/sub/y", 0))
    for after, expected in (
        ({"a/z": "3"}, set()),
        ({"a/z": "3", "a/w": "4"}, set()),
        ({"a/z": "3", "a/x": "1"}, {("a/x", 0), ("a/x", 2)}),
        ({"b/z": "3", "b/x": "1", "b/sub/y": "2"}, {("b/x", 0), ("b/x", 2), ("b/sub/y", 0)}),
        ({"b/z": "3"}, set()),
        (ONE, {("a/x", 0), ("a/x", 2), ("a/sub/y", 0)}),
    ):
        if anew:
            run.lose_the_catalog()
        run.see(after)
        assert run.consumed() == expected, after
    assert len(run.excluded.gone_key) == 0


def test_a_catalog_made_anew_has_the_same_clips(run: Run) -> None:
    run.see(ONE)
    run.consume(("a/z", 0))
    run.lose_the_catalog()
    assert run.see({"a/0": "0", **ONE}) == {name: name for name in ("a/0", *ONE)}
    assert run.consumed() == {("a/z", 0)}
    assert run.changes() == (1, 0, 0)
    assert not run.former[0].aliases


names = st.sampled_from([f"{dataset}/{path}" for dataset in "abc" for path in ("x", "y", "sub/x")])
worlds = st.dictionaries(names, st.sampled_from(["", "1", "2", "3"]), min_size=1, max_size=7)
histories = st.lists(st.tuples(worlds, st.sets(st.tuples(names, st.integers(0, 2)))), min_size=2, max_size=4)


# A clip gets the key "another file" of a name and content, leaves them, and both come back.
TWICE_ANOTHER = [
    ({"a/sub/x": "1", "a/x": "", "a/y": "", "b/x": "", "b/y": ""}, {("c/sub/x", 2), ("a/x", 1)}),
    ({"a/x": "1", "a/y": "", "b/y": "", "a/sub/x": "", "b/sub/x": "1", "c/sub/x": "3"}, set[tuple[str, int]]()),
    ({"c/x": "1", "a/x": "", "c/sub/x": ""}, set[tuple[str, int]]()),
    ({"a/x": "", "a/y": "", "a/sub/x": "", "c/sub/x": "", "b/x": "", "b/y": "", "c/x": "3"}, set[tuple[str, int]]()),
]


@settings(max_examples=settings().max_examples // 8)
@example(TWICE_ANOTHER, "same", False)
@given(histories, st.sampled_from(["same", "new"]), st.booleans())
def test_whatever_changes_each_file_is_one_clip_and_no_consumed_clip_is_lost(
    history: list[tuple[dict[str, str], Places]], how: RenamedClips, anew: bool
) -> None:
    """Files of few names and contents come, go and change in any way at once."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder, "catalog"), how)
        former: Files = {}
        last: Files = {}
        for files, trained in history:
            before = len(run.consumed()) + len(run.excluded.gone_key) if run.former else 0
            clips = run.see(files)  # which checks that each file is a clip of its own
            assert len(run.consumed()) + len(run.excluded.gone_key) == before
            if run.found is not None:
                added, removed, edited = run.changes()
                assert min(added, removed, edited) >= 0
                assert added <= len(files)
                assert removed <= len(former)
                assert all(clips[name] == last[name] for name in files if former.get(name) == files[name])
            if how == "new":
                assert clips == {name: name for name in files}
            run.consume(*(place for place in trained if place[0] in files))
            former, last = files, clips
            if anew:
                run.lose_the_catalog()


class Footage:
    """Files each of its own content, and which clip each is."""

    def __init__(self) -> None:
        self.files = {f"{dataset}/{path}": f"{dataset} {path}" for dataset in "ab" for path in ("x", "y")}
        self.clip = {name: number for number, name in enumerate(self.files)}
        self.away: dict[str, tuple[str, int]] = {}  # content and clip of files that are gone
        self.number = len(self.files)

    def change(self, kind: str, n: int) -> None:
        """Do one thing to datasets or files, of which `n` chooses one."""
        self.number += 1
        some = sorted(self.files)[n % len(self.files)]
        its = some.split("/")[0]
        if kind == "rename":
            self._move({name: _moved(name, f"new{self.number}") for name in self._of(its)})
        elif kind == "split":
            self._move({name: _moved(name, f"new{self.number}") for name in self._of(its) if name >= some})
        elif kind == "swap":
            other = sorted({name.split("/")[0] for name in self.files})[n % 2 - 1]
            turned = {name: _moved(name, its) for name in self._of(other)}
            self._move(turned | {name: _moved(name, other) for name in self._of(its)})
        elif kind == "edit":
            self.files[some] = f"content {self.number}"
        elif kind == "add":
            self.put(f"{its}/file{self.number}", f"content {self.number}", self.number)
        elif kind == "remove" and len(self.files) > 1:
            self.away[some] = self.files.pop(some), self.clip.pop(some)
        elif kind == "return" and (free := sorted(self.away.keys() - self.files.keys())):
            name = free[n % len(free)]
            self.put(name, *self.away.pop(name))

    def _of(self, dataset: str) -> list[str]:
        return [name for name in self.files if name.startswith(f"{dataset}/")]

    def _move(self, to: Mapping[str, str]) -> None:
        self.files = {to.get(name, name): content for name, content in self.files.items()}
        self.clip = {to.get(name, name): clip for name, clip in self.clip.items()}

    def put(self, name: str, content: str, clip: int) -> None:
        self.files[name], self.clip[name] = content, clip


def _moved(name: str, dataset: str) -> str:
    return f"{dataset}/{name.split('/', 1)[1]}"


changes = st.lists(
    st.tuples(
        st.sampled_from(["rename", "split", "swap", "edit", "remove", "return", "add", "train", "anew", "epoch"]),
        st.integers(0, 9),
    ),
    max_size=10,
)


@settings(max_examples=settings().max_examples // 8)
@given(changes)
@pytest.mark.slow
def test_what_is_trained_stays_trained_through_any_history(history: list[tuple[str, int]]) -> None:
    """One thing happens between two segments: then each file is known for what it was, and no other one is.

    Epochs that begin in between forget what was trained, and no file.
    """
    footage, trained, keys = Footage(), set[int](), dict[int, int]()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder, "catalog"))
        run.see(footage.files)
        for kind, n in history:
            if kind == "train":
                some = sorted(footage.files)[n % len(footage.files) :: 2]
                run.consume(*((name, 0) for name in some))
                trained |= {footage.clip[name] for name in some}
            elif kind == "anew":
                run.lose_the_catalog()
            elif kind == "epoch":
                run.begin_epoch()
                trained.clear()
            else:
                footage.change(kind, n)
                run.see(footage.files)
            known = run.keys()
            for name, clip in footage.clip.items():
                assert keys.setdefault(clip, known[name]) == known[name]
            assert len(set(keys.values())) == len(keys)
            assert run.consumed() == {(name, 0) for name, clip in footage.clip.items() if clip in trained}


def test_a_new_file_under_the_first_name_of_a_clip_that_is_gone_under_another_is_a_new_clip(run: Run) -> None:
    """Dataset `a` is `b` now, a file of it is gone, and another `a` has a file of that name."""
    run.see({"a/x": "1", "a/y": "2"})
    run.consume(("a/x", 0))
    run.see({"b/x": "1", "b/y": "2"})
    run.see({"b/y": "2"})
    run.see({"b/y": "2", "a/x": "another file"})
    assert run.consumed() == set()
    run.see({"b/y": "2", "a/x": "another file", "b/x": "1"})
    assert run.consumed() == {("b/x", 0)}
