"""Check that a recipe gives a model all inputs that it needs, and none that it does not support."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from safetensors import SafetensorError, safe_open

from reelworks.core.errors import UserError
from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.catalog.sources import SOURCES
from reelworks.data.loader import frame_masks
from reelworks.models import components, registry
from reelworks.models.components import conditioning, other_latents
from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig
from reelworks.models.family import FamilyConfig
from reelworks.training.recipe.recipe import Recipe

COMPANIONS = ("control", *SOURCES, "mask")  # companions that can be inputs of a network


def require_objective(model: ModelConfig, objective: str, mask_ratios: Mapping[str, float]) -> None:
    """Refuse an objective for which the weights were not trained, and frame conditions that the network lacks."""
    wants = conditioning(model)
    if model.weights is not None and objective not in wants.objectives:
        raise UserError(
            f"the weights of {model.name} were trained with another objective",
            code="other-objective",
            field="objective.name",
            value=objective,
            remedy=f'write "{wants.objectives[0]}"',
        )
    drawn = {name for name, ratio in mask_ratios.items() if ratio and name != "identity"}
    if wants.control_parts or not drawn or (wants.frames and drawn.isdisjoint(frame_masks.AREAS)):
        return
    what, remedy = "frames", "leave it out, or choose a model that does (docs/reference/models.md)"
    if wants.frames:
        areas = " and ".join(sorted(drawn & set(frame_masks.AREAS)))
        what, remedy = "areas", f"leave out {areas}, or choose a model that takes a mask, such as wan-2.1-vace-1.3b"
    raise UserError(
        f"{model.name} does not support conditioning on {what}",
        code="conditions-not-taken",
        field="objective.mask_ratios",
        value=dict(mask_ratios),
        remedy=remedy,
    )


def require_text_encoder(model: ModelConfig, text: TextEncoderConfig) -> None:
    """Refuse weights that were trained with other text encoders, which may have the same width."""
    expected = registry.PRESETS[model.name].parts.text
    if text.name not in ("hashed", expected) and _trained_elsewhere(model.weights, "text_encoder", text.name):
        raise UserError(
            f"the weights of {model.name} were trained with other text encoders",
            code="other-text-encoder",
            field="text_encoder.name",
            value=text.name,
            remedy=f'write "{expected}"',
        )


def require_autoencoder(model: ModelConfig, autoencoder: AutoencoderConfig) -> None:
    """Refuse weights that were trained with another autoencoder of as many latent channels.

    Another number of channels is refused when the weights are loaded, by their shapes.
    """
    expected = other_latents(model, autoencoder)
    if expected is not None and _trained_elsewhere(model.weights, "autoencoder", autoencoder.name):
        raise UserError(
            f"the weights of {model.name} were trained on latents of another autoencoder with as many channels",
            code="other-autoencoder",
            field="autoencoder.name",
            value=autoencoder.name,
            remedy=f'write "{expected}"',
        )


def _trained_elsewhere(weights: str | None, part: str, name: str) -> bool:
    """Return whether weights exist and are not an export of a run with the part of this name."""
    if weights is None:
        return False
    try:
        with safe_open(weights, "numpy") as file:
            return bool((file.metadata() or {}).get(part) != name)
    except (OSError, SafetensorError):
        return True  # a folder, a hub id, or a damaged file, which the loader reports


def require_companions(model: ModelConfig, given: Sequence[Collection[str]], prefix: str) -> None:
    """Refuse companions that the network does not take, and missing ones that it needs.

    `given` has the kinds of each dataset, or of each sample to generate; their keys or options begin with `prefix`.
    """
    wants = conditioning(model)
    for name in COMPANIONS:
        count = sum(name in names for names in given)
        if count and name.partition("-")[0] not in wants.takes:
            takers = [
                preset
                for preset, known in registry.PRESETS.items()
                if name in known.config.conditioning.takes and not preset.endswith("-tiny")
            ]
            problem = f"{model.name} does not take a {name}"
            remedy = f"leave it out, or choose a model that does: {', '.join(takers)}"
        elif name in SOURCES and count and SOURCES.index(name) >= wants.most_sources:
            problem = f"{model.name} takes {wants.most_sources} source{'s' * (wants.most_sources > 1)} of a clip"
            remedy = "leave the others out, or choose a model that takes more (docs/reference/models.md)"
        elif 0 < count < len(given) and (name in ("control", "mask") or name in wants.needs):
            why = ", and a batch cannot mix clips with and without one" if name in ("control", "mask") else ""
            problem = f"only {count} of {len(given)} have a {name}{why}"
            remedy = f"give all of them a {name}" + (", or none" if name not in wants.needs else "")
        elif not count and name in wants.needs:
            problem, remedy = f"{model.name} needs a {name}", f"set {prefix}{name}"
        else:
            continue
        raise UserError(problem, code="companion-mismatch", field=prefix + name.partition("-")[0], remedy=remedy)


def require_least_sources(model: ModelConfig, datasets: Sequence[DatasetConfig]) -> None:
    """Refuse clips without a source if the network needs one."""
    for dataset in datasets:
        if dataset.min_sources == 0 and "source" in conditioning(model).needs:
            raise UserError(
                f"{model.name} needs a source for each clip",
                code="companion-mismatch",
                field="dataset.min_sources",
                value=0,
                remedy="use 1",
            )


def require_given_frames(model: ModelConfig, reference: str | None, last_frame: str | None, num_frames: int) -> None:
    """Refuse previews without a first or last frame that the network needs, or with one that it does not support."""
    wants = conditioning(model)
    first, last = (num_frames > 1 and takes for takes in (wants.needs_first_frame, wants.last_frame))
    others = wants.frames or wants.control_parts
    for field, which, value, needs, takes in (
        ("samples.reference", "first", reference, first, first or others),
        ("samples.last_frame", "last", last_frame, last, last or (others and num_frames > 1)),
    ):
        if needs and value is None:
            problem, remedy = f"{model.name} generates clips from a {which} frame", "give a picture"
        elif value is not None and not takes:
            problem, remedy = f"{model.name} does not support conditioning on a {which} frame", "leave it out"
        else:
            continue
        raise UserError(problem, code="given-frame-missing", field=field, value=value, remedy=remedy)


def require_inpainted(mask: bool, inpainted: bool, prefix: str) -> None:
    """Refuse to generate with a mask of no clip, or with a clip without a mask of what is kept of it."""
    if mask != inpainted:
        missing, present = ("inpaint", "mask") if mask else ("mask", "inpaint")
        raise UserError(
            "a mask tells which areas of a clip are kept, and goes with that clip",
            code="inpainting-incomplete",
            field=f"{prefix}{present}",
            remedy=f"give {prefix}{missing} too, or leave both out",
        )


def require_image_encoder(model: ModelConfig) -> None:
    """Refuse a missing image encoder that the model needs, and one that it does not use."""
    kind = conditioning(model).image_encoder
    if (kind is None) != (model.image_encoder is None):
        raise UserError(
            f"{model.name} has no image encoder" if kind is None else f"{model.name} needs an image encoder ({kind})",
            code="image-encoder-mismatch",
            field="model.image_encoder",
            value=model.image_encoder,
            remedy="leave it out" if kind is None else "give the folder or hub id of the model's release",
        )


def licence_note(recipe: Recipe) -> str | None:
    """Return what the licence of a recipe's model restricts; None if it restricts nothing that is known here."""
    note = registry.release_of(recipe.model.name).licence_note
    return None if note is None else f"{recipe.model.name}: {note}. Read the licence beside its weights"


