"""Text encoders with published weights: those of diffusers' families, and a T5 (Raffel et al. 2020) by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from reelworks.core import optional_imports
from reelworks.core.errors import UserError
from reelworks.data.distributed.contract import Contract
from reelworks.models import hub, registry
from reelworks.models.api import TextEmbedding, TextEncoder
from reelworks.models.config import TextEncoderConfig
from reelworks.models.diffusers_denoiser import DiffusersNetwork
from reelworks.models.family import T5, PublishedText, TextNetwork
from reelworks.models.storage import stored_weights, weights

# A T5's feed-forward layers exceed the range of float16; in float32 the XXL takes 19 GB.
_STORAGE = torch.bfloat16
CONTRACT = Contract(_STORAGE, _STORAGE, None, None, torch.float32, {}, overflows=frozenset({torch.float16}))
_T5_WIDTH = 4096  # of the XXL
_VOCABULARY_TOLERANCE = 0.01  # for added words and padding rows
# Parts of pipelines that are not loaded to embed captions.
NOT_OF_TEXT = {
    *("vae", "transformer", "transformer_2", "unconditional_transformer", "unet", "processor"),
    *("audio_vae", "vocoder", "prompt_enhancer", "prompt_enhancer_head", "duration_head"),
    *("pe", "pe_tokenizer", "text_processor"),
}


@final
class FamilyTextEncoder:
    """A text encoder that embeds captions as a family's pipeline does.

    The pipeline is loaded without its denoiser and autoencoder, so that templates, layers, padding and cleaning
    are those that the released weights were trained with.
    """

    contract = CONTRACT

    def __init__(self, config: TextEncoderConfig) -> None:
        """Load the encoder from a local folder in diffusers' layout or from the hub."""
        assert config.weights is not None, "the recipe was checked"
        self.dim, self.pooled_dim, self.max_length = config.dim, config.pooled_dim, config.max_length
        known = registry.TEXT_ENCODERS[config.name]
        network = registry.load_network(registry.family_of_text(config.name))
        assert isinstance(network, DiffusersNetwork), "only families of diffusers have pipelines"
        self.sees_pictures = known.sees_pictures
        self._encode = network.encode_text[config.name]
        require_networks(config, known.networks, known.dim)
        self._pipeline = load_pipeline(config)
        self._tokenizer = getattr(self._pipeline, known.tokenizer)
        embedding = self.encode([""])
        require_width(config, "dim", embedding.tokens.shape[2])
        require_width(config, "pooled_dim", embedding.pooled.shape[1])

    @torch.no_grad()
    def encode(self, captions: Sequence[str], pictures: Sequence[Tensor] = ()) -> TextEmbedding:
        """Embed captions as the family's pipeline does, padded to `max_length`."""
        tokens, mask, pooled = self._encode(self._pipeline, list(captions), self.max_length, list(pictures))
        tokens = tokens.float()[:, : self.max_length]
        mask = tokens.new_ones(tokens.shape[:2]) if mask is None else mask[:, : self.max_length]
        missing = self.max_length - tokens.shape[1]
        return TextEmbedding(
            pad(tokens, (0, 0, 0, missing)),
            pad(mask.bool(), (0, missing)),
            tokens.new_zeros(len(tokens), 0) if pooled is None else pooled.float(),
        )

    def unseen(self, caption: str) -> int:
        """Count the words at a caption's end that `max_length` tokens do not cover, also in part."""
        return words_cut_off(self._tokenizer, caption, self.max_length)

    def to(self, device: torch.device) -> TextEncoder:
        """Move the networks and return this object."""
        self._pipeline.to(device)
        return self


def require_width(config: TextEncoderConfig, key: str, width: int) -> None:
    """Refuse a width in a recipe that is not that of the weights."""
    if width != (asked := getattr(config, key)):
        raise UserError(
            f"the embeddings of these weights are {width} wide",
            code="text-width-differs",
            field=f"text_encoder.{key}",
            value=asked,
            remedy=f"set it to {width}",
        )


