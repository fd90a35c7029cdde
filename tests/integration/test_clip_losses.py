"""Each clip's losses are noted without changing a number of training, equal to the bit however a run was killed, and told."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import children
import killing
import numpy as np
import page_client
import pytest
import tomli_w
from headless import wait_until, went_to, window
from typer.testing import CliRunner

from reelworks.annexes.learning import wall
from reelworks.annexes.learning.learning import Learning
from reelworks.annexes.learning.losses import FILE, ClipLosses
from reelworks.commands.main import app
from reelworks.core import digests
from reelworks.core.shape import Shape
from reelworks.data.checkpoint import save, verify
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.loader import exclude_file
from reelworks.data.media import decode, probe
from reelworks.data.media.decode import Request
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.reports import html, previews

STEPS = 12
# Of the tiny set, all clips are measured in turn; "auto" would measure too few in so few steps to be seen.
NOTED = {"max_steps": STEPS, "threads": 1, "clip_losses": 4, "clip_losses_every": 3}
OFF = {"clip_losses": "off", "clip_losses_every": "none"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, tiny_in: Callable[..., Any]) -> Path:
    """A folder with a run that notes losses, and its recipe."""
    root = tmp_path_factory.mktemp("learning")
    recipe = tiny_in(root, "on", train=NOTED)
    (root / "on.toml").write_text(tomli_w.dumps(recipe), encoding="utf-8")
    assert children.train(recipe) == [0], children.output(recipe)
    return root


@pytest.fixture(scope="module")
def made(tiny_in: Callable[..., Any], root: Path) -> Callable[..., Any]:
    """Make a recipe like that of the run, in another folder beside it."""
    return lambda name, **train: tiny_in(root, name, train=NOTED | train)


def stored(run: Path) -> bytes:
    """The account in the newest checkpoint."""
    return verify.read_extra(CheckpointFolder(run / "checkpoints").list()[-1].path, FILE)


def losses(run: Path) -> dict[int, str]:
    told = events.timeline(RunFolder(run).events_file, "step")
    return {event["step"]: float(event["loss"]).hex() for event in told}


def weights(run: Path) -> list[tuple[str, str]]:
    """Digests of all files of the newest checkpoint that hold weights, averages and the optimizer's state."""
    newest = CheckpointFolder(run / "checkpoints").list()[-1].path
    return [(file.name, digests.of_file(file)) for file in sorted((newest / "tensors").iterdir())]


@pytest.mark.slow
def test_noting_changes_no_number(root: Path, made: Any) -> None:
    assert children.train(made("off", **OFF)) == [0]
    assert (losses(root / "on"), weights(root / "on")) == (losses(root / "off"), weights(root / "off"))
    assert not any(path.name == FILE for path in (root / "off").rglob("*"))


def test_a_lora_is_measured_beside_its_base_without_changing_a_number(root: Path, tiny_in: Any, tmp_path: Path) -> None:
    """With dropout, which measurements are without, and training goes on with."""
    base = tmp_path / "base.safetensors"
    assert not CliRunner().invoke(app, ["checkpoints", "export", str(root / "on"), "-o", str(base)]).exit_code
    for name, noted in (("on", {}), ("off", OFF)):
        lora = {"model": {"weights": str(base)}, "lora": {"rank": 2, "targets": "blocks", "dropout": 0.5}}
        assert children.train(tiny_in(tmp_path, name, train=NOTED | {"learning_rate": 1e-2} | noted, **lora)) == [0]
    on, off = tmp_path / "on", tmp_path / "off"
    assert (losses(on), weights(on)) == (losses(off), weights(off))
    table = ClipLosses.from_bytes(stored(on))
    by_heart = table.by_heart[table.measured > 0]
    assert len(by_heart)
    assert np.isfinite(by_heart).all()
    assert np.abs(by_heart).min() > 0


def test_all_clips_are_noted_and_measured_in_turn(root: Path) -> None:
    table, run = ClipLosses.from_bytes(stored(root / "on")), RunFolder(root / "on")
    told = events.timeline(run.events_file, "step")
    assert table.about.step == STEPS
    assert table.about.trained == sum(event["clips"] + event["repeated"] for event in told)
    rounds = events.timeline(run.events_file, "clip_losses")
    assert [event["step"] for event in rounds] == [3, 6, 9, 12]
    assert table.about.visits == sum(event["clips"] for event in rounds) == np.maximum(table.measured, 0).sum()
    assert (table.measured[table.held_out] > 0).any()
    for bucket in np.unique(table.bucket):  # others of the last ones' bucket fill their micro-batch
        times = table.measured[(table.bucket == bucket) & ~table.held_out & (table.measured >= 0)]
        assert times.min(initial=1) > 0 or times.max() == 1
    assert not table.shown[table.held_out].any()
    assert np.abs(table.gain).max() > 0
    assert np.isnan(table.by_heart[table.measured > 0]).all()  # without a LoRA, there is no base


