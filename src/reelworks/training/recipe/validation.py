"""Rules between the keys of a recipe: a model gets all inputs that it needs, and none that it does not support.

`RULES`, at the end, has them in their order. A rule raises a `UserError`, or returns the recipe with what it derives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from safetensors import SafetensorError, safe_open

from reelworks.core import units
from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.data.buckets import table, tuned
from reelworks.data.catalog.sources import SOURCES
from reelworks.data.loader import clip_uses, frame_masks
from reelworks.models import components, registry
from reelworks.models.components import conditioning, other_latents
from reelworks.models.config import ModelConfig, require_known, text_encoder_names
from reelworks.models.expert_pair.config import timestep_range
from reelworks.models.objectives.config import require_steps
from reelworks.models.sequence import sequence_limits
from reelworks.training.recipe import preview_model
from reelworks.training.recipe.recipe import Recipe

COMPANIONS = ("control", *SOURCES, "mask")  # companions that can be inputs of a network


def require_known_parts(recipe: Recipe) -> None:
    """Refuse a model, an autoencoder and text encoders of unknown names."""
    require_known("text_encoder.name", recipe.text_encoder.name, text_encoder_names())
    components.geometry(recipe.model, recipe.autoencoder)


def require_objective(recipe: Recipe) -> None:
    """Refuse an objective for which the weights were not trained, and frame conditions that the network lacks."""
    model, objective = recipe.model, recipe.objective
    wants, mask_ratios = conditioning(model), objective.mask_ratios
    if model.weights is not None and objective.name not in wants.objectives:
        raise UserError(
            f"the weights of {model.name} were trained with another objective",
            code="other-objective",
            field="objective.name",
            value=objective.name,
            remedy=f'write "{wants.objectives[0]}"',
        )
    drawn = {name for name, ratio in mask_ratios.items() if ratio and name != "identity"}
    if wants.companions.control_parts or not drawn or (wants.frames and drawn.isdisjoint(frame_masks.AREAS)):
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


def require_text_encoder(recipe: Recipe) -> None:
    """Refuse weights that were trained with other text encoders, which may have the same width."""
    model, text = recipe.model, recipe.text_encoder
    parts = registry.PRESETS[model.name].parts
    if text.name not in ("hashed", parts.text, *parts.more_texts) and _trained_elsewhere(
        model.weights, "text_encoder", text.name
    ):
        raise UserError(
            f"the weights of {model.name} were trained with other text encoders",
            code="other-text-encoder",
            field="text_encoder.name",
            value=text.name,
            remedy=f'write "{parts.text}"',
        )


def require_autoencoder(recipe: Recipe) -> None:
    """Refuse weights that were trained with another autoencoder of as many latent channels.

    Another number of channels is refused when the weights are loaded, by their shapes.
    """
    model, autoencoder = recipe.model, recipe.autoencoder
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
        if count and name.partition("-")[0] not in wants.companions.takes:
            takers = [
                preset
                for preset, known in registry.PRESETS.items()
                if name in known.config.conditioning.companions.takes and not preset.endswith("-tiny")
            ]
            problem = f"{model.name} does not take a {name}"
            remedy = f"leave it out, or choose a model that does: {', '.join(takers)}"
        elif name in SOURCES and count and SOURCES.index(name) >= wants.companions.most_sources:
            problem = f"{model.name} takes {wants.companions.most_sources} source{'s' * (wants.companions.most_sources > 1)} of a clip"
            remedy = "leave the others out, or choose a model that takes more (docs/reference/models.md)"
        elif 0 < count < len(given) and (name in ("control", "mask") or name in wants.companions.needs):
            why = ", and a batch cannot mix clips with and without one" if name in ("control", "mask") else ""
            problem = f"only {count} of {len(given)} {units.verb(count, 'have')} a {name}{why}"
            remedy = f"give all of them a {name}" + (", or none" if name not in wants.companions.needs else "")
        elif not count and name in wants.companions.needs:
            problem, remedy = f"{model.name} needs a {name}", f"set {prefix}{name}"
        else:
            continue
        raise UserError(problem, code="companion-mismatch", field=prefix + name.partition("-")[0], remedy=remedy)


def require_dataset_companions(recipe: Recipe) -> None:
    """Refuse companions of datasets that the network does not take, and clips without a source that it needs."""
    require_companions(recipe.model, [dataset.companions for dataset in recipe.dataset], "dataset.")
    for dataset in recipe.dataset:
        if dataset.min_sources == 0 and "source" in conditioning(recipe.model).companions.needs:
            raise UserError(
                f"{recipe.model.name} needs a source for each clip",
                code="companion-mismatch",
                field="dataset.min_sources",
                value=0,
                remedy="use 1",
            )


def require_given_frames(model: ModelConfig, reference: str | None, last_frame: str | None, num_frames: int) -> None:
    """Refuse previews without a first or last frame that the network needs, or with one that it does not support."""
    wants = conditioning(model)
    first, last = (num_frames > 1 and takes for takes in (wants.needs_first_frame, wants.shown.last))
    others = num_frames > 1 and (wants.frames or wants.companions.control_parts)
    for field, which, value, needs, takes in (
        ("samples.reference", "first", reference, first, first or others),
        ("samples.last_frame", "last", last_frame, last, last or others),
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


def require_image_encoder(recipe: Recipe) -> None:
    """Refuse a missing image encoder that the model needs, and one that it does not use."""
    model = recipe.model
    kind = conditioning(model).shown.encoder
    if (kind is None) != (model.image_encoder is None):
        raise UserError(
            f"{model.name} has no image encoder" if kind is None else f"{model.name} needs an image encoder ({kind})",
            code="image-encoder-mismatch",
            field="model.image_encoder",
            value=model.image_encoder,
            remedy="leave it out" if kind is None else "give the folder or hub id of the model's release",
        )


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


def require_guided_channels(recipe: Recipe) -> None:
    """Refuse a number of guided channels for samplers that guide all."""
    if recipe.samples.guided_channels is not None and recipe.objective.name != "iddpm":
        raise UserError(
            f"the sampler of {recipe.objective.name} applies guidance to all channels",
            code="guided-channels-without-iddpm",
            field="samples.guided_channels",
            value=recipe.samples.guided_channels,
            remedy='leave it out; it belongs to objective.name = "iddpm"',
        )


def require_samples(recipe: Recipe) -> None:
    """Refuse samples that the model cannot generate; sizes that are left out come from a bucket and are valid."""
    samples, geometry = recipe.samples, components.geometry(recipe.model, recipe.autoencoder)
    if samples.num_inference_steps is not None:
        require_steps(recipe.objective.name, samples.num_inference_steps, "samples.num_inference_steps")
    if not samples.prompts:
        return
    height, width = geometry.multiple
    shape = Shape(samples.num_frames or 1, samples.height or height, samples.width or width)
    fields = ("samples.num_frames", "samples.height", "samples.width")
    geometry.require(shape, fields, whole_patches=components.whole_patches(recipe.model))
    require_companions(recipe.model, [samples.companions], "samples.")
    require_inpainted(samples.mask is not None, samples.inpaint is not None, "samples.")
    if samples.num_frames is not None:
        require_given_frames(recipe.model, samples.reference, samples.last_frame, samples.num_frames)


def with_trigger_in_prompts(recipe: Recipe) -> Recipe:
    """Put the trigger word into prompts of previews as into captions."""
    prompts = recipe.with_trigger(recipe.samples.prompts)
    return recipe.model_copy(update={"samples": recipe.samples.model_copy(update={"prompts": prompts})})


def with_sequence_group(recipe: Recipe) -> Recipe:
    """Set the ranks of a sequence group whose degrees are chosen; refuse entries that the choice cannot be written to."""
    parallel = recipe.parallel
    if parallel.sequence_degree != "auto":
        return recipe
    if not recipe.bucket or recipe.buckets.proposes:
        raise UserError(
            "a number of ranks is chosen for each [[bucket]] entry, and the recipe has none",
            code="degrees-without-entries",
            field="parallel.sequence_degree",
            value="auto",
            remedy="give a number, or write the entries that `reelworks plan` proposes as [[bucket]]",
        )
    if parallel.max_sequence_degree is not None:
        return recipe
    size = sequence_limits.largest_group(recipe.model, recipe.autoencoder, recipe.text_encoder)
    return recipe.model_copy(update={"parallel": parallel.model_copy(update={"max_sequence_degree": size})})


def require_shared_tokens(recipe: Recipe) -> None:
    """Refuse numbers of ranks that cannot share the tokens of a clip."""
    parallel = recipe.parallel
    degree, field = parallel.group_size, parallel.group_field
    for own in (own for entry in recipe.bucket for own in entry.sequence_degrees() if own is not None):
        if degree % own:
            raise UserError(
                f"groups of {degree} ranks ({field}) cannot be divided into groups of {own}",
                code="degree-not-divisor",
                field="bucket.sequence_degree",
                value=own,
                remedy=f"set it to a divisor of {degree} ({', '.join(map(str, parallel.degrees()))}), or set "
                f"{field}, which is that of the largest bucket, to a multiple of it",
            )
    sequence_limits.require_network(recipe.model, recipe.autoencoder, recipe.text_encoder, degree, field)
    if degree > 1 and recipe.train.compile:
        raise UserError(
            f"blocks whose tokens {degree} ranks share are not compiled",
            code="compiled-with-shared-tokens",
            field="train.compile",
            value=True,
            remedy="leave it out, or leave out parallel.sequence_degree",
        )


def require_recomputation(recipe: Recipe) -> None:
    """Refuse what single entries recompute if the model's key decides it for all."""
    if recipe.buckets.gradient_checkpointing and recipe.model.gradient_checkpointing != "auto":
        raise UserError(
            "model.gradient_checkpointing decides it for all entries",
            code="recomputation-not-by-entry",
            field="buckets.gradient_checkpointing",
            value=recipe.buckets.gradient_checkpointing,
            remedy='write model.gradient_checkpointing = "auto", or remove this table',
        )


