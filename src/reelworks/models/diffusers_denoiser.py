"""Networks of diffusers: how they are built, loaded, called, and seen by the trainer; families differ in functions.

Legend: B clips, C channels, T latent frames, H height, W width.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from reelworks.core.errors import UserError
from reelworks.models import optional_imports, weights
from reelworks.models.api import INPUT_ROLES, DenoiserInputs, ShardingPlan, TextEmbedding
from reelworks.models.family import FamilyConfig
from reelworks.models.lora import inject
from reelworks.models.lora.base_model import Base
from reelworks.models.lora.config import Targets
from reelworks.precision.contract import Contract

_COMFYUI = "model.diffusion_model."  # before every name in its files
Predict = Callable[[Any, DenoiserInputs, Any], Tensor]
"""`predict(module, inputs, config)` calls a family's network; see `models.api.Denoiser.predict`."""


@final
class DiffusersDenoiser:
    """One network of diffusers.

    Attributes:
        module: The network, or what a parallel strategy or LoRA made of it.
        contract: Its dtypes.
        latent_channels: Channels of the latents that it takes.
        runs_on_meta: Shapes alone can be tried.
        config: Its sizes.
        base: What a LoRA in it lies on; None without one.
    """

    def __init__(
        self, module: nn.Module, contract: Contract, config: FamilyConfig, channels: int, predict: Predict
    ) -> None:
        assert dict(contract.roles) == INPUT_ROLES
        self.module, self.contract, self.config = module, contract, config
        self.latent_channels, self.runs_on_meta = channels, config.network.shape_only
        self._predict = predict
        self.base: Base | None = None
        for name, parameter in module.named_parameters():
            if name.startswith(config.network.without_gradient):
                parameter.requires_grad_(False)
        lists = (list(module.get_submodule(name)) for name in config.network.blocks)  # type: ignore[call-overload]
        self._sharding = ShardingPlan(blocks=[block for blocks in lists for block in blocks])
        without = config.network.without_gradient
        reached = [name for name in inject.linear_layers(module) if not f"{name}.".startswith(without)]
        inside = tuple(f"{name}." for name in config.network.blocks)
        self._lora_targets: dict[Targets, tuple[str, ...]] = {
            "default": tuple(name for name in reached if _is_of_attention(name)),
            "blocks": tuple(name for name in reached if name.startswith(inside)),
        }

    def predict(self, inputs: DenoiserInputs) -> Tensor:
        """Return the output `[B, C, T, H, W]`; a velocity points towards the data.

        Raises:
            UserError: A clip came to a network for pictures, or sizes that are not whole patches.
        """
        _check(inputs.latent, self.config)
        return self._predict(self.module, inputs, self.config)

    def sharding(self) -> ShardingPlan:
        """Name the blocks, in order of use."""
        return self._sharding

    def lora_targets(self, of: Targets = "default") -> Sequence[str]:
        """Name the linear layers of all attentions, or all of the blocks."""
        return self._lora_targets[of]


def _check(latent_BCTHW: Tensor, config: FamilyConfig) -> None:
    sizes = latent_BCTHW.shape[2:]
    if config.pictures_only and sizes[0] != 1:
        raise UserError(
            "this model makes pictures alone",
            code="model-takes-images-only",
            field="num_frames",
            value=sizes[0],
            remedy="use 1",
        )
    for key, size, patch in zip(("num_frames", "height", "width"), sizes, config.patch_size, strict=True):
        if size % patch:
            raise UserError(
                f"{size} latent elements, and this model takes multiples of {patch}",
                code="size-not-a-multiple",
                field=key,
                remedy=f"choose a size in pixels that has {max(size - size % patch, patch)} of them",
            )


def _is_of_attention(name: str) -> bool:
    return any(part.startswith("att") for part in name.split(".")[:-1])


