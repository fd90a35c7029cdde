"""Keys of a recipe that have no effect beside its other keys.

Keys that contradict each other are refused where their table is defined. These may stay, since a recipe is changed back and
forth, and are told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from reelworks.data.checkpoint import mixture
from reelworks.data.loader import frame_masks
from reelworks.models import components
from reelworks.training.recipe.recipe import Recipe


@dataclass(frozen=True)
class IdleRule:
    """Keys of a table that act only beside others.

    Attributes:
        table: Name of the table, as in "checkpoints.keep_best".
        keys: Some of its keys, apart by spaces.
        act: Whether they have an effect, by the table and the recipe.
        lacking: What is to follow "has no effect".
        remedy: What gives them one, if anything does.
    """

    table: str
    keys: str
    act: Callable[[Any, Recipe], bool]
    lacking: str
    remedy: str = ""


def _trains_videos(recipe: Recipe) -> bool:
    others = recipe.buckets.proposes or recipe.buckets.opensora is not None
    return others or any(frames != 1 for entry in recipe.bucket for frames in entry.frames())


def _draws_areas(recipe: Recipe) -> bool:
    return bool(recipe.objective.mask_ratios.keys() & frame_masks.AREAS)


def _makes_sound(recipe: Recipe) -> bool:
    return recipe.sound is not None and recipe.sound.modes.get("video", 0) < 1


def _is_measured(metric: str, recipe: Recipe) -> bool:
    """Whether a metric that ranks checkpoints needs no validation, or gets it; others are refused where nothing measures them."""
    validates = recipe.validation.split > 0 and recipe.validation.every_steps is not None
    return validates or not any(name.startswith("validation/") for name in mixture.terms(metric))


def _are_matrices(recipe: Recipe) -> bool:
    """Whether all trained weights are matrices of blocks for sure; attentions may lie elsewhere, too."""
    lora = recipe.lora
    return lora is not None and (lora.targets, lora.dora, lora.text_encoders) == ("blocks", False, False)


_STORE = ("in a training without stored latents; `reelworks encode` alone heeds it", "set encode.store = true")
_BEST = (
    "since the run does not measure the metric that ranks",
    "set validation.split and every_steps, or samples.metrics",
)
_GIVEN = "where sound is given and never generated"
_ENTRIES = "beside [[bucket]] entries, which say their sizes and batch sizes"
RULES = (
    IdleRule(
        "dataset",
        "keep_tags tag_separator",
        lambda t, r: t.shuffle_tags or t.tag_dropout > 0,
        "without shuffle_tags and tag_dropout",
        "set one of them",
    ),
    IdleRule(
        "buckets",
        "max_tokens max_batch_size",
        lambda t, r: t.entries != "recipe",
        _ENTRIES,
        'set buckets.entries = "auto"',
    ),
    IdleRule(
        "buckets",
        "batch_size",
        lambda t, r: t.opensora is not None or any(entry.batch_size is None for entry in r.bucket),
        "beside entries that have their own",
    ),
    IdleRule(
        "buckets",
        "token_family_crop",
        lambda t, r: bool(t.token_families),
        "without token families",
        "set buckets.token_families = true",
    ),
    IdleRule("data", "shuffle_window", lambda t, r: t.locality is not None, "without locality", "set data.locality"),
    IdleRule("data", "frame_interval clip_start short_clips interlaced", lambda t, r: _trains_videos(r), "on pictures"),
    IdleRule("sound", "follow_frames", lambda t, r: bool(r.objective.mask_ratios), "without objective.mask_ratios"),
    IdleRule("sound", "times", lambda t, r: _makes_sound(r), _GIVEN),
    IdleRule("sound", "loss_weight", lambda t, r: _makes_sound(r) or r.validation.split > 0, _GIVEN),
    IdleRule("encode", "folder dtype variants", lambda t, r: t.store, *_STORE),
    IdleRule(
        "objective",
        "logit_mean logit_std",
        lambda t, r: t.timestep_sampling == "logit-normal",
        "with another density of timesteps",
        'set objective.timestep_sampling = "logit-normal"',
    ),
    IdleRule(
        "objective",
        "opensora_frame_quantization",
        lambda t, r: t.timestep_shift == "auto",
        "with this timestep_shift",
        'set objective.timestep_shift = "auto"',
    ),
    IdleRule("objective", "mask_ratios", lambda t, r: _trains_videos(r) or _draws_areas(r), "on pictures"),
    IdleRule("objective", "target_guidance_scale", lambda t, r: t.caption_dropout < 1, "without captions"),
    IdleRule(
        "objective",
        "crop_conditioning",
        lambda t, r: components.conditioning(r.model).crops,
        "on a model that is not told of crops",
    ),
    IdleRule("parallel", "link_gb_per_second", lambda t, r: t.group_size != 1, "without parallel.sequence_degree"),
    # With numbers that were measured, the bound is left out of the recipe.
    IdleRule("train", "step_seconds", lambda t, r: False, 'without batch_size = "auto"', "run `reelworks tune`"),
    IdleRule(
        "train",
        "gradient_accumulation_steps",
        lambda t, r: t.micro_batches_per_step is None,
        "beside train.micro_batches_per_step",
    ),
    IdleRule("train", "ema_device", lambda t, r: t.ema_decay is not None, "without ema_decay", "set train.ema_decay"),
    IdleRule(
        "train",
        "betas eps",
        lambda t, r: t.optimizer != "muon" or not _are_matrices(r),
        "where Muon updates all weights",
    ),
    IdleRule("train", "max_non_finite", lambda t, r: t.non_finite == "skip", 'with non_finite = "stop"'),
    IdleRule("train", "spike_threshold", lambda t, r: t.spikes != "off", 'with spikes = "off"', "set train.spikes"),
    IdleRule(
        "train",
        "compile_graphs compile_backend",
        lambda t, r: t.compile,
        "without compilation",
        "set train.compile = true",
    ),
    IdleRule(
        "train",
        "memory_gb",
        lambda t, r: r.model.gradient_checkpointing == "auto",
        "unless recomputation is chosen by memory",
        'set model.gradient_checkpointing = "auto"',
    ),
    IdleRule(
        "validation",
        "group timesteps max_clips",
        lambda t, r: t.split > 0,
        "without held-out clips",
        "set validation.split",
    ),
    IdleRule("samples", "every_steps", lambda t, r: bool(t.prompts), "without prompts", "give samples.prompts"),
    IdleRule("checkpoints", "keep_last", lambda t, r: t.save_total_limit is None, "beside save_total_limit"),
    IdleRule("checkpoints", "at_best", lambda t, r: _is_measured(t.keep_best.metric, r), *_BEST),
    IdleRule("checkpoints.keep_best", "metric mode n", lambda t, r: _is_measured(t.metric, r), *_BEST),
    IdleRule("checkpoints.mirror.keep_best", "metric mode n", lambda t, r: _is_measured(t.metric, r), *_BEST),
    IdleRule(
        "exports",
        "dtype formats every_n_saves keep_last",
        lambda t, r: t.weights is not None or r.checkpoints.on_full == "weights-only",
        "in a training that writes no weights for inference",
        'set exports.weights = "ema" or "model"',
    ),
    IdleRule(
        "exports", "formats", lambda t, r: t.weights is None or r.lora is not None, "on whole networks", "add [lora]"
    ),
    IdleRule("logging", "entity tags offline", lambda t, r: "wandb" in t.trackers, "without Weights & Biases"),
)


def lines(recipe: Recipe) -> list[str]:
    """Return a line for each key of a recipe that is not at its default and has no effect beside the others."""
    return [
        f"{rule.table}.{key} has no effect {rule.lacking}; leave it out" + (rule.remedy and f", or {rule.remedy}")
        for rule in RULES
        for key in rule.keys.split()
        if any(_is_idle(table, key, rule, recipe) for table in _tables(recipe, rule.table.split(".")))
    ]


def _is_idle(table: Any, key: str, rule: IdleRule, recipe: Recipe) -> bool:
    default = type(table).model_fields[key].get_default(call_default_factory=True)
    return bool(getattr(table, key) != default and not rule.act(table, recipe))


def _tables(value: Any, names: list[str]) -> Iterator[Any]:
    """Yield all tables of a name below a value; none where the recipe switches one off."""
    if isinstance(value, list):
        for each in value:
            yield from _tables(each, names)
    elif value is not None and names:
        yield from _tables(getattr(value, names[0]), names[1:])
    elif value is not None:
        yield value
