"""Optimizers of SimpleTuner by their names there, with the settings that each has."""

from __future__ import annotations

from typing import Any, NamedTuple

from reelworks.annexes.imports import rules


class FormerOptimizer(NamedTuple):
    """The optimizer here, the settings that it has in SimpleTuner, and how it differs; "" if it does not."""

    name: str
    settings: dict[str, Any]
    differs: str = ""


KNOWN = {name: FormerOptimizer(**found) for name, found in rules.table("simpletuner", "optimizers").items()}
OTHER = KNOWN["adamw_bf16"]._replace(differs="it is not there, and AdamW replaces it")
