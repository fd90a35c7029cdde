"""Text encoders that a LoRA trains with the network: the network then gets numbers of words, and embeds them itself.

So previews, checkpoints, averages and files have them as they have the network, and what is stored of captions stays true.

Legend: B captions, L tokens, N text encoders, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from reelworks.core import optional_imports
from reelworks.data.distributed.contract import Role
from reelworks.models import meta_init, recompute, registry
from reelworks.models.adapters.config import Targets
from reelworks.models.api import DenoiserInputs, ShardingPlan, TextEmbedding, TextEncoder
from reelworks.models.base_model import Base
from reelworks.models.config import TextEncoderConfig
from reelworks.models.diffusers_denoiser import DiffusersNetwork, FamilyDenoiser
from reelworks.models.recompute import Recompute
from reelworks.models.text import encoders

NO_WORD = -1.0  # number of all words of an empty caption that is embedded as zeros
Encode = Callable[[Any, Tensor], tuple[Tensor, Tensor | None]]


@final
class CaptionNumbers:
    """The text encoder of a network that embeds captions itself: returns numbers of words, `[B, L, N]`."""

    contract = encoders.CONTRACT
    sees_pictures = False

    def __init__(self, config: TextEncoderConfig) -> None:
        """Load the tokenizers from a local folder in diffusers' layout or from the hub."""
        known = registry.TEXT_ENCODERS[config.name]
        encoders.require_networks(config, known.networks, known.dim)
        pipeline = encoders.load_pipeline(config, without=[network.part for network in known.networks])
        self.dim, self.pooled_dim, self.max_length = len(known.networks), 0, config.max_length
        self._tokenizers = [
            getattr(pipeline, each.part.replace("text_encoder", "tokenizer")) for each in known.networks
        ]
        self._empty_is_zero = pipeline.config.get("force_zeros_for_empty_prompt", False)

    def encode(self, captions: Sequence[str], pictures: Sequence[Tensor] = ()) -> TextEmbedding:
        """Return the numbers of the words of captions, padded to `max_length`."""
        settings: dict[str, Any] = {"padding": "max_length", "max_length": self.max_length, "truncation": True}
        numbers = [each(list(captions), **settings, return_tensors="pt").input_ids for each in self._tokenizers]
        words_BLN = torch.stack(numbers, dim=-1).float()
        if self._empty_is_zero:
            words_BLN[torch.tensor([not caption for caption in captions])] = NO_WORD
        mask_BL = torch.ones(words_BLN.shape[:2], dtype=torch.bool)
        return TextEmbedding(words_BLN, mask_BL, words_BLN.new_zeros(len(words_BLN), 0))

    def unseen(self, caption: str) -> int:
        """Count the words at a caption's end that `max_length` tokens do not cover, also in part."""
        return encoders.words_cut_off(self._tokenizers[0], caption, self.max_length)

    def to(self, device: torch.device) -> TextEncoder:
        """Return this object, which has no network."""
        return self