def words_cut_off(tokenizer: Any, caption: str, max_length: int) -> int:
    """Count the words at a caption's end that so many tokens do not cover, also in part."""
    tokens = tokenizer(caption, max_length=max_length, truncation=True, return_offsets_mapping=True)
    end = max((stop for _, stop in tokens["offset_mapping"]), default=0)  # an empty caption may have no token
    return len(caption[end:].split())


def load_pipeline(config: TextEncoderConfig, *, dtype: torch.dtype | None = None, without: Sequence[str] = ()) -> Any:
    """Load what embeds captions, frozen, from a local folder in diffusers' layout or from the hub; `without` some parts."""
    known, source, dtype = registry.TEXT_ENCODERS[config.name], config.weights, dtype or _STORAGE
    network = registry.load_network(registry.family_of_text(config.name))
    assert source is not None, "the recipe was checked"
    assert isinstance(network, DiffusersNetwork), "only families of diffusers have pipelines"
    try:
        load = network.load_text_parts
        pipeline = _without_others(known, source, dtype, without) if load is None else load(source, dtype)
        if known.sees_pictures and network.load_processor is not None:
            pipeline.processor = network.load_processor(pipeline.tokenizer, source)
    except Exception as error:  # damaged files raise errors of any kind
        raise UserError(
            f"no text encoders of {known.pipeline} can be loaded ({str(error).partition(chr(10))[0]})",
            code="text-encoder-unloadable",
            field="text_encoder.weights",
            value=source,
            remedy="name a folder in diffusers' layout or a hub id of this family",
        ) from error
    for part in pipeline.components.values():
        if isinstance(part, torch.nn.Module):
            _freeze(part, source)
    return pipeline


def _freeze(network: torch.nn.Module, source: str) -> None:
    """Set a network up for embedding; refuses weights that are not finite."""
    network.requires_grad_(False).eval()
    with weights.telling("text_encoder.weights", source):
        stored_weights.require_finite(dict(network.named_parameters()))


def _without_others(known: PublishedText, source: str, dtype: torch.dtype, without: Sequence[str]) -> Any:
    """Load a pipeline without the parts that captions do not need, and without some more."""
    kind = optional_imports.from_diffusers(known.pipeline)
    unused = NOT_OF_TEXT & set(kind._get_signature_keys(kind)[0]) | {*without}
    parts: dict[str, Any] = dict.fromkeys(unused)
    if known.asks_autoencoder is not None:  # the pipeline's constructor reads its sizes
        with torch.device("meta"):
            parts["vae"] = optional_imports.from_diffusers(known.asks_autoencoder)()
    if known.plain_tokenizer:
        words = optional_imports.transformers().AutoTokenizer
        parts["tokenizer"] = hub.pretrained(words.from_pretrained, source, subfolder="tokenizer")
    pipeline = hub.pretrained(kind.from_pretrained, source, dtype=dtype, **parts)
    pipeline.register_modules(**dict.fromkeys(unused))
    return pipeline


@final
class T5TextEncoder:
    """A text encoder that returns the last hidden states of a T5; captions are neither cleaned nor lower-cased."""

    contract = CONTRACT
    sees_pictures = False

    def __init__(self, config: TextEncoderConfig) -> None:
        """Load the encoder from a local folder or from the hub."""
        assert config.weights is not None, "the recipe was checked"
        self.dim, self.pooled_dim, self.max_length = config.dim, 0, config.max_length
        self._device = torch.device("cpu")
        require_networks(config, (T5,), _T5_WIDTH)
        self._tokenizer, self._model = _load_t5(config.weights)
        require_width(config, "dim", self._model.config.d_model)

    @torch.no_grad()
    def encode(self, captions: Sequence[str], pictures: Sequence[Tensor] = ()) -> TextEmbedding:
        """Return the last hidden state of every token; padding is masked within the T5 and in the result."""
        tokens = self._tokenizer(
            list(captions), max_length=self.max_length, padding="max_length", truncation=True, return_tensors="pt"
        ).to(self._device)
        hidden = self._model(tokens.input_ids, attention_mask=tokens.attention_mask).last_hidden_state.float()
        return TextEmbedding(hidden, tokens.attention_mask.bool(), hidden.new_zeros(len(captions), 0))

    def unseen(self, caption: str) -> int:
        """Count the words at a caption's end that `max_length` tokens do not cover, also in part."""
        return words_cut_off(self._tokenizer, caption, self.max_length)

    def to(self, device: torch.device) -> TextEncoder:
        """Move the network and return this object."""
        self._device = torch.device(device)
        self._model.to(self._device)
        return self


