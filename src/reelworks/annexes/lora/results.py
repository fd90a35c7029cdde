"""Results that the verbs of `reelworks lora` have in common; torch-free."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reelworks.core.errors import UserError


@dataclass(frozen=True)
class LayerResult:
    """An update of one layer.

    Attributes:
        layer: The layer as the written file spells it, or the file that is told of.
        type: Adapter type of the update.
        rank: Rank of the update in that file; None if it has none.
        norm: Frobenius norm of the exact update; None if it depends on the weights of the base.
        relative_error: Frobenius norm of what the file lacks of the exact update, rounding to its dtype included, as a
            share of `norm`; 0 if it lacks nothing, None if it is not known.
    """

    layer: str
    type: str
    rank: int | None
    norm: float | None
    relative_error: float | None

    def __post_init__(self) -> None:
        if not all(value is None or math.isfinite(value) for value in (self.norm, self.relative_error)):
            raise UserError(
                f"the numbers of {self.layer} are too large, or none",
                code="numbers-not-finite",
                remedy="name weights and files with finite numbers",
            )


@dataclass(frozen=True)
class LoraResult:
    """Result of a verb.

    Attributes:
        files: Files that were written, or that are told of.
        convention: Names of the file's layers: "diffusers", "comfyui", "kohya"; None if they have no prefix, and for full weights.
        layers: Updates by layer.
        norm: Frobenius norm of the updates of all layers together; None if one is not known.
        relative_error: The same of their errors; None if one is not known.
        notes: What the user should know: what was left out, or could not be compared.
    """

    files: list[Path]
    convention: str | None
    layers: list[LayerResult]
    norm: float | None
    relative_error: float | None
    notes: list[str]

    @classmethod
    def of_layers(
        cls, files: Sequence[Path], convention: str | None, layers: Sequence[LayerResult], notes: Sequence[str] = ()
    ) -> LoraResult:
        """Return the result whose totals follow from its layers."""
        norms = [layer.norm for layer in layers if layer.norm is not None]
        norm = math.hypot(*norms) if len(norms) == len(layers) else None
        errors = [share(layer.norm, layer.relative_error) for layer in layers]
        known = [error for error in errors if error is not None]
        error = None if norm is None or len(known) < len(layers) else ratio(math.hypot(*known), norm)
        return cls([*files], convention, [*layers], norm, error, [*notes])


def share(norm: float | None, relative: float | None) -> float | None:
    """Return a part of a norm; None if either is not known."""
    return None if norm is None or relative is None else norm * relative


def ratio(part: float | None, whole: float | None) -> float | None:
    """Return a part of a whole as a share, 0 of nothing; None if either is not known."""
    if part is None or whole is None:
        return None
    return part / whole if whole > 0 else 0.0