class EncodedText(NamedTuple):
    """Captions as a pipeline encodes them.

    Attributes:
        tokens: `[B, L, D]`; L may be less than asked for.
        mask: `[B, L]`, nonzero where a token counts; None: all count.
        pooled: `[B, P]`, one vector for a whole caption; None where there is none.
    """

    tokens: Tensor
    mask: Tensor | None = None
    pooled: Tensor | None = None


def _has_pipeline(_module: nn.Module) -> str | None:
    return None


def _no_settings(_config: Any, _guidance_scale: float) -> dict[str, Any]:
    return {}


@final
@dataclass(frozen=True)
class DiffusersNetwork:
    """Builds, loads and calls the networks of a family of diffusers; satisfies `models.api.FamilyNetwork`.

    Attributes:
        predict: `predict(module, inputs, config)` calls the network; see `models.api.Denoiser.predict`.
        encode_text: By the name of its text encoders, `encode(pipeline, captions, max_length, pictures)`.
        pipeline_arguments: `arguments(text, guidance_scale, fps, config)`: what its pipeline is called with, beside
            sizes and steps; `text` has a row for the caption and one for the empty caption.
        pipeline_settings: `settings(config, guidance_scale)`: arguments of its pipeline's constructor beside the parts.
        no_pipeline: Why its pipeline cannot generate with a network; None if it can.
        load_processor: `load(tokenizer, source)`: what prepares pictures for the text encoders that see them.
    """

    predict: Predict
    encode_text: Mapping[str, Callable[[Any, list[str], int, Tensor | None], EncodedText]] = field(
        default_factory=dict
    )
    pipeline_arguments: Callable[[TextEmbedding, float, float, Any], dict[str, Any]] | None = None
    pipeline_settings: Callable[[Any, float], dict[str, Any]] = _no_settings
    no_pipeline: Callable[[nn.Module], str | None] = _has_pipeline
    load_processor: Callable[[Any, str], Any] | None = None

    keeps_file_tensors = True

    def build(self, config: FamilyConfig, *, gradient_checkpointing: bool = False) -> nn.Module:
        """Build a network with fresh weights from the global generator; on `meta` it has shapes alone."""
        # nn.RMSNorm says so under autocast: lower inputs, float32 weights. It is right, and slower.
        warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
        kind: Any = getattr(optional_imports.diffusers(), config.network.name)
        module: Any = kind(**config.model_dump())
        if gradient_checkpointing:
            module.enable_gradient_checkpointing()
        result: nn.Module = module.train()
        return result

    def load(
        self, module: nn.Module, config: FamilyConfig, source: str | None, part: str | None = None
    ) -> None:
        """Load the weights of a source; where there is none, fresh ones stay.

        A source is a pipeline's folder, a network's folder, a single file, or a hub id, in the names of
        diffusers or in those of the release (ComfyUI's). Values take the dtype of the module's parameters;
        those stored as fp8 are multiplied by their scales first. Columns for companions that they lack are zeros. Of two
        networks in one file, `part` is taken.

        Raises:
            UserError: If nothing readable is found, or keys or shapes differ; the first are listed.
        """
        if source is None:
            return
        part = part or config.network.part
        state = _unscaled(weights.read(source, part=part))
        own = {
            key.removeprefix(f"{part}."): value for key, value in state.items() if key.startswith(f"{part}.")
        }
        state = own or state
        if not module.state_dict().keys() & state.keys():
            state = self.renamed(module, config, state)
        if (name := config.network.widened) is not None and name in state:
            missing = module.get_parameter(name).shape[1] - state[name].shape[1]
            state[name] = pad(state[name], (0, max(missing, 0)))
        weights.load_into(module, state, source)

    def renamed(self, module: Any, config: FamilyConfig, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Give the tensors of a release the names of diffusers, where diffusers knows how."""
        single: Any = importlib.import_module("diffusers.loaders.single_file_model")
        known = single.SINGLE_FILE_LOADABLE_CLASSES.get(config.network.name)
        # Behind ComfyUI's prefix a file may hold other parts of the model too.
        state = {key: value for key, value in state.items() if key.startswith(_COMFYUI)} or state
        for old, new in config.network.renamed_keys.items():
            state = {key.replace(old, new): value for key, value in state.items()}
        if known is not None:
            # A file of another model ends in any of these; the comparison of names then says so.
            with contextlib.suppress(
                KeyError, AttributeError, IndexError, RuntimeError, TypeError, ValueError
            ):
                renamed = known["checkpoint_mapping_fn"](checkpoint=dict(state), config=module.config)
                if renamed.keys() & module.state_dict().keys():
                    return dict(renamed)
        return {key.removeprefix(_COMFYUI): value for key, value in state.items()}

    def learns_variance(self, config: FamilyConfig, source: str, channels: int) -> bool:
        """No network of diffusers that is trained here has a half for variance."""
        return False

    def denoiser(
        self, module: nn.Module, contract: Contract, config: FamilyConfig, channels: int
    ) -> DiffusersDenoiser:
        """Wrap a network as the trainer sees it."""
        return DiffusersDenoiser(module, contract, config, channels, self.predict)


def _unscaled(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Multiply fp8 values by the scales that stand beside them, and drop the scales."""
    suffixes = (".scale_weight", ".weight_scale")
    result = {
        key: value
        for key, value in state.items()
        if not key.endswith((*suffixes, ".scale_input", ".input_scale", "scaled_fp8"))
    }
    for suffix in suffixes:
        for key in (key for key in state if key.endswith(suffix)):
            weight = f"{key.removesuffix(suffix)}.weight"
            result[weight] = state[weight].float() * state[key].float()
    return result


@contextmanager
def embedded(time_proj: nn.Module, *values: Tensor) -> Iterator[None]:
    """While open, let the calls of the module that makes sines and cosines take these values, in order."""
    left = list(values)

    def exact(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (left.pop(0), *args[1:])

    handle = time_proj.register_forward_pre_hook(exact)
    try:
        yield
    finally:
        handle.remove()
    assert not left, f"{type(time_proj).__name__} was called fewer times than it was given values"


def pack(latent_BCHW: Tensor) -> Tensor:
    """Squares of 2 × 2 latent elements as tokens: `[B, H/2 · W/2, 4·C]`, rows first, channels outermost."""
    B, C, H, W = latent_BCHW.shape
    squares = latent_BCHW.reshape(B, C, H // 2, 2, W // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return squares.reshape(B, H // 2 * (W // 2), 4 * C)


def unpack(tokens_BNC: Tensor, height: int, width: int) -> Tensor:
    """Undo `pack` for latents of this height and width."""
    B, _, C = tokens_BNC.shape
    squares = tokens_BNC.reshape(B, height // 2, width // 2, C // 4, 2, 2).permute(0, 3, 1, 4, 2, 5)
    return squares.reshape(B, C // 4, height, width)


def grid(*lengths: int, device: torch.device) -> Tensor:
    """Places of tokens, the last axis fastest: `[N, len(lengths)]` float32."""
    axes = (torch.arange(n, dtype=torch.float32, device=device) for n in lengths)
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2)


def guided(text: TextEmbedding, guidance_scale: float, fps: float, config: Any) -> dict[str, Any]:
    """Return embeddings of the caption and of the empty caption, and the scale between them."""
    return {
        "prompt_embeds": text.tokens[:1],
        "negative_prompt_embeds": text.tokens[1:],
        "guidance_scale": guidance_scale,
    }


def guided_and_pooled(text: TextEmbedding, guidance_scale: float, fps: float, config: Any) -> dict[str, Any]:
    """Return those of `guided`, and the captions' summaries."""
    return guided(text, guidance_scale, fps, config) | {
        "pooled_prompt_embeds": text.pooled[:1],
        "negative_pooled_prompt_embeds": text.pooled[1:],
    }
