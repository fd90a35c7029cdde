"""Optimizers of SimpleTuner by their names there, with the settings that each has."""

from __future__ import annotations

from typing import Any, NamedTuple


class Optimizer(NamedTuple):
    """The optimizer here, the settings that it has in SimpleTuner, and how it differs; "" if it does not."""

    name: str
    settings: dict[str, Any]
    differs: str = ""


def _adam(weight_decay: float = 0.01, eps: float = 1e-6, beta2: float = 0.999) -> dict[str, Any]:
    return {"betas": [0.9, beta2], "eps": eps, "weight_decay": weight_decay}


_STATES = "its states have 8 bits here"
KNOWN = {
    "adamw_bf16": Optimizer("adamw", _adam()),
    "torch-adamw": Optimizer("adamw", _adam(eps=1e-8)),
    "torch-adam": Optimizer("adamw", _adam(0.0, 1e-8), "weight decay is decoupled here"),
    "optimi-adamw": Optimizer("adamw", _adam(0.0, beta2=0.99)),
    "optimi-adam": Optimizer("adamw", _adam(0.0, beta2=0.99), "weight decay is decoupled here"),
    "optimi-stableadamw": Optimizer("adamw", _adam(beta2=0.99), "updates are not limited by their size here"),
    "ao-adamw8bit": Optimizer("adamw8bit", _adam()),
    "ao-adamw4bit": Optimizer("adamw8bit", _adam(), _STATES),
    "ao-adamfp8": Optimizer("adamw8bit", _adam(), _STATES),
    "ao-adamwfp8": Optimizer("adamw8bit", _adam(), _STATES),
    "bnb-adam": Optimizer("adamw", _adam(0.0, 1e-8), "weight decay is decoupled here"),
    "bnb-adam8bit": Optimizer("adamw8bit", _adam(0.0, 1e-8), "weight decay is decoupled here"),
    "bnb-adamw": Optimizer("adamw", _adam()),
    "bnb-adamw-paged": Optimizer("adamw", _adam()),
    "bnb-adamw8bit": Optimizer("adamw8bit", _adam()),
    "bnb-adamw8bit-paged": Optimizer("adamw8bit", _adam()),
    "sdnq-adamw": Optimizer("adamw8bit", _adam(), _STATES),
    "sdnq-adamw+no_quant": Optimizer("adamw", _adam()),
    "adamw_schedulefree": Optimizer("schedulefree", _adam(eps=1e-8)),
    "adamw_schedulefree+aggressive": Optimizer("schedulefree", _adam(1e-3)),
    "adamw_schedulefree+no_kahan": Optimizer("schedulefree", _adam(1e-3)),
    "prodigy": Optimizer("prodigy", _adam(0.0, 1e-8, 0.99), "it is schedule-free there, and not here"),
    "torch-adafactor": Optimizer("adafactor", {"weight_decay": 0.0}),
    "sdnq-adafactor": Optimizer("adafactor", {"weight_decay": 0.01}),
    "sdnq-came": Optimizer("came", {"weight_decay": 0.01}),
    "muon": Optimizer("muon", {"weight_decay": 0.1}),
    "sdnq-muon": Optimizer("muon", {"weight_decay": 0.01}),
}
OTHER = Optimizer("adamw", _adam(), "it is not there, and AdamW replaces it")
