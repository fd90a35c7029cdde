"""The recipe of the demo's run."""

from __future__ import annotations

from pathlib import Path

FOOTAGE = "demo/footage"  # that it names


def path() -> Path:
    """Return the recipe's file: in this folder of an installed package, in `recipes/` of a checkout."""
    installed = Path(__file__).with_name("demo.toml")
    file = installed if installed.exists() else Path(__file__).parents[3] / "recipes" / "demo.toml"
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
