"""Encoders that are loaded when they are first used: training from stored latents and embeddings needs none."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from reelworks.core import log


class Lazy:
    """An encoder of known sizes that `build` makes on its device at its first use; from then on it stays in memory.

    What is known of it is told without loading it, and all else by the loaded one; see `models.api`.

    Attributes:
        made: The loaded one, if it is.
    """

    def __init__(self, name: str, build: Callable[[], Any], **known: Any) -> None:
        vars(self).update(known)
        self._name, self._build = name, build
        self.made: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what copies and the like look for
            raise AttributeError(name)
        return getattr(self.loaded(), name)

    def encode(self, *inputs: Any) -> Any:
        """Encode what the loaded one encodes."""
        return self.loaded().encode(*inputs)

    def loaded(self) -> Any:
        """Return the encoder in memory."""
        if not self.made:
            with log.stage(f"loading the {self._name}", at_once=True):
                self.made.append(self._build())
        return self.made[0]

    def drop(self) -> None:
        """Let go of it, until it is used again."""
        self.made.clear()
        gc.collect()  # a compiled network refers to itself