# A step, the measurement behind step 9, and a save; each kill costs a start.
@pytest.mark.parametrize(
    "kills",
    [
        [("after a forward pass", 13)],
        pytest.param(
            [("after a forward pass", 14), ("after shards are written", 1), ("before a step is told", 9)],
            marks=pytest.mark.slow,
        ),
    ],
    ids=len,
)
def test_a_killed_run_notes_the_same_to_the_bit(root: Path, made: Any, kills: list[tuple[str, int]]) -> None:
    shutil.rmtree(root / "killed", ignore_errors=True)
    for point, call in kills:
        code = children.train(made("killed"), fault=(point, call))
        assert code == [killing.SELF_KILLED], f"{point} was not passed: {children.output(made('killed'))}"
    assert children.train(made("killed")) == [0]
    assert losses(root / "killed") == losses(root / "on")
    assert stored(root / "killed") == stored(root / "on")


@pytest.mark.slow
def test_two_ranks_note_what_one_does_and_a_changed_set_goes_on(tiny: Any, tmp_path: Path, footage: Path) -> None:
    shape = {"micro_batches_per_step": 2, "same_bucket_run": 1}
    for name, world in (("one", 1), ("two", 2)):
        assert children.train(tiny(name, train=NOTED | shape), world=world) == [0] * world
    one, two = (ClipLosses.from_bytes(stored(tmp_path / name)) for name in ("one", "two"))
    for name, values in one.columns().items():
        np.testing.assert_allclose(two.columns()[name], values, rtol=0, atol=1e-5, err_msg=name)

    # Without two of its clips, which keep what is known of them, the run goes on.
    (listed := tmp_path / "exclude.txt").write_text(
        f"{footage.name}/picture-0.png\n{footage.name}/clip-1.mp4\n", encoding="utf-8"
    )
    longer = tiny("one", exclude_file=str(listed), train=NOTED | shape | {"max_steps": STEPS + 4})
    assert children.train(longer) == [0], children.output(longer)
    later = ClipLosses.from_bytes(stored(tmp_path / "one"))
    before = dict(zip(one.key.tolist(), one.shown.tolist(), strict=True))
    after = dict(zip(later.key.tolist(), later.shown.tolist(), strict=True))
    assert before.keys() <= after.keys()
    assert all(after[key] >= shown for key, shown in before.items())
    assert sum(after.values()) > sum(before.values())
    assert sum(after[key] == shown for key, shown in before.items()) >= 2


def test_a_torn_account_is_told_and_an_older_one_is_read(root: Path) -> None:
    torn = root / "torn"
    shutil.copytree(root / "on", torn)
    infos = CheckpointFolder(torn / "checkpoints").list()
    file = infos[-1].path / FILE
    file.write_bytes(file.read_bytes()[:-7])
    told = json.loads(CliRunner().invoke(app, ["learning", str(torn), "--json"]).stdout)
    assert told["step"] == infos[-2].step < STEPS
    for info in infos[:-1]:
        (info.path / FILE).unlink()
    refused = CliRunner().invoke(app, ["learning", str(torn), "--json"])
    assert json.loads(refused.stdout)["error"]["code"] == "no-clip-losses"


def test_the_verb_lists_clips_and_leaves_them_out(root: Path, footage: Path, tmp_path: Path) -> None:
    run, listed = str(root / "on"), tmp_path / "exclude.txt"
    told = json.loads(CliRunner().invoke(app, ["learning", run, "--json", "--sort", "loss"]).stdout)
    table = ClipLosses.from_bytes(stored(root / "on"))
    assert {clip["uid"] for clip in told["clips"]} == set(table.key[table.shown > 0].tolist())
    assert sum(told["counts"].values()) == len(told["clips"])
    assert all(clip["path"].startswith(f"{footage.name}/") for clip in told["clips"])
    found = [clip["loss"] for clip in told["clips"]]
    assert found == sorted(found, reverse=True)
    listed.write_text("mine/kept.png", encoding="utf-8")
    word = told["clips"][0]["word"]
    wanted = [clip["path"] for clip in told["clips"] if clip["word"] == word][:2]
    choice = ["--word", word, "--sort", "loss", "--limit", "2", "--exclude-file", str(listed)]
    for _ in range(2):  # what it lists already is not added again
        done = CliRunner().invoke(app, ["learning", run, *choice])
        assert done.exit_code == 0, done.stderr
    assert listed.read_text(encoding="utf-8") == "".join(f"{line}\n" for line in ["mine/kept.png", *wanted])
    refused = CliRunner().invoke(app, ["learning", run, "--exclude-file", str(listed), "--json"])
    assert json.loads(refused.stdout)["error"]["code"] == "selection-missing"