@final
class ClipTexts(nn.Module):
    """A CLIP text encoder whose layers have the same names with all versions of transformers, those of LoRA files."""

    def __init__(self, encoder: Any, encode: Encode) -> None:
        super().__init__()
        children = dict(encoder.named_children()) if hasattr(encoder, "text_model") else {"text_model": encoder}
        for name, child in children.items():
            self.add_module(name, child)
        self.__dict__["_encoder"] = encoder  # not as a module, as its parameters would have two names
        self._encode, self.words = encode, encoder.config.vocab_size

    @property
    def layers(self) -> list[Any]:
        """Its blocks."""
        layers: Any = next(child for name, child in self.named_modules() if name.endswith("encoder.layers"))
        return list(layers)

    def forward(self, words_BL: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the embeddings of tokens, and the pooled one if there is one."""
        return self._encode(self.__dict__["_encoder"], words_BL.long().clamp(0, self.words - 1))


@final
class CaptionedNetwork(nn.Module):
    """A module of a network and its text encoders, named as their folders in a pipeline."""

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


class _Embedded(NamedTuple):
    tokens: Tensor
    pooled: Tensor


@final
class CaptionedDenoiser:
    """A denoiser whose text inputs are numbers of words (`CaptionNumbers`), which it embeds in the same pass."""

    def __init__(self, network: FamilyDenoiser, texts: Mapping[str, ClipTexts]) -> None:
        self.network, self.texts = network, nn.ModuleDict(texts)
        self._encoders = tuple(texts.values())
        self.part = network.config.network.part
        self.module: nn.Module = CaptionedNetwork({self.part: network.module, **texts})
        self.config, self.latent_channels = network.config, network.latent_channels
        self.runs_on_meta = network.runs_on_meta
        self.contract = replace(network.contract, roles={**network.contract.roles, "text": Role.WORDS})
        self.base: Base | None = None

    def embed(self, words_BLN: Tensor) -> _Embedded:
        """Return the embeddings of captions."""
        encoded = [encoder(words_BLN[..., i]) for i, encoder in enumerate(self._encoders)]
        tokens = torch.cat([tokens for tokens, _ in encoded], dim=-1)
        pooled = encoded[-1][1]
        pooled = tokens.new_zeros(len(tokens), 0) if pooled is None else pooled
        is_empty_B = words_BLN[:, 0, 0] < 0
        parts = tokens.masked_fill(is_empty_B[:, None, None], 0), pooled.masked_fill(is_empty_B[:, None], 0)
        return _Embedded(*(part.to(self.contract.compute) for part in parts))

    def predict(self, inputs: DenoiserInputs) -> Tensor:
        """Return the network's output `[B, C, 1, H, W]` for captions that are numbers of words."""
        text = self.embed(inputs.text)
        return self.network.predict(replace(inputs, text=text.tokens, pooled=text.pooled))

    def sharding(self) -> ShardingPlan:
        """Return the blocks of all, and each network, since text encoders are called before."""
        layers = [layer for encoder in self._encoders for layer in encoder.layers]
        return ShardingPlan([*self.network.sharding().blocks, *layers], [*self.module.children()])

    def lora_targets(self, of: Targets = "default") -> Sequence[str]:
        """Return the names of the layers of the denoising network alone; those of text encoders are always adapted."""
        return [f"{self.part}.{target}" for target in self.network.lora_targets(of)]


def captioned(
    network: FamilyDenoiser, config: TextEncoderConfig, *, device: torch.device, recomputed: Recompute
) -> CaptionedDenoiser:
    """Give a denoiser its text encoders with their weights, in float32 on the CPU; on `meta`, with their sizes alone."""
    known, family = registry.TEXT_ENCODERS[config.name], registry.load_network(registry.family_of_text(config.name))
    assert isinstance(family, DiffusersNetwork), "the recipe was checked"
    parts = [each.part for each in known.networks]
    if device.type == "meta":
        built = dict(zip(parts, on_meta(config), strict=True))
    else:
        pipeline = encoders.load_pipeline(config, dtype=torch.float32)
        built = {part: getattr(pipeline, part) for part in parts}
    texts = {part: ClipTexts(encoder, family.trained_text[config.name]).train() for part, encoder in built.items()}
    for layer in (layer for encoder in texts.values() for layer in encoder.layers if recomputed):
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = lambda run, *args: recompute.run_block(run, recomputed, *args)
    denoiser = CaptionedDenoiser(network, texts)
    with torch.no_grad():
        words = torch.zeros(1, config.max_length, len(parts), device="meta" if device.type == "meta" else "cpu")
        found = denoiser.embed(words)
    encoders.require_width(config, "dim", found.tokens.shape[2])
    encoders.require_width(config, "pooled_dim", found.pooled.shape[1])
    return denoiser


def on_meta(config: TextEncoderConfig) -> list[Any]:
    """Return text encoders of the sizes of a local folder, or else of the published ones."""
    library, known = optional_imports.transformers(), registry.TEXT_ENCODERS[config.name]
    built = []
    for network in known.networks:
        folder = Path(config.weights or "").expanduser() / network.part
        if (folder / "config.json").is_file():
            sizes = library.CLIPTextConfig.from_pretrained(folder)
        else:
            sizes = library.CLIPTextConfig(vocab_size=network.vocabulary, **dict(network.sizes))
        is_pooled = bool(known.pooled_dim) and network is known.networks[-1]
        kind = library.CLIPTextModelWithProjection if is_pooled else library.CLIPTextModel
        with meta_init.build_on_meta():
            built.append(kind(sizes))
    return built
