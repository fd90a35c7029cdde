"""`import` of OneTrainer: the objective, layer filters, what is refused, and spoiled files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from former_configs import GOLDEN, converted
from hostile_configs import spoiled
from hypothesis import given

from reelworks.annexes.imports import importer
from reelworks.annexes.imports.files import ConfigFile, flatten
from reelworks.annexes.imports.onetrainer import adapter, models
from reelworks.annexes.imports.onetrainer.onetrainer import ONETRAINER
from reelworks.annexes.imports.request import ImportRequest
from reelworks.annexes.imports.rules import Fate
from reelworks.annexes.imports.trainer import FormerBuckets
from reelworks.core.errors import UserError

CONFIG_1, CONCEPTS_1 = GOLDEN / "onetrainer-1.json", GOLDEN / "onetrainer-1-concepts.json"
PRESET = {"model_type": "FLUX_DEV_1", "training_method": "LORA", "base_model_name": "black-forest-labs/FLUX.1-dev"}


def told(made: importer.Imported) -> dict[str, tuple[Fate, str]]:
    return {key.key: (key.fate, key.remark) for key in made.keys}


def write(folder: Path, values: Any, name: str = "config.json") -> Path:
    (folder / name).write_text(json.dumps(values), encoding="utf-8")
    return folder / name


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"timestep_distribution": "UNIFORM"}, {"timestep_sampling": "uniform", "timestep_shift": 1.0}),
        (
            {"timestep_distribution": "HEAVY_TAIL", "noising_weight": 0.5},
            {"timestep_sampling": "mode", "mode_scale": 0.5},
        ),
        ({"timestep_distribution": "COS_MAP"}, {"timestep_sampling": "uniform", "loss_weighting": "cosmap"}),
        (
            {"timestep_distribution": "BETA", "noising_weight": 0.7, "noising_bias": 1.0},
            {"timestep_sampling": "beta", "beta_alpha": 0.7, "beta_beta": 1.0},
        ),
        # 2 − 8 (t − 0.5)² is six times t (1 − t), the density of beta(2, 2).
        (
            {"timestep_distribution": "INVERTED_PARABOLA", "noising_weight": 8},
            {"timestep_sampling": "beta", "beta_alpha": 2.0, "beta_beta": 2.0},
        ),
        (
            {"timestep_shift": 2.5, "min_noising_strength": 0.2},
            {"timestep_shift": 2.5, "timestep_range": [200.0, 1000.0]},
        ),
        # Of Ideogram 4 it is the side by 512.
        (
            {"model_type": "IDEOGRAM_4", "dynamic_timestep_shifting": True, "resolution": "768"},
            {"timestep_shift": 1.5, "caption_dropout": 0.0},
        ),
        ({"offset_noise_weight": 0.05}, {"noise_offset": 0.05}),
        ({"mse_strength": 0, "huber_strength": 1, "huber_delta": 0.4}, {"loss": "huber", "huber_delta": 0.4}),
    ],
)
def test_the_objective(tmp_path: Path, values: dict[str, Any], expected: dict[str, Any]) -> None:
    made, recipe = converted(tmp_path, write(tmp_path, PRESET | values))
    assert expected.items() <= recipe.objective.model_dump().items()
    assert all(fate != Fate.NOT_POSSIBLE for key, (fate, _) in told(made).items() if key in values)


@pytest.mark.parametrize(("given", "steps"), [(0, 0), (0.25, None), (1, None), (1.0, None), (2, 2), (30, 30)])
def test_a_warm_up_is_a_share_of_all_steps_up_to_one_and_a_number_of_them_above(
    tmp_path: Path, given: float, steps: int | None
) -> None:
    """How many steps there are is not known without the clips."""
    made, recipe = converted(tmp_path, write(tmp_path, PRESET | {"learning_rate_warmup_steps": given}))
    fate, remark = told(made)["learning_rate_warmup_steps"]
    if steps is None:
        assert fate is Fate.TO_FILL_IN
        assert f"times {given:g}" in remark
    else:
        assert (fate, recipe.train.warmup_steps) == (Fate.TAKEN, steps)


@pytest.mark.parametrize(("every", "unit", "steps"), [(40, "STEP", 10), (1, "STEP", 1), (7, "ALWAYS", 1)])
def test_what_is_done_every_so_many_batches_is_done_every_so_many_steps(
    tmp_path: Path, every: int, unit: str, steps: int
) -> None:
    names = ("save_every", "sample_after")
    given = dict.fromkeys(names, every) | {f"{name}_unit": unit for name in names}
    _, recipe = converted(tmp_path, write(tmp_path, PRESET | given | {"gradient_accumulation_steps": 4}))
    assert (recipe.checkpoints.every_steps, recipe.samples.every_steps) == (steps, steps)


def test_a_rescaled_schedule_predicts_v(tmp_path: Path) -> None:
    """OneTrainer then trains v, whatever `force_v_prediction` says."""
    values = {"model_type": "STABLE_DIFFUSION_XL_10_BASE", "rescale_noise_scheduler_to_zero_terminal_snr": True}
    made, recipe = converted(tmp_path, write(tmp_path, {**values, "base_model_name": "a/b"}))
    assert (recipe.objective.name, recipe.objective.zero_terminal_snr) == ("v-prediction", True)
    assert told(made)["rescale_noise_scheduler_to_zero_terminal_snr"][0] is Fate.TAKEN


@pytest.mark.parametrize(("second", "trained"), [(True, True), (None, True), (False, False)])
def test_text_encoders_of_a_lora(tmp_path: Path, second: bool | None, trained: bool) -> None:
    """All of them are trained, as by default, or none; the first one's rate is that of all."""
    parts = {
        "text_encoder": {"train": True, "learning_rate": 3e-5},
        "text_encoder_2": {"learning_rate": 3e-5} | ({} if second is None else {"train": second}),
    }
    kind = {"model_type": "STABLE_DIFFUSION_XL_10_BASE", "training_method": "LORA", "base_model_name": "a/b"}
    made, recipe = converted(tmp_path, write(tmp_path, kind | parts))
    assert recipe.lora.text_encoders is trained
    assert recipe.train.text_encoder_learning_rate == (3e-5 if trained else None)
    assert told(made)["text_encoder.train"][0] is (Fate.TAKEN if trained else Fate.NOT_POSSIBLE)


