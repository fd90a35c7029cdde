"""Autoencoders of diffusers: one class for all; families differ only in a few declared facts.

Legend: B clips, C channels, T frames, H height, W width.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from reelworks.core import optional_imports
from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.models import registry
from reelworks.models.api import Autoencoder
from reelworks.models.autoencoders import pixel
from reelworks.models.components import autoencoder_geometry
from reelworks.models.config import AutoencoderConfig
from reelworks.models.family import PublishedAutoencoder
from reelworks.models.storage import stored_weights, weights
from reelworks.models.storage.weights import Shapes

# Activations of some pass 65504, the largest number of float16, and become infinite.
CONTRACT = dataclasses.replace(pixel.CONTRACT, overflows=frozenset({torch.float16}))
# Stable Diffusion's, which Open-Sora v1.1 encodes frame by frame.
_OPENSORA = PublishedAutoencoder(
    "AutoencoderKL", 4, (1, 8, 8), config={"latent_channels": 4, "scaling_factor": 0.18215, "shift_factor": None}
)
# Names in files of the class that several models share, in diffusers' spelling and in releases.
_PLAIN = "AutoencoderKL"
_PLAIN_SIGNS = ("encoder.down_blocks.0.resnets.0.norm1.weight", "encoder.down.0.block.0.norm1.weight")
# Mean and standard deviation of its pixels in [0, 1].
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_WRAPPERS = ("first_stage_model.", "vae.")
_CURRENT_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
# Classes whose releases have the names of another one's.
_NAMED_ALIKE = {"AutoencoderKLFlux2": "AutoencoderKL", "AutoencoderKLQwenImage": "AutoencoderKLWan"}


@final
class DiffusersAutoencoder:
    """An autoencoder of diffusers that normalises its latents.

    Latents are the means of the posteriors, shifted and scaled as in the training of the family's denoiser.
    """

    def __init__(self, config: AutoencoderConfig) -> None:
        """Load weights from a folder in diffusers' layout, a single file or the hub."""
        assert config.weights is not None, "the recipe was checked"
        facts = registry.AUTOENCODERS[config.name]
        self.geometry = autoencoder_geometry(config)
        self.latent_channels = facts.channels
        self.contract = CONTRACT.computing_in(getattr(torch, config.dtype))
        with weights.telling("autoencoder.weights", config.weights, anew=False):
            self.module = _load(config, facts)
        self.encoding_networks = (self.module.encoder,) if facts.compiles else ()
        self._facts, self._flat = facts, not facts.has_time_axis
        first = Shape(facts.frame_rule[1], *facts.stride[1:])
        self._shortest = 1 if facts.chunk_frames is None else self.geometry.latent(first)[0]
        if facts.one_by_one:
            self.module.enable_slicing()
        if facts.tiles:
            self.module.enable_tiling()
            self.module.use_framewise_encoding = self.module.use_framewise_decoding = False
        self._mean, self._std = _statistics(self.module, shifts=facts.shifts)
        if facts.places_first and config_of(config) is None:  # FLUX.2's own file, as ComfyUI takes it
            self._mean, self._std = _by_place(self._mean), _by_place(self._std)
        nn.Module.to(self.module, self.contract.storage)

    @torch.no_grad()
    def encode(self, video_BCTHW: Tensor) -> Tensor:
        """Encode `[B, 3, T, H, W]` in [-1, 1] as `[B, C, T', h, w]`."""
        video = video_BCTHW.to(self.contract.compute)
        if self._facts.imagenet_pixels:
            mean, std = (torch.tensor(values).view(3, 1, 1, 1).to(video) for values in _IMAGENET)
            video = (video / 2 + 0.5 - mean) / std
        if self._facts.has_alpha:
            video = pad(video, (0, 0, 0, 0, 0, 0, 0, 1), value=1.0)
        latent: Tensor = self.module.encode(video[:, :, 0] if self._flat else video).latent_dist.mode()
        latent = (latent[:, :, None] if self._flat else latent).to(self.contract.output)
        if self._facts.packs_squares:
            latent = pixel.squares_to_channels(latent, 2)
        if self._facts.places_first:
            latent = _by_place(latent)
        return (latent - self._mean) / self._std

    @torch.no_grad()
    def decode(self, latent_BCTHW: Tensor, num_frames: int) -> Tensor:
        """Decode to `[B, 3, num_frames, H, W]`; values are not clamped.

        An autoencoder of chunks decodes a picture as the first frame of its shortest clip, whose latent frames are alike.
        """
        latent = latent_BCTHW * self._std + self._mean
        if latent.shape[2] < self._shortest:
            latent = latent.expand(-1, -1, self._shortest, -1, -1)
        if self._facts.places_first:
            latent = _transposed(latent, 4)
        if self._facts.packs_squares:
            latent = pixel.channels_to_squares(latent, 2)
        latent = latent.to(self.contract.compute)
        # Some decoders also remove noise: timestep 0 means that these latents have none.
        takes_timestep = self.module.config.get("timestep_conditioning", False)
        timestep = {"temb": latent.new_zeros(len(latent))} if takes_timestep else {}
        video: Tensor = self.module.decode(latent[:, :, 0] if self._flat else latent, **timestep).sample
        video = (video[:, :, None] if self._flat else video)[:, :3]
        if latent_BCTHW.shape[2] < self._shortest:
            video = video[:, :, :num_frames]
        if self._facts.imagenet_pixels:
            mean, std = (torch.tensor(values).view(3, 1, 1, 1).to(video) for values in _IMAGENET)
            video = (video * std + mean) * 2 - 1
        assert video.shape[2] == num_frames, f"{latent.shape[2]} latent frames became {video.shape[2]}"
        return video.to(self.contract.output)

    def to(self, device: torch.device) -> Autoencoder:
        """Move the network and return this object."""
        self.module.to(device)
        self._mean, self._std = self._mean.to(device), self._std.to(device)
        return self


