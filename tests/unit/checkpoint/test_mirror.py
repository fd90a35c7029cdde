"""A mirror shows whole checkpoints only, follows its own policy, and never gets in the way of a training."""

from __future__ import annotations

import json
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from checkpoint_helpers import write_plain
from fsspec.implementations.memory import MemoryFileSystem
from mirror_helpers import Told, content, copy, dying_from, logged, mirror_of, new_run, place_at, shown
from refused import refused

from reelworks.core import digests
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import manifest
from reelworks.data.checkpoint.config import MirrorConfig
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.mirror import fetch, files
from reelworks.data.checkpoint.mirror import mirror as mirrors
from reelworks.data.checkpoint.mirror.remote import ABANDONED, RemoteFilesystem, folder_of
from reelworks.data.checkpoint.verify import verify


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "WAITS_SECONDS", (0.0, 0.0))


@pytest.fixture
def lines() -> Iterator[list[str]]:
    with logged() as lines:
        yield lines


def test_a_copy_equals_the_checkpoint_and_has_what_a_resume_needs_beside_it(tmp_path: Path) -> None:
    """Names and bytes are those of the run folder; what can be made again, or is not whole, is not copied."""
    run, there = new_run(tmp_path / "run", 100), tmp_path / "mirror"
    told = copy(run, RemoteFilesystem.open(MirrorConfig(url=f"file://{there}")), 100)
    assert content(there / "checkpoints/step-000000100") == content(run.checkpoints_folder / "step-000000100")
    assert told.kinds() == ["mirrored", "mirror_retention"]
    here = content(run.path)
    copied = {name for name, data in content(there).items() if here.get(name) == data}
    assert copied >= {"run.json", "recipe.toml", "events.jsonl", "catalog/catalog.json", "plan/summary.json"}
    assert copied >= {f"coverage/segment-000-000000-000/{name}" for name in ("places.parquet", "about.json")}
    assert copied >= {"coverage/catalog-000/catalog.json", "checkpoints/pins/step-000000100"}
    left_here = ("previews", "tensorboard", "lock", "plan/plan", "tmp")
    assert not [name for name in content(there) if any(word in name for word in left_here)]


def test_files_that_change_are_copied_again_and_those_that_go_are_removed(tmp_path: Path) -> None:
    run, there = new_run(tmp_path / "run", 100, 200), tmp_path / "mirror"
    copy(run, place_at(there), 100)
    record = run.coverage_folder / "segment-000-000000-000"
    record.rename(record.with_name("segment-000-000001-000"))
    run.events_file.write_text('{"kind": "start"}\n{"kind": "step"}\n', encoding="utf-8")
    copy(run, place_at(there), 200)
    assert (there / "events.jsonl").read_bytes() == run.events_file.read_bytes()
    assert {f.parent.name for f in there.rglob("places.parquet")} == {"segment-000-000001-000"}


def test_the_mirror_keeps_by_its_own_policy_and_the_history_says_why(tmp_path: Path) -> None:
    run, there = new_run(tmp_path / "run"), tmp_path / "mirror"
    store = CheckpointFolder(run.checkpoints_folder)
    for step, loss in ((100, 0.9), (200, 0.1), (300, 0.8), (400, 0.7), (500, 0.6)):
        write_plain(store, step, {"validation/loss": loss}, save_id=str(step))
    copy(run, place_at(there), 100, 200, 300, 400, 500, keep_last=1)
    # The newest, the best, and the one with a pin here.
    assert shown(place_at(there)) == [100, 200, 500]
    deleted = {e["step"]: e["reasons"] for e in store.history() if e["event"] == "mirror_deleted"}
    assert list(deleted) == [300, 400]
    assert any("not among the last 1" in reason for reason in deleted[300])
    assert store.steps() == [100, 200, 300, 400, 500]