def test_a_concept_has_its_own_name_though_another_ones_folder_has_it(tmp_path: Path) -> None:
    concepts = [{"name": "b", "path": "d/a"}, {"name": "a", "path": "e/b"}, {"name": "", "path": "f/c"}]
    values = json.loads((GOLDEN / "onetrainer-1.json").read_text(encoding="utf-8")) | {"concepts": concepts}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    assert [each.name for each in converted(tmp_path, path)[1].dataset] == ["b", "a", "c"]


def test_a_concept_that_draws_one_of_two_sizes_is_used_as_often(tmp_path: Path) -> None:
    own = {"enable_resolution_override": True, "resolution_override": "256,768"}
    concepts = [{"path": "a", "balancing": 3, "image": own}, {"path": "b", "balancing": 3}]
    recipe = converted(tmp_path, write(tmp_path, PRESET | {"resolution": "512", "concepts": concepts}))[1]
    found = [(len(data.resolutions or ()), data.repeats) for data in recipe.dataset]
    assert found == [(2, 1.5), (1, 3)]


@pytest.mark.parametrize("every", [None, 1, 10])
def test_an_average_that_moves_each_nth_step_is_as_slow_here(tmp_path: Path, every: int | None) -> None:
    """By default each fifth does."""
    average = {"ema": "CPU", "ema_decay": 0.9} | ({} if every is None else {"ema_update_step_interval": every})
    recipe = converted(tmp_path, write(tmp_path, PRESET | average))[1]
    assert recipe.train.ema_decay ** (every or 5) == pytest.approx(0.9)
    assert recipe.train.ema_device == "cpu"


def test_previews_have_the_settings_of_the_first_sample_that_is_shown(tmp_path: Path) -> None:
    off = {"enabled": False, "prompt": "a cup", "height": 512, "width": 512, "diffusion_steps": 9}
    shown = [{"enabled": True, "prompt": name, "height": 768, "width": 1024, "diffusion_steps": 30} for name in "bc"]
    made, recipe = converted(tmp_path, write(tmp_path, PRESET | {"samples": [off, *shown]}))
    previews = recipe.samples
    assert (previews.prompts, previews.height, previews.width) == (["b", "c"], 768, 1024)
    assert previews.num_inference_steps == 30
    assert [told(made)[f"samples.{n}.height"][0] for n in range(3)] == [Fate.NO_MEANING, Fate.TAKEN, Fate.DEFAULT]


def test_a_rate_falls_as_often_over_the_epochs(tmp_path: Path) -> None:
    restarts = {"learning_rate_scheduler": "COSINE_WITH_HARD_RESTARTS", "learning_rate_cycles": 4.0, "epochs": 8}
    made, recipe = converted(tmp_path, write(tmp_path, PRESET | restarts))
    assert (recipe.train.learning_rate_schedule, recipe.train.learning_rate_cycles) == ("cosine", 4)
    assert (recipe.train.max_epochs, recipe.train.max_steps) == (8, None)
    assert {told(made)[key][0] for key in restarts} == {Fate.TAKEN}