def _load_t5(source: str) -> tuple[Any, Any]:
    transformers = optional_imports.transformers()
    try:
        tokenizer = hub.pretrained(transformers.AutoTokenizer.from_pretrained, source)
        model = hub.pretrained(transformers.T5EncoderModel.from_pretrained, source, dtype=_STORAGE)
    except Exception as error:  # damaged files raise errors of any kind
        raise UserError(
            f"no T5 with its tokenizer can be loaded ({str(error).partition(chr(10))[0]})",
            code="text-encoder-unloadable",
            field="text_encoder.weights",
            value=source,
            remedy="name a folder that holds both, or a hub id such as DeepFloyd/t5-v1_1-xxl",
        ) from error
    _freeze(model, source)
    return tokenizer, model


def require_networks(config: TextEncoderConfig, wanted: Sequence[TextNetwork], width: int) -> None:
    """Refuse another family's text encoders by their configs, before any weight is read.

    Encoders of different families may be equally wide and then differ only in kind and vocabulary. Those of another
    width than the published one may also have another vocabulary; those without a readable config are left to the loader.
    """
    assert config.weights is not None, "the recipe was checked"
    weights.require_there(config.weights, "text_encoder.weights")
    for want in wanted:
        found = _find(config.weights, want.part)
        if found is not None and not _alike(found, want, vocabulary=config.dim == width):
            raise UserError(
                f'{want.part or "this"} is a {_describe(found)}, but text_encoder.name = "{config.name}" needs a {_describe(want)}',
                code="other-text-encoder",
                field="text_encoder.weights",
                value=config.weights,
                remedy="name the text encoders that the model was trained with" + _others(config.weights),
            )


def _find(source: str, part: str) -> TextNetwork | None:
    """Return kind and vocabulary of a text network, or None if no config can be read."""
    try:
        read = optional_imports.transformers().AutoConfig.from_pretrained
        config = hub.pretrained(read, source, subfolder=part).get_text_config()
        return TextNetwork(part, config.model_type, config.vocab_size)
    except Exception:  # damaged files raise errors of any kind; the loader reports them
        return None


def _alike(found: TextNetwork, want: TextNetwork, *, vocabulary: bool) -> bool:
    diff = abs(found.vocabulary - want.vocabulary)
    return found.kind in want.kind.split() and (not vocabulary or diff <= _VOCABULARY_TOLERANCE * want.vocabulary)


def _describe(network: TextNetwork) -> str:
    return f"{network.kind.replace(' ', ' or ')} of {network.vocabulary:,} tokens"


def _others(source: str) -> str:
    """Name the families that a folder may belong to, as the end of a remedy."""
    known = {name: text.networks for name, text in registry.TEXT_ENCODERS.items()} | {"t5": (T5,)}
    parts = {part: _find(source, part) for part in {want.part for networks in known.values() for want in networks}}
    names = [
        f'"{name}"'
        for name, networks in known.items()
        if all((found := parts[want.part]) and _alike(found, want, vocabulary=True) for want in networks)
    ]
    return f"; these ones go with text_encoder.name = {' or '.join(names)}" if names else ""
