"""A run goes on from its mirror: the newest good checkpoint or an error, never a silent fresh start."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import one_save
import pytest
from checkpoint_helpers import Killed, write_plain
from fsspec.implementations.memory import MemoryFileSystem
from mirror_helpers import content, copy, logged, new_run, place_at
from refused import refused

from reelworks.core import retry, storage
from reelworks.data.checkpoint import load
from reelworks.data.checkpoint.config import KeepBest
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.mirror import files
from reelworks.data.checkpoint.mirror.fetch import bring_back, replace
from reelworks.data.checkpoint.mirror.files import MirrorIndex, pull
from reelworks.data.checkpoint.mirror.remote import RemoteFilesystem
from reelworks.data.checkpoint.verify import verify
from reelworks.data.run.folder import RunFolder, RunInfo


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "WAITS_SECONDS", (0.0,))


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """A mirror with checkpoints of steps 100, 200 and 300; the run itself is gone."""
    run = new_run(tmp_path / "run", 100, 200, 300)
    copy(run, place_at(tmp_path / "mirror"), 100, 200, 300)
    shutil.rmtree(run.path)
    return tmp_path / "mirror"


def fetch(mirror: Path, run: RunFolder, resume: str = "auto") -> tuple[int | None, list[str]]:
    with logged() as said:
        return bring_back(place_at(mirror), run, resume), said


def steps(run: RunFolder) -> list[int]:
    return CheckpointFolder(run.checkpoints_folder).steps()


def leftovers(run: RunFolder) -> list[Path]:
    return [file for file in run.path.rglob(".*") if file.name != ".lock"]


def test_a_copied_recipe_does_not_become_the_run_of_its_mirror(tmp_path: Path) -> None:
    """A new run that names the address of another one has another folder's name; on a new disk, a run keeps its own."""
    one = new_run(tmp_path / "one", 100)
    copy(one, place_at(tmp_path / "mirror"), 100)
    with refused("mirror-of-another-run", "checkpoints.mirror.url", says="belongs to the run one"):
        fetch(tmp_path / "mirror", RunFolder(tmp_path / "two"))
    assert not (tmp_path / "two").exists()
    with refused("mirror-of-another-run", "checkpoints.mirror.url", says=f"belongs to the run in {one.path}"):
        fetch(tmp_path / "mirror", RunFolder(tmp_path / "new" / "one"))  # the run is still there
    shutil.rmtree(one.path)
    assert fetch(tmp_path / "mirror", RunFolder(tmp_path / "new" / "one"))[0] == 100


def test_a_run_in_the_present_folder_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a scheduler's job, which another one goes on with."""
    for job, step in (("job-1", None), ("job-2", 100)):
        (tmp_path / job).mkdir()
        monkeypatch.chdir(tmp_path / job)
        run = RunFolder(Path())
        assert fetch(tmp_path / "mirror", run)[0] == step
        if step is None:
            copy(new_run(Path(), 100), place_at(tmp_path / "mirror"), 100)
            shutil.rmtree(tmp_path / job)


def test_an_empty_disk_gets_the_newest_and_the_files_beside_it(tmp_path: Path, mirror: Path) -> None:
    run = RunFolder(tmp_path / "run")
    step, said = fetch(mirror, run)
    assert (step, steps(run)) == (300, [300])
    assert "fetching the checkpoint of step 300" in said[0]
    assert run.exists
    assert (run.path / "coverage/segment-000-000000-000/places.parquet").read_text(encoding="utf-8") == "places"
    assert CheckpointFolder(run.checkpoints_folder).is_pinned(100)
    events = [e["event"] for e in CheckpointFolder(run.checkpoints_folder).history()]
    assert events == ["mirrored"] * 3 + ["fetched"]
    assert not leftovers(run)
    assert fetch(mirror, run) == (None, [])


