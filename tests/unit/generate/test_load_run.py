"""A trained model comes back from wherever a person names it, or says why it does not."""

from __future__ import annotations

import dataclasses
import math
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import places
import plan_summaries
import pytest
import saved_run
import tiny_families
import tiny_recipe
import torch
from PIL import Image
from refused import refused

from reelworks import __main__ as program
from reelworks.commands import main
from reelworks.core import files
from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.data.checkpoint import read_lock
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run.events import EventLog
from reelworks.data.run.folder import RunFolder
from reelworks.inference.generate import defaults, load_run
from reelworks.inference.generate.load_run import LoadedModel
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.training.assembly import init_from
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.plan.plan_report import PlanSummary
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import progress

RECIPE = saved_run.RECIPE
OF_SD = tiny_recipe.least(
    bucket=[{"resolution": "64px", "num_frames": 1}],
    objective={"name": "epsilon"},
    **tiny_families.recipe_of("sd1.5-tiny", "a/b"),
)
OPTIONS = GenerateOptions(Shape(1, 16, 24), 24.0, 1, 2.0, 0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_run.make(tmp_path_factory.mktemp("made") / "run").path


@pytest.fixture
def run(made: Path, tmp_path: Path) -> RunFolder:
    """A copy of that run for each test."""
    return RunFolder(Path(shutil.copytree(made, tmp_path / "run")))


def refusal(source: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        LoadedModel.load(source)
    return caught.value


@pytest.mark.parametrize(
    ("inside", "typed", "step"),
    [
        (".", "run", 4),
        ("run", ".", 4),
        ("run/checkpoints", "..", 4),
        (".", "run/checkpoints/step-000000002", 2),
        ("run", "checkpoints/step-000000002", 2),
        ("run/checkpoints", "step-000000002", 2),
        ("run/checkpoints", "step-000000002/", 2),
        ("run/checkpoints/step-000000002", ".", 2),
        ("run/checkpoints/step-000000004", "../step-000000002", 2),
    ],
)
def test_paths_are_understood_wherever_they_are_typed(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, inside: str, typed: str, step: int
) -> None:
    monkeypatch.chdir(run.path.parent / inside)
    assert LoadedModel.load(Path(typed)).step == step


def test_checkpoints_may_lie_elsewhere_and_a_run_be_called_anything(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.checkpoints_folder.rename(tmp_path / "disk")
    places.link(run.checkpoints_folder, tmp_path / "disk")
    assert LoadedModel.load(run.checkpoints_folder / "step-000000002").step == 2
    (tmp_path / "checkpoints").mkdir()
    run.path.rename(tmp_path / "checkpoints" / "run")
    monkeypatch.chdir(tmp_path / "checkpoints")
    assert LoadedModel.load(Path("run")).step == 4


def test_a_prompt_that_is_generated_has_the_trigger_word_as_those_of_previews(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = RECIPE | {"dataset": [{"path": "mug", "trigger": "rwmug"}]}
    run.recipe_file.write_text(recipe_file.dump(recipe_file.parse(trained)), encoding="utf-8")
    read: list[str] = []
    texts = FrozenEncoders.texts
    monkeypatch.setattr(
        FrozenEncoders, "texts", lambda self, prompts, *rest: read.extend(prompts) or texts(self, prompts, *rest)
    )
    model = LoadedModel.load(run.path)
    model.generate(["a [trigger]"], OPTIONS)
    assert set(read) <= {"a rwmug", ""}
    assert "a rwmug" in read
    (told,) = model.unseen(["[name] 2 3 4 5 6 7"])
    assert "'rwmug 2 3" in told


def test_a_strength_is_refused_where_there_is_no_lora(run: RunFolder) -> None:
    with refused("lora-scale-unknown", "--lora-scale"):
        LoadedModel.load(run.path, lora_scale=0.5)


def test_damaged_checkpoints_are_passed_over_and_told_if_there_is_no_other(run: RunFolder) -> None:
    store = CheckpointFolder(run.checkpoints_folder)
    (store.path(4) / "manifest.json").unlink()
    assert LoadedModel.load(run.path).step == 2
    shard = next((store.path(2) / "tensors").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    error = refusal(run.path)
    assert (error.field, error.value) == ("checkpoints", str(run.checkpoints_folder))
    assert "step 4: manifest.json is missing" in error.problem
    assert f"step 2: tensors/{shard.name} has " in error.problem
    assert store.steps() == [2, 4], "looking changes nothing"


def test_a_checkpoint_is_in_use_while_its_weights_are_read(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a training in the same folder does not delete it."""
    used, read = list[bool](), load_run.load.load

    def looked_at(path: Path, *given: Any, **how: Any) -> Any:
        used.append(read_lock.is_read(path))
        return read(path, *given, **how)

    monkeypatch.setattr(load_run.load, "load", looked_at)
    model = LoadedModel.load(run.path)
    model.read(CheckpointFolder(run.checkpoints_folder).path(2), averaged=False)
    assert used == [True, True]
    assert not any(read_lock.is_read(path) for path in run.checkpoints_folder.iterdir())


def test_a_run_before_its_first_save_says_so(run: RunFolder) -> None:
    run.checkpoints_folder.rename(run.path / "gone")
    assert "no checkpoint yet" in refusal(run.path).problem


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        (Shape(17, 80_000, 80_000), "80000×80000, 17 frames"),
        (Shape(1, 8 * 10**12, 8), "8×8000000000000"),
        (Shape(10**20, 16, 16), "16×16, 100000000000000000000 frames"),
    ],
)
def test_a_size_beyond_memory_is_named(run: RunFolder, shape: Shape, named: str) -> None:
    with refused("out-of-memory", "--num-frames, --height, --width") as caught:
        LoadedModel.load(run.path).generate(["x"], dataclasses.replace(OPTIONS, shape=shape))
    assert (caught.value.value, caught.value.remedy) == (named, "lower one of them")
    assert "--height" in str(caught.value)


def test_a_checkpoint_is_generated_with_by_the_recipe_of_its_step(run: RunFolder) -> None:
    """What a run was changed to after a step is not what the step was trained by."""
    log = EventLog(run.events_file)
    for step, shift in ((2, 2.0), (4, 3.0)):
        recipe = recipe_file.parse(RECIPE | {"objective": {"timestep_shift": shift}})
        kept = run.keep_recipe(recipe_file.dump(recipe))
        log.write("start", recipe=kept, resumed_from=step - 2)
        log.write("step", step=step)
    store = CheckpointFolder(run.checkpoints_folder)
    assert LoadedModel.load(store.path(2)).recipe.objective.timestep_shift == 2.0
    assert LoadedModel.load(run.path).recipe.objective.timestep_shift == 3.0


def test_other_errors_of_generation_stay_what_they_are(run: RunFolder) -> None:
    model = LoadedModel.load(run.path)
    model.boundary.denoiser.module.x_embedder = torch.nn.Linear(1, 1)
    with pytest.raises((RuntimeError, TypeError)):
        model.generate(["x"], OPTIONS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fps", math.nan),
        ("fps", math.inf),
        ("fps", 0.0),
        ("fps", 241.0),
        ("guidance_scale", math.nan),
        ("guidance_scale", math.inf),
    ],
)
def test_options_that_no_clip_can_be_made_with(name: str, value: float) -> None:
    with pytest.raises(UserError) as caught:
        dataclasses.replace(OPTIONS, **{name: value})
    assert (caught.value.field, caught.value.value) == (
        f"--{name.replace('_', '-')}",
        pytest.approx(value, nan_ok=True),
    )


@pytest.mark.parametrize(
    ("prompt", "unseen"), [("one two three four five six", 0), ("a b c d e f, g-h", 2), ("a b c d e f g", 1)]
)
def test_generate_tells_words_that_are_not_seen(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], prompt: str, unseen: int
) -> None:
    picture = run.path / "out.png"
    sizes = ["--height", "16", "--width", "24", "--num-frames", "1", "--num-inference-steps", "1"]
    arguments = ["generate", str(run.path), "--prompt", prompt, "-o", str(picture), *sizes]
    monkeypatch.setattr(sys, "argv", ["reelworks", *arguments])
    with pytest.raises(SystemExit) as left:
        main.main()
    assert not left.value.code
    assert picture.is_file()
    said = capsys.readouterr()
    stages = ("loading the model", "loading the autoencoder", "generating 1 clip of")
    assert [stage for stage in stages if stage not in said.err] == []
    words = "word" if unseen == 1 else f"{unseen} words"
    told = f"the model reads 6 tokens of a prompt, and cuts off the last {words} of {prompt!r}"
    assert (told in said.out) == bool(unseen)


def _planned(*buckets: tuple[int, int, int, int]) -> PlanSummary:
    """Return the summary of an epoch that has clips in buckets of a number of frames, height, width."""
    return plan_summaries.summary(*(plan_summaries.bucket(*bucket, tokens=bucket[1]) for bucket in buckets))


def test_the_usual_shape_is_that_of_the_most_tokens() -> None:
    """Pictures go by buckets of pictures and clips by those of clips, where a run has them; empty ones count nowhere."""
    recipe = recipe_file.parse(RECIPE)
    planned = _planned((0, 9, 8, 8), (100, 1, 512, 640), (20, 1, 640, 640), (5, 17, 64, 96), (11, 5, 96, 64))
    assert defaults.shape(None, recipe, picture=True) == Shape(1, 64, 96)
    assert defaults.shape(None, recipe, picture=False) == Shape(17, 64, 96)
    assert defaults.shape(planned, recipe, picture=True) == Shape(1, 512, 640)
    assert defaults.shape(planned, recipe, picture=False) == Shape(17, 64, 96)
    assert defaults.shape(_planned((20, 1, 640, 512)), recipe, picture=False) == Shape(1, 640, 512)
    assert defaults.shape(_planned((20, 17, 64, 96)), recipe, picture=True) == Shape(1, 64, 96)


@pytest.mark.parametrize(
    ("output", "options", "said"),
    [
        ("out.png", [], "16×24"),
        ("out.mp4", [], "32×16, 4 frames"),
        ("out.mp4", ["--num-frames", "1"], "16×24"),
        ("out.png", ["--width", "32"], "32×24"),
        ("run.json/out.png", [], "cannot be written"),
        ("out.png", ["--num-frames", "4"], "a picture file cannot hold 4 frames"),
        ("out.png", ["--height", "20"], "--height = 20: this autoencoder takes multiples of 8"),
        ("out.png", ["--reference", "no.png"], "No such file or directory\n  remedy: name a file that is there"),
        ("out.mp4", ["--reference", "no.mp4"], "--reference = 'no.mp4': No such file or directory"),
        ("out.png", ["--control", "{run}/made.png"], "does not take a control"),
        ("out.png", ["--reference", "{run}/made.png"], "nothing is left of 1 frames"),
    ],
)
def test_generate_takes_the_size_that_was_trained(
    run: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    output: str,
    options: list[str],
    said: str,
) -> None:
    run.plan_folder.mkdir(exist_ok=True)
    files.write_json(run.summary_file(), _planned((9, 1, 24, 16), (9, 4, 16, 32)))
    arguments = ["generate", str(run.path), "--prompt", "a", "-o", str(run.path / output), *options]
    arguments = [word.replace("{run}", str(run.path)) for word in arguments]
    monkeypatch.setattr(sys, "argv", ["reelworks", *arguments, "--num-inference-steps", "1"])
    Image.new("RGB", (16, 24)).save(run.path / "made.png")
    if not said[0].isdigit():
        monkeypatch.delattr(LoadedModel, "load")  # told before the model is made
    with pytest.raises(SystemExit):
        main.main()
    assert said in "".join(capsys.readouterr())
    assert not list(run.path.glob(".*"))


def test_a_checkpoint_is_generated_with_in_the_size_that_trained_it(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A later start may have another plan."""
    log, kept = EventLog(run.events_file), run.keep_recipe(recipe_file.dump(recipe_file.parse(RECIPE)))
    for begun, planned in ((0, _planned((9, 1, 24, 16))), (2, _planned((9, 1, 16, 32)))):
        log.write("start", recipe=kept, resumed_from=begun)
        log.write("step", step=begun + 2)
        for start in (begun, None):
            files.write_json(run.summary_file(start), planned)
    checkpoint = CheckpointFolder(run.checkpoints_folder).path(2)
    arguments = ["generate", str(checkpoint), "--prompt", "a", "-o", str(run.path / "out.png")]
    monkeypatch.setattr(sys, "argv", ["reelworks", *arguments, "--num-inference-steps", "1"])
    with pytest.raises(SystemExit):
        main.main()
    assert "16×24" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("trained", "here", "key"),
    [
        ({"rank": 16}, {"rank": 8}, "lora.rank = 8: the checkpoint's LoRA has rank 16"),
        ({"rank": 16}, {"rank": 16, "alpha": 8.0}, "lora.alpha = 8.0: the checkpoint's LoRA has alpha 16"),
        ({"rank": 16}, {"rank": 16, "alpha": 16.0}, None),
        ({"dora": True}, {}, "lora.dora = False: the checkpoint's LoRA has dora true"),
        ({"text_encoders": True}, {}, "lora.text_encoders = False: the checkpoint's LoRA has text_encoders true"),
        ({"type": "lokr"}, {"type": "lokr", "decompose_factor": 2}, 'has decompose_factor "none"'),
        ({}, {"targets": ["to_q"]}, None),  # which may name the same layers
        ({}, None, r"lora: the checkpoint of step 2 is of a training of a LoRA\n  remedy: write the \[lora\]"),
        (
            None,
            {},
            r"lora = 'lora': the checkpoint of step 2 is of a training of all weights\n  remedy: remove \[lora\]",
        ),
        (None, None, None),
    ],
)
def test_a_lora_goes_on_with_its_own_settings(
    tmp_path: Path, trained: dict[str, object] | None, here: dict[str, object] | None, key: str | None
) -> None:
    """Where the rank differs, the rank is told, and not the alpha that follows from it."""

    def recipe_of(lora: dict[str, object] | None) -> Recipe:
        base = OF_SD if "text_encoders" in (trained or {}) else RECIPE
        return recipe_file.parse(base if lora is None else base | {"lora": lora})

    run = RunFolder(tmp_path / "run")
    run.create()
    run.recipe_file.write_text(recipe_file.dump(recipe_of(trained)), encoding="utf-8")
    recipe = recipe_of(here)
    with pytest.raises(UserError, match=key) if key else nullcontext():
        init_from.require_same_settings(run, 2, recipe, None)


@pytest.mark.parametrize(("rank", "told"), [("0", "\nstopped by Ctrl-C\n"), ("1", "")])
def test_ctrl_c_outside_of_a_verb_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str, told: str
) -> None:
    """While the command line is put together it ends as it does in a verb, which the first rank tells for all."""
    monkeypatch.setenv("RANK", rank)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "app", interrupted)
    with pytest.raises(SystemExit) as left:
        program.main()
    assert left.value.code == 130
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    ("train", "last"),
    [
        ({"max_steps": 7}, 7),
        ({"max_epochs": 4}, 13),
        ({"max_epochs": 4, "max_steps": 12}, 12),
        ({"max_epochs": 4, "max_steps": 14}, 13),
        ({"max_epochs": 1}, 6),
    ],
)
def test_epochs_tell_the_last_step(train: dict[str, int], last: int) -> None:
    """From step 6, at row 3 of 5 of epoch 2, on."""
    here: Any = SimpleNamespace(plan=SimpleNamespace(num_steps=5), epoch=2, plan_step=3, global_step=6)
    assert progress.last_step(recipe_file.parse(RECIPE | {"train": train}).train, here) == last


@pytest.mark.parametrize(
    ("autoencoder", "asked", "guided"),
    [("opensora-1.1", None, 3), ("pixel", None, None), ("opensora-1.1", 4, 4), ("pixel", 2, 2)],
)
def test_guided_channels_are_usual_for_the_published_latents_alone(autoencoder, asked, guided):
    """Open-Sora 1.1's 3 of 4 channels are the default for its own latents; a recipe may say another number."""
    chosen = {
        "model": {"name": "stdit2-tiny"},
        "objective": {"name": "iddpm"},
        "autoencoder": {"name": autoencoder} | ({"weights": "unused"} if autoencoder != "pixel" else {}),
        "samples": {} if asked is None else {"guided_channels": asked},
    }
    assert defaults.sampled(recipe_file.parse(RECIPE | chosen)).guided_channels == guided


def test_guided_channels_without_iddpm_are_refused():
    with refused("guided-channels-without-iddpm", "samples.guided_channels"):
        recipe_file.parse(RECIPE | {"samples": {"guided_channels": 3}})
