"""diffusion-pipe: a main TOML with model, adapter and optimizer, and a dataset TOML with directories."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

from reelworks.annexes.imports import captions, datasets, optimizers, tables, trainer, values
from reelworks.annexes.imports.captions import Beside, FormerCaption
from reelworks.annexes.imports.diffusion_pipe import buckets, data, keys, models
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.files import ConfigError, ConfigFile, flatten, parse_arguments, plain
from reelworks.annexes.imports.rules import Fate, ImportedKey
from reelworks.annexes.imports.script import Command
from reelworks.annexes.imports.trainer import FormerBuckets, FormerTrainer, convert_by_rules
from reelworks.core import user_files
from reelworks.core.errors import UserError

_PLACEHOLDER = "data"
_RULES = tables.read("diffusion_pipe", "keys", optimizers, datasets, keys)


@final
class _DiffusionPipe(FormerTrainer):
    name = "diffusion-pipe"
    gives = "the main TOML, which names the dataset TOML; or both; or a script with `train.py --deepspeed --config`"

    def recognises(self, file: ConfigFile) -> bool:
        if file.path.suffix == ".toml":
            values = file.values or {}
            model, directories = values.get("model"), values.get("directory")
            is_main = isinstance(model, dict) and model.get("type") in models.TYPES
            return is_main or (isinstance(directories, list) and directories != [] and isinstance(directories[0], dict))
        return any(_is_command(command.words) for command in _commands(file))

    def read(self, files: Sequence[ConfigFile]) -> FormerSettings:
        found: dict[str, Any] = {}
        unread: dict[str, str] = {}
        main, dataset = {}, None
        for file in files:
            for command in _commands(file):
                if not _is_command(command.words):
                    continue
                command.require_followed(str(file.path))
                unread |= command.notes
                found |= _options(command.words)
                if isinstance(config := found.get("config"), str):
                    main = file.beside(config).values or {}
            if file.path.suffix == ".toml":
                given = file.values or {}
                dataset = given if "directory" in given else dataset
                main = given if "model" in given else main
                found |= flatten(given) if given and not given.keys() & {"directory", "model"} else {}
        if dataset is None and isinstance(named := main.get("dataset"), str):
            try:
                dataset = files[0].beside(named).values
            except UserError as error:
                if error.code != "file-unreadable":
                    raise
        if not isinstance(main.get("model"), dict):
            remedy = "give the main TOML too, as `train.py --config` takes it"
            raise ConfigError("there is no [model] in it", *(file.path for file in files), remedy=remedy)
        return FormerSettings(found | flatten(main) | (flatten(dataset) if dataset else {}), unread)

    def convert(self, draft: ImportDraft) -> Iterator[ImportedKey]:
        # Of two lines of a setting, the later one knows more.
        yield from trainer.settle(draft, {key.key: key for key in _convert(draft)}.values())

    def buckets(self, settings: FormerSettings, dataset: int) -> FormerBuckets | None:
        """Return the rules of its buckets, which are cut to whole batches, always without the same clips (utils/dataset.py)."""
        try:
            directory = data.directories(settings)[dataset]
            gpus, stages = (values.whole(settings.get(key, 1), 1, 10**6) for key in ("num_gpus", "pipeline_stages"))
            steps = max(gpus // stages, 1) * values.whole(settings.get("gradient_accumulation_steps", 1))
            batch = steps * data.batch_size(settings.get("micro_batch_size_per_gpu", 1), values.MOST)
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
            return None
        lengths = [frames for _, _, frames in directory.sizes] or directory.frames
        return FormerBuckets(whole_batches=batch, least_frames=min((each for each in lengths if each > 1), default=0))

    def caption(self, settings: FormerSettings, beside: Beside) -> FormerCaption | None:
        """Return the captions of a file: a prefix, and its text with its tags in a few orders (utils/dataset.py)."""

        def get(name: str, default: Any = None) -> Any:
            return data.of_directory(settings, beside.clip.dataset, name, default)

        prefix, delimiter = str(get("caption_prefix", "")), str(get("cache_shuffle_delimiter", ", "))
        shuffles = get("cache_shuffle_num", 0) or get("shuffle_tags", False)
        listed = beside.read(str(Path(beside.path).with_name("captions.json"))) if beside.path else None
        own = json.loads(listed).get(Path(beside.path).name) if listed is not None else None
        texts = own if isinstance(own, list) else [(beside.text(".txt") or "").strip()]
        why = "captions are those of captions.json" if isinstance(own, list) else ""
        if not shuffles:
            return captions.former([f"{prefix}{text}" for text in texts], why)
        joint = delimiter.strip() or delimiter
        parts = [captions.mixed([], text.split(delimiter), joint=f"{joint} ") for text in texts]
        found = (part._replace(text=captions.plain(prefix + part.text).text) for part in parts)
        return FormerCaption(frozenset(found), why or f"tags are split at {delimiter!r} and shuffled")


DIFFUSION_PIPE = _DiffusionPipe()


def _convert(draft: ImportDraft) -> Iterator[ImportedKey]:
    yield from convert_by_rules(draft, _RULES, _defaults(draft), keys.FIRST)
    draft.begin("directory")
    count = draft.settings.count("directory")
    if not count:
        placeholder = draft.set("dataset.0.path", _PLACEHOLDER, "to fill in")
        remark = f"the dataset TOML was not found: give it too, or --data DIR in place of the placeholder {placeholder}"
        yield ImportedKey("dataset", draft.settings.get("dataset"), Fate.TO_FILL_IN, remark)
    try:
        if remark := buckets.fill(draft, data.directories(draft.settings)):
            every = draft.settings.values
            for key in [key for key in every if key.rpartition(".")[2] in ("frame_buckets", "size_buckets")]:
                yield ImportedKey(key, draft.settings.get(key), Fate.NOT_POSSIBLE, remark)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
        buckets.clear(draft)
        draft.set("buckets.entries", "auto", "to fill in")
        remark = "sizes or repeats are not of the kind that the trainer takes: entries are proposed instead"
        yield ImportedKey("directory", None, Fate.TO_FILL_IN, remark)
    for number in range(count):
        yield from _finish(draft, number)


def _commands(file: ConfigFile) -> list[Command]:
    return file.commands if file.path.suffix in ("", ".sh", ".bat", ".txt", ".md") else []


def _is_command(words: Sequence[str]) -> bool:
    return (
        "--config" in words
        and any(word.endswith("train.py") for word in words)
        and any("deepspeed" in w for w in words)
    )


def _options(words: Sequence[str]) -> dict[str, Any]:
    """Return the options of the launcher, and of the script after it."""
    script = next(at for at, word in enumerate(words) if word.endswith("train.py"))
    options = parse_arguments(list(words[:script])) | parse_arguments(list(words[script + 1 :]))
    return {key: plain(value) for key, value in options.items()}


def _defaults(draft: ImportDraft) -> dict[str, Any]:
    adapter = keys.trains_adapter(draft)
    # The text encoders of SDXL are trained, whatever a config says.
    texts = dict.fromkeys(keys.RATES_OF_TEXTS, "optimizer.lr") if draft.settings.get("model.type") == "sdxl" else {}
    return texts | {key: value for key, value in keys.DEFAULTS.items() if adapter or not key.startswith("adapter.")}


def _finish(draft: ImportDraft, number: int) -> Iterator[ImportedKey]:
    """Give a dataset the limits of what is read there, and tell of a file that holds captions."""
    path = draft.get(f"dataset.{number}.path")
    if path is None:
        datasets.place(draft, number, path := _PLACEHOLDER)
        yield ImportedKey(f"directory.{number}.path", None, Fate.TO_FILL_IN, "the directory has no path")
    why = "files of subfolders are not read there"
    draft.set(f"dataset.{number}.filter", "not contains(path, '/') or contains(path, '.tar/')", why)
    if user_files.existing(Path(path) / "captions.json") is not None:
        yield ImportedKey(
            f"directory.{number}.path",
            path,
            Fate.NOT_POSSIBLE,
            "captions.json is not read: make a list (.jsonl) of it with columns path and text, and name it as path",
        )
