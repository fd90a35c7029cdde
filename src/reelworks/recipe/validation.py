"""Check that a recipe gives a model what it needs, and nothing that it cannot take."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from safetensors import SafetensorError, safe_open

from reelworks.core.errors import UserError
from reelworks.models import registry
from reelworks.models.components import conditioning, other_latents
from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig

COMPANIONS = ("control", "source")  # that a network may be shown whole


def require_objective(model: ModelConfig, objective: str, mask_ratios: Mapping[str, float]) -> None:
    """Refuse an objective that the weights do not know, and given frames that the network is not told of.

    Raises:
        UserError: Names the recipe's key.
    """
    wants = conditioning(model)
    if model.weights is not None and objective not in wants.objectives:
        raise UserError(
            f"weights of {model.name} were trained with another objective",
            code="other-objective",
            field="objective.name",
            value=objective,
            remedy=f'write "{wants.objectives[0]}"',
        )
    if not wants.frames and any(ratio for name, ratio in mask_ratios.items() if name != "identity"):
        raise UserError(
            f"{model.name} is not told which frames are given",
            code="conditions-not-taken",
            field="objective.mask_ratios",
            value=dict(mask_ratios),
            remedy="leave it out, or choose a model that is told (docs/reference/models.md)",
        )


def require_text_encoder(model: ModelConfig, text: TextEncoderConfig) -> None:
    """Refuse weights beside text encoders of another family, which may be as wide as those that they were trained with.

    Raises:
        UserError: Names `text_encoder.name`.
    """
    theirs = registry.PRESETS[model.name].parts.text
    if text.name not in ("hashed", theirs) and _trained_elsewhere(model.weights, "text_encoder", text.name):
        raise UserError(
            f"weights of {model.name} were trained with other text encoders",
            code="other-text-encoder",
            field="text_encoder.name",
            value=text.name,
            remedy=f'write "{theirs}"',
        )


def require_autoencoder(model: ModelConfig, autoencoder: AutoencoderConfig) -> None:
    """Refuse weights beside the autoencoder of another family whose latents have as many channels.

    Those of other channels are told by the shapes of the weights, which may be one's own.

    Raises:
        UserError: Names `autoencoder.name`.
    """
    theirs = other_latents(model, autoencoder)
    if theirs is not None and _trained_elsewhere(model.weights, "autoencoder", autoencoder.name):
        raise UserError(
            f"weights of {model.name} were trained on other latents, which have as many channels",
            code="other-autoencoder",
            field="autoencoder.name",
            value=autoencoder.name,
            remedy=f'write "{theirs}"',
        )


def _trained_elsewhere(weights: str | None, part: str, name: str) -> bool:
    """False where there are no weights, and for those that a run of ours exported beside the part of this name."""
    if weights is None:
        return False
    try:
        with safe_open(weights, "numpy") as file:
            return bool((file.metadata() or {}).get(part) != name)
    except (OSError, SafetensorError):
        return True  # a folder, a hub id, or damage, of which the loader tells


def require_companions(model: ModelConfig, given: Sequence[Collection[str]], prefix: str) -> None:
    """Refuse companions that the network is not shown, and the lack of those that it needs.

    Args:
        model: The denoiser.
        given: Of each dataset, or of what is generated, the names of companions that it has.
        prefix: Of the keys or options that name them.

    Raises:
        UserError: Names the recipe's key, and the models that are shown such a companion.
    """
    wants = conditioning(model)
    for name in COMPANIONS:
        with_it = sum(name in names for names in given)
        takers = [
            preset
            for preset, known in registry.PRESETS.items()
            if name in known.config.conditioning.takes and not preset.endswith("-tiny")
        ]
        if with_it and name not in wants.takes:
            problem = f"{model.name} is not shown a {name}"
            remedy = f"leave it out, or choose a model that is: {', '.join(takers)}"
        elif 0 < with_it < len(given):
            problem = (
                f"{with_it} of {len(given)} have a {name}, and one batch cannot hold clips with and without"
            )
            remedy = "give all of them one, or none"
        elif not with_it and name in wants.needs:
            problem, remedy = f"{model.name} cannot do without a {name}", "name one"
        else:
            continue
        raise UserError(problem, code="companion-mismatch", field=f"{prefix}{name}", remedy=remedy)


def require_first_frame(model: ModelConfig, reference: str | None, field: str, num_frames: int) -> None:
    """Refuse to generate without a picture to begin with, where the network needs one, or with one that it is not told.

    Raises:
        UserError: Names the key or option.
    """
    wants = conditioning(model)
    needs = wants.first_frame is not None and num_frames > 1
    if needs and reference is None:
        problem, remedy = f"{model.name} makes clips from their first frame", "name a picture"
    elif reference is not None and not needs and not wants.frames:
        problem, remedy = f"{model.name} cannot be told which frames are given", "leave it out"
    else:
        return
    raise UserError(problem, code="first-frame-missing", field=field, value=reference, remedy=remedy)


def require_image_encoder(model: ModelConfig) -> None:
    """Refuse a model that is told of a first frame by an encoder which is not named, and one named for nothing.

    Raises:
        UserError: Names `model.image_encoder`.
    """
    kind = conditioning(model).image_encoder
    if (kind is None) != (model.image_encoder is None):
        raise UserError(
            f"{model.name} has no image encoder"
            if kind is None
            else f"{model.name} is told of its first frame by a {kind}",
            code="image-encoder-mismatch",
            field="model.image_encoder",
            value=model.image_encoder,
            remedy="leave it out" if kind is None else "name the folder or hub id of the model's release",
        )