@pytest.mark.parametrize(
    ("preset", "patterns", "wanted"),
    [
        ("sdxl", ("attn",), ["to_q", "to_k", "to_v", "to_out.0"]),
        ("chroma1-hd", ("transformer_block",), "blocks"),
        ("qwen-image", ("img_mlp",), ["img_mlp.net.0.proj", "img_mlp.net.2"]),
        ("flux2-dev", ("single_transformer_blocks",), ["to_qkv_mlp_proj", "to_out"]),
        ("ernie-image", ("self_attention", "mlp"), "blocks"),
        ("hidream-i1-full", ("stream_block",), "blocks"),
    ],
)
def test_a_filter_names_the_layers(preset: str, patterns: tuple[str, ...], wanted: list[str] | str) -> None:
    """The shortest names that mean no other layers."""
    found = adapter.targets(preset, patterns, regex=False)
    assert (found.names, found.others) == (wanted, [])


def test_a_filter_of_blocks_by_number_and_one_that_no_ending_tells_apart() -> None:
    assert adapter.targets("flux-dev", ("transformer_blocks.1.attn",), regex=False).by_number
    of_main_blocks = models.MODELS["Z_IMAGE"].filters["attn-mlp"]
    assert adapter.targets("z-image", of_main_blocks, regex=True).others  # those of the refiners


@pytest.mark.slow
@pytest.mark.parametrize(
    "preset",
    [
        "flux-dev",
        "flux2-dev",
        "flux2-klein-base-4b",
        "chroma1-hd",
        "hidream-i1-full",
        "ideogram-4",
        "krea2-raw",
        "z-image",
        "ernie-image",
    ],
)
def test_the_layers_are_those_of_the_networks(preset: str) -> None:
    require_layers(preset)


@pytest.mark.slow
@pytest.mark.parametrize(
    "preset", ["qwen-image", "sd3-medium", "sd3.5-medium", "sd3.5-large", "sdxl", "sd1.5", "anima"]
)
def test_the_layers_are_those_of_the_other_networks(preset: str) -> None:
    require_layers(preset)


def require_layers(preset: str) -> None:
    import re

    import torch
    from presets import config_of, network_of

    with torch.device("meta"):
        network = network_of(config_of(preset))
    own = {name for name, child in network.named_modules() if isinstance(child, torch.nn.Linear)}
    known = next(names for start, names in adapter.LAYERS.items() if preset.startswith(start))
    patterns = {re.compile(re.escape(name).replace(r"N\.", r"\d+\.")) for name in known}
    assert all(any(pattern.fullmatch(name) for pattern in patterns) for name in own)
    assert all(any(pattern.fullmatch(name) for name in own) for pattern in patterns)


@pytest.mark.parametrize("kind", ["STABLE_DIFFUSION_21", "HUNYUAN_VIDEO", "PIXART_SIGMA", "SANA"])
def test_a_model_that_is_not_here_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UserError) as caught:
        converted(tmp_path, write(tmp_path, PRESET | {"model_type": kind, "base_model_name": "x"}))
    assert caught.value.field == "model_type"


def test_embeddings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="embeddings are not trained"):
        converted(tmp_path, write(tmp_path, PRESET | {"training_method": "EMBEDDING"}))


def test_concepts_alone_are_recognised_and_need_the_config(tmp_path: Path) -> None:
    assert ONETRAINER.recognises(ConfigFile(CONCEPTS_1))
    assert not ONETRAINER.recognises(ConfigFile(write(tmp_path, {"model_type": "flux", "--lr": 1})))
    assert not ONETRAINER.recognises(ConfigFile(write(tmp_path, [1, {"path": "x"}])))
    with pytest.raises(UserError, match="config with model_type"):
        converted(tmp_path, CONCEPTS_1)


def test_a_config_without_concepts_leaves_their_folder_to_be_filled_in(tmp_path: Path) -> None:
    made, recipe = converted(tmp_path, write(tmp_path, PRESET | {"concept_file_name": "mine.json"}))
    (line,) = [key for key in made.keys if key.key == "concepts"]
    assert (line.value, line.fate, recipe.dataset[0].path) == ("mine.json", Fate.TO_FILL_IN, "data")
    former = ONETRAINER.read([ConfigFile(write(tmp_path, PRESET))])
    assert ONETRAINER.buckets(former, 0) == FormerBuckets(whole_batches=1, share=1.0)


CONFIG = json.loads(CONFIG_1.read_text(encoding="utf-8")) | {
    "concepts": json.loads(CONCEPTS_1.read_text(encoding="utf-8"))
}


@given(config=spoiled(CONFIG))
@pytest.mark.slow
def test_no_spoiled_config_ends_in_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, config: dict[str, Any]
) -> None:
    """It gives a recipe with a line for each key, or says what is wrong."""
    folder = tmp_path_factory.mktemp("spoiled")
    file = write(folder, config)
    request = ImportRequest(files=(file,), output=folder / "out.toml", trainer="onetrainer", clips=False)
    try:
        made = importer.convert(request)
    except UserError:
        return
    expected = {key for key in flatten(config) if key and not key.startswith("optimizer")}
    assert expected <= told(made).keys()
    assert len(made.keys) == len(told(made))
    ONETRAINER.buckets(ONETRAINER.read([ConfigFile(file)]), 0)
