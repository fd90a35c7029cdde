"""`import` of Open-Sora: every key of a config is accounted for, nothing is run, and the recipe loads.

The configs have the form of Open-Sora's own for stage 1 to 3 of v1.2 and stage 1 of v1.1.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from refused import refused
from typer.testing import CliRunner

from reelworks.annexes.imports import importer
from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.importer import Imported
from reelworks.annexes.imports.opensora import literals
from reelworks.annexes.imports.request import ImportRequest
from reelworks.annexes.imports.rules import Fate
from reelworks.commands.main import app
from reelworks.core.errors import UserError
from reelworks.data.buckets import table
from reelworks.models import components
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe

CONFIGS = Path(__file__).parents[2] / "opensora_configs"


def _text(*names: str) -> str:
    """Return configs as one file, without the line that names a base."""
    return re.sub("_base_.*", "", "".join((CONFIGS / f"{name}.py").read_text(encoding="utf-8") for name in names))


# Names of masks as the release wrote them at first.
V1_1 = re.sub(r'"(quarter|image)_(?=random|head|tail)', r'"mask_\1_', _text("opensora-1.1-stage1"))
V1_1 = V1_1.replace('"identity"', '"mask_no"')
# A later table replaces that of the config.
STAGE_1 = (
    _text("common_1_2", "opensora-1.2-stage1")
    + """