def test_no_file_of_a_mirror_is_written_outside_of_the_run(tmp_path: Path) -> None:
    """Names in object storage may have any parts; an index may be a stranger's."""
    store, run = MemoryFileSystem(), RunFolder(tmp_path / "runs" / "run")
    place = RemoteFilesystem(store, f"/{tmp_path.name}", "memory://mirror")
    place.write("run.json", b"{}")
    stolen = {"../outside.txt": 3, str(tmp_path / "absolute.txt"): 3, "catalog/../../outside.txt": 3}
    for path in stolen:
        store.pipe_file(f"/{tmp_path.name}/{path}", b"bad")
    index = MirrorIndex(
        token="",
        folder="",
        name="",
        run=RunInfo(id="id", created=0.0, ranks=1),
        files={path: [(size, 0)] for path, size in {"run.json": 2, **stolen}.items()},
    )
    assert pull(place, run, index) == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [run.path / "run.json"]


def test_a_named_step_is_fetched_or_nothing(tmp_path: Path, mirror: Path) -> None:
    run = RunFolder(tmp_path / "run")
    assert fetch(mirror, run, "200")[0] == 200
    assert fetch(mirror, run, "200")[0] is None
    assert fetch(mirror, run, "250")[0] is None
    assert fetch(mirror, run, "100")[0] == 100
    assert steps(run) == [100, 200]


@pytest.mark.parametrize(
    "name", ["recipe.toml", "run.json", "catalog/catalog.json", "checkpoints/step-000000001/manifest.json", "a"]
)
def test_a_place_with_other_files_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    """Neither a new run, nor one that has checkpoints, nor a copy by a mirror that was away at the start goes there."""
    file = tmp_path / "mine" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine", encoding="utf-8")
    mine = new_run(tmp_path / "run", 100, 200)
    for run in (RunFolder(tmp_path / "new"), mine):
        with refused("mirror-would-be-overwritten", "checkpoints.mirror.url", says=name.partition("/")[0]):
            fetch(tmp_path / "mine", run)
    assert copy(mine, place_at(tmp_path / "mine"), 100, keep_last=1).kinds() == ["unmirrored"]
    assert [f for f in (tmp_path / "mine").rglob("*") if f.is_file()] == [file]
    assert file.read_text(encoding="utf-8") == "mine"


def test_a_place_with_hidden_files_alone_is_empty(tmp_path: Path) -> None:
    """As a killed probe or a first write of the index leaves them, and the browser of some desktops; or a mounted disk."""
    run = new_run(tmp_path / "run", 100)
    (tmp_path / "there" / "lost+found").mkdir(parents=True)
    for name in (".probe-0123456789ab", ".mirror.json.tmp", ".DS_Store"):
        (tmp_path / "there" / name).touch()
    assert "mirrored" in copy(run, place_at(tmp_path / "there"), 100).kinds()


def test_the_run_folder_is_no_mirror_of_its_own(tmp_path: Path) -> None:
    other = new_run(tmp_path / "other", 100, 200)
    before = one_save.listing(other.path)
    for inside in (other.path, other.path / "checkpoints" / "copies"):
        with refused("mirror-inside-run", "checkpoints.mirror.url"):
            fetch(inside, other)
    assert one_save.listing(other.path) == before


@pytest.fixture
def mirrored(tmp_path: Path) -> RunFolder:
    """A run that has trained to step 300, with its mirror."""
    run = new_run(tmp_path / "run", 100, 200, 300)
    copy(run, place_at(tmp_path / "mirror"), 100, 200, 300)
    return run


@pytest.mark.parametrize("resume", ["auto", "100"])
def test_a_copy_of_a_run_folder_does_not_take_the_mirror_over(tmp_path: Path, mirrored: RunFolder, resume: str) -> None:
    other = RunFolder(shutil.copytree(mirrored.path, tmp_path / "copy"))
    before = one_save.listing(tmp_path / "mirror")
    with refused("mirror-of-another-run", "checkpoints.mirror.url", says=f"belongs to the run in {mirrored.path}"):
        fetch(tmp_path / "mirror", other, resume)
    told = copy(other, place_at(tmp_path / "mirror"), 100)  # by a mirror that was away at the start
    assert told.events[0][1]["reason"] == f"the mirror belongs to the run in {mirrored.path}"
    assert one_save.listing(tmp_path / "mirror") == before
    assert fetch(tmp_path / "mirror", mirrored)[0] is None
    assert "mirror_retention" in copy(mirrored, place_at(tmp_path / "mirror"), 300).kinds()