def require_lora_base(recipe: Recipe) -> None:
    """Refuse a data type of the LoRA's base that does not suit the compute type or offloading."""
    if recipe.lora is None:
        return
    base = recipe.lora.exact_base(recipe.precision.compute)
    if recipe.parallel.offload and base not in ("float32", "bfloat16"):
        raise UserError(
            f"a LoRA base in {base} cannot be offloaded: only unpacked weights can be moved between CPU and GPU",
            code="offload-of-packed-base",
            field="parallel.offload",
            value=True,
            remedy="leave lora.base out, or leave offload out",
        )


def require_trained_texts(recipe: Recipe) -> None:
    """Refuse to train text encoders that cannot be, and settings that do not go with it."""
    rate, text = recipe.train.text_encoder_learning_rate, recipe.text_encoder
    key, remedy = "lora.text_encoders", "leave it out"
    value: object = True
    published = registry.TEXT_ENCODERS.get(text.name)
    if recipe.trains_text_encoders and (published is None or not published.is_trainable):
        names = " and ".join(f'"{name}"' for name, known in registry.TEXT_ENCODERS.items() if known.is_trainable)
        problem = f'text encoders of the name "{text.name}" cannot be trained, only {names}'
    elif recipe.trains_text_encoders and text.device == "cpu":
        problem = "text encoders that are trained are on the device of the network"
        key, value = "text_encoder.device", "cpu"
    elif rate is not None and not recipe.trains_text_encoders:
        problem, remedy = "no text encoder is trained", "leave it out, or set lora.text_encoders = true"
        key, value = "train.text_encoder_learning_rate", rate
    elif rate is not None and recipe.train.optimizer in ("prodigy", "schedulefree"):
        problem = f"{recipe.train.optimizer} computes with one rate for all weights"
        key, value, remedy = "train.text_encoder_learning_rate", rate, "leave it out, or choose another train.optimizer"
    else:
        return
    raise UserError(problem, code="text-encoders-not-trained", field=key, value=value, remedy=remedy)


