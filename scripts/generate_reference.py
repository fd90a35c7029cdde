"""Write docs/reference/: recipe.md and recipe.schema.json from the config classes, dtypes.md from contracts, json.md and
json.schema.json from the results of commands, cli.md, errors.md, gpu-figures.md, and the picture of the house.

The classes are the only source: what a key means stands in its `Field(description=...)`, or under
"Attributes:" in its class's docstring. What a component's dtypes are stands in its `CONTRACT`. The command line is
described by its own help texts (`cli_page.py`). A test compares the files with what this script would write.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union

import cli_page
import errors_page
import gpu_page
import house_picture
import json_page
import optimizers_page
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from reelworks.core import toml_none
from reelworks.core.config import about, meanings
from reelworks.data.loader import frame_masks
from reelworks.models import registry
from reelworks.models.adapters.config import BaseStorage
from reelworks.models.config import autoencoder_names, text_encoder_names
from reelworks.models.families.stdit3.spec import STDiT3Config
from reelworks.models.family import IMAGE_ENCODERS
from reelworks.training.recipe.recipe import Recipe

if TYPE_CHECKING:
    from reelworks.data.distributed.contract import Contract

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
HEAD = """# Recipe

<!-- Written by scripts/generate_reference.py (make reference); do not edit. -->

A recipe is one TOML file that is a complete run. Unknown keys, wrong types and values out of range are
errors that name the key and what to write instead. Every key can be overridden on the command line with
`--set table.key=value`, and entries of a list by their number, counted from 0, or `name`, as in
`--set bucket.0.batch_size=4`. TOML has no null: the text `"none"` stands for it where a key may
have no value. A key that is left out has its default; – says that this is no value.

{needed} are needed, the rest may be left out.

The same as a JSON Schema, for editors: [recipe.schema.json](recipe.schema.json). Complete recipes lie in
`recipes/`.
"""
DTYPES = """# Dtypes

<!-- Written by scripts/generate_reference.py (make reference); do not edit. -->

What each component declares of itself. **Storage** is how parameters lie in memory, **compute** what matrix
products run in, **master** what the optimizer updates, **reduction** what gradients are summed in over GPUs,
**output** what the component returns; – stands where nothing is trained. `reelworks check RECIPE` prints the
same for one recipe and finds what does not keep to it. [What the words mean](../concepts/dtype-contract.md).

"""
WHY_FLOAT32 = """
## Why time stays float32

