"""Rules for all of ai-toolkit's settings, by their names within a process, and its defaults."""

from __future__ import annotations

from typing import Any

from reelworks.annexes.imports import datasets, tables
from reelworks.annexes.imports.ai_toolkit import data_keys, model_keys, run_keys, train_keys
from reelworks.annexes.imports.draft import FormerSettings

_TABLE = tables.table("ai_toolkit", "defaults")
FIRST: list[str] = _TABLE["first"]


RULES = tables.read("ai_toolkit", "keys", datasets, run_keys, model_keys, data_keys, train_keys)
# A whole table may be null.
RULES |= {name[:-2]: rule for name, rule in RULES.items() if name.endswith(".*") and name[:-2] not in RULES}


def defaults(settings: FormerSettings) -> dict[str, Any]:
    """Return the defaults that mean something for this config."""
    found = tables.defaults(_TABLE["all"])
    if model_keys.has_network(settings):
        replaced = {"network.linear": "network.rank", "network.linear_alpha": "network.alpha"}
        found |= {key: value for key, value in _TABLE["network"].items() if replaced.get(key) not in settings.values}
    if any(key.startswith(("sample.prompts", "sample.samples")) for key in settings.values):
        found |= _TABLE["previews"]
    for number in range(settings.count("datasets")):
        found |= {f"datasets.{number}.{key}": value for key, value in tables.defaults(_TABLE["dataset"]).items()}
    return found