def with_timestep_range(recipe: Recipe) -> Recipe:
    """Set the trained timestep range, which depends on the expert if the model has several."""
    objective, lora = recipe.objective, recipe.lora
    if recipe.model.experts == "both" and lora is not None and lora.weights is not None:
        raise UserError(
            "lora.weights is the LoRA of one expert, but both experts are trained",
            code="lora-of-one-expert",
            field="lora.weights",
            value=lora.weights,
            remedy='leave it out, or train one: model.experts = "high" or "low"',
        )
    timesteps = timestep_range(recipe.model, objective.name, objective.timestep_range)
    return recipe.model_copy(update={"objective": objective.model_copy(update={"timestep_range": timesteps})})


def require_base_target(recipe: Recipe) -> None:
    """Refuse `prior_prediction` without a LoRA, and for all datasets, so that nothing would be learned."""
    targets_base = [d.prior_prediction for d in recipe.dataset]
    if any(targets_base) and recipe.lora is None:
        problem, remedy = "without a LoRA there is no frozen base to predict the target", "add [lora]"
    elif all(targets_base):
        problem, remedy = "all datasets have it, so that the LoRA would learn nothing", "unset it for one dataset"
    else:
        return
    raise UserError(
        problem, code="base-target-without-lora", field="dataset.prior_prediction", value=True, remedy=remedy
    )


