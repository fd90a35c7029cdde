"""Rules for all of SimpleTuner's options and settings of data backends, and its defaults."""

from __future__ import annotations

from typing import Any

from reelworks.annexes.imports import tables
from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.simpletuner import data_keys, lora_keys, models, run_keys, train_keys

_TABLE = tables.table("simpletuner", "defaults")
FIRST: list[str] = _TABLE["first"]


def defaults(settings: FormerSettings) -> dict[str, Any]:
    """Return the defaults that mean something for this config."""
    found = tables.defaults(_TABLE["all"])
    if settings.get("model_type") == "lora":
        found |= _TABLE["lora"]
    if settings.get("validation_prompt"):
        found |= _TABLE["previews"]
    if not settings.get("max_train_steps"):
        found["num_train_epochs"] = 1
    if models.family(settings).startswith("ltx"):
        found["ltx_i2v_prob"] = 0.1
    if not settings.count("data"):
        found["data_backend_config"] = None
    for number in range(settings.count("data")):
        found |= {f"data.{number}.{key}": value for key, value in tables.defaults(_TABLE["dataset"]).items()}
        if data_keys.is_video(settings, number):
            found[f"data.{number}.video.num_frames"] = data_keys.FRAMES
    return found


RULES = tables.read("simpletuner", "keys", lora_keys, train_keys, run_keys, data_keys)
# A whole table may be null.
RULES |= {name[:-2]: rule for name, rule in RULES.items() if name.endswith(".*") and name[:-2] not in RULES}