def test_of_two_copies_that_do_not_see_each_other_the_one_that_trained_last_keeps_the_mirror(
    tmp_path: Path, mirrored: RunFolder
) -> None:
    """As on two machines: the other one is told, and writes nothing there any more."""
    away = mirrored.path.rename(tmp_path / "away")
    other = RunFolder(shutil.copytree(away, tmp_path / "copy"))
    fetch(tmp_path / "mirror", other)
    copy(other, place_at(tmp_path / "mirror"), 300)
    other.path.rename(tmp_path / "not seen")
    before = one_save.listing(tmp_path / "mirror")
    with refused("mirror-of-another-run", "checkpoints.mirror.url", says="another copy of this run") as caught:
        fetch(tmp_path / "mirror", RunFolder(away))
    assert "an address of its own" in caught.value.remedy
    assert copy(RunFolder(away), place_at(tmp_path / "mirror"), 100).kinds() == ["unmirrored"]
    assert one_save.listing(tmp_path / "mirror") == before


def test_a_run_that_moved_keeps_its_mirror(tmp_path: Path, mirrored: RunFolder) -> None:
    for name in ("moved", "run"):
        run = RunFolder((tmp_path / name).resolve())
        mirrored.path.rename(run.path)
        assert fetch(tmp_path / "mirror", run)[0] is None
        assert "unmirrored" not in copy(run, place_at(tmp_path / "mirror"), 300).kinds()
        mirrored = run


