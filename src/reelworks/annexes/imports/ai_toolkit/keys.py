"""Rules for all of ai-toolkit's settings, by their names within a process, and its defaults."""

from __future__ import annotations

from typing import Any

from reelworks.annexes.imports import rules
from reelworks.annexes.imports.ai_toolkit import data_keys, model_keys, run_keys, train_keys
from reelworks.annexes.imports.draft import FormerSettings

_DEFAULTS: dict[str, Any] = {
    "save.save_every": 1000,
    "save.dtype": "float16",
    "save.max_step_saves_to_keep": 5,
    "train.steps": 1000,
    "train.lr": 1e-6,
    "train.optimizer": "adamw",
    "train.batch_size": 1,
    "train.gradient_checkpointing": True,
    "train.max_grad_norm": 1.0,
    "train.timestep_type": "sigmoid",
    "train.dtype": "fp32",
    "train.ema_config.use_ema": False,
    "logging.log_every": 100,
}

_NETWORK_DEFAULTS: dict[str, Any] = {"network.type": "lora", "network.linear": 4, "network.linear_alpha": 1.0}

_SAMPLE_DEFAULTS: dict[str, Any] = {
    **{"sample.sample_every": 100, "sample.width": 512, "sample.height": 512, "sample.num_frames": 1},
    **{"sample.guidance_scale": 7, "sample.sample_steps": 20},
}

FIRST = (
    "train.optimizer",
    "network.type",
    "datasets.*.folder_path",
    "datasets.*.dataset_path",
    "sample.prompts",
    "sample.samples.*.prompt",
)

RULES = rules.read("ai_toolkit", "keys", run_keys, model_keys, data_keys, train_keys)
# A whole table may be null.
RULES |= {name[:-2]: rule for name, rule in RULES.items() if name.endswith(".*") and name[:-2] not in RULES}


def defaults(settings: FormerSettings) -> dict[str, Any]:
    """Return the defaults that mean something for this config."""
    found = dict(_DEFAULTS)
    if model_keys.has_network(settings):
        replaced = {"network.linear": "network.rank", "network.linear_alpha": "network.alpha"}
        network = _NETWORK_DEFAULTS.items()
        found |= {key: value for key, value in network if replaced.get(key) not in settings.values}
    if any(key.startswith(("sample.prompts", "sample.samples")) for key in settings.values):
        found |= _SAMPLE_DEFAULTS
    for number in range(settings.count("datasets")):
        found |= {f"datasets.{number}.{key}": value for key, value in data_keys.DATASET_DEFAULTS.items()}
    return found