bucket_config = {  # 12s/it
    "144p": {1: (1.0, 475), 51: (1.0, 51), 102: ((1.0, 0.33), 27), 204: ((1.0, 0.1), 13)},
    "256": {1: (0.4, 297), 51: (0.5, 20), 102: ((0.5, 0.33), 10)},
    "1080p": {1: (0.1, 5)},
}
"""
)
STAGE_2, STAGE_3 = (_text("common_1_2", f"opensora-1.2-stage{stage}") for stage in (2, 3))
V2_0 = """
bucket_config = {"256px": {1: (1.0, 50), 65: ((0.5, 0.2), 1)}, "768px_ar16:9": {1: (0.5, 11)}}
dataset = dict(type="video_text", transform_name="resize_crop", fps_max=24, vmaf=True)
model = dict(type="flux", from_pretrained=None)
ae = dict(type="hunyuan_vae", from_pretrained="x")
optim = dict(cls="HybridAdam", lr=5e-5, eps=1e-15, weight_decay=0.1, adamw_mode=True)
warmup_steps = 0
accumulation_steps = 2
keep_n_latest = 4
ema_decay = None
ckpt_every = 0
grad_clip = 1.0
"""
V2_0_I2V = """
bucket_config = {"256px": {1: (1.0, 45), 33: (1.0, 12), 129: (1.0, 3)}, "1024px": {1: (0.5, 7)}}
dataset = dict(type="video_text", transform_name="resize_crop", fps_max=24, vmaf=True)
model = dict(
    type="flux",
    from_pretrained="weights/stage1.safetensors",
    strict_load=False,
    guidance_embed=False,
    fused_qkv=False,
    use_liger_rope=True,
    grad_ckpt_settings=(8, 100),
    in_channels=64,
    axes_dim=[16, 56, 56],
    depth_single_blocks=38,
    cond_embed=True,
)
dropout_ratio = {"t5": 0.5, "clip": 0.4}
ae = dict(
    type="hunyuan_vae",
    from_pretrained="weights/hunyuan_vae.safetensors",
    latent_channels=16,
    use_spatial_tiling=True,
    use_temporal_tiling=False,
)
is_causal_vae = True
t5 = dict(type="text_embedder", from_pretrained="google/t5-v1_1-xxl", max_length=512, shardformer=True)
clip = dict(type="text_embedder", from_pretrained="openai/clip-vit-large-patch14", max_length=77)
condition_config = dict(t2v=1, i2v_head=5, i2v_loop=1, i2v_tail=1)
sigma_min = 1e-5
optim = dict(cls="HybridAdam", lr=1e-5, eps=1e-15, weight_decay=0.0, adamw_mode=True)
ckpt_every = 200
"""
V2_0_DC_AE = """
bucket_config = {"768px": {1: (1.0, 20), 16: (1.0, 8), 100: (1.0, 2), 128: (1.0, 2)}}
model = dict(type="flux", from_pretrained=None, in_channels=128, hidden_size=3072, cond_embed=True, patch_size=1)
patch_size = 1
ae = dict(
    type="dc_ae",
    model_name="dc-ae-f32t4c128",
    from_pretrained=None,
    from_scratch=True,
    scaling_factor=0.493,
    use_spatial_tiling=True,
    use_temporal_tiling=True,
    spatial_tile_size=256,
    temporal_tile_size=32,
    tile_overlap_factor=0.25,
)
is_causal_vae = False
ae_spatial_compression = 32
condition_config = dict(t2v=1, i2v_head=7)
"""
ALL = {
    "stage1": STAGE_1,
    "stage2": STAGE_2,
    "stage3": STAGE_3,
    "v1_1": V1_1,
    "v2_0": V2_0,
    "v2_0_i2v": V2_0_I2V,
    "v2_0_dc_ae": V2_0_DC_AE,
}


def convert(folder: Path, text: str, data: str | None = None, **options: Any) -> tuple[Imported, Recipe]:
    """The conversion, and the recipe as it loads from a file."""
    config, written = folder / "config.py", folder / "stage.toml"
    config.write_text(text, encoding="utf-8")
    made = importer.convert(
        ImportRequest(files=(config,), output=written, force=True, data=(Path(data),) if data else (), **options)
    )
    return made, recipe_file.load(written)


def fates(made: Imported) -> dict[str, Fate]:
    return {line.key: line.fate for line in made.keys}


@pytest.mark.parametrize("name", ALL)
def test_every_key_has_one_line_and_the_recipe_loads(tmp_path: Path, name: str) -> None:
    made, recipe = convert(tmp_path, ALL[name])
    keys = [line.key for line in made.keys]
    assert len(keys) == len(set(keys))
    values = literals.read(tmp_path / "config.py").values
    parts = {key for key, value in values.items() if isinstance(value, dict) and f"{key}.type" in keys}
    inner = {f"{part}.{key}" for part in parts for key in values[part]}
    assert (values.keys() - parts - {"optim"}) | inner <= set(keys)
    assert recipe.buckets.opensora is not None
    assert all(line.remark for line in made.keys)
    assert recipe_file.parse(tomllib.loads(recipe_file.dump(recipe))) == recipe


def test_a_stage_of_1_2(tmp_path: Path) -> None:
    made, recipe = convert(tmp_path, STAGE_1, data="clips")
    train = recipe.train
    assert (recipe.seed, recipe.output, recipe.dataset[0].path) == (42, "outputs/stage", "clips")
    assert (train.learning_rate, train.max_grad_norm, train.warmup_steps) == (1e-4, 1.0, 1000)
    assert (train.ema_decay, train.eps, train.betas, train.weight_decay) == (0.99, 1e-15, [0.9, 0.999], 0.0)
    assert (train.max_epochs, train.log_every, recipe.checkpoints.every_steps) == (1000, 10, 200)
    assert (recipe.model.name, recipe.model.weights) == ("stdit3-xl", None)
    assert recipe.model.gradient_checkpointing
    assert recipe.objective.timestep_shift == "auto"
    assert recipe.objective.timestep_sampling == "logit-normal"
    assert (len(recipe.objective.mask_ratios), recipe.objective.mask_ratios["intepolate"]) == (10, 0.005)
    assert (recipe.precision.compute, recipe.parallel.strategy) == ("bfloat16", "fsdp")
    assert (recipe.data.num_workers, recipe.data.frame_interval) == (8, 1)
    assert (recipe.buckets.probability, recipe.buckets.opensora_drop_exact_length) == ("opensora-1.2", False)
    assert recipe.buckets.opensora == {
        "144p": {"1": [1.0, 475], "51": [1.0, 51], "102": [[1.0, 0.33], 27], "204": [[1.0, 0.1], 13]},
        "256": {"1": [0.4, 297], "51": [0.5, 20], "102": [[0.5, 0.33], 10]},
        "1080p": {"1": [0.1, 5]},
    }
    missing = {line.key for line in made.keys if line.fate == Fate.NOT_POSSIBLE}
    assert missing == {"model.freeze_y_embedder"}
    autoencoder, text = recipe.autoencoder, recipe.text_encoder
    assert (autoencoder.name, autoencoder.weights) == ("opensora-1.2", "hpcai-tech/OpenSora-VAE-v1.2")
    assert (text.name, text.weights, text.dim) == ("t5", "DeepFloyd/t5-v1_1-xxl", 4096)
    assert (text.max_length, recipe.objective.name) == (300, "rectified-flow")


@pytest.mark.parametrize("cosine", [True, False])
def test_a_rate_that_falls_over_epochs_is_taken(tmp_path: Path, cosine: bool) -> None:
    made, recipe = convert(tmp_path, f"{V2_0}use_cosine_scheduler = {cosine}")
    (line,) = (line for line in made.keys if line.key == "use_cosine_scheduler")
    assert line.fate == (Fate.TAKEN if cosine else Fate.NO_MEANING)
    assert recipe.train.learning_rate_schedule == ("cosine" if cosine else "constant")


def test_what_a_config_leaves_out_is_what_open_sora_takes(tmp_path: Path) -> None:
    text = 'bucket_config = {"256": {1: (1.0, 4)}}\nmodel = dict(type="STDiT3-3B/2", from_pretrained="w")'
    made, recipe = convert(tmp_path, text)
    assert (recipe.seed, recipe.train.eps, recipe.train.max_grad_norm, recipe.train.warmup_steps) == (
        1024,
        1e-8,
        None,
        0,
    )
    assert recipe.checkpoints.every_steps is None
    assert (recipe.objective.timestep_shift, recipe.objective.timestep_sampling) == ("none", "uniform")
    assert (recipe.model.name, recipe.model.weights) == ("stdit3-3b", "w")
    told = {line.key: line.remark for line in made.keys}
    assert told["seed"] == "seed = 1024 (a default of the trainer)"
    assert fates(made)["dataset.data_path"] == Fate.TO_FILL_IN


def test_the_autoencoder_takes_each_size_of_the_table(tmp_path: Path) -> None:
    for name, stride in (("144p", 1), ("360p", 2), ("256", 8), ("1080p", 2)):
        text = f'bucket_config = {{"{name}": {{1: (1.0, 4)}}}}\nmodel = dict(type="STDiT3-XL/2")'
        found = convert(tmp_path, text)[1].autoencoder.stride
        assert found <= stride
        assert found == 8 or name != "256"


def test_stages_without_warm_up_and_with_entries_that_take_nothing(tmp_path: Path) -> None:
    assert convert(tmp_path, STAGE_2)[1].train.warmup_steps == 0
    table = convert(tmp_path, STAGE_3)[1].buckets.opensora
    assert table is not None
    assert table["480p"]["408"] == [0.0, "none"]


def test_the_density_of_timesteps(tmp_path: Path) -> None:
    scheduler = 'scheduler = dict(type="{}", loc=0.5, scale=2.0, cfg_channel=3)'
    text = 'bucket_config = {"256": {1: (1.0, 4)}}\nmodel = dict(type="STDiT3-XL/2")\n'
    made, recipe = convert(tmp_path, text + scheduler.format("rflow"))
    assert (recipe.objective.logit_mean, recipe.objective.logit_std) == (0.5, 2.0)
    told = {line.key: (line.fate, line.remark) for line in made.keys}
    assert told["scheduler.cfg_channel"] == (Fate.NO_MEANING, "rectified flow has no such key")
    made, recipe = convert(tmp_path, text + scheduler.format("iddpm"))
    assert (recipe.objective.logit_mean, recipe.objective.logit_std) == (0.0, 1.0)
    told = {line.key: (line.fate, line.remark) for line in made.keys}
    assert told["scheduler.loc"] == (Fate.NO_MEANING, "iddpm has no such setting")
    assert told["scheduler.cfg_channel"] == (Fate.TAKEN, "samples.guided_channels = 3")
    assert recipe.samples.guided_channels == 3
    made, recipe = convert(tmp_path, text + scheduler.format("iddpm").replace("3)", "None)"))
    assert recipe.samples.guided_channels == 4  # all of them, as upstream without a number


def test_1_1(tmp_path: Path) -> None:
    made, recipe = convert(tmp_path, V1_1)
    assert (recipe.data.frame_interval, recipe.train.learning_rate) == (3, 2e-5)
    assert recipe.objective.mask_ratios["identity"] == 0.75
    assert recipe.objective.mask_ratios["image_head_tail"] == 0.05
    assert recipe.buckets.probability == "opensora-1.2"
    assert (recipe.model.name, recipe.objective.name) == ("stdit2-xl", "iddpm")
    assert (recipe.autoencoder.name, recipe.autoencoder.weights) == ("opensora-1.1", "stabilityai/sd-vae-ft-ema")
    assert (recipe.text_encoder.name, recipe.text_encoder.max_length) == ("t5", 200)
    told = fates(made)
    assert {Fate.NOT_POSSIBLE}.isdisjoint(told.values())
    assert told["batch_size"] == told["dataset.image_size"] == Fate.NO_MEANING
    assert told["sp_size"] == Fate.DEFAULT


def test_parts_without_weights_get_the_published_and_unknown_ones_are_replaced(tmp_path: Path) -> None:
    """A part that we have is taken whole; of one that we lack, no key is."""
    table = 'bucket_config = {"256": {1: (1.0, 4)}}\nmodel = dict(type="STDiT3-XL/2")\n'
    recipe = convert(tmp_path, table + 'vae = dict(type="OpenSoraVAE_V1_2", from_pretrained=None)')[1]
    assert recipe.autoencoder.weights == "hpcai-tech/OpenSora-VAE-v1.2"
    made, recipe = convert(
        tmp_path,
        table + 'vae = dict(type="VideoAutoencoderKLTemporalDecoder", from_pretrained="x", micro_frame_size=17)\n'
        'text_encoder = dict(type="clip", from_pretrained="y", model_max_length=77)',
    )
    assert (recipe.autoencoder.name, recipe.text_encoder.name) == ("pixel", "hashed")
    told = fates(made)
    assert {told[key] for key in told if key.startswith(("vae", "text"))} == {Fate.NOT_POSSIBLE}


def test_2_0(tmp_path: Path) -> None:
    made, recipe = convert(tmp_path, V2_0)
    assert recipe.buckets.probability == "opensora-2.0"
    assert (recipe.train.learning_rate, recipe.train.eps, recipe.train.weight_decay) == (5e-5, 1e-15, 0.1)
    assert (recipe.train.gradient_accumulation_steps, recipe.checkpoints.keep_last) == (2, 4)
    assert (recipe.train.ema_decay, recipe.checkpoints.every_steps, recipe.data.fps) == (0.0, None, 24.0)
    assert (fates(made)["dataset.vmaf"], fates(made)["ae.type"]) == (Fate.TAKEN, Fate.TAKEN)
    assert (recipe.model.name, recipe.model.weights, recipe.objective.caption_dropout) == ("opensora2", None, 0.0)


def test_2_0_has_no_average_by_default_and_counts_a_warm_up_by_batches(tmp_path: Path) -> None:
    """1.2 always has an average, and steps of the optimizer alone."""
    for text, average, steps in ((V2_0, 0.0, 500), (STAGE_2, 0.9999, 1000)):
        plain = re.sub(r"(?m)^(ema_decay|warmup_steps|accumulation_steps) = .*\n", "", text)
        _, recipe = convert(tmp_path, f"{plain}\nwarmup_steps = 1000\naccumulation_steps = 2\n")
        assert (recipe.train.ema_decay, recipe.train.warmup_steps) == (average, steps)


def test_2_0_with_conditions(tmp_path: Path) -> None:
    """The network, both encoders, masks and timesteps of 2.0 are here, and only its weights' places are others."""
    made, recipe = convert(tmp_path, V2_0_I2V)
    differ = [key for key, fate in fates(made).items() if fate is Fate.NOT_POSSIBLE]
    assert differ == ["dataset.fps_max"]  # each n-th frame is read there
    assert (recipe.model.name, recipe.model.weights) == ("opensora2", "weights/stage1.safetensors")
    autoencoder, text = recipe.autoencoder, recipe.text_encoder
    assert (autoencoder.name, autoencoder.weights) == ("hunyuan-video", "weights/hunyuan_vae.safetensors")
    assert (text.name, text.max_length, text.dim, text.pooled_dim) == ("flux", 512, 4096, 768)
    objective = recipe.objective
    assert (objective.timestep_shift, objective.timestep_sampling) == ("opensora-2.0", "logit-normal")
    assert objective.caption_dropout == pytest.approx(0.2)
    assert objective.mask_ratios == {"image_head": 0.625, "image_tail": 0.125, "image_head_tail": 0.125}


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("condition_config", "dict(t2v=1, v2v_head=1, i2v_head=2)", "v2v_head are trained without condition"),
        ("sigma_min", "0.1", "no noise is left"),
        ("no_i2v_ref_loss", "True", "condition frames count too"),
        ("patch_size", "4", "the preset has 2"),
    ],
)
def test_what_2_0_does_otherwise_is_told(tmp_path: Path, key: str, value: str, told: str) -> None:
    made, recipe = convert(tmp_path, V2_0_I2V + f"\n{key} = {value}")
    (line,) = (line for line in made.keys if line.key == key)
    assert line.fate == Fate.NOT_POSSIBLE
    assert told in line.remark
    if key == "condition_config":
        assert recipe.objective.mask_ratios == {"image_head": 0.5}


