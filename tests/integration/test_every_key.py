"""Each key of a recipe changes the run, or a refusal or a warning says why it does not."""

from __future__ import annotations

import hashlib
import json
import shutil
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import media_makers
import numpy as np
import pytest
import sound_clips
import tiny_recipe
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from tiny_recipe import Recipe as Values

from reelworks.core import toml_none
from reelworks.core.errors import UserError
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.loop import trainer
from reelworks.training.loop.request import TrainRequest
from reelworks.training.plan import idle_keys
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe

TESTS = Path(__file__).parents[1]
LORA = {"lora": {"rank": 2}}
# Values where those that the schema suggests are refused, or change too little.
VALUES: dict[str, Any] = {
    "dataset.trigger": "zzz",
    "dataset.tag_separator": "n",
    "dataset.keep_tags": 1,
    "bucket.resolution": "16px",
    "bucket.num_frames": [1, 4],
    "bucket.batch_size": [2, 2],
    "bucket.keep_prob": 0.3,
    "buckets.aspect_ratios": ["1:1"],
    "buckets.upscale": False,
    "buckets.max_tokens": 30,
    "buckets.max_batch_size": 1,
    "buckets.batch_size": 3,
    "data.fps": 8.0,
    "data.shuffle_window": 1,
    "model.hidden_size": 64,
    "model.num_heads": 4,
    "lora.rank": 4,
    "lora.alpha": 1.0,
    "lora.targets": "blocks",
    "lora.decompose_factor": 2,
    "lora.block_size": 4,
    "encode.folder": "stored",
    "autoencoder.stride": 4,
    "text_encoder.max_length": 2,
    "objective.timestep_range": [100.0, 900.0],
    "objective.mask_ratios": {"image_head": 0.5},
    "objective.caption_dropout": 0.9,
    "objective.target_guidance_scale": 2.0,
    "objective.timestep_shift": 3.0,
    "train.final_learning_rate": 1e-4,
    "train.memory_gb": 0.001,
    "train.max_steps": 3,
    "train.max_epochs": 1,
    "train.max_clips": 3,
    "train.betas": [0.5, 0.9],
    "train.eps": 1e-2,
    "train.weight_decay": 1.0,
    "train.max_grad_norm": 0.01,
    "train.ema_decay": 0.01,
    "train.warmup_steps": 3,
    "train.skip_steps": [[2, 3]],
    "train.gradient_accumulation_steps": 2,
    "train.micro_batches_per_step": 2,
    "train.clip_losses": 2,
    "train.clip_losses_every": 2,
    "validation.timesteps": [500.0],
    "validation.split": 0.5,
    "validation.max_clips": 1,
    "validation.patience": 1,
    "validation.min_delta": 9.0,
    "samples.prompts": ["a picture"],
    "samples.guidance_scale": 2.0,
    "samples.every_steps": 2,
    "samples.height": 16,
    "samples.width": 16,
    "samples.num_frames": 1,
    "samples.fps": 3.0,
    "checkpoints.keep_last": 1,
    "checkpoints.keep_every": 2,
    "checkpoints.save_total_limit": 1,
    "checkpoints.every_steps": 3,
    "checkpoints.keep_best.n": 3,
    "checkpoints.mirror.keep_last": 1,
    "checkpoints.mirror.keep_every": 2,
    "checkpoints.mirror.keep_best.metric": "eval/none",
    "checkpoints.mirror.keep_best.n": 3,
    "sound.modes": {"sound": 0.9},
    "sound.timestep_shift": 5.0,
    "exports.formats": ["kohya"],
    "exports.keep_last": 1,
}
PREVIEWS = {"samples": {"prompts": ["a picture"], "num_inference_steps": 2, "num_frames": 5}}
EXPORTS = {"exports": {"weights": "ema"}}
STORE = {"encode": {"store": True}}
PROPOSED = {"buckets": {"entries": "auto"}, "bucket": []}
TAGS = {"dataset": {"shuffle_tags": True}}
OFFSET = {"objective": {"name": "epsilon", "noise_offset": 0.5}}
# What else a recipe needs for a key to have an effect.
BESIDE: dict[str, Values] = {
    "dataset.keep_tags": {"dataset": {"shuffle_tags": True, "tag_separator": "n"}},
    "dataset.tag_separator": TAGS,
    "buckets.max_tokens": PROPOSED,
    "buckets.max_batch_size": PROPOSED,
    "buckets.batch_size": {"bucket": [{"resolution": "32px", "num_frames": [1, 5]}]},
    "data.shuffle_window": {"data": {"locality": "file"}},
    **dict.fromkeys(("encode.folder", "encode.dtype"), STORE),
    "encode.variants": {"encode": {"store": True}, "data": {"crop": "random"}, "train": {"max_steps": 12}},
    **{key: {"lora": {"rank": 1, "type": "lokr"}} for key in ("lora.decompose_factor", "lora.decompose_both")},
    "lora.block_size": {"lora": {"type": "oft"}},
    "objective.mode_scale": {"objective": {"timestep_sampling": "mode"}},
    **{key: {"objective": {"timestep_sampling": "beta"}} for key in ("objective.beta_alpha", "objective.beta_beta")},
    "objective.zero_terminal_snr": {"objective": {"name": "v-prediction"}},
    **{key: {"objective": {"loss": "huber"}} for key in ("objective.huber_delta", "objective.huber_schedule")},
    "objective.snr_gamma": {"objective": {"loss_weighting": "min-snr"}},
    **{
        f"objective.{key}": OFFSET
        for key in ("noise_offset_random_strength", "noise_offset_probability", "adaptive_noise_scale")
    },
    "objective.multires_noise_iterations": {"objective": {"name": "epsilon"}},
    "objective.multires_noise_discount": {"objective": {"name": "epsilon", "multires_noise_iterations": 3}},
    "objective.target_guidance_scale": LORA,
    "train.learning_rate_cycles": {"train": {"learning_rate_schedule": "cosine"}},
    "train.final_learning_rate": {"train": {"learning_rate_schedule": "linear"}},
    "train.clip_losses_every": {"train": {"clip_losses": 2}},
    "train.memory_gb": {"model": {"gradient_checkpointing": "auto"}},
    "validation.min_delta": {"validation": {"patience": 1}},
    "samples.every_steps": PREVIEWS,
    **{f"exports.{key}": EXPORTS for key in ("dtype", "every_n_saves", "keep_last")},
    "exports.formats": {**EXPORTS, **LORA},
    "sound.follow_frames": {"objective": {"mask_ratios": {"image_head": 0.9}}},
}
MIRROR = {"checkpoints": {"mirror": {"url": "mirror", "keep_last": 1}, "every_steps": 1}}
# What it is compared beside, without needing it.
COMPARED: dict[str, Values] = {
    **{f"lora.{key}": LORA for key in ("rank", "alpha", "dropout", "targets", "dora")},
    **{f"samples.{key}": PREVIEWS for key in ("height", "width", "num_frames", "fps")},
    **{f"samples.{key}": PREVIEWS for key in ("num_inference_steps", "guidance_scale")},
    "data.short_clips": {"bucket": [{"resolution": "32px", "num_frames": 9, "batch_size": 2}]},
    "validation.max_clips": {"validation": {"split": 0.5}},
    "validation.patience": {"validation": {"patience": 5, "min_delta": 9.0}},
    "checkpoints.at_epoch_end": {"train": {"max_steps": 9}, "checkpoints": {"every_steps": "none"}},
    "buckets.upscale": {"bucket": [{"resolution": size, "num_frames": 1} for size in ("32px", "64px")]},
    "dataset.shuffle_tags": {"dataset": {"tag_separator": "n"}},
    "train.max_epochs": {"train": {"max_steps": 12}},
    "checkpoints.at_best": {"checkpoints": {"every_steps": "none"}},
    **{f"checkpoints.mirror.{key}": MIRROR for key in ("keep_last", "keep_every")},
    **{f"checkpoints.mirror.keep_best.{key}": MIRROR for key in ("metric", "mode", "n")},
    "checkpoints.mirror.keep_last": {"checkpoints": {"mirror": {"url": "mirror"}, "every_steps": 1}},
}
_LIMIT = "a limit that a healthy run does not reach"
_WHERE = "how fast, or where, the same numbers are computed"
_TOLD = "what is told, and when"
# Keys whose effect a training of six steps on a CPU does not show: why, or the test that sees it.
ELSEWHERE = {
    "version": "there is one",
    "output": "the folder that all of this looks into",
    "annex": "test_annexes.py",
    "catalog": "test_data_verbs.py",
    "exclude_file": "test_coverage.py",
    "dataset.path": "the footage that all of this trains on",
    **dict.fromkeys(("dataset.root", "dataset.trust_list"), "test_catalog_lists.py"),
    "dataset.duplicates": "test_duplicates.py",
    "dataset.filter": "test_training_in_stages.py",
    "data.renamed_clips": "test_data_identity.py",
    "dataset.captions": "test_catalog_lists.py",
    **dict.fromkeys(("dataset.control", "dataset.mask", "dataset.loss_mask"), "test_control_and_masks.py"),
    **dict.fromkeys(("dataset.source", "dataset.min_sources"), "test_several_sources.py"),
    **dict.fromkeys(("dataset.resolutions", "dataset.lengths"), "test_clip_uses.py"),
    "dataset.rejected": "test_preferences.py",
    "objective.dpo_beta": "test_preferences.py",
    "dataset.prior_prediction": "test_train_prior.py",
    "dataset.scene_cuts": "test_clip_ranges.py",
    **dict.fromkeys(("bucket.sequence_degree", "parallel.sequence_degree"), "test_sequence.py"),
    "parallel.max_sequence_degree": "test_tune.py",
    "parallel.link_gb_per_second": "test_tuned.py",
    "buckets.token_family_crop": "test_compiled_graphs.py",
    "buckets.entries": "test_auto_buckets.py",
    "buckets.tuned": "test_tuned.py",
    "train.step_seconds": "test_tuned.py",
    "buckets.gradient_checkpointing": "test_recomputation_by_bucket.py",
    **dict.fromkeys(
        ("buckets.probability", "buckets.opensora", "buckets.opensora_drop_exact_length"), "test_opensora_table.py"
    ),
    **{f"cost.{key}": "test_schedule_cost.py" for key in ("measured", "per_clip_us", "per_token_us")},
    "cost.per_token_squared_us": "test_schedule_cost.py",
    **{f"data.{key}": "test_data_exclusion.py" for key in ("hdr", "alpha_color")},
    "data.interlaced": "test_media_display.py",
    **{f"data.{key}": _LIMIT for key in ("decode_timeout", "prefetch_bytes", "max_decode_failures")},
    "data.num_workers": _WHERE,
    "data.measures": "test_kept_columns.py",
    **dict.fromkeys(("model.name", "autoencoder.name", "text_encoder.name"), "test_family_texts.py"),
    **dict.fromkeys(("model.weights", "autoencoder.weights", "text_encoder.weights"), "test_diffusers_parts.py"),
    "model.experts": "test_experts.py",
    **dict.fromkeys(("model.gradient_checkpointing", "model.attention", "text_encoder.device"), _WHERE),
    "model.image_encoder": "test_control_and_masks.py",
    "model.license": "test_checkpoint_export.py",
    "lora.base": "test_lora_bases.py",
    "lora.int8_products": "test_int8_products.py",
    "lora.text_encoders": "test_lora_of_text_encoders.py",
    "train.text_encoder_learning_rate": "test_lora_of_text_encoders.py",
    "lora.weights": "test_lora.py",
    "lora.training_adapter": "test_training_adapter.py",
    "autoencoder.dtype": "test_opensora_autoencoder.py",
    "text_encoder.pooled_dim": "test_control_and_masks.py",
    **dict.fromkeys(("sound.name", "sound.weights"), "test_diffusers_parts.py"),
    "sound.sample_rate": "test_sound.py",
    **dict.fromkeys(("encode.store", "encode.ahead"), _WHERE),
    "objective.crop_conditioning": "test_train_crops.py",
    "precision.compute": "test_precision_boundary.py",
    "precision.reduction": "test_precision_boundary.py",
    **dict.fromkeys(("parallel.strategy", "parallel.shard_size"), "test_layouts.py"),
    "parallel.offload": "test_second_device.py",
    **{f"parallel.{key}": _LIMIT for key in ("join_seconds", "step_seconds", "lost_seconds")},
    "train.same_bucket_run": "test_layouts.py",
    **dict.fromkeys(("train.ema_device", "train.compile", "train.compile_graphs", "train.compile_backend"), _WHERE),
    "train.threads": _WHERE,
    **dict.fromkeys(("train.non_finite", "train.max_non_finite"), "test_not_finite.py"),
    **dict.fromkeys(("train.spikes", "train.spike_threshold"), "test_training_aids.py"),
    **dict.fromkeys(("train.log_balance_every", "train.log_every"), _TOLD),
    "samples.image_guidance_scale": "test_frames_beside_noise.py",
    "samples.guided_channels": "test_load_run.py",
    "samples.metrics": "test_train_previews.py",
    "samples.metric_weights": "where the networks of metrics lie",
    **{f"samples.{key}": "test_control_and_masks.py" for key in ("reference", "last_frame", "control", "inpaint")},
    "samples.mask": "test_control_and_masks.py",
    "samples.source": "test_several_sources.py",
    **dict.fromkeys(("samples.model", "samples.weights"), "test_preview_model.py"),
    **{f"checkpoints.{key}": _LIMIT for key in ("keep_within", "max_disk", "min_free", "every_minutes")},
    **{f"checkpoints.{key}": "test_save_triggers.py" for key in ("asynchronous", "grace_seconds", "on_full")},
    **{f"checkpoints.keep_best.{key}": "test_checkpoint_policy.py" for key in ("metric", "mode")},
    "checkpoints.mirror.url": "test_mirrored_run.py",
    "checkpoints.mirror.options": "how a place is reached",
    "coverage.max_disk": "test_records.py",
    "logging.trackers": "test_trackers.py",
    **{f"logging.{key}": "what a tracker gets" for key in ("project", "name", "entity", "tags", "offline")},
}