def test_a_clip_that_no_line_can_name_does_not_keep_others_from_the_list(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, listed = str(root / "on"), tmp_path / "exclude.txt"
    told = json.loads(CliRunner().invoke(app, ["learning", run, "--json"]).stdout)["clips"]
    odd, *others = [clip["path"] for clip in told if clip["word"] == told[0]["word"]]
    monkeypatch.setattr(exclude_file, "is_listable", lambda label: label != odd)
    done = CliRunner().invoke(app, ["learning", run, "--word", told[0]["word"], "--exclude-file", str(listed)])
    assert (done.exit_code, listed.read_text(encoding="utf-8").splitlines()) == (0, others)
    assert f"cannot name {odd!r}" in done.stdout
    monkeypatch.undo()
    assert not any(map(exclude_file.is_listable, ["a\nb", "a\r", " a", "a ", "# a"]))


def test_the_report_and_the_page_show_the_clips_and_leave_them_out(
    root: Path, footage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = json.loads(CliRunner().invoke(app, ["learning", str(root / "on"), "--json"]).stdout)
    text = html.write(RunFolder(root / "on")).read_text(encoding="utf-8")
    assert 'id="learning"' in text
    for word, clips in told["counts"].items():
        assert f"<b>{clips}</b> {word.replace('_', ' ')}" in text
    monkeypatch.chdir(root)
    with page_client.page(root, footage) as client:
        key = next(run["key"] for run in _runs(client) if run["name"] == "on")
        found = client.get(f"/api/runs/{key}/learning?sort=loss&limit=3").json()
        assert (found["counts"], found["step"], len(found["clips"])) == (told["counts"], STEPS, 3)
        assert found["total"] == len(told["clips"])
        clip = next(clip for clip in found["clips"] if clip["id"] is not None)
        of_clip = f"/api/data/{found['data']}/clips/{clip['id']}"
        assert client.get(f"{of_clip}/thumbnail.webp").content[8:12] == b"WEBP"
        assert found["can_leave_out"]
        for verb, is_left_out in (("leave-out", True), ("take-back", False)):
            assert client.post(f"{of_clip}/{verb}").status_code == 200
            again = client.get(f"/api/runs/{key}/learning?sort=loss&limit=3").json()["clips"]
            assert next(c for c in again if c["path"] == clip["path"])["is_left_out"] is is_left_out


def test_the_report_shows_each_clip_with_its_own_caption_and_picture(root: Path, footage: Path, tmp_path: Path) -> None:
    run = RunFolder(Path(shutil.copytree(root / "on", tmp_path / "on")))
    table = ClipLosses.from_bytes(stored(run.path))
    names = Learning.of_run(run).names(np.arange(len(table)))
    table.shown[:] = 20
    table.recent[:] = 0.3 * np.argsort(np.argsort(names))  # the last one has the highest loss, and comes first
    save.save(CheckpointFolder(run.checkpoints_folder), STEPS + 1, {}, extra={FILE: table.to_bytes()})
    section = wall.of_run(run)
    assert section is not None
    figures = re.findall(r'<img src="([^"]+)" alt="([^"]+)">\s*<figcaption title="([^"]*)"', section.html)
    paths = [path for _, path, _ in figures]
    assert len(paths) > 3
    assert paths != sorted(paths)
    for uri, path, caption in figures:
        file = footage / Path(path).name
        assert caption == file.with_suffix(".txt").read_text(encoding="utf-8")
        facts = probe.probe(file)
        own = decode.load(Request(file, facts.kind == "image", Shape(1, facts.height, facts.width)))[0]
        assert uri == previews.picture_uri(own)


@pytest.mark.slow
def test_the_wall_shows_pictures_and_undoes_what_it_leaves_out(
    root: Path, footage: Path, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    with page_client.client(root, footage) as client:
        key = next(run["key"] for run in _runs(client) if run["name"] == "on")
    with page_client.served(root, footage) as address, window(opened) as shown:
        went_to(shown, address, f"#/run/{key}/learning", ".clips figure img")
        tiles = shown.locator(".clips figure")
        table = ClipLosses.from_bytes(stored(root / "on"))
        assert tiles.count() == (table.shown > 0).sum()
        wait_until(shown, "document.querySelector('.clips img').naturalWidth > 0")
        for now, then in (("Leave out", "Take back"), ("Take back", "Leave out")):
            tiles.first.get_by_role("button", name=now, exact=True).click()
            tiles.first.get_by_role("button", name=then, exact=True).wait_for()
        shown.get_by_label("word").select_option(index=1)
        wait_until(
            shown, "new Set([...document.querySelectorAll('.clips b')].map(word => word.textContent)).size === 1"
        )
        if folder := os.environ.get("SCREENSHOTS"):
            shown.screenshot(path=f"{folder}/learning.png")
    with page_client.served(root, footage) as address, window(opened, tolerates="Failed to load resource") as shown:
        shown.route("**/thumbnail.webp", lambda route: route.fulfill(status=404))
        went_to(shown, address, f"#/run/{key}/learning", ".clips figure .gone")
        wait_until(shown, "!document.querySelector('.clips img')")


def _runs(client: Any) -> list[dict[str, Any]]:
    """Runs, which are seen after a second or two."""
    for _ in range(100):
        if runs := client.get("/api/runs").json():
            return list(runs)
        time.sleep(0.1)
    raise AssertionError("no run is seen")
