"""Conversion of a training config of Open-Sora to a recipe, with a report on each of its keys.

The config is read as literals and never run. Keys that it leaves out get Open-Sora's default, which often differs from
ours. Features that Reelworks does not support yet are left out of the recipe or replaced by the nearest one, and are
listed as such; the recipe loads either way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from reelworks.buckets.opensora import parse
from reelworks.compat.opensora import keys, literals
from reelworks.compat.opensora.rules import Draft, Fate
from reelworks.core.errors import UserError
from reelworks.recipe import recipe_file

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


@dataclass(frozen=True)
class Line:
    """Result of importing one key.

    Attributes:
        key: Key of the config, dotted inside its dicts.
        value: Value in the config.
        fate: How the key was handled.
        remark: Key and value in the recipe, or why there is none.
    """

    key: str
    value: object
    fate: Fate
    remark: str


@dataclass(frozen=True)
class Imported:
    """A recipe converted from a config.

    Attributes:
        text: The recipe as TOML.
        lines: A line for each key of the config, and for each default of Open-Sora that differs from ours.
    """

    text: str
    lines: tuple[Line, ...]


def convert(
    path: Path, *, name: str, data_path: str | None = None, probability: parse.Meaning | None = None
) -> Imported:
    """Convert a config.

    Args:
        path: The config, a Python file.
        name: Name of the run, the last part of `output`.
        data_path: List or folder of clips in place of the config's.
        probability: Meaning of the table's probabilities, by default inferred from the config's model.

    Raises:
        UserError: The file cannot be read, has no bucket table, or has values that a recipe cannot have.
    """
    config = literals.read(path)
    if "bucket_config" not in config.values:
        raise UserError(
            "no bucket_config can be read without running the file",
            code="opensora-config-without-buckets",
            field="CONFIG",
            value=str(path),
            remedy=config.unread.get("bucket_config", "give a training config of version 1.1, 1.2 or 2.0"),
        )
    draft = Draft(config.values, name)
    lines = list(_lines(draft, config, data_path))
    meaning = probability or _meaning(config.values)
    table = keys.bucket_table(config.values["bucket_config"])
    draft.set("buckets.probability", meaning)
    if not draft.recipe["autoencoder"]:
        draft.set("autoencoder", {"name": "pixel", "stride": _stride(table, meaning)})
    recipe = recipe_file.parse({**draft.recipe, "buckets": {**draft.recipe["buckets"], "opensora": table}})
    assert recipe.buckets.opensora is not None
    return Imported(_toml(draft.recipe, recipe.buckets.opensora, path), tuple(lines))


def _lines(draft: Draft, config: literals.Literals, data_path: str | None) -> Iterator[Line]:
    values = dict(keys.flatten(config.values))
    if data_path is not None:
        values["dataset.data_path"] = data_path
    # The data path first: conversions of other keys depend on it.
    for key, value in sorted(values.items(), key=lambda item: item[0] != "dataset.data_path"):
        yield Line(key, value, *keys.convert(key, value, draft))
    for key, value in of_missing(values).items():
        fate, remark = keys.convert(key, value, draft)
        yield Line(key, value, fate, f"{remark} (Open-Sora's default)")
    for key, text in config.unread.items():
        yield Line(key, text, Fate.UNREAD, "it is not a literal, and the config is not run")


def _meaning(values: dict[str, Any]) -> parse.Meaning:
    """Infer the meaning of the probabilities from the model that a release trains.

    Raises:
        UserError: The model does not identify the release.
    """
    model = values.get("model")
    kind = str(model.get("type", "")) if isinstance(model, dict) else ""
    if kind.startswith(("STDiT2", "STDiT3")):
        return "opensora-1.2"
    if kind.startswith("flux"):
        return "opensora-2.0"
    raise UserError(
        "this model does not identify the release of the config, and the probabilities of bucket_config have "
        "another meaning in each release",
        code="opensora-release-unknown",
        field="model.type",
        value=kind,
        remedy="give --probability opensora-1.2 (also for 1.1), opensora-2.0 or downgrade",
    )


def _stride(table: Any, meaning: parse.Meaning) -> int:
    """Return the largest stride that divides all sizes of the table, since the pixel autoencoder cannot pad."""
    entries = parse.parse(table, meaning, drop_exact_length=False).entries
    sides = [side for entry in entries for size in entry.resolution.sizes for side in size]
    return next(stride for stride in (8, 4, 2, 1) if all(side % stride == 0 for side in sides))


def _toml(recipe: dict[str, Any], table: parse.Table, path: Path) -> str:
    """Return the recipe as text, with one line for each resolution of the bucket table."""
    top = {key: value for key, value in recipe.items() if not isinstance(value, dict | list)}
    tables = {key: value for key, value in recipe.items() if isinstance(value, dict) and value}
    return "\n".join(
        [
            f"# Made of {path.name} by `reelworks import-opensora`.",
            tomli_w.dumps(top),
            *(f"[[dataset]]\n{tomli_w.dumps(dataset)}" for dataset in recipe["dataset"]),
            tomli_w.dumps(tables),
            "[buckets.opensora]",
            *(f'"{name}" = {{ {_inline(lengths)} }}' for name, lengths in table.items()),
            "",
        ]
    )


def _inline(lengths: dict[str, parse.Value]) -> str:
    return ", ".join(f"{frames} = {_literal(value)}" for frames, value in lengths.items())


def _literal(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_literal(inner) for inner in value)}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)