@pytest.mark.skipif(os.name == "nt", reason="names are text there")
def test_a_run_whose_name_is_no_text_keeps_its_mirror(tmp_path: Path) -> None:
    run = new_run(Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xfcn")), 100)
    assert "mirrored" in copy(run, place_at(tmp_path / "mirror"), 100).kinds()
    shutil.rmtree(run.path)
    assert fetch(tmp_path / "mirror", run)[0] == 100
    assert "unmirrored" not in copy(run, place_at(tmp_path / "mirror"), 100).kinds()


def test_a_mirror_that_was_copied_by_hand_is_the_run_folder(tmp_path: Path, mirrored: RunFolder) -> None:
    shutil.rmtree(mirrored.path)
    run = RunFolder(shutil.copytree(tmp_path / "mirror", tmp_path / "run"))
    assert fetch(tmp_path / "mirror", run)[0] is None
    assert "unmirrored" not in copy(run, place_at(tmp_path / "mirror"), 300).kinds()


def test_a_start_that_dies_while_it_renews_its_token_keeps_the_mirror(tmp_path: Path, mirrored: RunFolder) -> None:
    """For each call to the storage, and each change of the run's disk, from which on nothing happens any more."""
    at, is_done = 0, False
    while not is_done:
        at += 1
        count = 0

        def die(*_: object, at: int = at) -> None:
            nonlocal count
            count += 1
            if count >= at:
                raise Killed

        try:
            with storage.guarded(die):
                files.push(place_at(tmp_path / "mirror", die), mirrored, f"token-{at}")
            is_done = True
        except Killed:
            pass
        files.own_index(place_at(tmp_path / "mirror"), mirrored)
    assert at > 5


def test_a_mirror_without_its_index_is_not_begun_anew(tmp_path: Path, mirrored: RunFolder) -> None:
    """The remedy, word by word, goes on from what is there; a damaged index is no run of its own either."""
    shutil.rmtree(mirrored.path)
    index = tmp_path / "mirror" / "mirror.json"
    run = RunFolder(tmp_path / "run")
    for text, code in (("", "mirror-index-damaged"), (None, "mirror-would-be-overwritten")):
        index.unlink() if text is None else index.write_text(text, encoding="utf-8")
        with refused(code, "checkpoints.mirror.url") as caught:
            fetch(tmp_path / "mirror", run)
        assert f"copy all of it to {run.path}" in caught.value.remedy
        assert not run.path.exists()
    shutil.copytree(tmp_path / "mirror", run.path)
    assert fetch(tmp_path / "another", run)[0] is None
    assert steps(run) == [100, 200, 300]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_run_that_needs_nothing_of_a_mirror_without_its_index_trains_on(
    tmp_path: Path, mirrored: RunFolder, is_lost: bool
) -> None:
    """The mirror stays as it is, and what is told, word by word, begins another one there."""
    place = tmp_path / "mirror"
    index = place / "mirror.json"
    index.unlink() if is_lost else index.write_bytes(b"X" + index.read_bytes()[1:])
    before = one_save.listing(place)
    step, said = fetch(place, mirrored)
    assert step is None
    assert ["so nothing is copied; move all that is at its address away" in line for line in said] == [True]
    assert copy(mirrored, place_at(place), 300).kinds() == ["unmirrored"]
    assert one_save.listing(place) == before
    place.rename(tmp_path / "moved away")
    assert fetch(place, mirrored) == (None, [])
    assert "mirrored" in copy(mirrored, place_at(place), 300).kinds()
    with refused("mirror-of-another-run", "checkpoints.mirror.url"):
        fetch(place, new_run(tmp_path / "another", 100))


def test_a_mirror_that_lost_run_json_brings_back_the_same_run(tmp_path: Path, mirrored: RunFolder) -> None:
    former = mirrored.info()
    shutil.rmtree(mirrored.path)
    (tmp_path / "mirror" / "run.json").unlink()
    assert fetch(tmp_path / "mirror", mirrored)[0] == 300
    assert mirrored.info() == former


def grow(run: RunFolder, *, anew: bool) -> None:
    """Do what a next start does to the files of a run: the data grew, or were scanned `anew` into another catalog."""
    run.keep_recipe("version = 1\nseed = 8\n")
    with run.events_file.open("a", encoding="utf-8") as f:
        f.write('{"kind": "start"}\n')
    for name, text in {
        "coverage/segment-000-000000-001/places.parquet": "other places",
        "coverage/segment-000-000000-001/about.json": "{ }",
        "coverage/segment-000-000000-000/outcome.json": "{}",
        "coverage/catalog-000/part-000001.parquet": "more rows",
        "coverage/catalog-000/catalog.json": "[1, 2]",
        f"catalog/part-00000{0 if anew else 1}.parquet": "other rows",
        "catalog/catalog.json": "[3]" if anew else "[1, 2]",
    }.items():
        (run.path / name).parent.mkdir(exist_ok=True)
        (run.path / name).write_text(text, encoding="utf-8")


def records(run: RunFolder) -> dict[str, bytes]:
    """What a resume after changes needs of a run folder."""
    wanted = ("coverage/", "catalog/", "recipe", "events", "run.json")
    return {path: data for path, data in content(run.path).items() if path.startswith(wanted) and "/." not in path}


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.quick_cases(1)
def test_wherever_a_push_dies_what_is_brought_back_is_whole(tmp_path: Path, mirrored: RunFolder, anew: bool) -> None:
    """For each call: each file is the former or the new one, nothing of the former is lost, and no catalogs are mixed."""
    former = records(mirrored)
    grow(mirrored, anew=anew)
    new, at, is_done = records(mirrored), 0, False
    while not is_done:
        at += 1

        def die(call: int, name: str, at: int = at) -> None:
            if call >= at:
                raise Killed

        place, run = place_at(tmp_path / f"mirror-{at}", die), RunFolder(tmp_path / f"run-{at}")
        shutil.copytree(tmp_path / "mirror", tmp_path / f"mirror-{at}")
        with suppress(Killed):
            files.push(place, mirrored, "token")
            is_done = True
        place = place_at(tmp_path / f"mirror-{at}")
        bad = pull(place, run, MirrorIndex.model_validate_json(place.read(files.INDEX) or b""))
        found = records(run)
        assert all(data in (former.get(path), new.get(path)) for path, data in found.items())
        assert found.keys() >= {path for path in former if not (anew and path.startswith("catalog/"))}
        for marker in ("catalog/catalog.json", "coverage/catalog-000/catalog.json"):
            whole = [state for state in (former, new) if state[marker] == found.get(marker)]
            assert (
                {p: d for p, d in whole[0].items() if p.startswith(marker[:-12])}.items() <= found.items()
                if whole
                else anew
            )  # between two catalogs there is none
        assert not bad
        shutil.rmtree(tmp_path / f"mirror-{at}")
    assert found == new
    assert at > 10


def truncate(folder: Path) -> None:
    (folder / "cursor.json").write_bytes(b"")


def flip(folder: Path) -> None:
    (folder / "tensors/rank-00000.safetensors").write_bytes(bytes(200))


def forge(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"format": 1}', encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "cursor.json has 0 bytes"),
        (flip, "rank-00000.safetensors has changed since"),
        (forge, "changed after it was written"),
    ],
)
def test_a_bad_one_is_passed_over_with_its_reason(
    tmp_path: Path, mirror: Path, damage: Callable[[Path], None], reason: str
) -> None:
    run = RunFolder(tmp_path / "run")
    damage(mirror / "checkpoints/step-000000300")
    step, said = fetch(mirror, run)
    assert (step, steps(run)) == (200, [200])
    assert any("step 300 in the mirror is skipped" in line and reason in line for line in said)
    assert not leftovers(run)


