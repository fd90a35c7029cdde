"""Rules for all of SimpleTuner's options and settings of data backends, and its defaults."""

from __future__ import annotations

from typing import Any

from reelworks.annexes.imports import rules
from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.simpletuner import data_keys, lora_keys, models, options, run_keys, train_keys

_MAIN_DEFAULTS: dict[str, Any] = {
    "train_batch_size": 4,
    "learning_rate": 4e-7,
    "lr_scheduler": "constant_with_warmup",
    "optimizer": "adamw_bf16",
    "max_grad_norm": 2.0,
    "gradient_checkpointing": True,
    "mixed_precision": "bf16",
    "use_ema": False,
    "caption_dropout_probability": 0.1,
    "checkpoint_step_interval": 500,
    "checkpoints_total_limit": 5,
    "output_dir": "simpletuner-results",
    "model_type": "full",
}

FIRST = (
    *("optimizer", "model_type", "lora_type", "lycoris.algo", "lycoris.linear_dim", "validation_prompt"),
    *("data.*.dataset_name", "data.*.instance_data_dir", "data.*.id"),
)


def defaults(settings: FormerSettings) -> dict[str, Any]:
    """Return the defaults that mean something for this config."""
    found = dict(_MAIN_DEFAULTS)
    if settings.get("model_type") == "lora":
        found |= lora_keys.LORA_DEFAULTS
    if settings.get("validation_prompt"):
        found |= run_keys.PREVIEW_DEFAULTS
    if not settings.get("max_train_steps"):
        found["num_train_epochs"] = 1
    if models.family(settings).startswith("ltx"):
        found["ltx_i2v_prob"] = 0.1
    if not settings.count("data"):
        found["data_backend_config"] = None
    for number in range(settings.count("data")):
        found |= {f"data.{number}.{key}": value for key, value in data_keys.DATA_DEFAULTS.items()}
        if data_keys.is_video(settings, number):
            found[f"data.{number}.video.num_frames"] = data_keys.FRAMES
    return found


RULES = rules.read("simpletuner", "keys", options, lora_keys, train_keys, run_keys, data_keys)
# A whole table may be null.
RULES |= {name[:-2]: rule for name, rule in RULES.items() if name.endswith(".*") and name[:-2] not in RULES}