def test_a_score_that_came_late_counts_though_its_checkpoint_is_gone_here(tmp_path: Path) -> None:
    run, there = new_run(tmp_path / "run", 200, 300, 400), tmp_path / "mirror"
    store = CheckpointFolder(run.checkpoints_folder)
    copy(run, place_at(there), 200)
    store.record_metrics(200, {"validation/loss": 0.5})
    store.remove(200, ("for the test",))
    copy(run, place_at(there), 300, 400, keep_last=1)
    assert shown(place_at(there)) == [200, 400]


def test_the_newest_wins_and_what_is_copied_is_in_use(tmp_path: Path, lines: list[str]) -> None:
    run, told = new_run(tmp_path / "run", 100, 200, 300), Told()
    entered, free = threading.Event(), threading.Event()

    def wait(call: int, name: str) -> None:
        entered.set()
        assert free.wait(120)

    mirror = mirror_of(run, place_at(tmp_path / "mirror", wait), told)
    mirror.offer(100)
    assert entered.wait(120)
    mirror.offer(200)
    assert mirror.in_use() == {100, 200}
    mirror.offer(300)
    assert mirror.in_use() == {100, 300}
    free.set()
    assert mirror.close() is None
    assert not mirror.in_use()
    assert shown(place_at(tmp_path / "mirror")) == [100, 300]
    assert ("mirror_skipped", {"step": 200, "newer": 300}) in told.events
    assert any("step 300 is in the mirror" in line for line in lines)  # what the end waits for


def test_a_newer_one_ends_the_tries_for_an_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "WAITS_SECONDS", (10.0,))
    run, told, failed = new_run(tmp_path / "run", 100, 200), Told(), threading.Event()

    def fail_once(call: int, name: str) -> None:
        if not failed.is_set():
            failed.set()
            raise OSError("away")

    mirror = mirror_of(run, place_at(tmp_path / "mirror", fail_once), told)
    mirror.offer(100)
    assert failed.wait(120)
    mirror.offer(200)
    assert mirror.close() is None
    assert told.kinds()[0] == "mirror_skipped"
    assert shown(place_at(tmp_path / "mirror")) == [200]


def test_one_failure_anywhere_costs_nothing(tmp_path: Path) -> None:
    """For each call to the storage: if it fails once, the checkpoint is mirrored all the same."""
    run = new_run(tmp_path / "run", 100)
    counted = place_at(tmp_path / "0")
    copy(run, counted, 100)
    for at in range(1, counted._fs.calls + 1):

        def fail(call: int, name: str, at: int = at) -> None:
            if call == at:
                raise TimeoutError(name)

        told = copy(run, place_at(tmp_path / str(at), fail), 100)
        assert shown(place_at(tmp_path / str(at))) == [100]
        assert "unmirrored" not in told.kinds(), at


def denied_while(away: list[bool]) -> Callable[[int, str], None]:
    """What storage does that refuses every call until it is back."""

    def fail(call: int, name: str) -> None:
        if away[0]:
            raise PermissionError("Access Denied")

    return fail


def test_storage_that_stays_away_is_told_and_ends_nothing(tmp_path: Path, lines: list[str]) -> None:
    run, told, away = new_run(tmp_path / "run", 100, 200), Told(), [True]
    mirror = mirror_of(run, place_at(tmp_path / "mirror", denied_while(away)), told)
    mirror.offer(100)
    failure = mirror.close()
    assert failure is not None
    assert "step 100 is not in the mirror" in failure
    assert told.events == [("unmirrored", {"step": 100, "reason": "PermissionError: Access Denied"})]
    assert f"warning: {failure}" in lines
    away[0] = False
    mirror = mirror_of(run, place_at(tmp_path / "mirror", denied_while(away)), told)
    mirror.offer(200)
    assert mirror.close() is None


