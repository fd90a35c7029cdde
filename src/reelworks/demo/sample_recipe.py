"""The recipes for the sample footage."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

FOOTAGE = "demo/footage"  # that they name


def path(name: Literal["demo", "first-run"]) -> Path:
    """Return a recipe's file: in this folder of an installed package, in `recipes/` of a checkout.

    "demo" takes the autoencoder that `reelworks demo` trains; "first-run" needs nothing but the footage.
    """
    installed = Path(__file__).with_name(f"{name}.toml")
    file = installed if installed.exists() else Path(__file__).parents[3] / "recipes" / installed.name
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
