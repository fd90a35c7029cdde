"""Settings of older versions of OneTrainer by the names that they have now (`modules/util/config/TrainConfig.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reelworks.annexes.imports import tables
from reelworks.annexes.imports.onetrainer import models

_NAMES: dict[str, str] = tables.table("onetrainer", "names")
_WITH_PRIOR = ("STABLE_CASCADE_1", "WUERSTCHEN_2")


def migrated(given: dict[str, Any], *, is_preset: bool) -> dict[str, Any]:
    """Return settings, by dotted names, with those of older versions added by their present names.

    A preset of the trainer's own is of its present version.
    """
    version = given.get("__version", 0)
    if is_preset or not isinstance(version, int) or isinstance(version, bool):
        return given
    found = given | {new: given[old] for old, new in _NAMES.items() if old in given and new not in given}
    if version < 1 and isinstance(name := given.get("optimizer"), str):
        found["optimizer.optimizer"] = name
        found |= {f"optimizer.{key[10:]}": value for key, value in given.items() if key.startswith("optimizer_")}
        del found["optimizer"]
    if version < 3 and given.get("min_snr_gamma"):
        found |= {"loss_weight_fn": "MIN_SNR_GAMMA", "loss_weight_strength": given["min_snr_gamma"]}
    if version < 4 and "timestep_distribution" not in given:
        weight, bias = given.get("noising_weight", 0.0), given.get("noising_bias", 0.5)
        found["timestep_distribution"] = "SIGMOID" if weight else "UNIFORM"
        if weight and isinstance(bias, int | float):
            found["noising_bias"] = bias - 0.5
    if version < 9 and given.get("model_type") not in _WITH_PRIOR:
        copied = {f"transformer{key[5:]}": value for key, value in found.items() if key.startswith("prior.")}
        found = copied | found
    return found | dict(_of_parts(found, version))


def _of_parts(found: dict[str, Any], version: int) -> Iterator[tuple[str, Any]]:
    """Yield what older versions have once for all parts."""
    if version < 10 and "weight_dtype" in found:
        stored = ((key, value) for key, value in found.items() if key.endswith(".weight_dtype"))
        yield from ((key, found["weight_dtype"]) for key, value in stored if value == "NONE")
    if version < 11 and "gradient_checkpointing" in found:
        mode = found["gradient_checkpointing"]
        share = found.get("layer_offload_fraction", 0.0) if mode == "CPU_OFFLOADED" else 0.0
        known = models.MODELS.get(str(found.get("model_type")))
        part = "transformer" if known is None else known.part
        yield f"{part}.gradient_checkpointing", mode not in (False, "OFF")
        yield f"{part}.offload_fraction", share