def test_what_failed_before_is_made_good_by_the_next_checkpoint(tmp_path: Path) -> None:
    """A run whose last checkpoint is in the mirror ends without an error, whatever became of earlier ones."""
    run, told, away = new_run(tmp_path / "run", 100, 200), Told(), [True]
    mirror = mirror_of(run, place_at(tmp_path / "mirror", denied_while(away)), told)
    mirror.offer(100)
    until = time.monotonic() + 120
    while not told.events and time.monotonic() < until:
        time.sleep(0.001)
    assert told.kinds() == ["unmirrored"]
    away[0] = False
    mirror.offer(200)
    assert mirror.close() is None
    assert shown(place_at(tmp_path / "mirror")) == [200]


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.quick_cases(1)
def test_wherever_an_upload_dies_no_half_checkpoint_is_shown(tmp_path: Path, torn: bool) -> None:
    """For each call: if nothing happens from it on (or a half of it), what is shown is whole; the next start heals."""
    run = new_run(tmp_path / "run", 200, 300)

    def history(place: RemoteFilesystem) -> None:
        copy(run, place, 200, 300, keep_last=1, keep_best=None)

    names = [""]
    history(place_at(tmp_path / "0", lambda call, name: names.append(name)))
    seen = set()
    for at in range(1, len(names)):
        if torn and names[at] not in ("put_file", "pipe_file"):
            continue
        there = tmp_path / str(at)
        place = place_at(there, dying_from(at + torn))
        if torn:
            _tear(place, at)
        history(place)
        seen.add(tuple(shown(place_at(there))))
        if torn or at % 5 == 0:
            history(place_at(there))
            assert shown(place_at(there)) == [300]
            assert place_at(there).steps() == [300]
    assert seen - {(200, 300)} == {(), (200,), (300,)}
    assert torn or (200, 300) in seen


