"""Which autoencoder lies somewhere: told from its config, or from names in a file, before any weight is read.

Autoencoders of one class may have as many channels and make other latents, or the same in other units; a denoiser that is
shown those learns nonsense, and nothing else would say so.
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
    "AutoencoderKL",
    4,
    (1, 8, 8),
    config={"latent_channels": 4, "scaling_factor": 0.18215, "shift_factor": None},
)
# Names in files of the class that several models share, in diffusers' spelling and in releases.
_PLAIN = "AutoencoderKL"
_PLAIN_SIGNS = ("encoder.down_blocks.0.resnets.0.norm1.weight", "encoder.down.0.block.0.norm1.weight")
_WRAPPERS = ("first_stage_model.", "vae.")


def config_of(config: AutoencoderConfig) -> dict[str, Any] | None:
    """The config of the autoencoder that a recipe names; None where there is none.

    Raises:
        UserError: Neither here nor on the hub; or it is of another autoencoder than the one that the recipe names.
    """
    assert config.weights is not None, "the recipe was checked"
    found = weights.config(config.weights, "autoencoder.weights", part="vae")
    if found is not None and (told := _differences(found, _known()[config.name])):
        raise _other(config, *told, [name for name, one in _known().items() if not _differences(found, one)])
    return found


def require_names(config: AutoencoderConfig, shapes: Shapes) -> None:
    """Refuse a file without a config whose names or channels are those of another autoencoder.

    Flux's and Stable Diffusion 3's have the same of both, and are taken for what the recipe says.

    Args:
        config: Names the file.
        shapes: Of its tensors.

    Raises:
        UserError: It is of another class, or has other latents.
    """
    for wrapper in _WRAPPERS:
        shapes = {name.removeprefix(wrapper): shape for name, shape in shapes.items()}
    known = _known()
    wanted = known[config.name]
    here = [name for name, one in known.items() if any(sign in shapes for sign in one.signs)]
    if not here and any(sign in shapes for sign in _PLAIN_SIGNS):
        here = [name for name, one in known.items() if one.network == _PLAIN]
    if here and config.name not in here:
        classes = dict.fromkeys(known[name].network for name in here)
        raise _other(config, " or ".join(classes), wanted.network, here)
    last = shapes.get("encoder.conv_out.weight")
    if here and wanted.network == _PLAIN and last is not None and last[0] != 2 * wanted.channels:
        names = [name for name in here if 2 * known[name].channels == last[0]]
        counts = (f"{_PLAIN} of {last[0] // 2} channels", f"{_PLAIN} of {wanted.channels} channels")
        raise _other(config, *counts, names)


def _known() -> dict[str, PublishedAutoencoder]:
    return {"opensora-1.1": _OPENSORA, **registry.AUTOENCODERS}


def _differences(found: Mapping[str, Any], wanted: PublishedAutoencoder) -> tuple[str, str] | None:
    """Compare a config with a published one and name the differences; None if there are none."""
    if (kind := found.get("_class_name", wanted.network)) != wanted.network:
        return kind, wanted.network
    usual = inspect.signature(getattr(optional_imports.diffusers(), wanted.network)).parameters
    has = {key: found.get(key, usual[key].default) for key in wanted.config}
    apart = {key: want for key, want in wanted.config.items() if not _equal(has[key], want)}
    return (_words(kind, {key: has[key] for key in apart}), _words(kind, apart)) if apart else None


def _equal(found: Any, want: Any) -> bool:
    if isinstance(found, float) and isinstance(want, float):
        return math.isclose(found, want, rel_tol=1e-4)
    return bool((tuple(found) if isinstance(found, list) else found) == want)


def _words(kind: str, values: Mapping[str, Any]) -> str:
    return f"{kind} with " + ", ".join(f"{key} = {value}" for key, value in values.items())


def _other(config: AutoencoderConfig, found: str, wanted: str, names: list[str]) -> UserError:
    also = "; this goes with autoencoder.name = " + " or ".join(f'"{name}"' for name in names)
    return UserError(
        f'this is an {found}, and autoencoder.name = "{config.name}" is for an {wanted}',
        code="other-autoencoder",
        field="autoencoder.weights",
        value=config.weights,
        remedy="name the autoencoder that the model was trained with" + (also if names else ""),
    )
