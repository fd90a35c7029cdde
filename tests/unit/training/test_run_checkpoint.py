"""A checkpoint of a run is saved when it is due, and restores all that the next step depends on."""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import places
import prepare_files
import pytest
import torch
from refused import refused
from safetensors.torch import save_file

from reelworks.core import files, storage
from reelworks.data.checkpoint import save
from reelworks.data.checkpoint.config import CheckpointsConfig
from reelworks.data.distributed.mesh import World
from reelworks.data.loader.position import Counts, next_epoch
from reelworks.data.run import events
from reelworks.data.run.events import EventLog
from reelworks.data.schedule.cursor import Aliases, Excluded
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.adapters.files import BASE
from reelworks.models.base_model import Base
from reelworks.models.export.config import ExportsConfig
from reelworks.training.assembly import build, init_from
from reelworks.training.loop import checkpointing, open_run, resume, start, training_loop
from reelworks.training.loop.checkpointing import CheckpointManager
from reelworks.training.observers.run_logger import RunLogger
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step.spikes import SpikeGroup
from reelworks.training.step.state import TrainState
from reelworks.training.step.step_sums import StepFlags
from reelworks.training.step.train_step import StepResult

ALONE = World(0, 1, torch.device("cpu"))
QUIET = StepFlags(stop=False, save=False, writing=False)


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """A run of four pictures that has begun, by its recipe's `[checkpoints]`."""
    for i in range(4):
        prepare_files.picture(tmp_path / "data" / f"{i}.png", grey=i)
    network = {"name": "stdit3-tiny", "hidden_size": 32, "depth": 1, "num_heads": 2}
    with ExitStack() as stack:

        def begin(**checkpoints: Any) -> Any:
            made = prepare_files.recipe(tmp_path, model=network, checkpoints=checkpoints)
            data, lock = prepare_files.opened(made), stack.enter_context(open_run.lock_folder(made, "auto", ALONE))
            run, state = (
                open_run.open_run(made, lock, ALONE),
                TrainState.start(build.denoiser(made, ALONE.home), made.train),
            )
            position, _ = next_epoch(data, open_run.plan_spec(data, run), None)
            log = stack.enter_context(RunLogger(run.folder, data, ALONE, position, recipe_name=""))
            model = SimpleNamespace(state=state, base=None)
            manager = CheckpointManager(run, data, model, log, None, None)
            named = {"made": made, "data": data, "run": run, "state": state, "position": position}
            return SimpleNamespace(**named, manager=manager, model=model, log=log)

        yield begin


@pytest.mark.parametrize(
    ("grace", "wait", "is_told"), [(1e-6, 0.0, True), (60.0, 61.0, True), (3600.0, 61.0, False), ("none", 1e9, False)]
)
def test_a_signal_that_leaves_no_time_for_a_step_and_a_save_is_told(
    begun: Any, caplog: pytest.LogCaptureFixture, grace: float | str, wait: float, is_told: bool
) -> None:
    one = begun(grace_seconds=grace, asynchronous=False)
    done = replace(one.position, global_step=1)
    one.manager.after_step(done, {}, QUIET._replace(save=True), wait)
    assert one.manager.saved_step == 1
    assert ("may be killed before it has saved" in caplog.text) == is_told


def test_all_that_was_saved_of_a_run_is_restored(begun: Any) -> None:
    one = begun()
    aliases = Aliases(np.array([1, 2]), np.array([7, 2**64 - 1], dtype=np.uint64))
    excluded = Excluded().with_places(np.array([0, 3]), np.array([1, 0]))
    counts = Counts(planned=4, trained=1, failed=1, repeated=2)
    position = replace(one.position, plan_step=1, global_step=3, counts=counts, excluded=excluded, aliases=aliases)
    one.state.spikes.add({SpikeGroup("48px"): 0.5}, 2.0, SpikeGroup("48px", "guided"), threshold=8.0)
    for part in (*one.state.module.parameters(), *one.state.ema.values()):
        torch.nn.init.normal_(part.detach())
    one.manager.save_last(position, {"validation/loss": 0.25}, is_over=True)
    after = TrainState.start(build.denoiser(one.made, ALONE.home), one.made.train)
    cursor, same_excluded, same_aliases = checkpointing.restore(one.run.store.path(3), after, None)
    assert cursor == position.to_cursor(one.data)
    assert same_excluded.digest() == excluded.digest()
    assert same_aliases.keys(np.arange(4), np.zeros(4, np.uint64)).tolist() == [0, 7, 2**64 - 1, 0]
    assert after.spikes == one.state.spikes
    assert one.run.store.info(3).metrics == {"validation/loss": 0.25}
    assert [one.manager.has_metrics(3, [name]) for name in ("validation/loss", "samples/motion")] == [True, False]
    for mine, theirs in ((after.ema, one.state.ema), (after.module.state_dict(), one.state.module.state_dict())):
        assert all(torch.equal(mine[name], value) for name, value in theirs.items())


