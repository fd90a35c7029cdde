"""Optimizers of SimpleTuner by their names there, with the settings that each has."""

from __future__ import annotations

from typing import Any, NamedTuple


class FormerOptimizer(NamedTuple):
    """The optimizer here, the settings that it has in SimpleTuner, and how it differs; "" if it does not."""

    name: str
    settings: dict[str, Any]
    differs: str = ""


def _adam(weight_decay: float = 0.01, eps: float = 1e-6, beta2: float = 0.999) -> dict[str, Any]:
    return {"betas": [0.9, beta2], "eps": eps, "weight_decay": weight_decay}


_STATES = "its states have 8 bits here"
KNOWN = {
    "adamw_bf16": FormerOptimizer("adamw", _adam()),
    "torch-adamw": FormerOptimizer("adamw", _adam(eps=1e-8)),
    "torch-adam": FormerOptimizer("adamw", _adam(0.0, 1e-8), "weight decay is decoupled here"),
    "optimi-adamw": FormerOptimizer("adamw", _adam(0.0, beta2=0.99)),
    "optimi-adam": FormerOptimizer("adamw", _adam(0.0, beta2=0.99), "weight decay is decoupled here"),
    "optimi-stableadamw": FormerOptimizer("adamw", _adam(beta2=0.99), "updates are not limited by their size here"),
    "ao-adamw8bit": FormerOptimizer("adamw8bit", _adam()),
    "ao-adamw4bit": FormerOptimizer("adamw8bit", _adam(), _STATES),
    "ao-adamfp8": FormerOptimizer("adamw8bit", _adam(), _STATES),
    "ao-adamwfp8": FormerOptimizer("adamw8bit", _adam(), _STATES),
    "bnb-adam": FormerOptimizer("adamw", _adam(0.0, 1e-8), "weight decay is decoupled here"),
    "bnb-adam8bit": FormerOptimizer("adamw8bit", _adam(0.0, 1e-8), "weight decay is decoupled here"),
    "bnb-adamw": FormerOptimizer("adamw", _adam()),
    "bnb-adamw-paged": FormerOptimizer("adamw", _adam()),
    "bnb-adamw8bit": FormerOptimizer("adamw8bit", _adam()),
    "bnb-adamw8bit-paged": FormerOptimizer("adamw8bit", _adam()),
    "sdnq-adamw": FormerOptimizer("adamw8bit", _adam(), _STATES),
    "sdnq-adamw+no_quant": FormerOptimizer("adamw", _adam()),
    "adamw_schedulefree": FormerOptimizer("schedulefree", _adam(eps=1e-8)),
    "adamw_schedulefree+aggressive": FormerOptimizer("schedulefree", _adam(1e-3)),
    "adamw_schedulefree+no_kahan": FormerOptimizer("schedulefree", _adam(1e-3)),
    "prodigy": FormerOptimizer("prodigy", _adam(0.0, 1e-8, 0.99), "it is schedule-free there, and not here"),
    "torch-adafactor": FormerOptimizer("adafactor", {"weight_decay": 0.0}),
    "sdnq-adafactor": FormerOptimizer("adafactor", {"weight_decay": 0.01}),
    "sdnq-came": FormerOptimizer("came", {"weight_decay": 0.01}),
    "muon": FormerOptimizer("muon", {"weight_decay": 0.1}),
    "sdnq-muon": FormerOptimizer("muon", {"weight_decay": 0.01}),
}
OTHER = FormerOptimizer("adamw", _adam(), "it is not there, and AdamW replaces it")