@pytest.mark.parametrize("spoilt", ["a file that arrives short", "a wrong byte in a checkpoint"])
def test_bytes_that_go_wrong_once_on_the_way_are_no_damage(tmp_path: Path, mirror: Path, spoilt: str) -> None:
    """For each download: the newest checkpoint is brought back as it was saved, and what is in the mirror stays there."""
    before, at, done = content(mirror), 0, False
    while not done:
        at += 1
        place, run, count = place_at(mirror), RunFolder(tmp_path / str(at) / "run"), 0
        real = place._fs._real

        def is_spoilt(path: str, at: int = at) -> bool:
            nonlocal count
            counts = "short" in spoilt or "checkpoints/step-" in path
            count += counts
            return counts and count == at

        def get_file(path: str, file: str, real: Any = real) -> None:
            type(real).get_file(real, path, file)
            if is_spoilt(path):
                data = Path(file).read_bytes()
                Path(file).write_bytes(data[:-1] if "short" in spoilt else data[:-1] + bytes([data[-1] ^ 1]))

        def cat_file(path: str, real: Any = real) -> bytes:
            data = bytes(type(real).cat_file(real, path))
            wrong = path.endswith("manifest.json") and "byte" in spoilt and is_spoilt(path)
            return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:] if wrong else data

        real.get_file, real.cat_file = get_file, cat_file
        assert bring_back(place, run, "auto") == 300
        verify(run.checkpoints_folder / "step-000000300", full=True)
        here = content(run.path)
        assert all(here[path] == data for path, data in before.items() if path.startswith(("coverage/", "catalog/")))
        assert content(mirror) == before
        done = count < at
    assert at > 3


@pytest.mark.parametrize("kind", ["cat_file", "ls", "pipe_file", "rm_file", "info", "get_file"])
def test_storage_that_fails_once_ends_no_start(tmp_path: Path, mirror: Path, kind: str) -> None:
    """As with a client that makes no retries of its own."""
    calls = []

    def fail(call: int, name: str) -> None:
        calls.append(name)
        if name == kind and calls.count(name) == 1:
            raise TimeoutError(name)

    run = RunFolder(tmp_path / "run")
    assert bring_back(place_at(mirror, fail), run, "auto") == 300
    assert (run.path / "coverage/segment-000-000000-000/places.parquet").exists()
    assert kind in calls


def test_one_without_a_manifest_is_none(tmp_path: Path, mirror: Path) -> None:
    (mirror / "checkpoints/step-000000300/manifest.json").unlink()
    assert fetch(mirror, RunFolder(tmp_path / "run"))[0] == 200


def test_all_bad_is_an_error(tmp_path: Path, mirror: Path) -> None:
    run = RunFolder(tmp_path / "run")
    for folder in (mirror / "checkpoints").glob("step-*"):
        flip(folder)
    for _ in range(2):  # and stays one
        with refused("mirror-without-good-checkpoint", "checkpoints.mirror.url", says="step 300"):
            fetch(mirror, run)
        assert steps(run) == []


