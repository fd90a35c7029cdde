"""`data.fps = "model"` is the rate that a model was trained with, and nothing but that number."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import prepare_files as files
import pytest

from reelworks.core import results
from reelworks.core.errors import UserError
from reelworks.data.loader.step_source import StepSource
from reelworks.inference.generate import conditions, defaults
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.models import registry
from reelworks.quickstart import survey
from reelworks.training.plan import discarded, plan_report
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe

ENTRY = [{"resolution": "48px", "num_frames": [9, 17], "batch_size": 1}]


def wan(folder: Path, **data: Any) -> Recipe:
    model = {"model": {"name": "wan-tiny"}, "objective": {"name": "rectified-flow"}}
    return files.recipe(folder, **model, data=data, bucket=ENTRY, samples={"prompts": ["a dog"], "num_frames": 9})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of 24 frames a second: long enough at 16, long enough only without thinning, too short."""
    root = tmp_path_factory.mktemp("rates")
    for frames in (30, 12, 6):
        files.clip(root / "data" / f"{frames}.mp4", frames)
    files.opened(wan(root))
    return root


def test_model_and_its_number_give_one_recipe_and_one_plan(folder: Path) -> None:
    by_name, by_number, every = (RecipeData.open(wan(folder, **d)) for d in ({"fps": "model"}, {"fps": 16.0}, {}))
    assert by_name.recipe == by_number.recipe
    assert by_name.spec.data.fps == 16.0
    assert by_name.plan_spec(2, 1).digest() == by_number.plan_spec(2, 1).digest() != every.plan_spec(2, 1).digest()
    stored = recipe_file.parse(tomllib.loads(recipe_file.dump(by_name.recipe)))
    assert stored == by_name.recipe


@pytest.mark.parametrize(("model", "why"), [("stdit3-tiny", "as an input"), ("flux-tiny", "pictures only")])
def test_a_model_without_a_rate_is_refused_with_the_way_out(tmp_path: Path, model: str, why: str) -> None:
    with pytest.raises(UserError) as error:
        files.recipe(tmp_path, model={"name": model}, data={"fps": "model"})
    assert (error.value.code, error.value.field) == ("model-without-frame-rate", "data.fps")
    assert why in error.value.problem
    assert "give a number" in error.value.remedy


@pytest.mark.parametrize("value", [0.0, -1.0, "modell", [16]])
def test_other_values_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(UserError) as error:
        wan(tmp_path, fps=value)
    assert error.value.field == "data.fps"


def test_every_model_of_clips_has_a_rate_or_takes_it_as_an_input() -> None:
    for name, preset in registry.PRESETS.items():
        clips = not preset.config.pictures_only and not name.startswith("stdit")
        assert (preset.fps is not None) == clips, name
    assert registry.frame_rate("wan-2.1-14b") == 16
    assert registry.frame_rate("wan-2.2-5b") == 24


def test_reasons_count_frames_before_and_after_thinning(folder: Path) -> None:
    def detail(name: str, **data: Any) -> str:
        opened = RecipeData.open(wan(folder, **data))
        told = results.as_json(
            plan_report.summarise(opened, opened.plan_spec(2, 1), opened.plan(opened.plan_spec(2, 1), 0), world=2)
        )
        return next(f["detail"] for f in told["reasons"]["too_short"] if f["path"] == f"data/{name}")

    assert detail("12.mp4", fps="model").startswith("12 frames, 8 at 16 fps, of 64 × 48; needs 9; nearest entry")
    assert detail("12.mp4", frame_interval=2).startswith("12 frames, 6 with frame_interval 2, of 64 × 48; needs 9")
    assert detail("6.mp4").startswith("6 frames of 64 × 48; needs 9")


def test_clips_below_the_rate_keep_theirs_and_are_counted(folder: Path) -> None:
    def lower(**data: Any) -> int:
        opened = RecipeData.open(wan(folder, **data))
        return discarded.losses(opened, opened.plan(opened.plan_spec(1, 1), 0)).below_rate

    assert lower(fps=30.0) == 2  # the two clips that are long enough at their own 24
    assert lower(fps="model") == lower() == 0


@pytest.mark.parametrize(
    ("data", "samples", "fps"),
    [({}, {}, 16.0), ({"fps": "model"}, {}, 16.0), ({"fps": 8.0}, {}, 8.0), ({"fps": 8.0}, {"fps": 30.0}, 30.0)],
)
def test_without_a_plan_clips_have_the_rate_of_the_recipe_or_else_of_the_model(
    tmp_path: Path, data: dict[str, Any], samples: dict[str, Any], fps: float
) -> None:
    recipe = wan(tmp_path, **data)
    recipe = recipe.model_copy(update={"samples": recipe.samples.model_copy(update=samples)})
    assert defaults.fps(None, recipe) == fps


def test_models_without_a_rate_generate_at_24(tmp_path: Path) -> None:
    assert defaults.fps(None, files.recipe(tmp_path)) == 24.0


@pytest.mark.parametrize(
    ("data", "wanted"), [({}, 24.0), ({"frame_interval": 2}, 12.0), ({"fps": 8.0}, 8.0), ({"fps": 30.0}, 24.0)]
)
def test_clips_are_generated_at_the_rate_that_training_tells_the_network(
    folder: Path, data: dict[str, Any], wanted: float
) -> None:
    """The rate is that of the footage, 24, less what is left out; none is read faster than it is."""
    opened = RecipeData.open(wan(folder, **data))
    spec = opened.plan_spec(1, 1)
    summary = plan_report.summarise(opened, spec, opened.plan(spec, 0), world=1)
    clips, source = opened.entries(0), StepSource(opened, 0, 1)
    told = {fps for i in range(len(clips)) for fps in source.build_request(clips.take(np.array([i])), epoch=0).fps}
    assert told == {wanted}
    assert defaults.fps(summary, opened.recipe) == GenerateOptions.of_previews(opened).fps == wanted
    assert conditions.as_read(opened.recipe, wanted).frame_rate == (wanted if data else None)


def test_a_new_recipe_proposes_lengths_at_the_rate_of_the_model(folder: Path) -> None:
    data = RecipeData.open(wan(folder))
    frames = survey.survey(data.rows, data.spec.datasets, 16.0).videos[:, 0]
    assert sorted(frames.tolist()) == [4, 8, 20]
    assert sorted(survey.survey(data.rows, data.spec.datasets).videos[:, 0].tolist()) == [6, 12, 30]


def test_pictures_are_no_clips_without_sound(tmp_path: Path) -> None:
    files.clip(tmp_path / "data" / "a.mp4", 9)
    files.picture(tmp_path / "data" / "b.png")
    data = files.opened(wan(tmp_path))
    found = survey.survey(data.rows, data.spec.datasets)
    assert (len(found.pictures), len(found.videos), found.silent) == (1, 1, 1)


def test_showings_of_a_survey_count_repeats_of_each_dataset(folder: Path) -> None:
    data = RecipeData.open(wan(folder))
    clips = len(data.rows)
    for repeats, showings in ((1, clips), (3, 3 * clips), (0.5, round(clips / 2))):
        datasets = [each.model_copy(update={"repeats": repeats}) for each in data.spec.datasets]
        found = survey.survey(data.rows, datasets)
        assert (found.clips, found.showings) == (clips, showings)
