"""Resolve the recipe keys of a model of two experts; torch-free."""

from __future__ import annotations

from pathlib import Path

from reelworks.core.errors import UserError
from reelworks.models import registry
from reelworks.models.config import ModelConfig

PARTS = {"high": "transformer", "low": "transformer_2"}  # folders of a pipeline
_ALL = [0.0, 1000.0]


def switch_timestep(model: ModelConfig) -> float | None:
    """Return the timestep at which the high-noise expert begins; None for a model of one network."""
    registry.require(model.name)
    return registry.PRESETS[model.name].switch_timestep


def timestep_range(model: ModelConfig, objective: str, asked: list[float]) -> list[float]:
    """Return the timesteps that a recipe trains: those of its expert, which no other setting may contradict."""
    start = switch_timestep(model)
    if start is None:
        if model.experts is None:
            return asked
        raise _invalid("this model has one network", "experts", model.experts, "leave it out")
    if model.experts is None:
        remedy = 'set it to "high" (high noise), "low", or "both" (each step trains one of the two)'
        raise _invalid("this model has two networks", "experts", None, remedy)
    if objective != "rectified-flow":
        problem = "the two experts are defined for the timesteps of rectified flow"
        raise _invalid(problem, "experts", model.experts, 'set objective.name = "rectified-flow"')
    folder = Path(model.weights or "").name
    if folder in PARTS.values() and folder != PARTS.get(model.experts):
        problem = f"this folder does not belong to model.experts = {model.experts!r}"
        raise _invalid(problem, "weights", model.weights, "name the folder that holds both")
    trained = {"high": [start, 1000.0], "low": [0.0, start], "both": _ALL}[model.experts]
    if asked not in (_ALL, trained):
        raise UserError(
            "model.experts decides which timesteps are trained",
            code="experts-decide-timesteps",
            field="objective.timestep_range",
            value=asked,
            remedy=f"leave it out; model.experts = {model.experts!r} trains {trained}",
        )
    return trained


def _invalid(problem: str, key: str, value: str | None, remedy: str) -> UserError:
    return UserError(problem, code="experts-setting-invalid", field=f"model.{key}", value=value, remedy=remedy)
