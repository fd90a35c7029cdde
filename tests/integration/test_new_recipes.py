"""The recipe that `new lora` writes is accepted by `plan`, for every model, kind of footage and memory of a GPU."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from kinds_of_footage import write_kinds
from PIL import Image
from refused import refused
from typer.testing import CliRunner

from reelworks.commands.main import app
from reelworks.core import gpus
from reelworks.core.errors import UserError
from reelworks.data.buckets.entry import Recomputation
from reelworks.data.catalog.config import DatasetConfig
from reelworks.models import registry
from reelworks.quickstart import quickstart
from reelworks.quickstart.request import NewLoraRequest
from reelworks.quickstart.survey import FolderSurvey
from reelworks.quickstart.trained_sizes import TrainedSizes
from reelworks.training.memory import measurements, recomputation
from reelworks.training.memory.measurements import Measurements
from reelworks.training.plan import plan_forecast
from reelworks.training.preflight import stage_forecast
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.dataset import RecipeData


@pytest.fixture(scope="module")
def footage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("material")
    write_kinds(folder)
    return folder


@pytest.fixture(autouse=True)
def here(footage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(footage)


def pictures(folder: str, *sizes: tuple[int, int], captioned: int = 99) -> Path:
    path = Path(folder)
    path.mkdir(exist_ok=True)
    for i, size in enumerate(sizes):
        Image.new("RGB", size, (i, 90, 20)).save(path / f"{i}.png", compress_level=1)
        if i < captioned:
            (path / f"{i}.txt").write_text(f"a cup {i}", encoding="utf-8")
    return path


def made(folder: str, model: str = "sdxl", **wishes: object) -> quickstart.QuickstartResult:
    path = f"{folder}-made.toml"
    return quickstart.lora(NewLoraRequest(model=model, data=folder, output=path, force=True, vram_gb=24, **wishes))


@pytest.mark.parametrize(
    ("sizes", "resolution"),
    [
        ([(832, 1216), (896, 1152), (1344, 768), (1024, 1024)] * 5, "1024px"),
        ([(1000, 1000)] * 6, "1024px"),
        ([(945, 945)] * 6, "1024px"),  # 85 % of the area
        ([(930, 930)] * 6, "768px"),
        ([(800, 800)] * 6, "768px"),
    ],
)
@pytest.mark.parametrize(
    "model", ["sdxl", *(pytest.param(n, marks=pytest.mark.slow) for n in ("flux-dev", "qwen-image", "z-image"))]
)
@pytest.mark.quick_cases(2)
def test_data_cut_for_a_size_is_trained_at_it(sizes: list[tuple[int, int]], resolution: str, model: str) -> None:
    name = f"cut-{len(sizes)}-{sizes[0][0]}"
    if not Path(name).exists():
        pictures(name, *sizes)
    result = made(name, model)
    assert result.recipe.bucket[0].resolution == resolution
    line = next(line for line in result.text.splitlines() if line.startswith("resolution ="))
    assert ("nearly do, and are enlarged by up to 18% in area" in line) == (
        sizes[0][0] ** 2 < int(resolution[:-2]) ** 2
    )


@pytest.mark.parametrize(
    ("model", "side", "resolutions"),
    [
        ("flux-dev", 1024, ["512px", "1024px"]),
        ("flux-dev", 800, None),  # they fill 768px, for which it was not released by itself
        ("flux-dev", 600, None),
        ("sdxl", 1024, None),
        ("sd3.5-medium", 1024, ["512px", "1024px"]),
        ("sd3.5-medium", 1440, ["512px", "1024px", "1440px"]),
    ],
)
@pytest.mark.quick_cases(1)
def test_pictures_are_trained_at_several_sizes_where_the_model_was_released_for_them(
    model: str, side: int, resolutions: list[str] | None
) -> None:
    name = f"squares-{side}"
    if not Path(name).exists():
        pictures(name, *[(side, side)] * 20)
    result = made(name, model)
    assert result.recipe.dataset[0].resolutions == resolutions
    sizes = [entry.resolution for entry in result.recipe.bucket]
    assert len(sizes) == 1 if resolutions is None else sizes == resolutions[::-1]
    assert any("each picture is trained at" in remark for remark in result.remarks) == (resolutions is not None)
    if resolutions:
        assert f"{model} was released for" in next(x for x in result.text.splitlines() if x.startswith("resolutions"))
    # Showings at each size count, so that the training does not become longer.
    epoch = len(sizes) * 20
    assert result.recipe.train.max_epochs == round(2000 / epoch)
    of_epoch = -(-20 // result.recipe.buckets.batch_size) * len(sizes)
    assert result.steps == of_epoch * result.recipe.train.max_epochs


def test_a_larger_size_is_proposed_only_if_it_needs_no_further_settings() -> None:
    """Weights of Wan 14B are for 480p and 720p: a GPU that would need more for 720p trains at 480p."""
    footage = FolderSurvey(
        np.zeros((0, 2), np.int64), np.array([[81, 720, 1280]] * 4), 4, 0, (), tuple(f"{i}.mp4" for i in range(4))
    )
    alone = TrainedSizes.choose("wan-2.1-14b", footage)
    proposed = alone.proposed("wan-2.1-14b", footage)
    assert [name for name, _ in alone.of_clips] == ["480p"]
    assert [name for name, _ in proposed.of_clips] == ["720p", "480p"]
    assert proposed.several == ("480p", "720p")
    datasets = [DatasetConfig(path="clips")]
    drafts = {}
    for vram in (40, 200):
        request = NewLoraRequest(model="wan-2.1-14b", data=(Path("both"),), trigger="word", vram_gb=vram, force=True)
        drafts[vram] = quickstart._choose(request, quickstart._Footage(datasets, footage, []))
    assert drafts[200].sizes == proposed
    assert drafts[40].sizes.several == ()
    assert "480p and 720p would need more memory" in drafts[40].sizes.remarks[-1]


def test_sizes_that_are_asked_for_are_taken_alone() -> None:
    pictures("asked", *[(1024, 1024)] * 4)
    one = made("asked", "flux-dev", resolution="768")
    assert ([entry.resolution for entry in one.recipe.bucket], one.recipe.dataset[0].resolutions) == (["768px"], None)
    both = made("asked", "sdxl", resolution=("512", "1024"))
    assert [entry.resolution for entry in both.recipe.bucket] == ["512px", "1024px"]
    assert both.recipe.dataset[0].resolutions == ["512px", "1024px"]


def test_clips_that_a_model_of_pictures_leaves_out_are_named() -> None:
    result = made("both", "flux-dev")
    assert (
        result.remarks[0]
        == "left out, because flux-dev makes only pictures: 3 clips, both/c0.mp4, both/c1.mp4, both/c2.mp4"
    )
    assert (len(result.found.pictures), len(result.found.videos)) == (6, 0)
    with pytest.raises(UserError, match=r"have clips alone: clips/c0\.mp4, clips/c1\.mp4"):
        made("clips", "flux-dev")
    with pytest.raises(UserError, match='choose "ltx-2", which is trained without sound'):
        made("pictures", "ltx-2-sound")


def test_counts_add_up_to_what_is_trained() -> None:
    """Epochs follow from the pictures that are trained; repeats are showings, not clips."""
    pictures("10_cup", *[(1024, 1024)] * 4, captioned=99)
    result = made("10_cup")
    line = next(line for line in result.text.splitlines() if line.startswith("max_epochs"))
    assert line.startswith("max_epochs = 22 ")
    assert line.endswith("# 880 showings, 220 of each of 4 clips; as a rule 100 of 20, and of more fewer of each")
    pictures("half", *[(1024, 1024)] * 20, captioned=5)
    result = made("half")
    assert "1,000 showings, 200 of each of 5 clips" in result.text
    assert result.steps == 200 * 2
    assert re.search(r"# the clips have \d+ frames at 16 fps\n", made("clips", "wan").text)


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize("given", ["gradient_accumulation_steps=4", "micro_batches_per_step=3", "max_steps=7"])
def test_steps_and_their_time_are_those_of_the_plan(given: str, data: bool) -> None:
    """Some ten checkpoints are those of steps, of which each takes several micro-batches."""
    wishes = {"data": "pictures"} if data else {}
    made = quickstart.make(NewLoraRequest(model="sdxl", vram_gb=24, overrides=(f"train.{given}",), **wishes))
    assert made.recipe.checkpoints.every_steps == max(made.steps // 10, 10)
    if data:
        opened = RecipeData.open(recomputation.with_recomputation(made.recipe, made.recomputation))
        plan = plan_forecast.forecast(opened.recipe, 1, data=opened)
        told = stage_forecast.of_gpu(opened, plan, gpus.GPUS[made.gpu])
        assert (made.steps, made.seconds_per_step) == (told.steps, pytest.approx(told.seconds_per_step, rel=0.01))
    else:
        usual = quickstart.make(NewLoraRequest(model="sdxl", vram_gb=24))  # with five micro-batches in an epoch
        assert made.steps == (7 if "max" in given else usual.steps // 5 * 2)
        if "max" not in given:
            assert made.steps * made.seconds_per_step == pytest.approx(usual.steps * usual.seconds_per_step, rel=0.01)


def test_what_is_asked_for_is_written_and_counted() -> None:
    result = made("pictures", rank=4, steps=300, resolution=("512",), overrides=("train.learning_rate=5e-5", "seed=7"))
    recipe = recipe_file.load(Path("pictures-made.toml"), [])
    assert recipe == result.recipe
    assert (recipe.lora.rank, recipe.train.max_steps, recipe.train.max_epochs) == (4, 300, None)
    assert (recipe.bucket[0].resolution, recipe.train.learning_rate, recipe.seed) == ("512px", 5e-5, 7)
    assert result.steps == 300
    assert recipe.checkpoints.every_steps == 30
    assert "as given with --set" in result.text
    assert result.choice.estimate.trained_parameters == 42_557_440 / 4


def test_a_setting_that_is_given_is_not_replaced_by_one_that_saves_memory() -> None:
    with pytest.raises(UserError, match=r"needs 42\.6 GB with all settings"):
        quickstart.lora(
            NewLoraRequest(
                model="sdxl",
                data="pictures",
                vram_gb=12,
                overrides=("model.gradient_checkpointing=false", "buckets.batch_size=4"),
                output="r.toml",
            )
        )


@pytest.mark.parametrize("way", [False, 0.5, True])
def test_recomputation_that_is_given_is_what_memory_is_told_with(way: Recomputation) -> None:
    """As `plan` tells it of the recipe, for the same card."""
    given = f'buckets.gradient_checkpointing={{"1024px ×1" = {json.dumps(way)}}}'
    result = made("pictures", resolution=("1024px",), overrides=(given,))
    assert result.recomputation == {"1024px ×1": way}
    cards = recomputation.Cards(recomputation.limit(result.recipe, 24 * 10**9))
    planned = recomputation.settled(result.recipe, measurements.bucket_table(result.recipe), cards)
    told = recomputation.estimate(planned, measurements.bucket_table(planned), cards)
    assert result.estimate.memory == told.memory


@pytest.mark.parametrize("base", ["int8", "nf4"])
def test_no_setting_is_chosen_that_would_remove_one_that_is_given(base: str) -> None:
    """Weights in CPU memory are not rounded: a GPU on which that base does not fit is too small."""
    with refused("gpu-too-small", "--vram", says="base "):
        quickstart.make(NewLoraRequest(model="flux-dev", vram_gb=6, overrides=(f"lora.base={base}",)))
    assert quickstart.make(NewLoraRequest(model="flux-dev", vram_gb=6)).recipe.parallel.offload


def test_a_batch_size_that_no_entry_takes_over_saves_nothing() -> None:
    own = quickstart.make(NewLoraRequest(model="flux-dev", vram_gb=24, overrides=("bucket.0.batch_size=4",)))
    assert "buckets.batch_size" not in own.settings
    assert own.recipe.buckets.batch_size == 4
    assert "buckets.batch_size" in quickstart.make(NewLoraRequest(model="flux-dev", vram_gb=24)).settings


def test_memory_that_is_not_counted_or_not_there_never_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["new", "lora", "--model", "hunyuan", "--data", "clips", "--vram", "24", "--force", "-o", "h.toml"]
    told = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert told["estimate"]["memory"]["activations"] > 1e9
    assert told["recomputation"]
    assert all(told["recomputation"].values())
    host = told["estimate"]["memory"]["host"]
    monkeypatch.setattr(quickstart.machine, "memory_bytes", lambda: host)
    assert "it fits" in CliRunner().invoke(app, command).stdout
    monkeypatch.setattr(quickstart.machine, "memory_bytes", lambda: host - 1)
    said = CliRunner().invoke(app, command).stdout
    assert "it fits" not in said
    assert "so it does not fit here" in said
    assert json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["fits"] is False
    # A network that cannot be measured is given what saves activations, and no promise.
    monkeypatch.setattr(Measurements, "sizes", _unmeasured(Measurements.sizes))
    pictures = ["--model", "sdxl", "--data", "pictures", "--vram", "80"]
    said = CliRunner().invoke(app, [*command, *pictures]).stdout
    assert "it fits" not in said
    assert "buckets.batch_size = 1" in said


def _unmeasured(real):
    return lambda *a, **k: real(*a, **k)._replace(runs_on_meta=False)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("ponyDiffusionV6XL", "--model sdxl --weights FILE"),
        ("illustrious", "--model sdxl --weights FILE"),
        ("wan-2.2-i2v", '"wan-2.2-i2v-14b"'),
        ("ltx-sound", '"ltx-2-sound" or "ltx-2.3-sound"'),
    ],
)
def test_a_name_that_is_no_model_is_answered_with_the_one_that_is_meant(name: str, answer: str) -> None:
    with pytest.raises(UserError) as error:
        registry.preset_name(name)
    assert answer in error.value.remedy


def test_names_that_are_short_for_models() -> None:
    assert {n: registry.preset_name(n) for n in ("ltx2", "LTX-2.3", "wan-i2v")} == {
        "ltx2": "ltx-2",
        "LTX-2.3": "ltx-2.3",
        "wan-i2v": "wan-2.1-i2v-14b",
    }