def distilled_warning(recipe: Recipe) -> str | None:
    """Return a warning if a LoRA would undo what was distilled into its base; None if something prevents that."""
    lora, name = recipe.lora, recipe.model.name
    prevented = lora is None or lora.training_adapter is not None or recipe.objective.target_guidance_scale is not None
    if prevented or not registry.release_of(name).distilled:
        return None
    ways = ["set lora.training_adapter to an adapter for this model"]
    if not conditioning(recipe.model).sound:
        ways.append("set objective.target_guidance_scale if guidance alone was distilled into it")
    if bases := _bases(name):
        ways.append(f'train on {" or ".join(bases)} and set samples.model = "{name}"')
    told = ", or ".join(ways)
    return (
        f"{name} is a distilled model, and training undoes the distillation: the LoRA's pictures become blurred. "
        f"{told[0].upper()}{told[1:]} (docs/how-to/train-a-lora.md)"
    )


def _bases(name: str) -> list[str]:
    """Return the published models without distillation whose LoRAs have the same layers as those of a distilled model."""
    preset = registry.PRESETS[name]
    return [
        other
        for other, known in registry.family_of(name).presets.items()
        if known.release is not None
        and not known.release.distilled
        and known.parts == preset.parts
        and _layers(known.config) == _layers(preset.config)
        and known.config.conditioning.takes == preset.config.conditioning.takes
        and known.config.conditioning.sound == preset.config.conditioning.sound
    ]


def _layers(config: FamilyConfig) -> list[Any]:
    """Return the sizes of a network; switches, such as that of an embedded guidance scale, change none of its blocks."""
    sizes = {key: value for key, value in config.model_dump().items() if not isinstance(value, bool)}
    return [config.network.name, sizes]


def require_sound(recipe: Recipe) -> None:
    """Refuse sound for a model without it, a model with sound without its table, and clips of no common rate."""
    model, sound, data = recipe.model, recipe.sound, recipe.data
    takes = conditioning(model).sound
    if takes != (sound is not None):
        preset = f"{model.name}-sound"
        with_sound = f'model.name = "{preset}"' if preset in registry.PRESETS else "a model with sound (ltx-2-sound)"
        raise UserError(
            f"{model.name} is trained with sound" if takes else f"{model.name} is trained without sound",
            code="sound-mismatch",
            field="sound",
            remedy="add a table [sound]" if takes else f"leave [sound] out, or choose {with_sound}",
        )
    if sound is None:
        return
    components.sound_facts(sound)
    expected = registry.PRESETS[model.name].sound
    if model.weights is not None and sound.name not in ("pcm", expected):
        raise UserError(
            f"the weights of {model.name} were trained with another sound encoder",
            code="other-autoencoder",
            field="sound.name",
            value=sound.name,
            remedy=f'write "{expected}"',
        )
    if data.frame_rate is None:
        raise UserError(
            "clips with sound need one frame rate, so that all clips of a bucket have equally long sound",
            code="sound-needs-rate",
            field="data.fps",
            value=None,
            remedy='write fps = "model", or the rate of the clips',
        )
    if data.short_clips == "loop":
        raise UserError(
            "frames that start over have no sound that goes on",
            code="sound-of-looped-clips",
            field="data.short_clips",
            value=data.short_clips,
            remedy='write "hold", whose sound ends in silence, or "reject"',
        )
    objective = recipe.objective
    guided = objective.target_guidance_scale is not None
    if objective.name != "rectified-flow" or guided or any(d.rejected for d in recipe.dataset):
        raise UserError(
            "models with sound are trained by rectified flow, without guided targets or rejected clips",
            code="sound-objective",
            field="objective",
            value=objective.name,
            remedy='write name = "rectified-flow", and leave out target_guidance_scale and dataset.rejected',
        )
