"""Conversion of a training config of Open-Sora to a recipe, with a report on each of its keys.

The config is read as literals and never run. Keys that it leaves out get Open-Sora's default, which often differs from
ours. Features that Reelworks does not support yet are left out of the recipe or replaced by the nearest one, and are
listed as such; the recipe loads either way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from reelworks.buckets.opensora import parse
from reelworks.compat.opensora import keys, literals
from reelworks.compat.opensora.rules import Fate, ImportedRecipe
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
# With the name that version 2.0 gives it in `optim`.
_OPTIMIZER = {"lr": ("lr", 1e-4), "weight_decay": ("weight_decay", 0.0), "adam_eps": ("eps", 1e-8)}


@dataclass(frozen=True)
class ImportedKey:
    """Result of importing one key, which is dotted inside the config's dicts."""

    key: str
    value: object
    fate: Fate
    remark: str


@dataclass(frozen=True)
class ImportReport:
    """The recipe that was written, and what became of each key."""

    recipe: Path
    keys: list[ImportedKey]


class Imported(NamedTuple):
    """A recipe as TOML, and a line for each key of the config and each default of Open-Sora that differs from ours."""

    text: str
    lines: list[ImportedKey]


def convert(
    path: Path, *, name: str, data_path: str | None = None, probability: parse.Meaning | None = None
) -> Imported:
    """Convert a config, a Python file, to a recipe whose `output` ends with `name`.

    `data_path` replaces the config's; a `probability` of None is inferred from the config's model.
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
    draft = ImportedRecipe(config.values, name)
    lines = list(_lines(draft, config, data_path))
    meaning = probability or _meaning(draft)
    table = keys.bucket_table(config.values["bucket_config"])
    draft.set("buckets.probability", meaning)
    if not draft.recipe["autoencoder"]:
        draft.set("autoencoder", {"name": "pixel", "stride": _stride(table, meaning)})
    recipe = recipe_file.parse({**draft.recipe, "buckets": {**draft.recipe["buckets"], "opensora": table}})
    assert recipe.buckets.opensora is not None
    return Imported(_toml(draft.recipe, recipe.buckets.opensora, path), lines)


def _lines(draft: ImportedRecipe, config: literals.Literals, data_path: str | None) -> Iterator[ImportedKey]:
    values = dict(keys.flatten(config.values))
    if data_path is not None:
        values["dataset.data_path"] = data_path
    # The data path first: conversions of other keys depend on it.
    for key, value in sorted(values.items(), key=lambda item: item[0] != "dataset.data_path"):
        yield ImportedKey(key, value, *keys.convert(key, value, draft))
    optimizer = {key: value for key, (of_2, value) in _OPTIMIZER.items() if f"optim.{of_2}" not in values}
    for key, value in (_DEFAULTS | optimizer).items():
        if key not in values:
            fate, remark = keys.convert(key, value, draft)
            yield ImportedKey(key, value, fate, f"{remark} (Open-Sora's default)")
    for key, text in config.unread.items():
        yield ImportedKey(key, text, Fate.UNREAD, "it is not a literal, and the config is not run")


def _meaning(draft: ImportedRecipe) -> parse.Meaning:
    kind = draft.type_of("model")
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
            *(f'"{name}" = {_literal(lengths)}' for name, lengths in table.items()),
            "",
        ]
    )


def _literal(value: object) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_literal(inner)}' for key, inner in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)
