"""OneTrainer: presets and saved configs in JSON, with the concepts and samples in them or in files of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, final

from reelworks.annexes.imports import captions, datasets, tables, trainer, values
from reelworks.annexes.imports.captions import Beside, FormerCaption
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.files import ConfigError, ConfigFile, flatten
from reelworks.annexes.imports.onetrainer import adapter, concepts, keys, models, objective, parts
from reelworks.annexes.imports.rules import Fate, ImportedKey, Outcome
from reelworks.annexes.imports.trainer import FormerBuckets, FormerTrainer, convert_by_rules
from reelworks.core import user_files
from reelworks.core.errors import UserError

_RULES = tables.read("onetrainer", "keys", datasets, keys, parts, objective, adapter, concepts) | parts.of_parts()
_LISTS = {"concepts": "concept_file_name", "samples": "sample_definition_file_name"}
_PRESENT_NAMES: dict[str, str] = tables.table("onetrainer", "names")
_WITH_PRIOR = ("STABLE_CASCADE_1", "WUERSTCHEN_2")


@final
class _OneTrainer(FormerTrainer):
    name = "onetrainer"
    gives = "a preset or saved config (JSON), with its concepts.json if they are not in it"

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
        return FormerSettings(_migrated(found, is_preset=name.startswith("#") and name != "#.json"))

    def convert(self, draft: ImportDraft) -> Iterator[ImportedKey]:
        # Of two lines of a setting, the later one knows more.
        yield from trainer.settle(draft, {key.key: key for key in _convert(draft)}.values())

    def buckets(self, settings: FormerSettings, dataset: int) -> FormerBuckets | None:
        """Return the rules of its buckets, which are cut to whole batches (mgds/pipelineModules/AspectBatchSorting.py)."""
        try:
            batch = values.whole(settings.get("batch_size", 1))
            amount, is_samples = concepts.balancing_of(settings, _concept(settings, dataset))
        except (TypeError, ValueError):
            return None
        rules = FormerBuckets(whole_batches=batch * parts.processes(settings))
        return rules._replace(most_clips=int(amount)) if is_samples else rules._replace(share=min(amount, 1.0))

    def caption(self, settings: FormerSettings, beside: Beside) -> FormerCaption:
        """Return the captions of a picture: lines of its file or of the concept's, or its name, with their tags shuffled."""
        get = settings.below(f"concepts.{_concept(settings, beside.clip.dataset)}.text").get
        source, why = get("prompt_source", "sample"), ""
        if source == "filename":
            texts, why = [PurePosixPath(beside.clip.path).stem], "captions are the names of files"
        elif source == "concept":
            texts, why = _lines(beside.read(str(get("prompt_path", "")))), "captions are the lines of prompt_path"
        else:
            texts = _lines(beside.text(".txt"))
        if get("caps_randomize_enable") is True:
            why = "capitals of tags are drawn"
            texts = [text.lower() for text in texts] if get("caps_randomize_lowercase") is True else texts
        if get("enable_tag_shuffling") is not True:
            return captions.former(texts, why)
        delimiter, kept = str(get("tag_delimiter", ",")), values.whole(get("keep_tags_count", 1), 0)
        tags = [[tag for each in text.split(delimiter) if (tag := each.strip())] for text in texts]
        mixed = (captions.mixed(each[:kept], each[kept:], joint=f"{delimiter} ") for each in tags)
        return FormerCaption(frozenset(mixed), why)


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


def _concept(settings: FormerSettings, dataset: int) -> int:
    """Return the number of the concept that a dataset is; -1 for the placeholder of a config that trains none."""
    return next((concept for concept, number in concepts.numbers(settings).items() if number == dataset), -1)


def _lines(text: str | None) -> list[str]:
    return [line.strip() for line in (text or "").split("\n") if line.strip()] or [""]


def _migrated(given: dict[str, Any], *, is_preset: bool) -> dict[str, Any]:
    """Return settings, by dotted names, with those of older versions added by their present names.

    They are renamed as by `modules/util/config/TrainConfig.py`. A preset of the trainer's own is of its present version.
    """
    version = given.get("__version", 0)
    if is_preset or not isinstance(version, int) or isinstance(version, bool):
        return given
    found = given | {new: given[old] for old, new in _PRESENT_NAMES.items() if old in given and new not in given}
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