@pytest.mark.parametrize("theirs", ["a", "b"])
def test_a_start_from_the_lora_of_another_base_is_warned_of(
    begun: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path, theirs: str
) -> None:
    one, here = begun(), Base("wan-tiny", "here", "a" * 32)
    file = tmp_path / "lora.safetensors"
    save_file({"w": torch.ones(1)}, file, {BASE: Base("wan-tiny", "there", theirs * 32).to_json()})
    made = one.made.model_copy(update={"lora": LoraConfig(weights=str(file))})
    spec = open_run.plan_spec(one.data, one.run)
    request = SimpleNamespace(load=None)
    started: Any = SimpleNamespace(data=replace(one.data, recipe=made), request=request, spec=spec, run=one.run)
    position = resume._start_fresh(started, SimpleNamespace(base=here))
    assert (position.global_step, position.epoch) == (0, 0)
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [str(file) in text and "there" in text for text in warned] == [True] * (theirs == "b")


@pytest.mark.parametrize(("restarts", "micro_batches"), [("100", None), ("100", 4), ("0", None), (None, None)])
def test_a_start_that_more_ranks_may_join_says_how_many_have_work(
    begun: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    restarts: str | None,
    micro_batches: int | None,
) -> None:
    """Those that have no work end a training, however long it has gone on."""
    if restarts is not None:
        monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", restarts)
    one = begun()
    made = prepare_files.recipe(tmp_path, train={"max_steps": 1, "micro_batches_per_step": micro_batches})
    spec = open_run.plan_spec(one.data, one.run)
    started: Any = SimpleNamespace(
        data=replace(one.data, recipe=made), request=SimpleNamespace(load=None), spec=spec, run=one.run
    )
    resume._start_fresh(started, one.model)
    is_told = restarts == "100" and micro_batches is None
    assert ("has 1 micro-batch from now on" in caplog.text) == is_told