def test_storage_that_does_not_answer_is_an_error_only_where_it_is_needed(tmp_path: Path, mirror: Path) -> None:
    def fail(call: int, name: str) -> None:
        raise ConnectionError("away")

    away = place_at(mirror, fail)
    with refused("mirror-unreachable", "checkpoints.mirror.url", says="cannot be read now"):
        bring_back(away, RunFolder(tmp_path / "run"), "auto")
    assert bring_back(away, new_run(tmp_path / "with one", 100), "auto") is None

    def deny_checkpoints(call: int, name: str) -> None:
        if name == "ls":
            raise PermissionError("Access Denied")

    with refused("mirror-unreachable", "checkpoints.mirror.url"):
        bring_back(place_at(mirror, deny_checkpoints), RunFolder(tmp_path / "run"), "auto")


def test_what_a_newer_version_saved_here_is_left_to_the_resume_which_says_so(tmp_path: Path) -> None:
    """It may be good, and the newest: nothing older is fetched in its place, and the mirror is not even asked."""
    run = new_run(tmp_path / "run", 100, 200)
    copy(run, place_at(tmp_path / "mirror"), 100)
    for step in (100, 200):
        file = run.checkpoints_folder / f"step-000000{step}" / "manifest.json"
        file.write_text(file.read_text(encoding="utf-8").replace('"format": 2', '"format": 3'), encoding="utf-8")
    assert fetch(tmp_path / "mirror", run) == (None, [])
    assert steps(run) == [100, 200]


def test_damaged_ones_here_do_not_count(tmp_path: Path, mirror: Path) -> None:
    run = RunFolder(tmp_path / "run")
    fetch(mirror, run)
    truncate(run.checkpoints_folder / "step-000000300")
    assert fetch(mirror, run)[0] == 300
    verify(run.checkpoints_folder / "step-000000300", full=True)
    assert len(list(run.checkpoints_folder.glob(".bad-step-000000300-*"))) == 1


@pytest.mark.parametrize("damage", [truncate, forge])
def test_a_damaged_one_here_is_replaced_before_training_goes_back_to_an_older_one(
    tmp_path: Path, mirrored: RunFolder, damage: Callable[[Path], None]
) -> None:
    damage(mirrored.checkpoints_folder / "step-000000300")
    assert fetch(tmp_path / "mirror", mirrored)[0] == 300
    verify(mirrored.checkpoints_folder / "step-000000300", full=True)
    assert steps(mirrored) == [100, 200, 300]


def test_one_that_proves_damaged_while_it_is_read_is_replaced_once(tmp_path: Path, mirrored: RunFolder) -> None:
    """Where the mirror's copy is damaged too, or of another save of the step, the next older one is taken."""
    store = CheckpointFolder(mirrored.checkpoints_folder)

    def newest() -> tuple[int, list[str]]:
        with logged() as said:
            found = load.load_newest(
                store,
                lambda info: verify(info.path, full=True),
                quarantine=True,
                repair=partial(replace, place_at(tmp_path / "mirror"), store),
            )
        assert found is not None
        return found[0].step, said

    flip(store.path(300))
    assert newest()[0] == 300
    assert store.steps() == [100, 200, 300]
    for folder in (store.path(300), tmp_path / "mirror" / "checkpoints" / "step-000000300"):
        flip(folder)
    step, said = newest()
    assert (step, store.steps()) == (200, [100, 200])
    assert any("step 300 is not brought back" in line for line in said)
    store.quarantine(200, "for the test")
    flip(write_plain(store, 200, save_id="another"))
    assert newest()[0] == 100


def test_the_best_comes_back_with_the_newest(tmp_path: Path) -> None:
    run, best = new_run(tmp_path / "run"), KeepBest(metric="loss")
    store = CheckpointFolder(run.checkpoints_folder)
    for step, loss in ((100, 3.0), (200, 1.0), (300, 2.0), (400, 4.0)):
        write_plain(store, step, {"loss": loss}, save_id=str(step))
    copy(run, place_at(tmp_path / "mirror"), 100, 200, 300, 400, keep_last=2, keep_best=best)
    for damage, expected in ((None, [200, 400]), (flip, [400])):
        shutil.rmtree(run.path)
        if damage is not None:
            damage(tmp_path / "mirror/checkpoints/step-000000200")
        with logged() as said:
            assert bring_back(place_at(tmp_path / "mirror"), run, "auto", best) == 400
        assert steps(run) == expected
        assert any("step 200 is not brought back" in line for line in said) == (damage is not None)


