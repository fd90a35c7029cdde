"""docs/reference/json.md and json.schema.json: the value that each verb prints with --json, from the types of its results.

`generate_reference.py` writes them. Which type a verb prints is said here; `tests/integration/test_json.py` runs each verb
and compares what it prints. What a key means stands in its class: under "Attributes:", beside the field, or as the first
sentence of a property.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

HEAD = """# JSON

<!-- Written by scripts/generate_reference.py (make reference); do not edit. -->

With `--json`, stdout has one JSON value and nothing else; lines of the log go to stderr. Each verb has one shape, with exactly the
keys below; where an option asks for something else, it has another. The same as a JSON Schema: [json.schema.json](json.schema.json),
with the shape of a verb at `#/$defs/VERB`.

- `null` stands for a number that is not finite. Shares are from 0 to 1, moments are seconds since 1970.
- Paths are as they were given, or relative to the current folder.
- With exit code 2, or if the command ended with a traceback, the value is an [error](#errors), which is also told on stderr;
  `coverage` prints its own value, in which the problems are. A command that was killed, or ended by Ctrl-C, may print nothing.
- Under torchrun the first process prints.

```
reelworks checkpoints ls RUN --json | jq '.[] | select(.state == "kept") | .step'
```

"""
ERRORS = """
## Errors

```json
{"error": {"problem": "…", "code": "no-run", "field": "RUN", "value": "runs/mug", "remedy": "…"}}
```

| key | value | meaning |
|---|---|---|
| `problem` | text | What is wrong, in a sentence |
| `code` | text | Its [name](errors.md), which stays when the sentence is improved |
| `field` | text or null | Option, argument, recipe key or file |
| `value` | text or null | Its value |
| `remedy` | text | What to change |
"""
_CONSTANTS = {"None": "null", "True": "true", "False": "false"}
_WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false", types.NoneType: "null"}
_TYPES = {int: "integer", str: "string", bool: "boolean", types.NoneType: "null"}


class Shape(NamedTuple):
    """A type that a verb prints, and the option that asks for it; empty for what it prints without."""

    type: Any
    option: str = ""


def shapes() -> dict[str, tuple[Shape, ...]]:
    """Return what each verb prints with --json. Imports torch."""
    from reelworks.annexes.captions.caption import CaptionResult
    from reelworks.annexes.doctor import examine
    from reelworks.annexes.hub import publish
    from reelworks.annexes.imports import importer
    from reelworks.annexes.learning import learning
    from reelworks.annexes.lora import average, extract, info
    from reelworks.annexes.lora.results import LoraResult
    from reelworks.annexes.quality import inspect
    from reelworks.annexes.quality import run as measures
    from reelworks.data.catalog.scan import scan, unpack
    from reelworks.data.catalog.store import compact
    from reelworks.data.checkpoint import listing
    from reelworks.demo import autoencoder, make, walkthrough
    from reelworks.inference.evaluate import checkpoint_series, held_out
    from reelworks.inference.evaluate import report as evaluation
    from reelworks.inference.generate import clip_files, export_run
    from reelworks.quickstart import quickstart
    from reelworks.reports import compare, html, sheet
    from reelworks.training.coverage import coverage
    from reelworks.training.encoding import encode, upkeep
    from reelworks.training.loop import replay, trainer
    from reelworks.training.memory import tune
    from reelworks.training.plan import plan_comparison, plan_forecast, refit, rejections
    from reelworks.training.preflight import check, stage_forecast

    row = (Shape(listing.ListedCheckpoint),)
    return {
        "demo": (Shape(walkthrough.DemoResult),),
        "demo-data": (Shape(make.DemoSummary),),
        "demo-autoencoder": (Shape(autoencoder.FittedAutoencoder),),
        "scan": (Shape(scan.ScanReport),),
        "measure": (Shape(measures.MeasureResult),),
        "caption": (Shape(CaptionResult),),
        "inspect": (Shape(inspect.Inspection),),
        "unpack": (Shape(list[unpack.Unpacked]),),
        "contact-sheet": (Shape(sheet.ContactSheets),),
        "plan": (
            Shape(plan_forecast.PlanForecast),
            Shape(plan_comparison.PlanComparison, "--diff"),
            Shape(rejections.RecordedRejections, "RUN --rejected"),
            Shape(stage_forecast.RunForecast, "[[stage]]"),
            Shape(stage_forecast.RunComparison, "[[stage]] and --diff"),
        ),
        "check": (Shape(check.CheckReport),),
        "doctor": (Shape(examine.Diagnosis),),
        "tune": (Shape(tune.Tuned), Shape(refit.Refit, "--from-run")),
        "train": (Shape(trainer.TrainResult),),
        "generate": (Shape(list[clip_files.WrittenClip]),),
        "eval": (
            Shape(held_out.Evaluation),
            Shape(evaluation.Report, "--generated or --vbench"),
            Shape(checkpoint_series.CheckpointSeries, "--checkpoints"),
        ),
        "publish": (Shape(publish.Published),),
        "coverage": (Shape(coverage.CoverageReport),),
        "learning": (Shape(learning.LearningReport),),
        "replay": (Shape(replay.ReplayReport),),
        "report": (Shape(html.WrittenReport),),
        "compare": (Shape(compare.Comparison),),
        "import": (Shape(importer.Imported),),
        "catalog compact": (Shape(compact.Compacted),),
        "new lora": (Shape(quickstart.QuickstartResult),),
        "encode run": (Shape(encode.EncodingReport),),
        "encode ls": (Shape(list[upkeep.Group]),),
        "encode verify": (Shape(upkeep.StoreCheck),),
        "encode prune": (Shape(upkeep.PrunedStore),),
        "checkpoints ls": (Shape(list[listing.ListedCheckpoint]),),
        "checkpoints show": (Shape(listing.CheckpointDetails),),
        "checkpoints verify": (Shape(list[listing.VerifiedCheckpoint]),),
        "checkpoints prune": (Shape(listing.Pruned),),
        "checkpoints explain": (Shape(listing.CheckpointHistory),),
        "checkpoints pin": row,
        "checkpoints unpin": row,
        "checkpoints best": row,
        "checkpoints export": (Shape(export_run.Exported),),
        "lora info": (Shape(info.LoraInfo),),
        **{f"lora {verb}": (Shape(LoraResult),) for verb in ("convert", "merge", "resize", "apply")},
        "lora extract": (Shape(extract.Extraction),),
        "lora average": (Shape(average.RunAverage),),
    }


class Key(NamedTuple):
    """A key of a value; one that is not `always` there is left out where it has no meaning."""

    type: Any
    meaning: str
    always: bool = True


class Kind(NamedTuple):
    """Keys of a class's values; `others` are further keys, whose names are not fixed, None without any."""

    keys: dict[str, Key]
    others: Key | None = None


def kinds(cls: type) -> list[Kind]:
    """Return the keys of a class as `core.results.as_json` names them; several where it holds one of several values."""
    found = [Kind({})]
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for name in getattr(cls, "JSON_KEYS", fields):
        metadata = fields[name].metadata if name in fields else {}
        key = Key(_annotation(cls, name), _meaning(cls, name), "optional" not in metadata)
        if "inlined" in metadata:
            found = [merged for one in found for merged in _with_inlined(one, key)]
        else:
            found = [Kind(one.keys | {name.rstrip("_"): key}, one.others) for one in found]
    return found


def _with_inlined(outer: Kind, inlined: Key) -> Iterator[Kind]:
    """Yield the keys with those of an inlined value, for each type that it may have."""
    choices = _members(inlined.type)
    for choice in choices:
        if _is_a(Mapping, typing.get_origin(choice)):
            yield Kind(outer.keys, inlined._replace(type=typing.get_args(choice)[1]))
        elif choice is not types.NoneType:
            for inner in kinds(choice):
                keys = dict(outer.keys)
                for name, key in inner.keys.items():
                    always = key.always and types.NoneType not in choices
                    if name in outer.keys and not always:  # the outer one is there without it
                        keys[name] = outer.keys[name]._replace(type=outer.keys[name].type | key.type)
                    else:
                        keys[name] = key._replace(always=always)
                yield Kind(keys, inner.others or outer.others)


def _is_a(wanted: type | tuple[type, ...], origin: Any) -> bool:
    """Tell whether a type with arguments is of a kind; one without has no origin."""
    return isinstance(origin, type) and issubclass(origin, wanted)


def _members(annotation: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def _annotation(cls: type, name: str) -> Any:
    """Return the type of a field or a property; only its own names are looked up, since others may be for types alone."""
    for owner in cls.__mro__:
        own = vars(owner).get(name)
        text = (
            own.fget.__annotations__["return"]
            if isinstance(own, property)
            else vars(owner).get("__annotations__", {}).get(name)
        )
        if text is not None:
            return eval(text, vars(sys.modules[owner.__module__])) if isinstance(text, str) else text
    raise KeyError(f"{cls.__name__} has no {name}")


def _meaning(cls: type, name: str) -> str:
    """Return what a field or a property means, in words of JSON."""
    for owner in cls.__mro__:
        own, text = vars(owner).get(name), None
        if isinstance(own, property):
            text = (own.__doc__ or "").partition("\n")[0].rstrip(".")
        elif name in vars(owner).get("__annotations__", {}):
            text = _attributes(owner).get(name) or _comment(owner, name)
        if text is not None:
            return _of_json(text)
    raise KeyError(f"{cls.__name__} has no {name}")


def _of_json(text: str) -> str:
    return re.sub(r"\b(None|True|False)\b", lambda word: _CONSTANTS[word[0]], text)


def _attributes(cls: type) -> dict[str, str]:
    _, _, listed = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")
    entries = re.findall(r"^ {4}(\w+(?:, \w+)*): (.*(?:\n {5,}.*)*)", listed, flags=re.MULTILINE)
    return {name: " ".join(text.split()).rstrip(".") for names, text in entries for name in names.split(", ")}


def _comment(cls: type, name: str) -> str:
    """Return the comment beside a field, or above it."""
    found = re.search(rf"((?:^    # .*\n)*)^    {name}: [^#\n]*(?:#(.*))?$", _source(cls), flags=re.MULTILINE)
    assert found is not None, (cls, name)
    text = found[2] or found[1].replace("#", "")
    return " ".join(text.split()).rstrip(".")


_source = functools.cache(inspect.getsource)  # which reads the whole file of a class


def _classes(annotation: Any, found: dict[str, type]) -> dict[str, type]:
    """Collect the classes that a type is made of, by name."""
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation) and annotation.__name__ not in found:
        found[annotation.__name__] = annotation
        for kind in kinds(annotation):
            for key in (*kind.keys.values(), *([kind.others] if kind.others else [])):
                _classes(key.type, found)
    for inner in typing.get_args(annotation):
        _classes(inner, found)
    return found


def schema() -> dict[str, Any]:
    """Return the JSON Schema of what every verb prints."""
    by_verb, found = shapes(), dict[str, type]()
    for of_verb in by_verb.values():
        for shape in of_verb:
            _classes(shape.type, found)
    verbs = {verb: _any_of([_schema(shape.type) for shape in of_verb]) for verb, of_verb in by_verb.items()}
    values = {name: _any_of([_object(kind) for kind in kinds(cls)]) for name, cls in sorted(found.items())}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": verbs | values}


def _object(kind: Kind) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            name: _schema(key.type) | ({"description": key.meaning} if key.meaning else {})
            for name, key in kind.keys.items()
        },
        "required": [name for name, key in kind.keys.items() if key.always],
        "additionalProperties": False if kind.others is None else _schema(kind.others.type),
    }


