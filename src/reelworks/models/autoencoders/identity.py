"""Identify an autoencoder by its config, or by names in a file, before any weight is read.

Autoencoders of one class may have equally many channels but make different or differently scaled latents. A denoiser
that is trained on the wrong ones learns nonsense, and no other check would notice.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

from reelworks.core.errors import UserError
from reelworks.models import optional_imports, registry, weights
from reelworks.models.config import AutoencoderConfig
from reelworks.models.family import PublishedAutoencoder
from reelworks.models.weights import Shapes

# Stable Diffusion's, which Open-Sora v1.1 encodes frame by frame.
_OPENSORA = PublishedAutoencoder(
    "AutoencoderKL", 4, (1, 8, 8), config={"latent_channels": 4, "scaling_factor": 0.18215, "shift_factor": None}
)
# Names in files of the class that several models share, in diffusers' spelling and in releases.
_PLAIN = "AutoencoderKL"
_PLAIN_SIGNS = ("encoder.down_blocks.0.resnets.0.norm1.weight", "encoder.down.0.block.0.norm1.weight")
_WRAPPERS = ("first_stage_model.", "vae.")


def config_of(config: AutoencoderConfig) -> dict[str, Any] | None:
    """Return the config of the autoencoder that a recipe names, or None without one; refuse another's."""
    assert config.weights is not None, "the recipe was checked"
    found = weights.config(config.weights, "autoencoder.weights", part="vae")
    if found is not None and (differences := _differences(found, _known()[config.name])):
        names = [name for name, facts in _known().items() if not _differences(found, facts)]
        raise _other(config, *differences, names)
    return found


def require_names(config: AutoencoderConfig, shapes: Shapes) -> None:
    """Refuse a file without a config if its names or channels are those of another autoencoder.

    Flux's and Stable Diffusion 3's have the same names and channels, and are taken for what the recipe says.
    """
    for wrapper in _WRAPPERS:
        shapes = {name.removeprefix(wrapper): shape for name, shape in shapes.items()}
    known = _known()
    wanted = known[config.name]
    candidates = [name for name, facts in known.items() if any(sign in shapes for sign in facts.signs)]
    if not candidates and any(sign in shapes for sign in _PLAIN_SIGNS):
        candidates = [name for name, facts in known.items() if facts.network == _PLAIN]
    if candidates and config.name not in candidates:
        classes = dict.fromkeys(known[name].network for name in candidates)
        raise _other(config, " or ".join(classes), wanted.network, candidates)
    last = shapes.get("encoder.conv_out.weight")
    if candidates and wanted.network == _PLAIN and last is not None and last[0] != 2 * wanted.channels:
        names = [name for name in candidates if 2 * known[name].channels == last[0]]
        counts = (f"{_PLAIN} of {last[0] // 2} channels", f"{_PLAIN} of {wanted.channels} channels")
        raise _other(config, *counts, names)


def _known() -> dict[str, PublishedAutoencoder]:
    return {"opensora-1.1": _OPENSORA, **registry.AUTOENCODERS}


def _differences(found: Mapping[str, Any], wanted: PublishedAutoencoder) -> tuple[str, str] | None:
    """Describe how a config and a published one differ, as two texts; None if they do not."""
    if (kind := found.get("_class_name", wanted.network)) != wanted.network:
        return kind, wanted.network
    defaults = inspect.signature(getattr(optional_imports.diffusers(), wanted.network)).parameters
    values = {key: found.get(key, defaults[key].default) for key in wanted.config}
    diff = {key: want for key, want in wanted.config.items() if not _equal(values[key], want)}
    return (_describe(kind, {key: values[key] for key in diff}), _describe(kind, diff)) if diff else None


def _equal(found: Any, want: Any) -> bool:
    if isinstance(found, float) and isinstance(want, float):
        return math.isclose(found, want, rel_tol=1e-4)
    return bool((tuple(found) if isinstance(found, list) else found) == want)


def _describe(kind: str, values: Mapping[str, Any]) -> str:
    return f"{kind} with " + ", ".join(f"{key} = {value}" for key, value in values.items())


def _other(config: AutoencoderConfig, found: str, wanted: str, names: list[str]) -> UserError:
    hint = "; this one goes with autoencoder.name = " + " or ".join(f'"{name}"' for name in names)
    return UserError(
        f'this is an {found}, but autoencoder.name = "{config.name}" needs an {wanted}',
        code="other-autoencoder",
        field="autoencoder.weights",
        value=config.weights,
        remedy="name the autoencoder that the model was trained with" + (hint if names else ""),
    )
