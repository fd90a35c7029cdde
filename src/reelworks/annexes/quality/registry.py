"""Know measures by their names: ours, those that are registered, and classes that an entry names."""

from __future__ import annotations

import importlib.util
import keyword
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, ValidationError

from reelworks.annexes.quality import duplicates, motion, picture, sound
from reelworks.annexes.quality.measure import Measure, Reads
from reelworks.core import digests, named_code, units
from reelworks.core.errors import UserError
from reelworks.core.named_code import NamedClasses
from reelworks.data.catalog.scan.lists import MEASURED
from reelworks.data.catalog.store import measured_columns
from reelworks.data.catalog.store.kept_measures import label
from reelworks.data.catalog.store.measured_columns import Column

# Measures that run a network, which is imported when one is asked for.
_NETWORKS = {
    "agreement": "reelworks.annexes.quality.clip_measures:Agreement",
    "aesthetic": "reelworks.annexes.quality.clip_measures:Aesthetic",
    "classes": "reelworks.annexes.quality.clip_measures:Classes",
    "objects": "reelworks.annexes.quality.clip_measures:Objects",
    duplicates.Duplicates.name: "reelworks.annexes.quality.clip_measures:DuplicatesByNetwork",
}
WITH_WEIGHTS = "="
_PICTURES = 2  # of how the pictures are made that networks see: 2 is within black borders


class _Declaration(BaseModel):
    """Attributes of a measure's class; each description says what a right value is."""

    model_config = ConfigDict(strict=True)

    name: str = Field(min_length=1, description="a text")
    version: int = Field(ge=1, description="a whole number from 1 on")
    columns: Sequence[InstanceOf[Column]] = Field(
        min_length=1,
        description='columns in brackets with a comma, as in (Column("warmth", "0 to 1", "share of red"),)',
    )
    reads: Sequence[Reads] = Field(
        description=f'names in brackets with a comma, as in ("stills",), of {", ".join(get_args(Reads))}'
    )
    feature_bytes: int = Field(default=1, ge=1, description="a whole number from 1 on")
    pictures_px: int = Field(default=1, ge=1, description="a whole number from 1 on")


def _missing(measure: type[Any]) -> list[str]:
    fields = _Declaration.model_fields
    missing, wrong = list[str](), list[str]()
    try:
        _Declaration.model_validate({name: getattr(measure, name) for name in fields if hasattr(measure, name)})
    except ValidationError as error:
        for name in dict.fromkeys(str(one["loc"][0]) for one in error.errors()):
            if not hasattr(measure, name):
                missing.append(name)
            elif name != "columns" or not hasattr(measure, "columns_of"):  # which follow from weights
                wrong.append(f"`{name}` as {fields[name].description}")
    missing += wrong
    if hasattr(measure, "features"):
        missing += [name for name in ("feature_bytes", "compare") if not hasattr(measure, name)]
    elif hasattr(measure, "of_clips"):
        wanted = ("pictures_px", *(["feature_bytes"] if compares(measure) else []))
        missing += [name for name in wanted if not hasattr(measure, name)]
    elif not hasattr(measure, "values"):
        missing.append("a method `values`, or `of_clips`, or `features` and `compare`")
    return missing


_MEASURES = NamedClasses("measure", "my_measures.py:Faces", _missing, "docs/how-to/know-your-data.md")


def register(measure: type[Any]) -> type[Any]:
    """Make a measure's class known by its name, which must be free, as its columns must; returns the class.

    Clips are measured in other processes, which import the class from its module.
    """
    _MEASURES.require(measure)
    _add_columns(measure)
    return _MEASURES.register(measure)


def _add_columns(measure: type[Any]) -> None:
    names = [column.name for column in measure.columns]
    for column in measure.columns:
        taken = measured_columns.measure_of(column.name) not in (None, measure.name) or names.count(column.name) > 1
        if taken or column.name in MEASURED or not column.name.isidentifier() or keyword.iskeyword(column.name):
            raise UserError(
                f"the column {column.name!r} " + ("is taken" if taken or column.name in MEASURED else "is no name"),
                code="measure-column-invalid",
                field="measure",
                value=measure.__name__,
                remedy="choose a name of letters, digits and underscores that no other column has",
            )
    measured_columns.add(measure.name, measure.columns)


def names() -> list[str]:
    """Return the names of all registered measures, without those that need weights or a package."""
    return list(_MEASURES.by_name)


def named(name: str, field: str) -> type[Any]:
    """Return the class of a measure by its name, or by an entry such as `my_measures:Faces` or `faces.py:Faces`.

    One that runs a network is named with the folder of its weights, as in `agreement=models/clip`; its class has their
    digest in its version, and `weights`.

    Raises:
        UserError: The name is unknown, the entry does not lead to a measure, or weights are missing or not wanted.
    """
    if name == picture.TextArea.name:
        if importlib.util.find_spec(picture.TEXT_PACKAGE) is None:
            raise UserError(
                f"the package {picture.TEXT_PACKAGE} is not installed",
                code="package-missing",
                field=field,
                value=name,
                remedy="run: pip install 'reelworks[text]'",
            )
        return picture.TextArea
    name, weights = _split(name)
    is_network = name in _NETWORKS and (bool(weights) or name not in _MEASURES.by_name)  # or both have the name
    kind = _MEASURES.by_name.get(name) if not is_network else None
    kind = kind or _MEASURES.load(_NETWORKS.get(name, name), field)
    if runs_network(kind) != bool(weights):
        problem, remedy = "it runs no network that has weights", f"write {name} alone"
        if not weights:
            problem = "it runs a network, whose weights are not named"
            remedy = f"name their folder, as in {name}=models/clip"
        raise UserError(problem, code="measure-weights-invalid", field=field, value=name, remedy=remedy)
    if not weights:
        return register(kind)
    given = _with_weights(kind, Path(weights), field)
    _add_columns(given)
    return given