def _tear(place: RemoteFilesystem, at: int) -> None:
    real = place._fs._real

    def put_file(source: str, target: str) -> None:
        data = Path(source).read_bytes()
        if place._fs.calls == at:
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            Path(target).write_bytes(data[: len(data) // 2])
            raise OSError("torn")
        type(real).put_file(real, source, target)

    def pipe_file(target: str, data: bytes) -> None:
        torn = place._fs.calls == at
        type(real).pipe_file(real, target, data[: len(data) // 2] if torn else data)
        if torn:
            raise OSError("torn")

    real.put_file, real.pipe_file = put_file, pipe_file


@pytest.mark.parametrize("often", [1, 9])
def test_a_file_that_arrives_short_is_copied_again_and_never_gets_a_manifest(tmp_path: Path, often: int) -> None:
    run, place, arrived = new_run(tmp_path / "run", 100), place_at(tmp_path / "mirror"), 0
    real = place._fs._real

    def put_file(source: str, target: str) -> None:
        nonlocal arrived
        type(real).put_file(real, source, target)
        if ".safetensors" in target and (arrived := arrived + 1) <= often:
            Path(target).write_bytes(b"short")

    real.put_file = put_file
    told = copy(run, place, 100)
    if often == 1:
        assert place.complete(100)
    else:
        reason = f"OSError: {folder_of(100)}/tensors/rank-00000.safetensors did not arrive whole"
        assert told.events[0] == ("unmirrored", {"step": 100, "reason": reason})
        assert place.steps() == []


def test_a_log_that_grows_while_it_is_copied_arrived_whole(tmp_path: Path) -> None:
    run, place = new_run(tmp_path / "run", 100), place_at(tmp_path / "mirror")
    real = place._fs._real

    def put_file(source: str, target: str) -> None:
        type(real).put_file(real, source, target)
        if source == str(run.events_file):
            with run.events_file.open("a", encoding="utf-8") as file:
                file.write('{"kind": "step"}\n')

    real.put_file = put_file
    assert "unmirrored" not in copy(run, place, 100).kinds()
    assert place.complete(100)


def test_what_was_just_copied_is_there_though_no_listing_shows_it_yet(tmp_path: Path) -> None:
    """Nor does it pass for the leftover of a dead process, or for lost when it is brought back."""
    run, place, lagging = (
        new_run(tmp_path / "run", 100, 200),
        place_at(tmp_path / "mirror"),
        place_at(tmp_path / "mirror"),
    )
    lagging._fs._real.find = lambda path, **keys: {} if keys.get("detail") else []
    for step in (100, 200):
        assert "mirrored" in copy(run, lagging, step).kinds()
    assert shown(place) == [100, 200]
    shutil.rmtree(run.path)
    with logged() as said:
        assert fetch.bring_back(lagging, run, "auto") == 200
    assert [line for line in said if "warning" in line] == []


@pytest.mark.parametrize("left_by", ["a failed upload", "a process that died"])
def test_what_broke_off_takes_no_room_of_later_copies(tmp_path: Path, left_by: str) -> None:
    """On a disk for two and a half checkpoints, as keep_last = 1 needs two: every copy after the one that failed fits."""
    run, place = new_run(tmp_path / "run", 100, 200, 300, 400), place_at(tmp_path / "mirror")
    (run.checkpoints_folder / "pins" / "step-000000100").unlink()
    copy(run, place, 100)
    if left_by == "a process that died":
        shutil.copytree(run.checkpoints_folder / "step-000000200", tmp_path / "mirror" / folder_of(200))
        (tmp_path / "mirror" / folder_of(200) / manifest.FILE_NAME).unlink()
    real = place._fs._real

    def put_file(source: str, target: str) -> None:
        tensors = [*(tmp_path / "mirror").rglob("*.safetensors")]
        if (".safetensors" in target and len(tensors) >= 2) or "200/.manifest.json." in target:
            raise OSError("Disk quota exceeded")
        type(real).put_file(real, source, target)

    real.put_file = put_file
    steps = (200, 300, 400) if left_by == "a failed upload" else (300, 400)
    told = copy(run, place, *steps, keep_last=1, keep_best=None)
    assert [fields["step"] for kind, fields in told.events if kind == "mirrored"] == [300, 400]
    assert place.steps() == [400]


def test_a_leftover_that_cannot_be_deleted_ends_no_copy(tmp_path: Path) -> None:
    run, place = new_run(tmp_path / "run", 100, 200), place_at(tmp_path / "mirror")
    copy(run, place, 100)
    place.remove_file(f"{folder_of(100)}/{manifest.FILE_NAME}")
    real = place._fs._real

    def rm_file(path: str) -> None:
        if folder_of(100) in path:
            raise PermissionError("Access Denied")
        type(real).rm_file(real, path)

    real.rm_file = rm_file
    assert "mirrored" in copy(run, place, 200).kinds()
    assert place.steps() == [100, 200]


def test_a_step_that_was_saved_anew_replaces_the_former(tmp_path: Path) -> None:
    run, place = new_run(tmp_path / "run", 100), place_at(tmp_path / "mirror")
    store = CheckpointFolder(run.checkpoints_folder)
    assert copy(run, place, 100).kinds() == ["mirrored", "mirror_retention"]
    assert copy(run, place, 100).kinds() == ["mirror_retention"]  # it is there
    store.quarantine(100, "for the test")
    write_plain(store, 100, save_id="another")
    assert copy(run, place, 100).kinds() == ["mirrored", "mirror_retention"]
    assert place.complete(100).save_id == "another"


def test_a_former_save_of_the_step_never_lends_its_manifest(tmp_path: Path) -> None:
    """For each call: an upload over another save of equal sizes that dies shows the one, or none, never a mixture."""
    run = new_run(tmp_path / "run", 100)
    store = CheckpointFolder(run.checkpoints_folder)
    copy(run, place_at(tmp_path / "0"), 100)
    store.quarantine(100, "for the test")
    folder = write_plain(store, 100, save_id="another")
    entries = []
    for entry in manifest.read(folder).files:
        (folder / entry.path).write_bytes(bytes(entry.size))
        entries.append(entry.model_copy(update={"digest": digests.of_bytes(bytes(entry.size))}))
    manifest.write(folder, manifest.read(folder).model_copy(update={"files": tuple(entries)}))
    at, kinds = 0, ["unmirrored"]
    while "unmirrored" in kinds:
        at += 1
        there = Path(shutil.copytree(tmp_path / "0", tmp_path / str(at)))
        kinds = copy(run, place_at(there, dying_from(at)), 100).kinds()
        for step in shown(place_at(there)):
            verify(there / folder_of(step), full=True)
    assert at > 10


def test_while_a_step_is_saved_anew_the_one_that_training_began_from_stays(tmp_path: Path) -> None:
    """For each call, and with a policy of one: a mirror that loses the storage has a checkpoint."""
    run = new_run(tmp_path / "run", 100, 200)
    (run.checkpoints_folder / "pins" / "step-000000100").unlink()
    store, of_one = CheckpointFolder(run.checkpoints_folder), {"keep_last": 1, "keep_best": None}
    copy(run, place_at(tmp_path / "0"), 100, 200, **of_one)
    assert shown(place_at(tmp_path / "0")) == [200]
    store.quarantine(200, "abandoned")
    store.log("went_back", 100)
    copy(run, place_at(tmp_path / "0"), 100, **of_one)  # as a start offers it
    write_plain(store, 200, save_id="of the new branch")
    store.record_saved(store.info(200), 0.0)
    at, kinds = 0, ["unmirrored"]
    while "unmirrored" in kinds:
        at += 1
        there = Path(shutil.copytree(tmp_path / "0", tmp_path / str(at)))
        kinds = copy(run, place_at(there, dying_from(at)), 200, **of_one).kinds()
        assert shown(place_at(there))
    assert at > 10


def test_what_the_run_went_back_behind_is_set_aside(tmp_path: Path) -> None:
    """A later checkpoint of an abandoned branch no longer passes for the newest, and its files stay."""
    run, place = new_run(tmp_path / "run", 100, 200, 300), place_at(tmp_path / "mirror")
    copy(run, place, 100, 200, 300)
    store = CheckpointFolder(run.checkpoints_folder)
    for step in (200, 300):
        store.quarantine(step, "abandoned")
    store.log("went_back", 100)
    copy(run, place, 100)
    assert shown(place) == [100]
    assert place.size(f"{folder_of(300)}/{ABANDONED}")
    write_plain(store, 200, save_id="of the new branch")
    store.record_saved(store.info(200), 0.0)
    copy(run, place, 200)
    assert shown(place) == [100, 200]
    store.log("went_back", 200)  # to the checkpoint itself, which is no way behind it
    store.quarantine(200, "damaged")
    copy(run, place, 100)  # which nobody has left for 100
    assert shown(place) == [100, 200]


def test_what_the_run_went_back_behind_is_set_aside_though_the_first_copy_is_of_a_later_save(tmp_path: Path) -> None:
    run, place = new_run(tmp_path / "run", 100, 200), place_at(tmp_path / "mirror")
    copy(run, place, 100, 200)
    store = CheckpointFolder(run.checkpoints_folder)
    store.quarantine(200, "abandoned")
    store.log("went_back", 100)
    write_plain(store, 110, save_id="of the new branch")
    store.record_saved(store.info(110), 0.0)
    copy(run, place, 110)
    assert shown(place) == [100, 110]


def test_what_training_lost_to_damage_stays_in_the_mirror_and_takes_no_place_of_another(tmp_path: Path) -> None:
    """It may be good after all, and is further; or it is not, and the copies of what is trained now are all there are."""
    run, place = new_run(tmp_path / "run", 100, 200, 300), place_at(tmp_path / "mirror")
    (run.checkpoints_folder / "pins" / "step-000000100").unlink()
    copy(run, place, 100, 200, 300, keep_last=3)
    before = content(tmp_path / "mirror" / "checkpoints" / "step-000000300")
    store = CheckpointFolder(run.checkpoints_folder)
    for step in (200, 300):
        store.quarantine(step, "damaged")
    for step in (110, 120):
        write_plain(store, step, save_id=str(step))
    copy(run, place, 100, 110, 120, keep_last=1, keep_best=None)
    assert shown(place) == [120, 200, 300]
    assert content(tmp_path / "mirror" / "checkpoints" / "step-000000300") == before


def test_wherever_setting_aside_dies_the_manifest_is_there_under_one_of_its_names(tmp_path: Path) -> None:
    """Without it, the files of the checkpoint would pass for a dead process's upload, and be removed."""
    copy(new_run(tmp_path / "run", 100), place_at(tmp_path / "0"), 100)
    data = place_at(tmp_path / "0").manifest_data(100)
    at, is_done = 0, False
    while not is_done:
        at += 1
        there = Path(shutil.copytree(tmp_path / "0", tmp_path / str(at)))
        with suppress(OSError):
            is_done = place_at(there, dying_from(at)).set_aside(100)
        after = place_at(there)
        assert data in (after.manifest_data(100), after.read(f"{folder_of(100)}/{ABANDONED}"))
        after.remove_leftovers()
        assert after.complete(100) if after.manifest_data(100) else content(there / folder_of(100))
    assert at > 3


def test_a_deletion_begins_with_the_manifest(tmp_path: Path) -> None:
    """Whatever is left by one that breaks off is no checkpoint any more, and is removed as a leftover."""
    copy(new_run(tmp_path / "run", 100), place_at(tmp_path / "mirror"), 100)

    def die(call: int, name: str) -> None:
        if name == "find":
            raise OSError("dead")

    with suppress(OSError):
        place_at(tmp_path / "mirror", die).remove(100)
    after = place_at(tmp_path / "mirror")
    assert content(tmp_path / "mirror" / folder_of(100))
    after.remove_leftovers()
    assert after.steps() == []


@pytest.mark.parametrize("pattern", ["run[1]", "run?", "run*", "[r]un1", "**"])
def test_an_address_is_no_pattern(tmp_path: Path, pattern: str) -> None:
    """Whatever a mirror deletes lies below its own address, be that a pattern that another run's address matches."""
    store = MemoryFileSystem()
    runs = {name: new_run(tmp_path / name, 100, 200, 300) for name in ("run1", pattern)}
    for name, run in runs.items():
        copy(run, RemoteFilesystem(store, f"/{tmp_path.name}/{name}", name), 100, 200, 300, keep_last=1, keep_best=None)
        (run.checkpoints_folder / "pins" / "step-000000100").unlink()
    first = {p: store.cat_file(p) for p in store.find(f"/{tmp_path.name}/run1")}
    copy(runs[pattern], RemoteFilesystem(store, f"/{tmp_path.name}/{pattern}", pattern), 100, 300, keep_last=1)
    kept = {f for f in store.find(f"/{tmp_path.name}/{pattern}") if "step-" in f}
    assert {f.split("step-")[1][:9] for f in kept} == {"000000300"}
    assert {p: store.cat_file(p) for p in store.find(f"/{tmp_path.name}/run1")} == first
    assert any("step-000000100" in path for path in first)


# Calls of a file system of fsspec that take a path for a pattern, or hand it to one that does.
PATTERNS = re.compile(
    r"\b_?(?:fs|filesystem)\.(?:rm|delete|get|download|put|upload|cat|cat_ranges|copy|cp|mv|move|rename|expand_path|glob"
    r"|stat_glob)\("
)


def test_no_path_is_handed_to_a_call_that_takes_it_for_a_pattern() -> None:
    found = {
        module.name: PATTERNS.findall(module.read_text(encoding="utf-8"))
        for module in Path(files.__file__).parents[3].rglob("*.py")
    }
    assert "remote.py" in found
    assert not {name: calls for name, calls in found.items() if calls}
    planted = "self._fs.rm(path); fs.find(a); fs.rm_file(a); place.get(b); x.filesystem.mv(a, b)"
    assert PATTERNS.findall(planted) == ["_fs.rm(", "filesystem.mv("]


def test_the_mirror_of_another_run_is_left_alone(tmp_path: Path) -> None:
    first, second = new_run(tmp_path / "1", 100), new_run(tmp_path / "2", 900)
    copy(first, place_at(tmp_path / "mirror"), 100)
    before = content(tmp_path / "mirror")
    told = copy(second, place_at(tmp_path / "mirror"), 900)
    assert told.events == [("unmirrored", {"step": 900, "reason": "the mirror belongs to another run"})]
    assert content(tmp_path / "mirror") == before


def test_the_mirror_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", 100)
    copy(run, place_at(tmp_path / "mirror"), 100)
    index = tmp_path / "mirror" / files.INDEX
    values = json.loads(index.read_text(encoding="utf-8"))
    index.write_text(json.dumps(values | {"format": values["format"] + 1}), encoding="utf-8")
    before = content(tmp_path / "mirror")
    (told,) = copy(run, place_at(tmp_path / "mirror"), 100).events
    assert "of another version of Reelworks" in told[1]["reason"]
    assert content(tmp_path / "mirror") == before


@pytest.mark.parametrize(
    "keys",
    [
        {"url": "s3://bucket/run", "options": {"secret": "hunter2"}},
        {"url": "abfs://box/run", "options": {"account_key": "hunter2"}},
        {"url": "sftp://me:hunter2@host/run"},
    ],
)
def test_credentials_are_refused_in_a_recipe_and_not_repeated(keys: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must not hold credentials") as caught:
        MirrorConfig.model_validate(keys)
    assert isinstance(caught.value.errors()[0]["ctx"]["error"], UserError)
    assert "hunter2" not in str(caught.value.errors()[0]["ctx"]["error"])
    MirrorConfig(url="sftp://me@host/run", options={"endpoint_url": "http://127.0.0.1:9000"})


def test_addresses_that_cannot_work_are_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("mirror-address-invalid", "checkpoints.mirror.url"):
        RemoteFilesystem.open(MirrorConfig(url="s4://bucket/run"))
    with refused("mirror-address-invalid", "checkpoints.mirror.url", says="see checkpoints.mirror.options"):
        RemoteFilesystem.open(MirrorConfig(url=str(tmp_path / "run"), options={"auto_mkdir": True}))  # which we set
    with refused("mirror-folder-missing", "checkpoints.mirror.url") as caught:
        RemoteFilesystem.open(MirrorConfig(url=str(tmp_path / "not mounted" / "run")))
    assert "mount" in caught.value.remedy
    monkeypatch.setitem(sys.modules, "s3fs", None)
    # As where it is not installed and nobody has asked for it yet.
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    with pytest.raises(UserError) as caught:
        RemoteFilesystem.open(MirrorConfig(url="s3://bucket/run"))
    assert caught.value.remedy == "pip install 'reelworks[s3]'"


def test_wherever_an_upload_breaks_off_no_marker_names_files_that_are_not_there(tmp_path: Path) -> None:
    """What marks a catalog or a record as complete comes last; a resume would take its parts for all."""
    run = new_run(tmp_path / "run")
    counted = place_at(tmp_path / "0")
    files.push(counted, run, "token")
    complete, marked = content(tmp_path / "0").keys(), 0
    for dead_from in range(2, counted._fs.calls + 1):
        there = tmp_path / str(dead_from)
        with suppress(OSError):
            files.push(place_at(there, dying_from(dead_from)), run, "token")
        found = content(there).keys() if there.exists() else set()
        for marker in (name for name in found if Path(name).name in ("catalog.json", "about.json")):
            marked += 1
            assert {name for name in complete if Path(name).parent == Path(marker).parent} <= found, dead_from
    assert marked
