"""A run goes on from its mirror: the newest good checkpoint or an error, never a silent fresh start."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import one_save
import pytest
from checkpoint_helpers import Killed
from fsspec.implementations.memory import MemoryFileSystem
from mirror_helpers import copy, logged, new_run, place_at
from refused import refused

from reelworks.core import storage
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.mirror.fetch import bring_back
from reelworks.data.checkpoint.mirror.files import MirrorIndex, pull
from reelworks.data.checkpoint.mirror.remote import RemoteFilesystem
from reelworks.data.checkpoint.verify import verify
from reelworks.data.run.folder import RunFolder


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """A mirror with checkpoints of steps 100, 200 and 300; the run itself is gone."""
    run = new_run(tmp_path / "gone", 100, 200, 300)
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
    (one.path / "recipe.toml").write_text('output = "/old/disk/runs/one"\n', encoding="utf-8")
    copy(one, place_at(tmp_path / "mirror"), 100)
    with refused("mirror-of-another-run", "checkpoints.mirror.url", says="belongs to the run one"):
        fetch(tmp_path / "mirror", RunFolder(tmp_path / "two"))
    assert not (tmp_path / "two").exists()
    assert fetch(tmp_path / "mirror", RunFolder(tmp_path / "new" / "one"))[0] == 100
    (tmp_path / "mirror" / "recipe.toml").write_text('output = "."\n', encoding="utf-8")  # of any name
    assert fetch(tmp_path / "mirror", RunFolder(tmp_path / "three"))[0] == 100


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
        format=1, run_id="id", files={path: (size, 0) for path, size in {"run.json": 2, **stolen}.items()}
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


def test_a_run_that_is_no_mirror_is_never_written_over(tmp_path: Path) -> None:
    """Neither when a run begins nor by a copy; the run folder itself is no mirror either."""
    other = new_run(tmp_path / "other", 100, 200)
    before = one_save.listing(other.path)
    with refused("mirror-would-be-overwritten", "checkpoints.mirror.url"):
        fetch(other.path, RunFolder(tmp_path / "run"))
    told = copy(new_run(tmp_path / "mine", 100), place_at(other.path), 100, keep_last=1)
    assert told.kinds() == ["unmirrored"]
    for inside in (other.path, other.path / "checkpoints" / "copies"):
        with refused("mirror-inside-run", "checkpoints.mirror.url"):
            fetch(inside, other)
    assert one_save.listing(other.path) == before


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
    with refused("mirror-unreachable", "checkpoints.mirror.url", says="cannot be written now"):
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
        file.write_text(file.read_text(encoding="utf-8").replace('"format": 1', '"format": 2'), encoding="utf-8")
    assert fetch(tmp_path / "mirror", run) == (None, [])
    assert steps(run) == [100, 200]


def test_damaged_ones_here_do_not_count(tmp_path: Path, mirror: Path) -> None:
    run = RunFolder(tmp_path / "run")
    fetch(mirror, run)
    truncate(run.checkpoints_folder / "step-000000300")
    assert fetch(mirror, run)[0] == 300
    verify(run.checkpoints_folder / "step-000000300", full=True)
    assert len(list(run.checkpoints_folder.glob(".bad-step-000000300-*"))) == 1


def test_a_mirror_is_of_one_run(tmp_path: Path, mirror: Path) -> None:
    with refused("mirror-of-another-run", "checkpoints.mirror.url"):
        fetch(mirror, new_run(tmp_path / "another"))
    with refused("mirror-holds-a-run", "checkpoints.mirror.url"):
        fetch(mirror, RunFolder(tmp_path / "fresh"), "never")
    assert not (tmp_path / "fresh").exists()


def test_an_empty_mirror_is_no_obstacle(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    assert fetch(tmp_path / "mirror", run) == (None, [])
    assert fetch(tmp_path / "mirror", run, "never") == (None, [])
    assert not run.path.exists()


def test_two_catalogs_are_never_mixed(tmp_path: Path, mirror: Path) -> None:
    """A folder that hangs together is fetched whole, or left alone; so are files that are here, and records."""
    run = RunFolder(tmp_path / "run")
    (run.path / "catalog").mkdir(parents=True)
    (run.path / "catalog/catalog.json").write_text("[2]", encoding="utf-8")
    run.events_file.write_text("mine", encoding="utf-8")
    fetch(mirror, run)
    assert [file.name for file in (run.path / "catalog").iterdir()] == ["catalog.json"]
    assert run.events_file.read_text(encoding="utf-8") == "mine"

    other = RunFolder(tmp_path / "other")
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
    total = attempt(RunFolder(tmp_path / "0"), place, 10**9)
    for die_at in range(1, total + 1, 2):
        run = RunFolder(tmp_path / str(die_at))
        attempt(run, place, die_at)
        for step in steps(run):
            verify(run.checkpoints_folder / f"step-{step:09d}", full=True)
        assert not (steps(run) and not run.exists)  # a checkpoint without its run would be another run's
        if die_at % 5 == 0:
            bring_back(place, run, "auto")
            assert (steps(run), run.exists) == ([300], True)