Other trainers cast every input of a model to the dtype of its weights. bfloat16 has 8 bits of precision, so
its numbers lie 4 apart between 512 and 1024: {examples}.
A clip is then noised for one time and the model is told another, and sizes of a bucket table fall together
with their neighbours. What it would save is one number for each clip. So times and sizes are float32 up to
their sines and cosines, whatever computes behind; a model that rounds one on the way and uses it is refused,
as is one that is handed a rounded one. Networks of diffusers that round it are given the exact one in its place.
"""
# What the file may leave out although the model needs it: the loader fills it in.
FILLED_IN = "output"
_WORDS = {int: "whole number", float: "number", str: "text", bool: "`true` or `false`", Any: "value"}
_SIGNS = {Ge: "≥", Gt: ">", Le: "≤", Lt: "<"}


class Table(NamedTuple):
    """A table of the recipe.

    Attributes:
        key: As in `[key]`.
        model: Its class.
        repeated: It may stand several times, as `[[key]]`.
        optional: It may be switched off.
    """

    key: str
    model: type[BaseModel]
    repeated: bool
    optional: bool

    @property
    def header(self) -> str:
        """The line that opens it."""
        return f"[[{self.key}]]" if self.repeated else f"[{self.key}]"


def main() -> None:
    """Write all files."""
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
        print(FOLDER / name)


def _recipe() -> str:
    """All tables of the recipe."""
    parts = [HEAD.format(needed=_needed()), _section("Top of the file", Recipe)]
    for table in _tables(Recipe):
        off = f'`{table.key} = "{toml_none.WORD}"` switches it off.' if table.optional else ""
        parts.append(_section(f"`{table.header}`", table.model, off))
    parts.append(_names())
    return "\n".join(parts)


def _dtypes() -> str:
    """What the components declare; needs torch, which is imported only here."""
    import torch

    from reelworks.data.distributed.contract import Role, name_of
    from reelworks.models import factory, vision
    from reelworks.models.autoencoders import diffusers_kl, opensora, pixel
    from reelworks.models.text import encoders, hashed

    def denoiser(compute: torch.dtype) -> Contract:
        return factory.denoiser_contract(torch.float32, compute, torch.float32)

    contracts = {
        'every denoiser, `precision.compute = "bfloat16"`': denoiser(torch.bfloat16),
        'every denoiser, `precision.compute = "float32"`': denoiser(torch.float32),
        "autoencoder `pixel`": pixel.CONTRACT,
        "autoencoders `opensora-1.1`, `opensora-1.2`": opensora.CONTRACT,
        f"autoencoders {_listed(list(registry.AUTOENCODERS))}": diffusers_kl.CONTRACT,
        "text encoder `hashed`": hashed.CONTRACT,
        "text encoder `t5`": encoders.CONTRACT,
        f"text encoders {_listed(list(registry.TEXT_ENCODERS))}": encoders.CONTRACT,
        f"image encoders {_listed(list(IMAGE_ENCODERS))}": vision.CONTRACT,
    }
    keys = ("storage", "compute", "master", "reduction", "output")
    lines = [f"| component | {' | '.join(keys)} | known to overflow in |", "|---" * 7 + "|"]
    for name, contract in contracts.items():
        declared = (getattr(contract, key) for key in keys)
        cells = ["–" if dtype is None else name_of(dtype) for dtype in declared]
        overflows = ", ".join(name_of(dtype) for dtype in contract.overflows) or "–"
        lines.append(f"| {name} | {' | '.join(cells)} | {overflows} |")
    lines += [
        "",
        "`precision.reduction` may lower the reduction of denoisers to bfloat16 where compute is bfloat16. "
        "`autoencoder.dtype` may lower storage and compute of an autoencoder with weights to bfloat16. Weights that "
        f"`[lora]` leaves frozen are stored as `lora.base` says: {_listed(typing.get_args(BaseStorage))}; the LoRA is stored as "
        "the table says.",
        "",
    ]
    lines += ["| role | inputs of a denoiser | dtype inside |", "|---|---|---|"]
    lowered = contracts['every denoiser, `precision.compute = "bfloat16"`']
    for role in Role:
        names = ", ".join(f"`{name}`" for name, one in lowered.roles.items() if one is role)
        dtype = "compute" if lowered.dtype_of(role) is lowered.compute else name_of(lowered.dtype_of(role))
        lines += [f"| {role} | {names} | {dtype} |"] if names else []
    rounded = {value: float(torch.tensor(value).bfloat16()) for value in (999.0, 777.7, 854.0)}
    what = ("timestep 999", "777.7", "a width of 854")
    examples = ", ".join(f"{word} becomes {new:g}" for word, new in zip(what, rounded.values(), strict=True))
    return DTYPES + "\n".join(lines) + "\n" + WHY_FLOAT32.format(examples=examples)


def _needed() -> str:
    names = [n for n, field in Recipe.model_fields.items() if field.is_required() and n != FILLED_IN]
    headers = {table.key: table.header for table in _tables(Recipe)}
    words = [f"`{headers.get(name, name)}`" for name in names]
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _schema() -> str:
    schema = Recipe.model_json_schema()
    schema["required"].remove(FILLED_IN)
    schema = _without_null(schema)
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _without_null(schema: Any) -> Any:
    """What TOML can say: the word for "no value" instead of null, and no default where it is null."""
    if schema == {"type": "null"}:
        return {"const": toml_none.WORD}
    if isinstance(schema, dict):
        return {key: _without_null(value) for key, value in schema.items() if value is not None}
    return [_without_null(value) for value in schema] if isinstance(schema, list) else schema


def _tables(model: type[BaseModel], prefix: str = "") -> Iterator[Table]:
    for name, field in model.model_fields.items():
        inner = toml_none.config_in(field.annotation)
        if inner is not None:
            repeated = typing.get_origin(field.annotation) is list
            optional = types.NoneType in typing.get_args(field.annotation)
            yield Table(prefix + name, inner, repeated, optional)
            yield from _tables(inner, f"{prefix}{name}.")


def _section(title: str, model: type[BaseModel], remark: str = "") -> str:
    text = re.sub(r"^`\[.*?\]`(: | of a recipe: |\.$)", "", " ".join(about(model).split()))
    text, told = f"{text[:1].upper()}{text[1:]} {remark}".strip(), meanings(model)
    lines = [f"## {title}", "", *([text, ""] if text else [])]
    rows = [
        f"| `{name}` | {_type(field)} | {_default(name, field)} | {_meaning(told[name])} |"
        for name, field in model.model_fields.items()
        if toml_none.config_in(field.annotation) is None
    ]
    return "\n".join([*lines, "| key | value | default | meaning |", "|---|---|---|---|", *rows, ""])


def _meaning(told: str) -> str:
    text = told.rstrip(".").replace("|", "\\|").replace("<", "&lt;")
    return text[:1].upper() + text[1:]


def _default(name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "from the file's name" if name == FILLED_IN else "**needed**"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "–"
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _type(field: FieldInfo) -> str:
    words, *others = _type_words(field.annotation).split(" or ")
    return " or ".join([f"{words} {_limits(field)}".strip(), *others])


def _limits(field: FieldInfo) -> str:
    return ", ".join(f"{_SIGNS[type(m)]} {_limit(m)}" for m in field.metadata if type(m) in _SIGNS)


def _limit(bound: Ge | Gt | Le | Lt) -> str:
    (value,) = dataclasses.astuple(bound)
    return f"{value:g}"


def _type_words(annotation: Any) -> str:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{json.dumps(value)}`" for value in args)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type_words(inner) for inner in args))
    if origin is Annotated:
        # The other annotation lets a set of names be added to.
        return f"{_type_words(args[0])} {_limits(args[1]) if isinstance(args[1], FieldInfo) else ''}".rstrip()
    if annotation is types.NoneType:
        return f'`"{toml_none.WORD}"`'
    if origin in (list, tuple):
        return f"list of {_plural(_type_words(args[0]))}"
    if origin is dict:
        return f"table of {_plural(_type_words(args[1]))}"
    return _WORDS[annotation]


def _plural(words: str) -> str:
    head, of, rest = words.partition(" of ")
    return f"{head}s{of}{rest}"


def _names() -> str:
    """What the keys that take a name can be given."""
    sizes = [
        f"| `{name}` | {sizes.depth} | {sizes.hidden_size} | {sizes.num_heads} |"
        for name, preset in registry.PRESETS.items()
        if isinstance(sizes := preset.config, STDiT3Config)
    ]
    of_diffusers = [name for name, one in registry.PRESETS.items() if not isinstance(one.config, STDiT3Config)]
    return "\n".join(
        [
            "## Names",
            "",
            "`model.name`; all patches are 1 × 2 × 2 latent elements along time, height and width:",
            "",
            *("| name | depth | hidden size | heads |", "|---|---|---|---|", *sizes),
            "",
            f"Of diffusers: {_listed(of_diffusers)}; what they take: [models.md](models.md).",
            "",
            f"`autoencoder.name`: {_listed(autoencoder_names())}. `text_encoder.name`: {_listed(text_encoder_names())}.",
            "",
            f"Keys of `objective.mask_ratios`: {_listed(list(frame_masks.STRATEGIES))}.",
            "",
        ]
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


PAGES: dict[str, Callable[[], str]] = {
    "../images/house.svg": house_picture.picture,
    "recipe.md": _recipe,
    "recipe.schema.json": _schema,
    "dtypes.md": _dtypes,
    "cli.md": cli_page.page,
    "errors.md": errors_page.page,
    "gpu-figures.md": gpu_page.page,
    "json.md": json_page.page,
    "json.schema.json": lambda: json.dumps(json_page.schema(), indent=1, ensure_ascii=False) + "\n",
    "optimizers.md": optimizers_page.page,
}
"""What writes each file, by its name."""


if __name__ == "__main__":
    main()
