"""`import` of OneTrainer: two configs worked out by hand and by mgds' own code, layer filters, and spoiled files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hostile_configs import spoiled
from hypothesis import given
from import_golden import FOLDER, converted

from reelworks.annexes.imports import importer
from reelworks.annexes.imports.files import ConfigFile, flatten
from reelworks.annexes.imports.onetrainer import layers, models
from reelworks.annexes.imports.onetrainer.onetrainer import ONETRAINER
from reelworks.annexes.imports.request import ImportRequest
from reelworks.annexes.imports.rules import Fate
from reelworks.core.errors import UserError

CONFIG_1, CONCEPTS_1 = FOLDER / "onetrainer-1.json", FOLDER / "onetrainer-1-concepts.json"
CONFIG_2 = FOLDER / "onetrainer-2.json"
PRESET = {"model_type": "FLUX_DEV_1", "training_method": "LORA", "base_model_name": "black-forest-labs/FLUX.1-dev"}


def told(made: importer.Imported) -> dict[str, tuple[Fate, str]]:
    return {key.key: (key.fate, key.remark) for key in made.keys}


def write(folder: Path, values: Any, name: str = "config.json") -> Path:
    (folder / name).write_text(json.dumps(values), encoding="utf-8")
    return folder / name


def test_every_key_of_a_config_and_its_concepts_has_a_line(tmp_path: Path) -> None:
    made, _ = converted(tmp_path, CONFIG_1)
    expected = {*flatten(json.loads(CONFIG_1.read_text())), *flatten({"concepts": json.loads(CONCEPTS_1.read_text())})}
    assert expected <= told(made).keys()
    assert len(made.keys) == len(told(made))
    assert all(key.remark for key in made.keys)
    assert "hunter2" not in made.text + str(made.keys)
    assert "rp_secret" not in made.text + str(made.keys)


def test_a_lora_of_flux_with_concepts(tmp_path: Path) -> None:
    """Its steps are micro-batches: 100 of warm-up are 50 updates, and a preview after 200 is one after 100."""
    made, recipe = converted(tmp_path, CONFIG_1)
    train, lora = recipe.train, recipe.lora
    assert lora is not None
    assert (lora.rank, lora.alpha, lora.base) == (32, 16.0, "nf4")
    assert {"to_q", "ff.net.2"} < set(lora.targets)
    assert "proj_mlp" not in lora.targets
    assert (train.max_epochs, train.gradient_accumulation_steps, train.warmup_steps) == (60, 2, 50)
    assert (train.optimizer, train.learning_rate, train.weight_decay, train.eps) == ("adamw8bit", 2e-4, 0.005, 1e-8)
    assert train.betas == [0.9, 0.99]
    # Each 4th step moves the average there, by as much as 4 do here.
    assert train.ema_decay == round(0.998 ** (1 / 4), 8)
    assert (train.ema_device, recipe.exports.weights) == ("cpu", "ema")
    teapots, kitchens = recipe.dataset
    assert (teapots.repeats, teapots.flip, teapots.jitter_hue, teapots.captions) == (2, 0.5, 0.05, "lines")
    assert (teapots.shuffle_tags, teapots.tag_separator, teapots.keep_tags) == (True, ";", 2)
    assert (kitchens.name, kitchens.prior_prediction) == ("kitchens", True)
    assert "not contains(path, '/')" in (teapots.filter or "")
    assert "not contains(path, '/')" not in (kitchens.filter or "")
    assert recipe.encode.variants == 3
    assert (recipe.bucket[0].resolution, recipe.buckets.batch_size, recipe.buckets.upscale) == ("768px", 4, True)
    assert len(recipe.buckets.aspect_ratios) == 17
    # exp(0.5 + 0.65 · (48² − 256) / 3840): the shift of 768 × 768 pixels.
    assert recipe.objective.timestep_shift == round(math.exp(0.5 + 0.65 * (48**2 - 256) / 3840), 3)
    assert (recipe.objective.logit_mean, recipe.objective.logit_std) == (-0.3, 1.2)
    assert recipe.objective.caption_dropout == 0.05
    samples = recipe.samples
    assert (samples.prompts, samples.every_steps) == (["a teapot on a shelf"], 100)
    assert (samples.height, samples.width, samples.num_inference_steps) == (1024, 768, 24)
    assert (recipe.checkpoints.every_minutes, recipe.checkpoints.keep_last) == (120.0, 5)
    assert told(made)["concepts.2.type"][0] == Fate.NOT_POSSIBLE
    assert told(made)["concepts.1.balancing"][0] == Fate.TO_FILL_IN  # its folder is not there to be counted


def test_a_config_of_the_oldest_version(tmp_path: Path) -> None:
    """Its settings have their old names, and are listed under these."""
    made, recipe = converted(tmp_path, CONFIG_2)
    assert json.loads(CONFIG_2.read_text()).keys() - {"optimizer", "concepts"} <= told(made).keys()
    assert (recipe.model.name, recipe.lora, recipe.objective.name) == ("sdxl", None, "epsilon")
    assert (recipe.objective.loss_weighting, recipe.objective.snr_gamma) == ("min-snr", 5.0)
    # Of the network, and not 1e-5; Adafactor's is a share of the size of weights here, some 0.03.
    assert recipe.train.optimizer == "adafactor"
    assert recipe.train.learning_rate == pytest.approx(6e-6 / 0.03)
    assert (recipe.train.weight_decay, recipe.train.warmup_steps) == (0.01, 200)
    assert (recipe.dataset[0].repeats, recipe.data.crop) == (1.5, "random")
    assert recipe.model.gradient_checkpointing is True
    assert told(made)["learning_rate_scheduler"][0] == Fate.TO_FILL_IN
    assert "no such setting" not in str(made.keys)


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
        ({"mse_strength": 0, "huber_strength": 1, "huber_delta": 0.4}, {"loss": "huber", "huber_delta": 0.4}),
    ],
)
def test_the_objective(tmp_path: Path, values: dict[str, Any], expected: dict[str, Any]) -> None:
    made, recipe = converted(tmp_path, write(tmp_path, PRESET | values))
    assert expected.items() <= recipe.objective.model_dump().items()
    assert all(fate != Fate.NOT_POSSIBLE for key, (fate, _) in told(made).items() if key in values)


@pytest.mark.parametrize(
    ("preset", "patterns", "wanted"),
    [
        ("sdxl", ("attn",), ["to_q", "to_k", "to_v", "to_out.0"]),
        ("chroma1-hd", ("transformer_block",), "blocks"),
        ("qwen-image", ("img_mlp",), ["img_mlp.net.0.proj", "img_mlp.net.2"]),
        ("flux2-dev", ("single_transformer_blocks",), ["to_qkv_mlp_proj", "to_out"]),
    ],
)
def test_a_filter_names_the_layers(preset: str, patterns: tuple[str, ...], wanted: list[str] | str) -> None:
    """The shortest names that mean no other layers."""
    found = layers.targets(preset, patterns, regex=False)
    assert (found.names, found.others) == (wanted, [])


def test_a_filter_of_blocks_by_number_and_one_that_no_ending_tells_apart() -> None:
    assert layers.targets("flux-dev", ("transformer_blocks.1.attn",), regex=False).by_number
    of_main_blocks = models.MODELS["Z_IMAGE"].filters["attn-mlp"]
    assert layers.targets("z-image", of_main_blocks, regex=True).others  # those of the refiners


@pytest.mark.slow
@pytest.mark.parametrize(
    "preset", ["flux-dev", "flux2-dev", "flux2-klein-base-4b", "chroma1-hd", "krea2-raw", "z-image"]
)
def test_the_layers_are_those_of_the_networks(preset: str) -> None:
    require_layers(preset)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["qwen-image", "sd3-medium", "sd3.5-medium", "sd3.5-large", "sdxl"])
def test_the_layers_are_those_of_the_other_networks(preset: str) -> None:
    require_layers(preset)


def require_layers(preset: str) -> None:
    import re

    import torch
    from presets import config_of, network_of

    with torch.device("meta"):
        network = network_of(config_of(preset))
    own = {name for name, child in network.named_modules() if isinstance(child, torch.nn.Linear)}
    known = next(names for start, names in layers.LAYERS.items() if preset.startswith(start))
    patterns = {re.compile(re.escape(name).replace(r"N\.", r"\d+\.")) for name in known}
    assert all(any(pattern.fullmatch(name) for pattern in patterns) for name in own)
    assert all(any(pattern.fullmatch(name) for name in own) for pattern in patterns)


@pytest.mark.parametrize("kind", ["STABLE_DIFFUSION_15", "HUNYUAN_VIDEO", "PIXART_SIGMA", "SANA"])
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


CONFIG = json.loads(CONFIG_1.read_text()) | {"concepts": json.loads(CONCEPTS_1.read_text())}


@given(config=spoiled(CONFIG))
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
