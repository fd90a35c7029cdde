"""Keys of a recipe that have no effect beside its other keys.

Keys that contradict each other are refused where their table is defined. These may stay, since a recipe is changed back and
forth, and are told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reelworks.core import toml
from reelworks.data.checkpoint import mixture
from reelworks.data.loader import frame_masks
from reelworks.models import components
from reelworks.training.recipe.recipe import Recipe

_RULES = toml.beside(__file__, "idle_keys.toml")


def _trains_videos(recipe: Recipe) -> bool:
    others = recipe.buckets.proposes or recipe.buckets.opensora is not None
    return others or any(frames != 1 for entry in recipe.bucket for frames in entry.frames())


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


# By the first key of each rule: whether its keys have an effect, by their table and the recipe.
_ACT: dict[str, Callable[[Any, Recipe], bool]] = {
    "dataset.keep_tags": lambda t, r: t.shuffle_tags or t.tag_dropout > 0,
    "buckets.max_tokens": lambda t, r: t.entries != "recipe",
    "buckets.batch_size": lambda t, r: t.opensora is not None or any(entry.batch_size is None for entry in r.bucket),
    "buckets.token_family_crop": lambda t, r: bool(t.token_families),
    "data.shuffle_window": lambda t, r: t.locality is not None,
    "data.frame_interval": lambda t, r: _trains_videos(r),
    "sound.follow_frames": lambda t, r: bool(r.objective.mask_ratios),
    "sound.times": lambda t, r: _makes_sound(r),
    "sound.loss_weight": lambda t, r: _makes_sound(r) or r.validation.split > 0,
    "encode.folder": lambda t, r: t.store,
    "objective.logit_mean": lambda t, r: t.timestep_sampling == "logit-normal",
    "objective.opensora_frame_quantization": lambda t, r: t.timestep_shift == "auto",
    "objective.mask_ratios": lambda t, r: _trains_videos(r) or bool(t.mask_ratios.keys() & frame_masks.AREAS),
    "objective.target_guidance_scale": lambda t, r: t.caption_dropout < 1,
    "objective.crop_conditioning": lambda t, r: components.conditioning(r.model).crops,
    "parallel.link_gb_per_second": lambda t, r: t.group_size != 1,
    # With numbers that were measured, the bound is left out of the recipe.
    "train.step_seconds": lambda t, r: False,
    "train.gradient_accumulation_steps": lambda t, r: t.micro_batches_per_step is None,
    "train.ema_device": lambda t, r: t.ema_decay is not None,
    "train.betas": lambda t, r: t.optimizer != "muon" or not _are_matrices(r),
    "train.max_non_finite": lambda t, r: t.non_finite == "skip",
    "train.spike_threshold": lambda t, r: t.spikes != "off",
    "train.compile_graphs": lambda t, r: t.compile,
    "train.memory_gb": lambda t, r: r.model.gradient_checkpointing == "auto",
    "validation.group": lambda t, r: t.split > 0,
    "samples.every_steps": lambda t, r: bool(t.prompts),
    "checkpoints.keep_last": lambda t, r: t.save_total_limit is None,
    "checkpoints.at_best": lambda t, r: _is_measured(t.keep_best.metric, r),
    "checkpoints.keep_best.metric": lambda t, r: _is_measured(t.metric, r),
    "checkpoints.mirror.keep_best.metric": lambda t, r: _is_measured(t.metric, r),
    "exports.dtype": lambda t, r: t.weights is not None or r.checkpoints.on_full == "weights-only",
    "exports.formats": lambda t, r: t.weights is None or r.lora is not None,
    "logging.entity": lambda t, r: "wandb" in t.trackers,
}


def lines(recipe: Recipe) -> list[str]:
    """Return a line for each key of a recipe that is not at its default and has no effect beside the others."""
    found = []
    for rule, told in _RULES.items():
        table, _, first = rule.rpartition(".")
        for key in (first, *told.get("beside", ())):
            if any(_is_idle(one, key, rule, recipe) for one in _tables(recipe, table.split("."))):
                remedy = f", or {told['remedy']}" if "remedy" in told else ""
                found.append(f"{table}.{key} has no effect {told['lacking']}; leave it out{remedy}")
    return found


def _is_idle(table: Any, key: str, rule: str, recipe: Recipe) -> bool:
    default = type(table).model_fields[key].get_default(call_default_factory=True)
    return bool(getattr(table, key) != default and not _ACT[rule](table, recipe))


def _tables(recipe: Recipe, names: list[str]) -> list[Any]:
    """Return all tables of a recipe by a name; none where the recipe switches one off."""
    found: list[Any] = [recipe]
    for name in names:
        inner = [getattr(one, name) for one in found]
        found = [one for value in inner for one in (value if isinstance(value, list) else [value]) if one is not None]
    return found
