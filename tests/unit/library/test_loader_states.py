"""States of the loader: a step counts when it was iterated to its end, and every state that was taken loads again."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from loader_footage import TABLE, dataset_of, make_footage, trained
from PIL import Image
from refused import refused

import reelworks as rw

OTHER = rw.BucketTable.from_entries(
    [rw.BucketEntry("32px", num_frames=[1, 3], batch_size=[2, 1])],
    geometry=rw.Geometry((1, 1, 1), (1, 4, 4)),
    aspect_ratios=["1:1"],
)


@pytest.fixture
def footage(tmp_path: Path) -> Path:
    return make_footage(tmp_path / "footage", pictures=9, clips=2)


def change(footage: Path, kind: str) -> None:
    if kind == "added":
        Image.new("RGB", (32, 32)).save(footage / "new.png")
        (footage / "new.txt").write_text("new", encoding="utf-8")
    elif kind == "removed":
        (footage / "00.png").unlink()
    else:
        (footage / "00.txt").write_text("another caption", encoding="utf-8")


def rest_of(loader: rw.Loader) -> Counter[tuple[int, int]]:
    return sum((trained(step) for step in loader), Counter())


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_step_that_an_error_ended_is_trained_again(footage: Path, error: type[BaseException]) -> None:
    loader = rw.Loader(dataset_of(footage), micro_batches_per_step=1)

    def train() -> None:
        for step in loader:
            before = loader.state_dict()
            for _ in step:
                assert loader.state_dict() == before
                if step.number == 3:
                    raise error
            assert loader.step == step.number
            assert loader.state_dict() != before

    with pytest.raises(error):
        train()
    assert loader.step == 2
    other = rw.Loader(dataset_of(footage), micro_batches_per_step=1)
    other.load_state_dict(loader.state_dict())
    assert next(iter(other)).number == next(iter(loader)).number == 3


def test_a_loop_that_ends_before_a_step_was_iterated_leaves_that_step(footage: Path) -> None:
    loader = rw.Loader(dataset_of(footage), micro_batches_per_step=1)
    found: Counter[tuple[int, int]] = Counter()
    for step in loader:
        if step.number == 3:
            break
        found.update(trained(step))
    assert loader.step == 2
    found.update(rest_of(loader))
    assert set(found.values()) == {1}
    assert len(found) == 11


def test_what_is_passed_over_counts_as_skipped(footage: Path, caplog: pytest.LogCaptureFixture) -> None:
    loader = rw.Loader(dataset_of(footage), micro_batches_per_step=2)
    skipped = 0
    for step in loader:
        if step.number == 1:
            skipped += step.valid
        elif step.number == 2:
            skipped += step.valid
            next(iter(step))
        else:
            list(step)
    cursor = loader.state_dict()["cursor"]
    assert (cursor["trained"], cursor["skipped"], cursor["failed"]) == (11 - skipped, skipped, 0)
    assert "step 2 was left before its end" in caplog.text
    assert "step 1 " not in caplog.text


def test_a_step_is_iterated_once(footage: Path) -> None:
    step = next(iter(rw.Loader(dataset_of(footage))))
    assert list(step)
    with refused("step-is-over", says="iterated already"):
        list(step)


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("kind", ["added", "removed", "edited"])
@pytest.mark.quick_cases(3)
def test_a_state_of_before_the_first_step_loads_after_any_change(
    footage: Path, tmp_path: Path, kind: str, record: bool
) -> None:
    run = tmp_path / "run" if record else None
    state = rw.Loader(dataset_of(footage), record_to=run).state_dict()
    change(footage, kind)
    loader = rw.Loader(dataset_of(footage, OTHER), record_to=run)
    loader.load_state_dict(state)
    assert loader.changes
    assert rest_of(loader) == Counter((uid, 0) for uid in loader.dataset.rows.uid.tolist())


def test_a_state_of_before_the_first_step_of_new_data_loads_after_another_change(footage: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    loader = rw.Loader(dataset_of(footage), record_to=run)
    found = trained(next(iter(loader)))
    for kind in ("added", "edited", "removed"):
        state = loader.state_dict()
        change(footage, kind)
        loader = rw.Loader(dataset_of(footage), record_to=run)
        loader.load_state_dict(state)
    live = {(uid, 0) for uid in loader.dataset.rows.uid.tolist()}
    found.update(rest_of(loader))
    assert set(found.values()) == {1}
    assert live <= found.keys()


def test_ranks_that_load_one_after_the_other_have_the_same_state(footage: Path, tmp_path: Path) -> None:
    """The first rank writes the record of the new plan, which the second must not take for that of trained clips."""
    state = rw.Loader(dataset_of(footage), micro_batches_per_step=2).state_dict()
    for text in ("corrected", "corrected again"):
        (footage / "00.txt").write_text(text, encoding="utf-8")
        data = dataset_of(footage)
        ranks = [
            rw.Loader(data, micro_batches_per_step=2, rank=rank, world_size=2, record_to=str(tmp_path / "run"))
            for rank in (0, 1)
        ]
        for loader in ranks:
            loader.load_state_dict(state)
        for step in map(next, map(iter, ranks)):
            list(step)
        state, other = (loader.state_dict() for loader in ranks)
        assert state == other


def test_at_the_end_of_an_epoch_data_may_change_without_a_record(footage: Path) -> None:
    loader = rw.Loader(dataset_of(footage))
    rest_of(loader)
    change(footage, "added")
    other = rw.Loader(dataset_of(footage))
    other.load_state_dict(loader.state_dict())
    assert len(rest_of(other)) == 12
    assert other.epoch == 1


def test_an_epoch_is_at_its_end_though_clips_of_it_failed_or_were_skipped(footage: Path) -> None:
    """All of its clips are accounted for, so that none has to be recognised."""
    data = dataset_of(footage)
    (footage / "03.png").unlink()
    loader = rw.Loader(data, micro_batches_per_step=1, max_decode_failures=0.5)
    for step in loader:
        if step.number != 2:
            list(step)
    cursor = loader.state_dict()["cursor"]
    assert cursor["failed"] == 1
    assert cursor["skipped"]
    change(footage, "added")
    other = rw.Loader(dataset_of(footage))
    other.load_state_dict(loader.state_dict())
    assert len(rest_of(other)) == 11
    assert other.epoch == 1


@pytest.mark.parametrize("kind", ["added", "removed", "edited"])
def test_without_a_record_the_remedy_works(footage: Path, kind: str) -> None:
    data = dataset_of(footage)
    loader = rw.Loader(data, micro_batches_per_step=1)
    found = trained(next(iter(loader)))
    state = loader.state_dict()
    change(footage, kind)
    other = rw.Loader(dataset_of(footage), micro_batches_per_step=1, max_decode_failures=1)
    version = data.catalog.version
    with refused("data-changed", "record_to", says=rf"Catalog\.open\('{data.catalog.path}', version={version}\)"):
        other.load_state_dict(state)
    then = rw.Dataset(rw.Catalog.open(data.catalog.path, version=version), TABLE, seed=7)
    other = rw.Loader(then, micro_batches_per_step=1, max_decode_failures=1)
    other.load_state_dict(state)
    found.update(rest_of(other))
    assert set(found.values()) == {1}
    assert len(found) + other.state_dict()["cursor"]["failed"] == 11


def test_other_settings_and_a_lost_catalog_are_told_apart(footage: Path, tmp_path: Path) -> None:
    loader = rw.Loader(dataset_of(footage))
    list(next(iter(loader)))
    with refused("data-changed", says="give the buckets") as caught:
        rw.Loader(dataset_of(footage, OTHER)).load_state_dict(loader.state_dict())
    assert "Catalog.open" not in str(caught.value)
    change(footage, "added")
    elsewhere = rw.Dataset(rw.Catalog.scan(footage, to=tmp_path / "other", workers=1), TABLE, seed=7)
    with refused("data-changed", says="no longer there"):
        rw.Loader(elsewhere).load_state_dict(loader.state_dict())
    with refused("record-missing", "record_to", says="no longer there"):
        rw.Loader(elsewhere, record_to=tmp_path / "none").load_state_dict(loader.state_dict())


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 3)])
def test_by_default_the_shape_of_a_step_is_that_of_the_state(footage: Path, before: int, after: int) -> None:
    data = dataset_of(footage)
    loaders = [rw.Loader(data, rank=r, world_size=before) for r in range(before)]
    found: Counter[tuple[int, int]] = Counter()
    for together in zip(*loaders, strict=True):
        found.update(sum(map(trained, together), Counter()))
        if together[0].number == 1:
            break
    others = [rw.Loader(data, rank=r, world_size=after) for r in range(after)]
    for loader in others:
        loader.load_state_dict(loaders[0].state_dict())
        assert loader.micro_batches_per_step == before
    for together in zip(*others, strict=True):
        found.update(sum(map(trained, together), Counter()))
    assert set(found.values()) == {1}
    assert len(found) == 11


@pytest.mark.parametrize("arguments", [{}, {"micro_batches_per_step": 4}, {"world_size": 2}])
def test_a_plan_is_that_of_the_loader(footage: Path, arguments: dict[str, Any]) -> None:
    data = dataset_of(footage)
    assert rw.plan(data, **arguments).steps == len(rw.Loader(data, **arguments, **({"rank": 0} if arguments else {})))


def test_restart_begins_an_epoch_again_and_keeps_records(footage: Path, tmp_path: Path) -> None:
    data = dataset_of(footage)
    loader = rw.Loader(data, micro_batches_per_step=2, record_to=tmp_path / "run")
    first = [trained(step) for step in loader]
    second = [trained(step) for step in loader]
    loader.restart(loader.epoch)
    assert (loader.epoch, loader.step) == (1, len(first) + len(second))
    assert [trained(step) for step in loader] == second
    loader.restart()
    begun = trained(next(iter(loader)))
    assert begun == first[0]
    change(footage, "added")
    other = rw.Loader(dataset_of(footage), micro_batches_per_step=2, record_to=tmp_path / "run")
    other.load_state_dict(loader.state_dict())
    assert other.epoch == 0
    rest = begun + rest_of(other)
    assert set(rest.values()) == {1}
    assert len(rest) == 12
    with refused("argument-invalid", "epoch"):
        loader.restart(-1)


@pytest.mark.parametrize("key", ["plan", "next_step"])
def test_a_state_of_another_plan_of_the_same_data_is_refused_and_changes_nothing(footage: Path, key: str) -> None:
    """As another version of the planner may have made it: the same step of it has other clips, or is followed by others."""
    loader = rw.Loader(dataset_of(footage), micro_batches_per_step=2)
    state = loader.state_dict()
    other = {**state, "cursor": {**state["cursor"], key: "0" * len(state["cursor"][key])}}
    with refused("plan-differs", "state", says="another version of the planner"):
        loader.load_state_dict(other)
    assert loader.state_dict() == state


@pytest.mark.parametrize("outcome", ["trained", "failed", "skipped", "planned"])
@pytest.mark.parametrize("steps", [0, 1, 99])
def test_counts_that_contradict_the_plan_are_refused_and_change_nothing(
    footage: Path, outcome: str, steps: int
) -> None:
    loader = rw.Loader(dataset_of(footage), micro_batches_per_step=2)
    for step in itertools.islice(loader, steps):
        list(step)
    state = loader.state_dict()
    loader.load_state_dict(state)
    with refused("counts-contradict-plan", "state"):
        loader.load_state_dict({**state, "cursor": state["cursor"] | {outcome: state["cursor"][outcome] + 99}})
    assert loader.state_dict() == state


def broken(state: dict[str, Any]) -> dict[str, Any]:
    """States that are none, by what is wrong with them."""

    def with_cursor(**more: Any) -> dict[str, Any]:
        return {**state, "cursor": {**state["cursor"], **more}}

    return {
        "type list": [state],
        "lacks cursor": {key: value for key, value in state.items() if key != "cursor"},
        "lacks format": {},
        "format 1": {**state, "format": 1},
        "unknown other": {**state, "other": 1},
        "cursor is 3": {**state, "cursor": 3},
        "plan_step is -1": with_cursor(plan_step=-1),
        "plan_step is '1'": with_cursor(plan_step="1"),
        "epoch is True": with_cursor(epoch=True),
        "unknown more": with_cursor(more=1),
        "same_bucket_run, 3": {**state, "same_bucket_run": 3},
        "excluded cannot be read": {**state, "excluded": state["excluded"][:40]},
        "aliases cannot be read": {**state, "aliases": "%"},
    }


def test_a_state_that_is_none_is_refused_and_changes_nothing(footage: Path) -> None:
    loader = rw.Loader(dataset_of(footage), micro_batches_per_step=2)
    list(next(iter(loader)))
    state = json.loads(json.dumps(loader.state_dict()))
    for says, wrong in broken(state).items():
        with refused("not-a-loader-state", "state", says=says):
            loader.load_state_dict(wrong)
    assert loader.state_dict() == state