def _split(entry: str) -> tuple[str, str]:
    """Return what an entry names, a measure or a class in a file, and the folder of its weights; "" without any."""
    name, _, weights = entry.partition(WITH_WEIGHTS)
    if ":" not in entry or name in _NETWORKS or name in _MEASURES.by_name:
        return name, weights
    name = named_code.without_weights(entry)
    return name, entry[len(name) + len(WITH_WEIGHTS) :]


def runs_network(kind: type[Any]) -> bool:
    """Whether a class of measures runs a network."""
    return hasattr(kind, "of_clips")


def compares(kind: type[Any]) -> bool:
    """Whether a class of measures compares all clips of a catalog by features that are kept of each."""
    return hasattr(kind, "compare")


def labels(kind: type[Any]) -> list[str]:
    """Return the labels under which what a measure finds in a clip is kept: one for each column, or one for its features."""
    names = [str(kind.feature_bytes)] if compares(kind) else [column.name for column in kind.columns]
    return [label(kind.name, kind.version, name) for name in names]


def column_labels(kind: type[Any]) -> dict[str, str]:
    """Return for each column the label under which its values are kept, or the features that it is made of."""
    kept = labels(kind)
    return {column.name: kept[0 if compares(kind) else i] for i, column in enumerate(kind.columns)}


def by_label(kind: type[Any], found: Any) -> dict[str, float | bytes]:
    """Return what a measure found in a clip, its features or a value for each column, by the labels under which it is kept.

    Raises:
        ValueError: It found more or less than its class declares.
    """
    names = labels(kind)
    if compares(kind):
        features = bytes(found)
        if len(features) != kind.feature_bytes:
            raise ValueError(f"it returned {units.plural(len(features), 'byte')}, and not {kind.feature_bytes}")
        return {names[0]: features}
    values = [float(value) for value in found]
    if len(values) != len(names):
        raise ValueError(f"it returned {units.plural(len(values), 'value')} for {units.plural(len(names), 'column')}")
    return {name: value if math.isfinite(value) else math.nan for name, value in zip(names, values, strict=True)}


def _with_weights(kind: type[Any], weights: Path, field: str) -> type[Any]:
    """Return the class of a measure with some weights, whose digest is part of its version."""
    if not weights.is_dir():
        raise UserError(
            "there is no such folder", code="folder-missing", field=field, value=str(weights), remedy="check the path"
        )
    version = (kind.version << 48) + _digest(weights.resolve())
    try:
        given = kind.columns_of(weights) if hasattr(kind, "columns_of") else kind.columns
        if not given or not all(isinstance(column, Column) for column in given):
            raise ValueError(f"`columns_of` gives no {_Declaration.model_fields['columns'].description}")
    except Exception as error:  # a file of weights may hold anything
        raise not_loaded(kind, weights, error, field) from error
    return type(kind.__name__, (kind,), {"version": version, "weights": weights, "columns": given})


def _digest(weights: Path) -> int:
    """Return the digest of a folder and of how pictures are made."""
    files = sorted((path, path.stat()) for path in weights.rglob("*") if path.is_file())
    parts = [f"{path.relative_to(weights).as_posix()} {_of_file(path, s.st_mtime_ns, s.st_size)}" for path, s in files]
    return int(digests.digest_bytes("\n".join([f"pictures {_PICTURES}", *parts]).encode())[:12], 16)


@lru_cache
def _of_file(path: Path, _changed_ns: int, _size_bytes: int) -> str:
    return digests.of_file(path)  # once in a process, as long as the file is the same


def not_loaded(kind: type[Any], weights: Path, error: Exception, field: str) -> UserError:
    """Return the error for weights that a measure cannot be made with."""
    first_line = str(error).strip().partition("\n")[0]
    return UserError(
        f"the weights of {kind.name} cannot be loaded ({first_line})",
        code="measure-weights-invalid",
        field=field,
        value=str(weights),
        remedy="name a folder of transformers with the network, its processor and its tokenizer",
    )


def all_named(given: Sequence[str], field: str) -> dict[str, type[Any]]:
    """Return the classes of several measures, each once, by an entry that names it in another process.

    Raises:
        UserError: One of them cannot be had, as `named` says, or two have the same column.
    """
    entries = {named(name, field): name for name in reversed(given)}  # the first of several that name the same
    found = {_entry(name, measure): measure for measure, name in reversed(entries.items())}
    by_column: dict[str, str] = {}
    for entry, measure in found.items():
        for column in measure.columns:
            if (other := by_column.setdefault(column.name, entry)) != entry:
                raise UserError(
                    f"{other} has the same column {column.name!r}",
                    code="measure-column-invalid",
                    field=field,
                    value=entry,
                    remedy="name one of the two",
                )
    return found


@lru_cache(maxsize=64)
def instance(entry: str) -> Measure:
    """Return the measure of an entry, made once in a process."""
    measure: Measure = named(entry, "measure")()
    return measure


def _entry(name: str, measure: type[Any]) -> str:
    if runs_network(measure):
        return f"{_split(name)[0]}{WITH_WEIGHTS}{measure.weights}"
    if ":" in name:
        return named_code.absolute(name)
    return name if measure.__module__.startswith("reelworks.") else f"{measure.__module__}:{measure.__qualname__}"


for _measure in (
    picture.Sharpness,
    picture.Exposure,
    picture.Noise,
    picture.Blockiness,
    picture.Colourfulness,
    picture.Borders,
    motion.Movement,
    motion.Cuts,
    duplicates.Duplicates,
    sound.SoundLevel,
):
    register(_measure)