def test_a_mirror_is_of_one_run(tmp_path: Path, mirror: Path) -> None:
    with refused("mirror-of-another-run", "checkpoints.mirror.url"):
        fetch(mirror, new_run(tmp_path / "another"))
    with refused("mirror-holds-a-run", "checkpoints.mirror.url"):
        fetch(mirror, RunFolder(tmp_path / "fresh" / "run"), "never")
    assert not (tmp_path / "fresh").exists()


def test_an_empty_mirror_is_no_obstacle(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    assert fetch(tmp_path / "mirror", run) == (None, [])
    assert fetch(tmp_path / "mirror", run, "never") == (None, [])
    assert not run.path.exists()


@pytest.mark.parametrize("resume", ["auto", "never"])
def test_a_run_that_lost_its_disk_in_its_first_upload_begins_anew_with_its_mirror(
    tmp_path: Path, mirror: Path, resume: str
) -> None:
    for manifest in (mirror / "checkpoints").glob("*/manifest.json"):
        manifest.unlink()
    run = RunFolder(tmp_path / "run")
    assert fetch(mirror, run, resume) == (None, ["warning: the mirror has no checkpoint: the run begins anew"])
    assert [file.name for file in run.path.iterdir()] == ["run.json"]
    write_plain(CheckpointFolder(run.checkpoints_folder), 100)
    copy(run, place_at(mirror), 100)
    assert place_at(mirror).complete(100)


def test_two_catalogs_are_never_mixed(tmp_path: Path, mirror: Path) -> None:
    """A folder that hangs together is fetched whole, or left alone; so are files that are here, and records."""
    run = RunFolder(tmp_path / "run")
    (run.path / "catalog").mkdir(parents=True)
    (run.path / "catalog/catalog.json").write_text("[2]", encoding="utf-8")
    run.events_file.write_text("mine", encoding="utf-8")
    fetch(mirror, run)
    assert [file.name for file in (run.path / "catalog").iterdir()] == ["catalog.json"]
    assert run.events_file.read_text(encoding="utf-8") == "mine"

    shutil.rmtree(run.path)
    other = RunFolder(tmp_path / "other" / "run")
    record = "coverage/segment-000-000000-000"
    for lost in ("catalog/part-000000.parquet", f"{record}/places.parquet"):
        (mirror / lost).unlink()
    _, said = fetch(mirror, other)
    for lost, last in (
        ("catalog/part-000000.parquet", "catalog/catalog.json"),
        (f"{record}/places.parquet", f"{record}/about.json"),
    ):
        assert not (other.path / last).exists()
        assert any(f"lost {lost}" in line for line in said)
    assert (other.coverage_folder / "catalog-000/part-000000.parquet").read_text(encoding="utf-8") == "rows"


def test_wherever_a_fetch_dies_the_next_one_completes_it(tmp_path: Path, mirror: Path) -> None:
    """For each change of the disk: a process that dies at it leaves no checkpoint or a whole one."""

    def attempt(run: RunFolder, place: RemoteFilesystem, die_at: int) -> int:
        count = 0

        def guard(call: str, path: Path) -> None:
            nonlocal count
            count += 1
            if count >= die_at:
                raise Killed

        try:
            with storage.guarded(guard):
                bring_back(place, run, "auto")
        except Killed:
            pass
        return count

    place = place_at(mirror)
    total = attempt(RunFolder(tmp_path / "0" / "run"), place, 10**9)
    for die_at in range(1, total + 1, 2):
        run = RunFolder(tmp_path / str(die_at) / "run")
        attempt(run, place, die_at)
        for step in steps(run):
            verify(run.checkpoints_folder / f"step-{step:09d}", full=True)
        assert not (steps(run) and not run.exists)  # a checkpoint without its run would be another run's
        if die_at % 5 == 0:
            bring_back(place, run, "auto")
            assert (steps(run), run.exists) == ([300], True)
