"""Build, load, call and wrap the networks of diffusers; each family supplies its own functions.

Legend: B clips, C channels, T latent frames, H height, W width.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from reelworks.core import optional_imports
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.distributed.contract import Contract
from reelworks.models import recompute
from reelworks.models.adapters import inject, release_layers
from reelworks.models.adapters.config import Targets
from reelworks.models.api import INPUT_ROLES, DenoiserInputs, ShardingPlan, TextEmbedding
from reelworks.models.base_model import Base
from reelworks.models.family import FamilyConfig
from reelworks.models.recompute import Recompute
from reelworks.models.storage import nf4_files, scaled_weights, stored_weights, weights

_COMFYUI = "model.diffusion_model."  # prefix of every key in ComfyUI's files
_MAY_DIFFER = {"in_channels", "sample_size"}  # the first grows by companions, and the second changes nothing
Predict = Callable[[Any, DenoiserInputs, Any], Tensor]
PredictBoth = Callable[[Any, DenoiserInputs, Any], tuple[Tensor, Tensor]]


@final
class FamilyDenoiser:
    """A family's network as a `models.api.Denoiser`, with the sizes of its config."""

    def __init__(
        self,
        module: nn.Module,
        contract: Contract,
        config: FamilyConfig,
        channels: int,
        predict: Predict,
        predict_both: PredictBoth | None = None,
    ) -> None:
        assert dict(contract.roles) == INPUT_ROLES
        self.module, self.contract, self.config = module, contract, config
        self.latent_channels, self.runs_on_meta = channels, config.network.passes.shape_only
        self._predict, self._predict_both = predict, predict_both
        self.base: Base | None = None
        frozen, names = config.network.without_gradient, config.network.blocks
        for name, parameter in module.named_parameters():
            if name.startswith(frozen):
                parameter.requires_grad_(False)
        lists: list[Any] = [module.get_submodule(name) for name in names]
        groups = zip(*lists, strict=True) if config.network.alternates else lists
        self._sharding = ShardingPlan(blocks=[block for blocks in groups for block in blocks])
        trained = [name for name in inject.linear_layers(module) if not f"{name}.".startswith(frozen)]
        further = config.network.lora.attention
        self._lora_targets: dict[Targets, list[str]] = {
            # A module whose name has a word that begins with "att" holds them.
            "default": [
                name
                for name in trained
                if re.search(r"(^|[._])att", name.rpartition(".")[0]) or (further and re.fullmatch(further, name))
            ],
            "blocks": [name for name in trained if name.startswith(tuple(f"{blocks}." for blocks in names))],
        }

    def predict(self, inputs: DenoiserInputs) -> Tensor:
        """Return the output `[B, C or 2·C, T, H, W]`; a velocity points towards the data."""
        _check(inputs.latent, self.config)
        return self._predict(self.module, inputs, self.config)

    def predict_both(self, inputs: DenoiserInputs) -> tuple[Tensor, Tensor]:
        """Return the outputs for the picture, as `predict` does, and for the sound, `[B, C, N, 1, 1]`."""
        assert self._predict_both is not None, "only families with sound get inputs with sound"
        _check(inputs.latent, self.config)
        return self._predict_both(self.module, inputs, self.config)

    def sharding(self) -> ShardingPlan:
        """Return the blocks, in order of use."""
        return self._sharding

    def lora_targets(self, of: Targets = "default") -> Sequence[str]:
        """Return the names of the linear layers of all attentions, or all of the blocks."""
        return self._lora_targets[of]


def _check(latent_BCTHW: Tensor, config: FamilyConfig) -> None:
    sizes = latent_BCTHW.shape[2:]
    if config.pictures_only and sizes[0] != 1:
        raise UserError(
            "this model generates pictures only",
            code="model-takes-images-only",
            field="num_frames",
            value=sizes[0],
            remedy="use 1",
        )
    for key, size, patch in zip(("num_frames", "height", "width"), sizes, config.patch_size, strict=True):
        if size % patch and not config.network.passes.pads_patches:
            raise UserError(
                f"the size is {size} latent elements, and this model takes multiples of {patch}",
                code="size-not-a-multiple",
                field=key,
                remedy=f"choose a size in pixels that gives {max(size - size % patch, patch)} latent elements",
            )


class EncodedText(NamedTuple):
    """Caption embeddings as a pipeline returns them."""

    tokens: Tensor  # `[B, L, D]`; L may be less than the requested length
    mask: Tensor | None = None  # `[B, L]`, nonzero where a token is attended to; None attends to all
    pooled: Tensor | None = None  # `[B, P]`, one vector per caption; None if the pipeline has none

    @classmethod
    def from_rows(cls, rows: Sequence[Tensor]) -> EncodedText:
        """Return captions `[L, D]`, each at its own length, padded to the longest."""
        masks = [row.new_ones(len(row), dtype=torch.bool) for row in rows]
        return cls(pad_sequence(list(rows), batch_first=True), pad_sequence(masks, batch_first=True))


