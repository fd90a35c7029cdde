"""Which text encoders lie in a folder: told from their configs, before any weight is read.

Encoders of different families may be equally wide, and nothing but their kind and vocabulary tells them apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from reelworks.core.errors import UserError
from reelworks.models import optional_imports, registry, weights
from reelworks.models.config import TextEncoderConfig
from reelworks.models.family import T5, TextNetwork

_VOCABULARY_TOLERANCE = 0.01  # words that somebody added, and rows that fill up a matrix


def require(config: TextEncoderConfig, wanted: Sequence[TextNetwork], width: int) -> None:
    """Refuse another family's text encoders; what has no config that can be read is left to the loader.

    Args:
        config: Names the weights.
        wanted: Networks of the family.
        width: That they were published with; of encoders of another width the vocabulary may be another one too.

    Raises:
        UserError: Neither here nor on the hub, or another family's.
    """
    assert config.weights is not None, "the recipe was checked"
    weights.require_there(config.weights, "text_encoder.weights")
    for want in wanted:
        found = _find(config.weights, want.part)
        if found is not None and not _alike(found, want, vocabulary=config.dim == width):
            raise UserError(
                f'{want.part or "this"} is a {_words(found)}, and text_encoder.name = "{config.name}" is for a {_words(want)}',
                code="other-text-encoder",
                field="text_encoder.weights",
                value=config.weights,
                remedy="name the text encoders that the model was trained with" + _others(config.weights),
            )


def _find(source: str, part: str) -> TextNetwork | None:
    """Find the config of the half that reads texts; None where none can be read."""
    try:
        whole = optional_imports.transformers().AutoConfig.from_pretrained(source, subfolder=part)
        config = whole.get_text_config()
        return TextNetwork(part, config.model_type, config.vocab_size)
    except Exception:  # damage leads the readers into errors of any kind; the loader tells them
        return None


def _alike(found: TextNetwork, want: TextNetwork, *, vocabulary: bool) -> bool:
    apart = abs(found.vocabulary - want.vocabulary)
    return found.kind == want.kind and (not vocabulary or apart <= _VOCABULARY_TOLERANCE * want.vocabulary)


def _words(network: TextNetwork) -> str:
    return f"{network.kind} of {network.vocabulary:,} tokens"


def _others(source: str) -> str:
    """Names of the families that a folder may be of."""
    parts = {part: _find(source, part) for part in ("", "text_encoder", "text_encoder_2", "text_encoder_3")}
    known = {name: one.networks for name, one in registry.TEXT_ENCODERS.items()} | {"t5": (T5,)}
    names = [
        f'"{name}"'
        for name, networks in known.items()
        if all((found := parts[want.part]) and _alike(found, want, vocabulary=True) for want in networks)
    ]
    return f"; these go with text_encoder.name = {' or '.join(names)}" if names else ""