@pytest.mark.parametrize(
    "source",
    ["file", "run", "run of schedule-free AdamW", "run, with its optimizer", "run of no average, with its optimizer"],
)
def test_weights_that_are_loaded_alone_begin_a_new_average(
    begun: Any, tmp_path: Path, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They are the average of a run whose optimizer had it; with the optimizer comes the average that there was."""
    caplog.set_level("INFO")
    one, place = begun(), tmp_path / "weights.safetensors"
    with torch.no_grad():
        for part in (*one.state.module.parameters(), *one.state.ema.values()):
            torch.nn.init.normal_(part)
    trained, average = (
        {name: value.clone() for name, value in values.items()}
        for values in (dict(one.state.module.named_parameters()), one.state.ema)
    )
    if source == "file":
        save_file(one.state.module.state_dict(), place)
    else:
        one.manager.save_last(replace(one.position, global_step=3), {}, is_over=True)
        own = {"optimizer": "schedulefree", "ema_decay": None} if "schedule-free" in source else {}
        own |= {"ema_decay": 0.0} if "no average" in source else {}
        made = one.made.model_copy(update={"train": one.made.train.model_copy(update=own)})
        one.run.folder.keep_recipe(recipe_file.dump(made))
        place = one.run.folder.path
    after = TrainState.start(build.denoiser(one.made, ALONE.home), one.made.train)
    alone = "optimizer" not in source
    steps = init_from.load_run(place, SimpleNamespace(state=after, base=None), ALONE, one.made, weights_only=alone)
    assert ("that run kept no average" in caplog.text) == ("no average" in source)
    alone = alone or "no average" in source
    assert steps == (0 if alone else 3)
    expected = average if "schedule-free" in source else trained
    for name, value in after.module.named_parameters():
        assert torch.equal(value, expected[name])
        assert torch.equal(after.ema[name], expected[name] if alone else average[name])


def test_an_optimizer_is_asked_of_a_run_and_not_of_a_file(begun: Any, tmp_path: Path) -> None:
    one = begun()
    save_file(one.state.module.state_dict(), tmp_path / "weights.safetensors")
    with refused("file-without-optimizer", "--load"):
        init_from.load_run(tmp_path / "weights.safetensors", one.model, ALONE, one.made, weights_only=False)


def test_steps_follow_from_the_recipe_and_the_ranks_at_the_runs_start_alone(begun: Any, tmp_path: Path) -> None:
    """Whatever starts came between, on any number of ranks; the first checkpoint fixes those at the start."""
    one = begun()

    def shape(**train: int) -> tuple[int, int]:
        made = prepare_files.recipe(tmp_path, train={"max_epochs": 1, **train})
        spec = open_run.plan_spec(replace(one.data, recipe=made), open_run.open_run(made, one.run.folder_lock, ALONE))
        return spec.micro_batches_per_step, spec.same_bucket_run

    one.run.folder.create(ranks=2)
    assert shape(gradient_accumulation_steps=2) == (2, 1), "no checkpoint yet: the run begins now"
    one.manager.save_last(replace(one.position, global_step=1), {}, is_over=True)
    one.run.folder.create(ranks=2)
    kept = one.run.folder.info()
    asked = [{"gradient_accumulation_steps": n} for n in (2, 4, 2)] + [{"micro_batches_per_step": n} for n in (1, 3)]
    assert [shape(**train) for train in asked] == [(4, 2), (8, 2), (4, 2), (1, 1), (3, 3)]
    assert one.run.folder.info() == kept


@pytest.mark.parametrize("name", ["recipe.toml", "environment.json", "events.jsonl"])
def test_a_file_of_somebody_else_is_not_replaced_by_a_run(begun: Any, tmp_path: Path, name: str) -> None:
    output = Path(prepare_files.recipe(tmp_path).output)
    output.mkdir(parents=True, exist_ok=True)
    (output / name).write_text("# mine", encoding="utf-8")
    with refused("output-taken", "output", says=name):
        begun()
    assert (output / name).read_text(encoding="utf-8") == "# mine"
    (output / name).unlink()
    begun()


@pytest.mark.parametrize("away", ["empty", "missing", "dangling"])
def test_a_run_whose_checkpoints_are_not_there_does_not_begin_anew_unasked(
    begun: Any, tmp_path: Path, away: str
) -> None:
    """As where they lie on a disk that is not mounted; who asked to begin anew is not asked again."""
    one = begun()
    folder = one.run.folder
    assert resume.pick(folder, one.made, "auto", ALONE).step is None
    one.manager.save_last(replace(one.position, global_step=1), {}, is_over=True)
    folder.checkpoints_folder.rename(tmp_path / "disk")
    if away != "missing":
        places.link(folder.checkpoints_folder, tmp_path / "mounted")
    if away == "empty":
        (tmp_path / "mounted").mkdir()
    with refused("no-good-checkpoint", "checkpoints", says="the run saved step 1"):
        resume.pick(folder, one.made, "auto", ALONE)
    assert resume.pick(folder, one.made, "never", ALONE).step is None
    EventLog(folder.events_file).write("start", resumed_from=None)
    assert resume.pick(folder, one.made, "auto", ALONE).step is None


def test_what_killed_processes_left_in_a_run_goes_with_the_next_start(begun: Any) -> None:
    one = begun()
    run = one.run.folder
    left = [files.temporary_name(run.path / place) for place in ("a/00.png", "a/b/02.mp4", "outcome.json")]
    kept = [files.temporary_name(run.path / "a" / "03.mp4"), run.path / "a" / "00.png"]
    for file in (*left, *kept):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    for file in (*left, kept[1]):
        os.utime(file, (0, 0))
    resume.pick(run, one.made, "auto", ALONE)
    assert [file.exists() for file in (*left, *kept)] == [False] * 3 + [True] * 2


LOSSES = [0.5, 0.5, math.nan, 0.4, 0.45, 0.4]


@pytest.mark.parametrize(
    ("checkpoints", "expected"),
    [
        ({"every_steps": 2}, [2, 4, 6]),
        ({"every_steps": 4, "at_best": True}, [1, 4]),
        ({"every_steps": 100, "at_best": True, "keep_best": {"metric": "loss", "mode": "max"}}, [1]),
        ({"every_steps": 100, "at_best": True, "keep_best": {"metric": "-2 * loss", "mode": "max"}}, [1, 4]),
        ({"every_steps": 100, "at_best": True, "keep_best": {"metric": "1 * loss + 1 * none"}}, []),
        ({"every_steps": 100, "every_minutes": 1e-9}, [1, 2, 3, 4, 5, 6]),
        ({"every_steps": 100, "at_epoch_end": True}, [3, 4, 5, 6]),
    ],
)
@pytest.mark.quick_cases(2)
def test_a_step_is_saved_when_it_is_due(begun: Any, checkpoints: dict[str, Any], expected: list[int]) -> None:
    """A value that equals the best one, or is none, is no new best; from the end of the plan on, each step ends it."""
    one = begun(**{"keep_last": 9, "keep_best": {"metric": "loss", "mode": "min"}} | checkpoints)
    for step, loss in enumerate(LOSSES, start=1):
        plan_step = 0 if step < 3 else one.position.plan.num_steps
        position = replace(one.position, global_step=step, plan_step=plan_step)
        one.manager.after_step(position, {"loss": loss}, one.manager.flags(stop=False), 0.1)
    assert one.run.store.steps() == expected


def test_a_last_save_beside_training_that_fails_is_made_again_at_the_end(begun: Any) -> None:
    """Else training would end as if its last steps were on the disk."""
    one = begun(every_steps=1, asynchronous=True)
    position = replace(one.position, global_step=1)

    def full(call: str, path: Path) -> None:
        if call == "write" and path.suffix == ".safetensors":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with storage.guarded(full):
        one.manager.after_step(position, {}, QUIET, 0.1)
        while one.manager.flags(stop=False).writing:
            time.sleep(0.01)
    assert one.run.store.steps() == []
    one.manager.save_last(position, {}, is_over=True)
    assert one.run.store.steps() == [1]


@pytest.mark.parametrize(
    "stricter",
    [{"save_total_limit": 1}, {"max_disk": "1000B"}, {"keep_last": 1}, {"keep_last": 1, "asynchronous": True}],
)
def test_a_stricter_policy_makes_room_for_the_first_save_of_a_start(begun: Any, stricter: dict[str, Any]) -> None:
    """On a disk that holds two checkpoints; the newest stays until the next one is there."""
    one = begun(keep_last=5)
    for step in (1, 2, 3):
        one.manager.save_last(replace(one.position, global_step=step), {}, is_over=True)

    def full(call: str, path: Path) -> None:
        if call == "write" and path.suffix == ".safetensors":
            assert 3 in one.run.store.steps()
            if len(one.run.store.steps()) > 1:
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    made = one.made.model_copy(
        update={"checkpoints": CheckpointsConfig.model_validate({"every_steps": 4, "on_full": "stop", **stricter})}
    )
    again = CheckpointManager(one.run, replace(one.data, recipe=made), one.model, one.log, None, 3)
    with storage.guarded(full):
        again.after_step(replace(one.position, global_step=4), {}, QUIET, 0.1)
        again.save_last(replace(one.position, global_step=4), {}, is_over=True)
    assert one.run.store.steps() == [4]


@pytest.mark.parametrize(
    ("every_n_saves", "is_last", "exported"), [(1, False, [2]), (2, False, [2]), (3, False, []), (9, True, [2])]
)
@pytest.mark.parametrize("killed", ["before the export", "before its checkpoint was told", "after all"])
def test_a_start_makes_up_what_a_kill_left_out_after_the_save_that_it_resumes_from(
    begun: Any, every_n_saves: int, is_last: bool, exported: list[int], killed: str
) -> None:
    one = begun()
    made = one.made.model_copy(update={"exports": ExportsConfig(weights="model", every_n_saves=every_n_saves)})
    one.run.folder.keep_recipe(recipe_file.dump(made))

    def start(resumed_from: int | None, made: Recipe) -> CheckpointManager:
        return CheckpointManager(one.run, replace(one.data, recipe=made), one.model, one.log, None, resumed_from)

    manager = start(None, made if killed == "after all" else one.made)
    for step in (1, 2):
        if killed.startswith("before its"):
            state = one.state.state_dict()
            save.save(one.run.store, step, state, **manager._details(replace(one.position, global_step=step), {}))
        else:
            manager.save_last(replace(one.position, global_step=step), {}, is_over=False)
    for _ in range(2):
        start(2, made).make_up(is_last=is_last)
    found = [int(path.name[5:14]) for path in sorted(one.run.folder.exports_folder.iterdir())]
    assert found == ([1, 2] if killed == "after all" and every_n_saves == 1 else exported)
    told = [*events.read(one.run.folder.events_file, "checkpoint", "export")]
    steps = [event["step"] for event in told if event["kind"] == "checkpoint"]
    assert steps == ([2] if killed.startswith("before its") else [1, 2])
    assert len([event for event in told if event["kind"] == "export"]) == len(found)
    for path in one.run.folder.exports_folder.iterdir():
        path.unlink()
    again = start(2, made)
    again.make_up(is_last=is_last)
    again.save_last(replace(one.position, global_step=2), {}, is_over=is_last)
    assert not [*one.run.folder.exports_folder.iterdir()], "they were moved away"


@pytest.mark.parametrize("is_over", [True, False])
def test_the_last_of_a_training_is_exported_where_its_step_was_saved_before(begun: Any, is_over: bool) -> None:
    """As where no clip is drawn in the epochs that are left."""
    one = begun(every_steps=1)
    made = one.made.model_copy(update={"exports": ExportsConfig(weights="model", every_n_saves=9)})
    one.run.folder.keep_recipe(recipe_file.dump(made))
    manager = CheckpointManager(one.run, replace(one.data, recipe=made), one.model, one.log, None, None)
    position = replace(one.position, global_step=1)
    manager.after_step(position, {}, QUIET, 0.1)
    assert manager.exported == []
    manager.save_last(position, {}, is_over=is_over)
    assert [path.is_file() for path in manager.exported] == [True] * is_over


def test_a_save_is_exported_whether_old_ones_could_be_deleted_or_not(begun: Any) -> None:
    one = begun(keep_last=1)
    made = one.made.model_copy(update={"exports": ExportsConfig(weights="model")})
    one.run.folder.keep_recipe(recipe_file.dump(made))
    manager = CheckpointManager(one.run, replace(one.data, recipe=made), one.model, one.log, None, None)

    def stuck(call: str, path: Path) -> None:
        if call == "rename" and (path.name.startswith(".trash") or path.name == "step-000000001"):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    manager.save_last(replace(one.position, global_step=1), {}, is_over=False)
    with storage.guarded(stuck):
        manager.save_last(replace(one.position, global_step=2), {}, is_over=False)
    assert one.run.store.steps() == [1, 2]
    assert len([*one.run.folder.exports_folder.iterdir()]) == 2


@pytest.mark.parametrize(
    ("incomplete_batch", "segment", "tried"), [("partial", 0, 4), ("partial", 1, 5), ("repeat", 0, 1000)]
)
def test_memory_is_tried_with_the_largest_micro_batch_that_a_plan_may_have(
    begun: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, incomplete_batch: str, segment: int, tried: int
) -> None:
    """Of five pictures, one has a bucket for itself; the rest of an epoch may have fewer than the next."""
    prepare_files.picture(tmp_path / "data" / "square.png", (48, 48))
    one, clips = begun(), list[int]()
    buckets = {"aspect_ratios": ["4:3", "3:4", "1:1"], "incomplete_batch": incomplete_batch}
    bucket = [{"resolution": "48px", "num_frames": 1, "batch_size": 1000}]
    data = one.data.with_buckets(prepare_files.recipe(tmp_path, bucket=bucket, buckets=buckets))
    position, _ = next_epoch(data, data.plan_spec(1, 1), None)
    monkeypatch.setattr(start.dry_run, "rehearse", lambda *args, **named: clips.append(named["clips"]))
    started = SimpleNamespace(run=one.run, data=data, request=SimpleNamespace(debug=False))
    boundary, sequence = SimpleNamespace(denoiser=None), SimpleNamespace(use=lambda degree: None)
    model = SimpleNamespace(recomputation=(), sequence=sequence, boundary=boundary, encoder=None, state=one.state)
    start.rehearse(started, model, replace(position, segment=segment))
    assert clips == [tried]


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("failed", [0, 2])
def test_each_planned_clip_of_a_step_is_trained_failed_or_skipped(begun: Any, applied: bool, failed: int) -> None:
    position = begun().position
    planned = position.plan.planned_in(0)
    numbers = {"clips": planned - failed, "repeats": 1, "failed": failed}
    result = StepResult(applied=applied, finite=applied, learning_rate=1e-3, flags=QUIET, **numbers)
    after = training_loop._advance(position, result)
    counts = after.counts
    assert (counts.failed, counts.trained > 0, counts.skipped > 0) == (failed, applied, not applied)
    assert counts.trained + counts.failed + counts.skipped == planned
    assert counts.repeated == int(applied)
    assert (after.plan_step, after.global_step) == (1, 1)