@final
@dataclass(frozen=True)
class DiffusersNetwork:
    """Builds, loads and calls the networks of a diffusers family; satisfies `models.api.FamilyNetwork`."""

    predict: Predict  # `predict(module, inputs, config)` calls the network; see `models.api.Denoiser.predict`
    # `encode(pipeline, captions, max_length, pictures)` by name of the text encoders; captions refer to uint8 pictures and
    # clips `[B, T, H, W, 3]`, perhaps several in order.
    encode_text: Mapping[str, Callable[[Any, list[str], int, list[Tensor]], EncodedText]] = field(default_factory=dict)
    # `encode(encoder, numbers of words)` by name of text encoders that a LoRA can train returns the embedding of tokens of one
    # of them, `[B, L, D]`, and the pooled one or None; tokens of several are joined, and the last one has the pooled one.
    trained_text: Mapping[str, Callable[[Any, Tensor], tuple[Tensor, Tensor | None]]] = field(default_factory=dict)
    # `arguments(text, guidance_scale, config)` returns the arguments of a pipeline call except sizes and steps;
    # `text` has a row for the caption and one for the empty caption.
    pipeline_arguments: Callable[[TextEmbedding, float, Any], dict[str, Any]] | None = None
    # `arguments(config, max_length)` returns what a call with words has beside that, so that the pipeline neither rewrites the
    # prompt nor guides away from words of its own; None if it draws otherwise than we do.
    word_arguments: Callable[[Any, int], dict[str, Any] | None] = lambda _config, _length: {}
    pipeline_note: str = ""  # what a call with words does otherwise than training all the same
    # `settings(config, guidance_scale)` returns arguments of the pipeline's constructor except its components.
    pipeline_settings: Callable[[Any, float], dict[str, Any]] = lambda _config, _scale: {}
    # `predict_both(module, inputs, config)` calls a network with sound; None if the family has none.
    predict_both: PredictBoth | None = None
    # `reason(module, config)` returns why the pipeline cannot generate with a network, None if it can.
    no_pipeline: Callable[[nn.Module, Any], str | None] = lambda *_: None
    # `load(tokenizer, source)` returns the processor of text encoders that take pictures.
    load_processor: Callable[[Any, str], Any] | None = None
    # `prepare(module)` is called with every network that was built.
    prepare: Callable[[Any], None] = lambda _module: None
    # `load(source, dtype)` returns what `encode_text` gets in place of a pipeline, if none is loaded from a release alone.
    load_text_parts: Callable[[str, torch.dtype], Any] | None = None

    keeps_file_tensors = True

    def build(self, config: FamilyConfig, *, gradient_checkpointing: Recompute = False) -> nn.Module:
        """Build a network with fresh weights from the global generator (shapes only on `meta`)."""
        kind: Any = optional_imports.from_diffusers(config.network.name)
        module: Any = kind(**config.model_dump())
        self.prepare(module)
        recompute.enable(module, gradient_checkpointing)
        result: nn.Module = module.train()
        return result

    def load(self, module: nn.Module, config: FamilyConfig, source: str | None, part: str | None = None) -> None:
        """Load the weights of a source; without a source, keep the fresh ones.

        A source is a pipeline's folder, a network's folder, a single file, or a hub id, with the keys of
        diffusers or of the release (ComfyUI's). Values take the dtype of the module's parameters, and codes are
        multiplied out first; parameters on `meta` take the file's tensors, or stay there with the codes of fp8, int8, nf4 or
        GGUF (`stored_weights`). Missing columns for companions are zeros. If a file holds two networks, `part`
        selects one.
        """
        if source is None:
            return
        part_there = part or config.network.files.folder or config.network.part
        stated = weights.config(source, "model.weights", part_there) or {}
        sizes = {k: [*v] if isinstance(v, tuple) else v for k, v in config.model_dump().items()}
        differing = {k for k in sizes.keys() - _MAY_DIFFER if stated.get(k) not in (None, sizes[k])}
        if told := ", ".join(f"{key} = {stated[key]!r}" for key in sorted(differing)):
            logger.warning(
                f"model.weights = {source!r}: its config has {told}, unlike model.name; choose the model that they are of"
            )
        state = weights.read(source, part=part_there, keep_codes=True)
        is_mapped = any(parameter.is_meta for parameter in module.parameters())
        with weights.telling("model.weights", source):
            if not is_mapped and nf4_files.has_any(state):
                raise stored_weights.unsupported("only the frozen base of a LoRA can be in 4 bits of bitsandbytes")
            state = scaled_weights.read_quantized(nf4_files.read_quantized(state))
            if not is_mapped:
                state = stored_weights.values(state)
            state, stored = stored_weights.match(state, lambda one: self._match_network(module, config, one, part))
        weights.load_into(module, state, source)
        with weights.telling("model.weights", source):
            stored_weights.attach(module, stored)

    def _match_network(
        self, module: nn.Module, config: FamilyConfig, state: dict[str, Tensor], part: str | None
    ) -> dict[str, Tensor]:
        """Give tensors the keys of the network, and missing columns."""
        prefix = f"{part or config.network.part}."
        state = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)} or state
        own = module.state_dict().keys()
        if not own <= state.keys():  # releases without a prefix have some names of diffusers too
            renamed = self.rename_keys(module, config, state)
            if len(own & renamed.keys()) > len(own & state.keys()):
                state = renamed
        if (name := config.network.files.widened) is not None and name in state:
            missing = module.get_parameter(name).shape[1] - state[name].shape[1]
            state[name] = pad(state[name], (0, max(missing, 0)))
        return state

    def rename_keys(self, module: Any, config: FamilyConfig, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Rename the tensors of a release to the keys of diffusers: by its own mapping, or else by the names of layers."""
        single: Any = importlib.import_module("diffusers.loaders.single_file_model")
        loadable = single.SINGLE_FILE_LOADABLE_CLASSES.get(config.network.name)
        # A file with ComfyUI's prefix may hold other parts of the model too.
        state = {key: value for key, value in state.items() if key.startswith(_COMFYUI)} or state

        def in_diffusers(key: str) -> str:
            for old, new in config.network.files.renamed_keys.items():
                key = key.replace(old, new)
            return key

        best = weights.renamed(weights.by_bare_name(state), in_diffusers)
        own, bare = module.state_dict(), best
        if loadable is None:
            return release_layers.take_apart(bare, own, config)
        for prefix in ("", _COMFYUI):  # of which some mappings need one, and others need that there is none
            if own.keys() <= best.keys():
                break
            # A file of another model raises errors of any kind; `load_into` then tells the keys that differ.
            with contextlib.suppress(Exception):
                spelled = {prefix + key: value for key, value in bare.items()}
                renamed = loadable["checkpoint_mapping_fn"](checkpoint=spelled, config=module.config)
                # Mappings to a new dict leave out what they do not know; here it is told as all that does not fit.
                taken = {id(value) for value in renamed.values()}
                renamed |= {key: value for key, value in spelled.items() if id(value) not in taken}
                if len(own.keys() & renamed.keys()) > len(own.keys() & best.keys()):
                    others = config.network.files.other_parts
                    best = {key: value for key, value in renamed.items() if not key.startswith(others)}
        return best

    def learns_variance(self, config: FamilyConfig, source: str, channels: int) -> bool:
        """Return False: no supported network of diffusers predicts variance."""
        return False

    def denoiser(self, module: nn.Module, contract: Contract, config: FamilyConfig, channels: int) -> FamilyDenoiser:
        """Wrap a network for the trainer."""
        return FamilyDenoiser(module, contract, config, channels, self.predict, self.predict_both)


@contextmanager
def embedded(time_proj: nn.Module, *values: Tensor) -> Iterator[None]:
    """Replace the inputs of successive calls of a sinusoidal embedding by these unrounded values."""
    remaining = list(values)

    def replace(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (remaining.pop(0), *args[1:])

    with time_proj.register_forward_pre_hook(replace):
        yield
    assert not remaining, f"{type(time_proj).__name__} was called fewer times than there are values"


def token_times(inputs: DenoiserInputs, tokens_per_frame: int) -> Tensor:
    """Return times of all tokens, `[B, T · tokens_per_frame]`, 0 for condition frames."""
    time_BT = torch.where(inputs.frame_mask, inputs.time[:, None], inputs.time.new_zeros(()))
    return time_BT.repeat_interleave(tokens_per_frame, dim=1)


def with_sources(inputs: DenoiserInputs) -> tuple[Tensor, Tensor]:
    """Return tokens of one latent element and their times, `[B, N, C]` and `[B, N]`: of the clip, then of its sources.

    Sources have time 0, like condition frames.
    """
    H, W = inputs.latent.shape[3:]
    tokens, times = inputs.latent.flatten(2).transpose(1, 2), token_times(inputs, H * W)
    if not inputs.sources:
        return tokens, times  # as they lie in memory: products may round those of a copy otherwise
    tokens = torch.cat([tokens, *[source.flatten(2).transpose(1, 2) for source in inputs.sources]], dim=1)
    return tokens, pad(times, (0, tokens.shape[1] - times.shape[1]))


def unpadded(text_BLD: Tensor, mask_BL: Tensor) -> list[Tensor]:
    """Return texts without the tokens that are masked, `[tokens, D]`; the host waits for the device once.

    On `meta` there are no mask values; all tokens are kept, since only shapes matter.
    """
    if mask_BL.is_meta:
        return list(text_BLD)
    order_BL = (~mask_BL).argsort(dim=1, stable=True)  # an index with a mask would wait for its sum
    counts = mask_BL.sum(dim=1).tolist()
    return [text[order[:count]] for text, order, count in zip(text_BLD, order_BL, counts, strict=True)]


def pack(latent_BCHW: Tensor) -> Tensor:
    """Return 2 × 2 latent elements as tokens: `[B, H/2 · W/2, 4·C]`, rows first, channels outermost."""
    B, C, H, W = latent_BCHW.shape
    squares = latent_BCHW.reshape(B, C, H // 2, 2, W // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return squares.reshape(B, H // 2 * (W // 2), 4 * C)


def unpack(tokens_BNC: Tensor, height: int, width: int) -> Tensor:
    """Undo `pack` for latents of this height and width."""
    B, _, C = tokens_BNC.shape
    squares = tokens_BNC.reshape(B, height // 2, width // 2, C // 4, 2, 2).permute(0, 3, 1, 4, 2, 5)
    return squares.reshape(B, C // 4, height, width)


def grid(*lengths: int, device: torch.device) -> Tensor:
    """Return the grid positions of tokens, the last axis fastest: `[N, len(lengths)]` float32."""
    axes = (torch.arange(n, dtype=torch.float32, device=device) for n in lengths)
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2)


def rounds_latents(module: nn.Module, config: Any) -> str | None:
    """Return why a pipeline that takes the dtype of its network for latents cannot generate; None if it is float32."""
    if any(p.is_floating_point() and p.dtype != torch.float32 for p in module.parameters()):
        return "the family's pipeline would round latents to the dtype of the stored base"
    return None


def with_plain_guider(_config: Any, guidance_scale: float) -> dict[str, Any]:
    """Return the setting of a pipeline that guides by the difference of two passes, and by nothing else."""
    return {"guider": optional_imports.from_diffusers("ClassifierFreeGuidance")(guidance_scale=guidance_scale)}


def lower_input(layer: Any, args: tuple[Tensor, ...]) -> tuple[Tensor]:
    """Give a layer its input in the dtype of its weights; a hook that runs before it."""
    return (args[0].to(layer.weight.dtype),)


def of_both(text: TextEmbedding, arguments: Callable[[TextEmbedding], dict[str, Any]]) -> dict[str, Any]:
    """Return pipeline arguments of the caption, and those of the empty one, which are named after it."""
    prompt, empty = (arguments(TextEmbedding(*(values[i : i + 1] for values in text))) for i in range(2))
    return prompt | {f"negative_{name}": value for name, value in empty.items()}


def guidance_arguments(text: TextEmbedding, guidance_scale: float, config: Any) -> dict[str, Any]:
    """Return pipeline arguments: embeddings of the caption and the empty caption, and the guidance scale."""
    return of_both(text, lambda one: {"prompt_embeds": one.tokens}) | {"guidance_scale": guidance_scale}


def masked_arguments(
    text: TextEmbedding, guidance_scale: float, config: Any, mask: str = "attention_mask"
) -> dict[str, Any]:
    """Return the arguments of `guidance_arguments` and the masks of both texts, `prompt_` and the name."""
    return guidance_arguments(text, guidance_scale, config) | of_both(text, lambda one: {f"prompt_{mask}": one.mask})


def unpadded_arguments(text: TextEmbedding, guidance_scale: float, config: Any) -> dict[str, Any]:
    """Return the arguments of `guidance_arguments` for pipelines that take texts without padding."""
    unpadded = of_both(text, lambda one: {"prompt_embeds": [one.tokens[one.mask]]})
    return unpadded | {"guidance_scale": guidance_scale}


def pooled_guidance_arguments(text: TextEmbedding, guidance_scale: float, config: Any) -> dict[str, Any]:
    """Return the arguments of `guidance_arguments` and the pooled caption embeddings."""
    pooled = of_both(text, lambda one: {"pooled_prompt_embeds": one.pooled})
    return guidance_arguments(text, guidance_scale, config) | pooled