def _schema(annotation: Any) -> dict[str, Any]:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _TYPES:
        return {"type": _TYPES[annotation]}
    if annotation is float:
        return {"type": ["number", "null"]}
    if annotation in (Any, object):
        return {}
    if origin is typing.Literal:
        return {"enum": list(args)}
    if len(members := _members(annotation)) > 1:
        return _any_of([_schema(member) for member in members])
    if _is_a(Mapping, origin):
        return {"type": "object", "additionalProperties": _schema(args[1])}
    if origin is tuple and args[-1] is not ...:
        return {
            "type": "array",
            "prefixItems": [_schema(arg) for arg in args],
            "minItems": len(args),
            "maxItems": len(args),
        }
    if _is_a((Sequence, Set), origin):
        return {"type": "array", "items": _schema(args[0])}
    if issubclass(annotation, Path | enum.StrEnum):
        return {"type": "string"}
    kind: type = annotation
    assert dataclasses.is_dataclass(kind), kind
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _any_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    return found[0] if len(found) == 1 else {"anyOf": found}


def page() -> str:
    """Return the whole page."""
    by_verb, found = shapes(), dict[str, type]()
    lines = [HEAD + "| verb | prints |", "|---|---|"]
    for verb, of_verb in by_verb.items():
        prints = [f"{_words(s.type)}{f', with `{s.option}`' if s.option else ''}" for s in of_verb]
        lines.append(f"| [`{verb}`](cli.md#{verb.replace(' ', '-')}) | {'; '.join(prints)} |")
        for shape in of_verb:
            _classes(shape.type, found)
    lines.append(ERRORS)
    lines += [line for _, cls in sorted(found.items()) for line in _section(cls)]
    return "\n".join(lines)