def test_2_0_with_the_autoencoder_of_stride_32(tmp_path: Path) -> None:
    """Its network, its autoencoder with its unit of latents, and sizes of its multiples; without patches, all fits."""
    made, recipe = convert(tmp_path, V2_0_DC_AE)
    assert {Fate.NOT_POSSIBLE}.isdisjoint(fates(made).values())
    autoencoder = recipe.autoencoder
    assert (recipe.model.name, autoencoder.name, autoencoder.std) == ("opensora2-dc-ae", "video-dc-ae", 0.493)
    assert autoencoder.weights == "hpcai-tech/Open-Sora-v2-Video-DC-AE"
    built = table.build(recipe.bucket, recipe.buckets, components.geometry(recipe.model, autoencoder))
    assert {bucket.shape.num_frames for bucket in built.buckets} == {1, 16, 100, 128}
    assert all(side % 32 == 0 for bucket in built.buckets for side in (bucket.shape.height, bucket.shape.width))
    assert (640, 928) in {(bucket.shape.height, bucket.shape.width) for bucket in built.buckets}
    made, recipe = convert(tmp_path, V2_0_DC_AE.replace("scaling_factor=0.493", "scaling_factor=None"))
    assert recipe.autoencoder.std == 1.0


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("in_channels=128", "in_channels=64", "the preset has 128"),
        ("temporal_tile_size=32", "temporal_tile_size=16", "the autoencoder has 32"),
        ("use_temporal_tiling=True", "use_temporal_tiling=False", "32 frames are encoded together"),
        ('"dc-ae-f32t4c128"', '"dc-ae-f64"', "dc-ae-f32t4c128"),
    ],
)
def test_settings_of_the_autoencoder_of_stride_32_that_differ_are_told(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    made, _ = convert(tmp_path, V2_0_DC_AE.replace(old, new))
    (line,) = (line for line in made.keys if line.fate == Fate.NOT_POSSIBLE)
    assert told in line.remark


def test_another_autoencoder_of_2_0_is_replaced(tmp_path: Path) -> None:
    """Its tables need no frames but those of the pixels."""
    text = V2_0.replace('type="hunyuan_vae"', 'type="vae_of_mine"').replace("65:", "64:")
    made, recipe = convert(tmp_path, text)
    assert fates(made)["ae.type"] == Fate.NOT_POSSIBLE
    assert recipe.autoencoder.name == "pixel"


def test_the_list_of_a_config_stays_a_list(tmp_path: Path) -> None:
    """A list is what Open-Sora is given; the score that 2.0 appends is asked of a list alone."""
    made, recipe = convert(tmp_path, V2_0.replace("vmaf=True", 'vmaf=True, data_path="m/clips.parquet"'))
    assert fates(made)["dataset.data_path"] == Fate.TAKEN
    dataset = recipe.dataset[0]
    assert (dataset.path, dataset.caption) == ("m/clips.parquet", "{text} {score_vmafmotion:.0f} motion score.")
    made, recipe = convert(tmp_path, V2_0, data="clips")
    assert fates(made)["dataset.vmaf"] == Fate.TO_FILL_IN
    assert (recipe.dataset[0].path, recipe.dataset[0].caption) == ("clips", "{text}")


def test_the_meaning_of_the_probabilities_is_asked_for_where_nothing_tells_it(tmp_path: Path) -> None:
    text = 'bucket_config = {"256": {1: (0.5, 4)}}\nmodel = dict(type="PixArt-XL/2")'
    with refused("opensora-release-unknown", "model.type"):
        convert(tmp_path, text)
    assert convert(tmp_path, text, probability="downgrade")[1].buckets.probability == "downgrade"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr = 1", "no bucket_config"),
        ("bucket_config = make()", "bucket_config = make()"),
        ("bucket_config = {", "not a Python file"),
        ("bucket_config = 3", "a dict of dicts"),
        ('bucket_config = {"256": {1: 4}}', "a pair of probability and batch size"),
        ('bucket_config = {"256": {1: (2.0, 4)}}', "lies in [0, 1]"),
        ('bucket_config = {"256": {1: (1.0, 4)}}\nlr = "fast"', "train.learning_rate"),
        ('bucket_config = {"256": {1: (1.0, 4)}}\nmask_ratios = {"sideways": 0.1}', "no such mask strategy"),
        ('bucket_config = {"256": {1: (1.0, 4)}}\nmask_ratios = {"random": "x"}', "mask_ratios"),
        ('bucket_config = {"256": {1: (1.0, 4)}}\ndataset = dict(fps_max="x")', "fps"),
        ('_base_ = "config.py"\nbucket_config = {}', "its own base"),
        ('_base_ = "gone.py"\nbucket_config = {}', "cannot be read"),
    ],
)
def test_what_cannot_be_converted_is_explained(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        convert(tmp_path, text, probability="opensora-1.2", trainer="opensora")
    assert said in str(caught.value)


def test_a_value_of_another_kind_is_left_to_be_filled_in(tmp_path: Path) -> None:
    made, _ = convert(tmp_path, 'bucket_config = {"256": {1: (1.0, 4)}}\nmodel = dict(type="flux")\nmask_ratios = 3')
    assert fates(made)["mask_ratios"] == Fate.TO_FILL_IN


def read(folder: Path, text: str) -> FormerSettings:
    (folder / "literals.py").write_text(text, encoding="utf-8")
    return literals.read(folder / "literals.py")


def repeated(first: str, later: str) -> str:
    """Lines of which each has the value of the line before several times."""
    return "\n".join([f"a0 = {first}", *(later.format(f"a{i - 1}", i=i) for i in range(1, 12))])


@pytest.mark.parametrize(
    "text",
    [
        repeated("[1, 2]", "a{i} = [" + "{0}, " * 10 + "]"),
        repeated("(1, 2)", "a{i} = (" + "{0}, " * 10 + ")"),
        repeated("{1: 2}", "a{i} = dict(" + ", ".join(f"k{k}={{0}}" for k in range(10)) + ")"),
        "y = " + "1 + " * 900 + "1",
        "y = " + "-" * 900 + "1",
        "_base_ = 5",
        "_base_ = 'a\\0b'",
    ],
    ids=["lists", "tuples", "tables", "a long sum", "many signs", "a base that is no path", "a base of no file"],
)
def test_what_no_person_writes_is_refused_at_once(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError):
        read(tmp_path, text)


def test_numbers_that_would_take_for_ever_are_not_computed(tmp_path: Path) -> None:
    found = read(tmp_path, repeated("9999999999", "a{i} = {0} * {0}") + "\nlast = -1e400")
    assert found.values["a1"] == 9999999999**2
    assert {"a11", "last"} <= found.unread.keys()


def test_the_config_is_not_overwritten_by_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(STAGE_1, encoding="utf-8")
    with refused("file-exists", "output"):
        ImportRequest(files=(tmp_path / "a.py",), output=tmp_path / "x" / ".." / "a.py", force=True)


def test_literals_are_read_as_python_means_them(tmp_path: Path) -> None:
    text = (
        '"""What it is."""\nimport os\na = -1\nb: float = 2 * 1.5\nc = [a, (b, +3)]\nd = dict(e=c, **{"f": None})\n'
        'g = h = {1: "x", "y": True, **d}\nd = 7\n'
    )
    assert read(tmp_path, text).values == {
        "a": -1,
        "b": 3.0,
        "c": [-1, (3.0, 3)],
        "d": 7,
        "g": {1: "x", "y": True, "e": [-1, (3.0, 3)], "f": None},
        "h": {1: "x", "y": True, "e": [-1, (3.0, 3)], "f": None},
    }
    assert read(tmp_path, text).unread == {"line 2": "import os"}


@pytest.mark.parametrize(
    "change",
    [
        "lr = max(1, 2)",
        "lr += 1",
        "lr['x'] = 1",
        "lr.update(x=1)",
        "if True:\n    lr = 3",
        "for lr in [1]:\n    pass",
        "del lr",
        "lr, other = 1, 2",
        "lr = 9**9**9",
        "lr = 1e999",
        "lr = 1 / 0",
        "lr = unknown",
        "lr = f'{seed}'",
        "lr = {**seed}",
    ],
)
def test_what_is_no_literal_is_listed_and_makes_no_value(tmp_path: Path, change: str) -> None:
    found = read(tmp_path, f"seed = 1\nlr = 2\n{change}\n")
    assert "lr" not in found.values
    assert "lr" in found.unread
    later = read(tmp_path, f"seed = 1\nlr = 2\n{change}\nlr = 5\n")
    assert later.values["lr"] == 5


def test_nothing_is_run(tmp_path: Path) -> None:
    target = tmp_path / "ran"
    text = f"import pathlib\npathlib.Path({str(target)!r}).touch()\nx = open({str(target)!r}, 'w')\n{STAGE_1}"
    made, _ = convert(tmp_path, text)
    assert not target.exists()
    assert [line.key for line in made.keys if line.fate == Fate.UNREAD] == ["line 1", "line 2", "x"]


def test_bases_are_read_and_completed(tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text(
        'bucket_config = {"256": {1: (1.0, 8)}}\nmodel = dict(type="flux", from_pretrained="w")\nseed = 3\nlr = f()',
        encoding="utf-8",
    )
    made, recipe = convert(
        tmp_path,
        '_base_ = ["base.py"]\nbucket_config = {"_delete_": True, "512": {1: (1.0, 2)}}\n'
        "model = dict(from_pretrained=None)\nlr = 1e-3\n",
    )
    assert (recipe.buckets.opensora, recipe.seed) == ({"512": {"1": [1.0, 2]}}, 3)
    assert (recipe.model.weights, recipe.buckets.probability) == (None, "opensora-2.0")
    assert (recipe.train.learning_rate, Fate.UNREAD in fates(made).values()) == (1e-3, False)


def test_a_mistake_in_a_recipe_names_its_place(tmp_path: Path) -> None:
    made, _ = convert(tmp_path, STAGE_3)
    values = tomllib.loads(made.text)
    values["buckets"]["opensora"]["480p"]["204"] = [[0.5, 1.5], 1]
    with pytest.raises(UserError) as caught:
        recipe_file.parse(values)
    assert (caught.value.field, caught.value.value) == ('buckets.opensora."480p".204', 1.5)
    values = tomllib.loads(made.text)
    values["autoencoder"] = {"name": "pixel", "stride": 8}
    with refused("size-not-a-multiple", "buckets.opensora", says="takes multiples of 8 × 8 pixels"):
        recipe_file.parse(values)


def test_the_command(tmp_path: Path) -> None:
    config, output = tmp_path / "stage1.py", tmp_path / "new" / "stage1.toml"
    config.write_text(STAGE_1 + "mystery = 3\n", encoding="utf-8")
    ran = CliRunner().invoke(app, ["import", str(config), "-o", str(output), "--data", "clips"])
    assert ran.exit_code == 0
    for said in ("taken (", "not possible here (", "mystery", "train.learning_rate = 0.0001", "there is no clips"):
        assert said in ran.stdout
    assert recipe_file.load(output).dataset[0].path == "clips"
    again = CliRunner().invoke(app, ["import", str(config), "-o", str(output)])
    assert isinstance(again.exception, UserError)
    told = CliRunner().invoke(
        app, ["import", str(config), "-o", str(tmp_path / "b.toml"), "--json", "--probability", "downgrade"]
    )
    keys = {line["key"]: line["fate"] for line in json.loads(told.stdout)["keys"]}
    assert (keys["mystery"], keys["lr"]) == ("not possible here", "taken")
    assert recipe_file.load(tmp_path / "b.toml").buckets.probability == "downgrade"


def test_the_three_configs_of_a_release_become_the_stages_of_one_run(tmp_path: Path) -> None:
    """Their buckets are those of the release, by the golden tables."""
    files = tuple(CONFIGS / f"opensora-1.2-stage{stage}.py" for stage in (1, 2, 3))
    request = ImportRequest(files=files, output=tmp_path / "all.toml", data=(tmp_path,), clips=False)
    found = importer.convert(request)
    recipe = recipe_file.load(tmp_path / "all.toml")
    golden = json.loads(
        (CONFIGS.parent / "golden" / "buckets" / "bucket_random_counts.json").read_text(encoding="utf-8")
    )
    for index, stage in enumerate(recipe_file.each_stage(recipe)):
        lengths = {
            name: {frames: [chance, size or "none"] for frames, (chance, size) in entries.items()}
            for name, entries in golden["bucket_configs"][f"stage{index + 1}"].items()
        }
        released = stage.buckets.model_copy(update={"opensora": lengths})
        geometry = components.geometry(stage.model, stage.autoencoder)
        ours, theirs = (table.build([], buckets, geometry) for buckets in (stage.buckets, released))
        assert [(b.name, b.batch_size, b.shape) for b in ours.buckets] == [
            (b.name, b.batch_size, b.shape) for b in theirs.buckets
        ]
        assert ours.entries == theirs.entries
    assert [stage.train.warmup_steps for stage in recipe_file.each_stage(recipe)] == [1000, 0, 1000]
    assert any(key.key == "opensora-1-2-stage3: mask_ratios" for key in found.keys)


def test_lists_of_one_name_in_several_stages_get_names_of_their_own(tmp_path: Path) -> None:
    """A list is called meta.csv in each stage's folder; the third config has that of the second."""
    files = []
    for stage, folder in ((1, "a"), (2, "b"), (3, "b")):
        files.append(tmp_path / f"stage{stage}.py")
        text = _text("common_1_2", "opensora-1.2-stage1")
        files[-1].write_text(
            f'{text}\ndataset = dict(type="VariableVideoTextDataset", data_path="{folder}/meta.csv")\n',
            encoding="utf-8",
        )
    importer.convert(ImportRequest(files=tuple(files), output=tmp_path / "all.toml", clips=False))
    stages = recipe_file.each_stage(recipe_file.load(tmp_path / "all.toml"))
    assert [stage.dataset[0].dataset_name for stage in stages] == ["meta", "meta-stage2", "meta-stage2"]
    assert len({stage.dataset[0].place for stage in stages}) == 2


def test_configs_of_other_models_are_not_stages_of_one_run(tmp_path: Path) -> None:
    files = tuple(CONFIGS / f"opensora-{release}-stage1.py" for release in ("1.1", "1.2"))
    with refused("stages-differ", says="opensora-1.1"):
        importer.convert(ImportRequest(files=files, output=tmp_path / "all.toml", clips=False))
    assert not (tmp_path / "all.toml").exists()
