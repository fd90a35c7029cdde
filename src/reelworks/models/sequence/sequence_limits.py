"""Check that ranks can share the tokens of a recipe's clips, and tell what they exchange; torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from reelworks.core.errors import UserError, first_few
from reelworks.data.buckets.degrees import Exchange
from reelworks.data.buckets.table import BucketTable
from reelworks.models import components, registry
from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig
from reelworks.models.family import SequenceSplit

_FIELD = "parallel.sequence_degree"
# Ranks that are chosen for a group: those of a usual machine, whose link is fast, or a part of them.
_GROUPS = (8, 4, 2, 1)


def require_network(
    model: ModelConfig, autoencoder: AutoencoderConfig, text: TextEncoderConfig, degree: int, field: str = _FIELD
) -> None:
    """Refuse a network whose tokens cannot be shared, and a number of ranks that does not divide its heads or captions."""
    if degree == 1:
        return
    split = _split(model, degree)
    heads, _ = _heads(model, autoencoder, text, split)
    if heads % degree:
        divisors = [n for n in range(1, heads + 1) if heads % n == 0]
        raise UserError(
            f"{model.name} has {heads} attention heads, which {degree} ranks cannot share equally",
            code="heads-not-divisible",
            field=field,
            value=degree,
            remedy=f"set it to a divisor of {heads}: {', '.join(map(str, divisors))}",
        )
    if split.captions and text.max_length % degree:
        raise UserError(
            f"captions have {text.max_length} tokens, which {degree} ranks cannot share equally",
            code="tokens-not-divisible",
            field="text_encoder.max_length",
            value=text.max_length,
            remedy=f"set it to a multiple of {degree}, or lower {field}",
        )


def largest_group(model: ModelConfig, autoencoder: AutoencoderConfig, text: TextEncoderConfig) -> int:
    """Return how many ranks may share a clip of a network, where the recipe leaves it open."""
    split = _split(model, "auto")
    heads, _ = _heads(model, autoencoder, text, split)
    divided = (heads, text.max_length) if split.captions else (heads,)
    return next(size for size in _GROUPS if not any(number % size for number in divided))


def exchange(
    model: ModelConfig, autoencoder: AutoencoderConfig, text: TextEncoderConfig, bytes_per_element: int
) -> Exchange | None:
    """Return the exchanges of a network whose tokens are shared; None if they cannot be."""
    split = components.family_config(model).network.sequence
    if split is None:
        return None
    heads, config = _heads(model, autoencoder, text, split)
    width = getattr(config, "hidden_size", None) or heads * config.attention_head_dim
    attentions = sum(getattr(config, name) for name in split.attentions)
    return Exchange(int(width), attentions, 2 if model.gradient_checkpointing else 1, bytes_per_element)


def degrees_of(model: ModelConfig, tokens: Iterable[int], degrees: Iterable[int]) -> list[int]:
    """Return the numbers of ranks, among some that divide the heads, that can share clips of so many tokens."""
    if _split(model, "auto").pads:
        return list(degrees)
    return [degree for degree in degrees if not any(n % degree for n in tokens)]


def _heads(
    model: ModelConfig, autoencoder: AutoencoderConfig, text: TextEncoderConfig, split: SequenceSplit
) -> tuple[int, Any]:
    """Return the number of attention heads of a network, and its sizes."""
    config = components.resolve_denoiser(model, autoencoder=autoencoder, text=text, learns_variance=False)
    return int(getattr(config, split.heads)), config


def require_buckets(model: ModelConfig, table: BucketTable) -> None:
    """Refuse buckets whose clips have a number of tokens that their ranks cannot share equally."""
    degree = max((b.sequence_degree for b in table.buckets), default=1)
    if degree == 1 or _split(model, degree).pads:
        return
    used = [b for b in table.buckets if b.batch_size and table.entries[b.entry].is_used]
    bad = [b for b in used if b.tokens % b.sequence_degree]
    uneven = [f"{bucket.name} ({bucket.shape}, {bucket.tokens} tokens)" for bucket in bad]
    if uneven:
        degree = bad[0].sequence_degree
        raise UserError(
            f"{degree} ranks cannot share the tokens of {len(uneven)} of {len(used)} buckets equally: {first_few(uneven)}",
            code="tokens-not-divisible",
            field=_FIELD,
            value=degree,
            remedy="lower it, or bucket.sequence_degree, name sizes with a number of tokens that it divides, or set buckets.aspect_ratios to those "
            "that have one",
        )


def _split(model: ModelConfig, degree: object) -> SequenceSplit:
    split = components.family_config(model).network.sequence
    if split is None:
        able = [name for name, each in registry.PRESETS.items() if each.config.network.sequence is not None]
        names = ", ".join(name for name in able if not name.endswith("-tiny"))
        raise UserError(
            f"the tokens of {model.name} cannot be shared by ranks",
            code="sequence-not-shared",
            field=_FIELD,
            value=degree,
            remedy=f"leave it out, or train one of {names}",
        )
    return split