def _section(cls: type) -> Iterator[str]:
    text = inspect.cleandoc(cls.__doc__ or "").partition("\nAttributes:")[0].strip()
    yield from (f"## {cls.__name__}", "", _cell(_of_json(" ".join(text.split()))), "")
    for number, kind in enumerate(kinds(cls)):
        yield from (["or", ""] if number else [])
        named = [(f"`{name}`", key) for name, key in kind.keys.items()]
        rows = [
            (name, _words(key.type) + ("" if key.always else ", or left out"), _cell(_sentence(key.meaning)))
            for name, key in (*named, *([("others", kind.others)] if kind.others else []))
        ]
        columns = 3 if any(row[2] for row in rows) else 2
        for cells in (("key", "value", "meaning"), ("---",) * 3, *rows):
            yield f"| {' | '.join(cells[:columns])} |"
        yield ""


def _words(annotation: Any) -> str:
    """Return a type in words, with links to classes."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _WORDS:
        return _WORDS[annotation]
    if annotation in (Any, object):
        return "any value"
    if origin is typing.Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in args)
    if len(members := _members(annotation)) > 1:
        return " or ".join(map(_words, members))
    if _is_a(Mapping, origin):
        return f"object of {_words(args[1])} by name"
    if origin is tuple and args[-1] is not ...:
        return f"[{', '.join(map(_words, args))}]"
    if _is_a((Sequence, Set), origin):
        return f"list of {_words(args[0])}"
    if issubclass(annotation, enum.StrEnum):
        return " or ".join(f'`"{member}"`' for member in annotation)
    return "path" if issubclass(annotation, Path) else f"[{annotation.__name__}](#{annotation.__name__.lower()})"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