def require_guided_target(recipe: Recipe) -> None:
    """Refuse guided targets without a LoRA."""
    scale = recipe.objective.target_guidance_scale
    if scale is not None and recipe.lora is None:
        raise UserError(
            "without a LoRA there is no frozen base to predict the part without caption",
            code="guided-target-invalid",
            field="objective.target_guidance_scale",
            value=scale,
            remedy="leave it out, or add [lora]",
        )


def require_preferences(recipe: Recipe) -> None:
    """Refuse preferences without a LoRA or beside other uses of its base, and their strength without preferences."""
    if not recipe.learns_preferences:
        if recipe.objective.dpo_beta != type(recipe.objective).model_fields["dpo_beta"].default:
            raise UserError(
                "it has no effect without rejected clips",
                code="key-without-effect",
                field="objective.dpo_beta",
                value=recipe.objective.dpo_beta,
                remedy="leave it out, or set dataset.rejected",
            )
        return
    if recipe.lora is None:
        problem, remedy = "without a LoRA there is no frozen base to compare with", "add [lora]"
    elif any(dataset.rejected is None for dataset in recipe.dataset):
        problem, remedy = "only some datasets have it, and their losses cannot be added", "give it to all, or to none"
    elif any(dataset.prior_prediction for dataset in recipe.dataset):
        problem, remedy = "a preference keeps what the base knew by itself", "leave dataset.prior_prediction out"
    elif recipe.objective.target_guidance_scale is not None:
        problem, remedy = "preferences are defined for plain targets", "leave objective.target_guidance_scale out"
    elif recipe.objective.name == "iddpm":
        problem, remedy = "preferences are not defined for a learned variance", "leave it out"
    else:
        return
    value = next(dataset.rejected for dataset in recipe.dataset if dataset.rejected is not None)
    raise UserError(problem, code="preferences-invalid", field="dataset.rejected", value=value, remedy=remedy)


def require_entries(recipe: Recipe) -> None:
    """Refuse bucket entries beside proposed ones, and datasets whose sizes no entry has."""
    if not recipe.buckets.proposes:
        geometry = components.geometry(recipe.model, recipe.autoencoder)
        clip_uses.allowed(recipe.dataset, table.build(*tuned.unmeasured(recipe.bucket, recipe.buckets), geometry))
        return
    for dataset in recipe.dataset:
        if (named := dataset.resolutions or dataset.lengths) is not None:
            raise UserError(
                "the entries are proposed, and need not have these sizes",
                code="entries-given-and-proposed",
                field="dataset.resolutions" if dataset.resolutions else "dataset.lengths",
                value=named,
                remedy='write [[bucket]] entries, and buckets.entries = "recipe"',
            )
    for name, entries in (("[[bucket]]", recipe.bucket), ("[buckets.opensora]", recipe.buckets.opensora)):
        if entries:
            raise UserError(
                f"the recipe asks for proposed entries, but also has {name}",
                code="entries-given-and-proposed",
                field="buckets.entries",
                value=recipe.buckets.entries,
                remedy=f'remove {name}, or write buckets.entries = "recipe"',
            )


Rule = Callable[[Recipe], Recipe | None]

RULES: tuple[Rule, ...] = (
    require_known_parts,
    require_objective,
    require_text_encoder,
    require_autoencoder,
    require_recomputation,
    require_lora_base,
    require_trained_texts,
    require_base_target,
    require_preferences,
    require_guided_target,
    require_image_encoder,
    require_sound,
    require_dataset_companions,
    with_trigger_in_prompts,
    with_sequence_group,
    require_shared_tokens,
    with_timestep_range,
    require_entries,
    require_guided_channels,
    preview_model.require_fit,
    require_samples,
)