def _statistics(module: Any, *, shifts: bool) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of the latents, `[1, C or 1, 1, 1, 1]` each."""
    config, buffers = dict(module.config), dict(module.named_buffers())
    if "bn.running_mean" in buffers:
        mean, std = module.bn.running_mean, (module.bn.running_var + config["batch_norm_eps"]).sqrt()
    elif "latents_mean" in buffers:
        mean, std = buffers["latents_mean"], buffers["latents_std"]
    elif "latents_mean" in config and config["latents_mean"] is not None:
        mean, std = torch.tensor(config["latents_mean"]), torch.tensor(config["latents_std"])
    else:
        mean, std = torch.tensor([(shifts and config.get("shift_factor")) or 0.0]), torch.ones(1)
    std = std / (config.get("scaling_factor") or 1.0)
    return mean.float().view(1, -1, 1, 1, 1), std.float().view(1, -1, 1, 1, 1)


def _by_place(packed_BCTHW: Tensor) -> Tensor:
    """Sort the channels of 2 × 2 latent elements by their place, where they are sorted by the autoencoder's channel."""
    return _transposed(packed_BCTHW, packed_BCTHW.shape[1] // 4)


def _transposed(packed_BCTHW: Tensor, rows: int) -> Tensor:
    B, C, *sizes = packed_BCTHW.shape
    return packed_BCTHW.reshape(B, rows, C // rows, *sizes).transpose(1, 2).reshape(B, C, *sizes)


def _load(config: AutoencoderConfig, facts: PublishedAutoencoder) -> Any:
    assert config.weights is not None, "the recipe was checked"
    source, field = config.weights, "autoencoder.weights"
    kind = optional_imports.from_diffusers(facts.network)
    if (sizes := config_of(config)) is not None:
        module = kind.from_config(sizes)
        state = weights.read(source, field, part="vae")
        weights.load_into(module, _named(module, state, facts.network), source, field)
    elif facts.file_config is not None and (facts.file or Path(source).expanduser().is_file()):
        state = _of_autoencoder(weights.read(source, field, file=facts.file))
        require_names(config, weights.shapes_of(state))
        module = kind.from_config({**facts.file_config, **facts.config})
        weights.load_into(module, _named(module, state, facts.network), source, field)
    elif source.endswith(".safetensors") and facts.network in _single_files():
        require_names(config, weights.shapes(source, field))
        module = _from_file(kind, source)
        with weights.telling(field, source):
            stored_weights.require_finite(module.state_dict())
    else:
        raise UserError(
            f"{facts.network} cannot be loaded without its config",
            code="autoencoder-config-missing",
            field=field,
            value=source,
            remedy="name a folder in diffusers' layout, or a hub id of this family",
        )
    return module.requires_grad_(False).eval()


def _single_files() -> Mapping[str, Any]:
    """Return how diffusers reads a single file, by the class of its network."""
    found: Mapping[str, Any] = importlib.import_module(
        "diffusers.loaders.single_file_model"
    ).SINGLE_FILE_LOADABLE_CLASSES
    return found


def _of_autoencoder(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors behind the prefix that an autoencoder has in files of a whole model, or else all."""
    for wrapper in _WRAPPERS:
        own = {name.removeprefix(wrapper): value for name, value in state.items() if name.startswith(wrapper)}
        state = own or state
    return state


def _named(module: Any, state: dict[str, Tensor], network: str) -> dict[str, Tensor]:
    """Give tensors the names of a module, from those of diffusers, also before its release 0.17, or of the model's release."""
    own, spellings = module.state_dict().keys(), [state]
    if (known := _single_files().get(_NAMED_ALIKE.get(network, network))) is not None:
        with contextlib.suppress(Exception):  # a mapping raises anything for names that it does not know
            renamed = known["checkpoint_mapping_fn"](checkpoint=dict(state), config=module.config)
            spellings.append({key: value for key, value in state.items() if key in own} | renamed)
    spellings += [with_current_names(spelt) for spelt in spellings]
    return max(spellings, key=lambda spelt: len(own & spelt.keys()))


def with_current_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors with the names that layers of attention have since release 0.17 of diffusers."""
    return weights.renamed(state, lambda key: ".".join(_CURRENT_NAMES.get(part, part) for part in key.split(".")))


def _from_file(kind: Any, source: str) -> Any:
    """Load a file with the names of diffusers or of a release; diffusers fetches its sizes from the hub."""
    try:
        return kind.from_single_file(source)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise UserError(
            f"no {kind.__name__} can be loaded ({str(error).partition(chr(10))[0]})",
            code="autoencoder-unloadable",
            field="autoencoder.weights",
            value=source,
            remedy="name a folder in diffusers' layout, or a hub id of this family",
        ) from error


def config_of(config: AutoencoderConfig) -> dict[str, Any] | None:
    """Return the config of the autoencoder that a recipe names, or None without one; refuse another's.

    Autoencoders of one class may have equally many channels but make different or differently scaled latents. A
    denoiser that is trained on the wrong ones learns nonsense, and no other check would notice.
    """
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
    defaults = inspect.signature(optional_imports.from_diffusers(wanted.network)).parameters
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
