"""Defaults of Open-Sora's trainer for keys that a config leaves out."""

from __future__ import annotations

from typing import Any

_DEFAULTS: dict[str, Any] = {
    "seed": 1024,
    "outputs": "outputs",
    "dtype": "bf16",
    "plugin": "zero2",
    "num_workers": 4,
    "epochs": 1000,
    "log_every": 1,
    "ckpt_every": 0,
    "ema_decay": 0.9999,
    "grad_clip": 0,
    "warmup_steps": None,
    "grad_checkpoint": False,
    "dataset.data_path": None,
    "scheduler.use_timestep_transform": False,
    "scheduler.sample_method": "uniform",
    "optim.betas": (0.9, 0.999),
}
# Version 2.0 has these keys in `optim`.
_OPTIMIZER = {"lr": 1e-4, "weight_decay": 0.0, "adam_eps": 1e-8}
_OPTIMIZER_OF_2 = {"lr": "lr", "weight_decay": "weight_decay", "adam_eps": "eps"}


def of_missing(values: dict[str, Any]) -> dict[str, Any]:
    """Return Open-Sora's defaults of keys that a config leaves out."""
    optimizer = {k: v for k, v in _OPTIMIZER.items() if f"optim.{_OPTIMIZER_OF_2[k]}" not in values}
    return {key: value for key, value in (_DEFAULTS | optimizer).items() if key not in values}
