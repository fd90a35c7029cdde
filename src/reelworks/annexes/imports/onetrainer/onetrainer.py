"""OneTrainer: presets and saved configs in JSON, with the concepts and samples in them or in files of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

from reelworks.annexes.imports import datasets, settle, tables
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.files import ConfigError, ConfigFile, flatten
from reelworks.annexes.imports.onetrainer import (
    adapter,
    clips,
    concepts,
    keys,
    migrations,
    models,
    objective,
    parts,
    rates,
)
from reelworks.annexes.imports.rules import Fate, ImportedKey, Outcome
from reelworks.annexes.imports.trainer import FormerTrainer, convert_by_rules
from reelworks.core import user_files
from reelworks.core.errors import UserError

_RULES = (
    tables.read("onetrainer", "keys", datasets, keys, parts, objective, adapter, rates, concepts) | parts.of_parts()
)
_LISTS = {"concepts": "concept_file_name", "samples": "sample_definition_file_name"}


@final
class _OneTrainer(FormerTrainer):
    name = "onetrainer"
    gives = "a preset or saved config (JSON), with its concepts.json if they are not in it"
    buckets = staticmethod(clips.buckets)
    caption = staticmethod(clips.caption)

    def recognises(self, file: ConfigFile) -> bool:
        if file.path.suffix.lower() != ".json":
            return False
        found = file.values
        if found is not None:
            kind = found.get("model_type")
            return isinstance(kind, str) and (kind in models.MODELS or kind in models.OTHERS)
        return _kind_of_list(_list(file)) == "concepts"

    def read(self, files: Sequence[ConfigFile]) -> FormerSettings:
        main: dict[str, Any] = {}
        name = ""
        lists: dict[str, list[Any]] = {}
        for file in files:
            if file.values is not None:
                main, name = file.values, file.path.name
            elif kind := _kind_of_list(_list(file)):
                lists[kind] = _list(file)
        if not main:
            remedy = "give the preset or saved config too, which is a JSON object"
            raise ConfigError("there is no config with model_type in it", *(file.path for file in files), remedy=remedy)
        for kind, key in _LISTS.items():
            if kind not in lists and not main.get(kind) and isinstance(path := main.get(key, ""), str):
                lists[kind] = _beside(files[0], path or f"training_{kind}/{kind}.json")
        found = {key: value for key, value in main.items() if not lists.get(key)}
        listed = {kind: each for kind, each in lists.items() if each}
        found = flatten(found) | (flatten(listed) if listed else {})
        return FormerSettings(migrations.migrated(found, is_preset=name.startswith("#") and name != "#.json"))

    def convert(self, draft: ImportDraft) -> Iterator[ImportedKey]:
        # Of two lines of a setting, the later one knows more.
        yield from settle.settle(draft, {key.key: key for key in _convert(draft)}.values())


ONETRAINER = _OneTrainer()


def _convert(draft: ImportDraft) -> Iterator[ImportedKey]:
    # Version 0 has the settings of the optimizer among the others.
    given = draft.settings.values
    old = dict.fromkeys((key for key in given if key.startswith("optimizer_")), _old_of_optimizer)
    yield from convert_by_rules(
        draft, old | _RULES, keys.defaults(draft) | concepts.defaults(draft.settings), keys.FIRST
    )
    yield from concepts.finish(draft)
    try:
        concepts.fill_buckets(draft)
    except (TypeError, ValueError, AttributeError):
        draft.set("buckets.entries", "auto", "to fill in")
        remark = "it is not of the kind that the trainer takes: entries are proposed instead"
        yield ImportedKey("resolution", draft.settings.get("resolution"), Fate.TO_FILL_IN, remark)
    draft.begin("")


def _old_of_optimizer(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, f"together with optimizer.{draft.key[10:]}"


def _list(file: ConfigFile) -> list[Any]:
    """Return a file's list of tables; an empty one if it has something else at its top."""
    try:
        found = user_files.parse_json(file.text)
    except ValueError:
        return []
    return found if isinstance(found, list) and all(isinstance(each, dict) for each in found) else []


def _kind_of_list(found: Sequence[dict[str, Any]]) -> str:
    if any("path" in each and ("image" in each or "text" in each or "balancing" in each) for each in found):
        return "concepts"
    return "samples" if any("prompt" in each for each in found) else ""


def _beside(file: ConfigFile, path: str) -> list[Any]:
    try:
        found = file.beside(path)
    except UserError:
        return []
    return [found.values] if found.values is not None else _list(found)  # the values refuse what is no JSON