def leaves(table: type[BaseModel], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield all keys of a recipe that are no tables, by names such as "train.ema_decay"."""
    for name, field in table.model_fields.items():
        inner = toml_none.config_in(field.annotation)
        if inner is None:
            yield above + name, field
        elif name != "stage":
            yield from leaves(inner, f"{above}{name}.")


FIELDS = dict(leaves(Recipe))
SEEN = [key for key in FIELDS if key not in ELSEWHERE]


def _choices(annotation: Any) -> Iterator[Any]:
    if typing.get_origin(annotation) is typing.Literal:
        yield from typing.get_args(annotation)
    else:
        for each in typing.get_args(annotation):
            yield from _choices(each)


def another(key: str) -> Any:
    """Return another value of a key than its default."""
    if key in VALUES:
        return VALUES[key]
    default, kinds = FIELDS[key].default, str(FIELDS[key].annotation)
    others = [choice for choice in _choices(FIELDS[key].annotation) if choice != default]
    if isinstance(default, bool) or "bool" in kinds:
        return not default
    if others:
        return others[-1]
    if "int" in kinds:
        return (default or 2) + 1
    return (default or 0.5) / 2 if "float" in kinds else "x"


def with_key(values: Values, key: str, value: Any) -> Values:
    """Return a recipe with another value of a key, in the first of a list of tables."""
    table, _, name = key.rpartition(".")
    if table in ("dataset", "bucket"):
        first, *more = values[table]
        return values | {table: [{**first, name: value}, *more]}
    for part in reversed(table.split(".")) if table else ():
        name, value = part, {name: value}
    return _merged(values, {name: value})


def _merged(values: Values, changes: Values) -> Values:
    found = dict(values)
    for name, value in changes.items():
        both = isinstance(value, dict) and isinstance(found.get(name), dict)
        found[name] = _merged(found[name], value) if both else value
    return found


def beside(values: Values, key: str) -> Values:
    """Return a recipe beside which a key has an effect."""
    changes = dict((BESIDE | COMPARED).get(key, {}))
    datasets = [{**values["dataset"][0], **changes.pop("dataset", {})}]
    return _merged(values | {"dataset": datasets}, changes)


def says_why(values: Values, key: str) -> bool:
    """Whether a recipe is refused, or its key is told, by the name of the key or of the one that it needs."""
    try:
        recipe = recipe_file.parse(values)
    except UserError:
        return True
    return any(line.startswith(f"{key} has no effect") for line in idle_keys.lines(recipe))


def test_each_key_is_seen_here_or_in_a_test_that_names_it() -> None:
    assert set(ELSEWHERE) <= set(FIELDS)
    assert set(VALUES) | set(BESIDE) | set(COMPARED) <= set(SEEN)
    files = {file.name: file for file in TESTS.rglob("test_*.py")}
    for key, place in ELSEWHERE.items():
        if place.endswith(".py"):
            assert key.rpartition(".")[2] in files[place].read_text(encoding="utf-8"), (key, place)


def test_a_key_that_needs_others_says_so_without_them(tiny: Callable[..., Values]) -> None:
    plain = tiny()
    for key in (key for key in BESIDE if not key.startswith("sound.")):
        assert says_why(with_key(plain, key, another(key)), key), key
        assert not says_why(with_key(beside(plain, key), key, another(key)), key), key


def test_what_has_no_effect_beside_others_is_told_once(tiny: Callable[..., Values]) -> None:
    recipe = recipe_file.parse(tiny(exports={"formats": ["kohya"], "dtype": "float32"}, train={"memory_gb": 8.0}))
    assert [line.partition(" has no effect ")[0] for line in idle_keys.lines(recipe)] == [
        "train.memory_gb",
        "exports.dtype",
        "exports.formats",
    ]
    assert idle_keys.lines(recipe_file.parse(tiny())) == []


def traces(values: Values) -> dict[str, str]:
    """Train, and return what the run folder says of its plan, steps, files and weights."""
    run = RunFolder(Path(values["output"]))
    shutil.rmtree(run.path, ignore_errors=True)
    assert trainer.run(recipe_file.parse(values), TrainRequest()) == 0
    found = {}
    for event in events.read(
        run.events_file, "epoch", "step", "validation", "checkpoint", "retention", "clip_losses", "samples"
    ):
        told = {name: value for name, value in event.items() if not name.endswith(("seconds", "bytes", "time", "plan"))}
        found[f"{event['kind']} {event['step']} {event.get('stage')}"] = json.dumps(told)
    for file in run.path.rglob("*"):
        name = file.relative_to(run.path).as_posix()
        if (
            name.startswith(("samples/", "exports/", "plan/")) and file.is_file() and file.name != "about.json"
        ) or name.endswith((".safetensors", "clip_losses.parquet")):
            found[name] = hashlib.sha256(file.read_bytes()).hexdigest()
    for folder in (Path("stored"), Path("mirror")):
        found[folder.name] = (
            str(sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*"))) if folder.exists() else ""
        )
        shutil.rmtree(folder, ignore_errors=True)
    return found


@pytest.fixture
def heard(tmp_path: Path) -> Values:
    """A recipe of two clips with sound, and one without."""
    folder = tmp_path / "clips"
    folder.mkdir()
    media_makers.write(folder / "2.mp4", np.zeros((24, 32, 32, 3), np.uint8))
    for i in range(3):
        if i < 2:
            sound_clips.write(folder / f"{i}.mp4", seconds=1.0, events=[0.1 + 0.3 * i, 0.7])
        (folder / f"{i}.txt").write_text(f"clip {i}", encoding="utf-8")
    return tiny_recipe.of_sounds(folder, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("table", sorted({key.partition(".")[0] for key in SEEN}))
def test_each_key_changes_the_run(
    tiny: Callable[..., Values], heard: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.chdir(tmp_path)
    plain, known = heard if table == "sound" else tiny(), dict[str, dict[str, str]]()
    silent = []
    for key in (key for key in SEEN if key.partition(".")[0] == table):
        without = beside(plain, key)
        if (text := json.dumps(without)) not in known:
            known[text] = traces(without)
        if traces(with_key(without, key, another(key))) == known[text]:
            silent.append((key, another(key)))
    assert not silent
