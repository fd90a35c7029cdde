"""Identify the text encoders of a folder by their configs, before any weight is read.

Encoders of different families may be equally wide and then differ only in kind and vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

from reelworks.core.errors import UserError
from reelworks.models import optional_imports, registry, weights
from reelworks.models.config import TextEncoderConfig
from reelworks.models.family import T5, TextNetwork

_VOCABULARY_TOLERANCE = 0.01  # for added words and padding rows


def require(config: TextEncoderConfig, wanted: Sequence[TextNetwork], width: int) -> None:
    """Refuse another family's text encoders; encoders without a readable config are left to the loader.

    Encoders of another width than the published one may also have another vocabulary.
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
        config = read(source, subfolder=part).get_text_config()
        return TextNetwork(part, config.model_type, config.vocab_size)
    except Exception:  # damaged files raise errors of any kind; the loader reports them
        return None


def _alike(found: TextNetwork, want: TextNetwork, *, vocabulary: bool) -> bool:
    diff = abs(found.vocabulary - want.vocabulary)
    return found.kind == want.kind and (not vocabulary or diff <= _VOCABULARY_TOLERANCE * want.vocabulary)


def _describe(network: TextNetwork) -> str:
    return f"{network.kind} of {network.vocabulary:,} tokens"


def _others(source: str) -> str:
    """Name the families that a folder may belong to, as the end of a remedy."""
    parts = {part: _find(source, part) for part in ("", "text_encoder", "text_encoder_2", "text_encoder_3")}
    known = {name: text.networks for name, text in registry.TEXT_ENCODERS.items()} | {"t5": (T5,)}
    names = [
        f'"{name}"'
        for name, networks in known.items()
        if all((found := parts[want.part]) and _alike(found, want, vocabulary=True) for want in networks)
    ]
    return f"; these ones go with text_encoder.name = {' or '.join(names)}" if names else ""
