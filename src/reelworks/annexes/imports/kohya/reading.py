"""Read what both trainers are given: a command line, its config_file, and a dataset config."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reelworks.annexes.imports import files
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.files import ConfigError, ConfigFile
from reelworks.core import user_files
from reelworks.core.errors import UserError

SCRIPT = "script"  # name of the setting that is the started script
_SECRET = re.compile(r"(?:token|api_key|password)$")
_LISTS_OF_PAIRS = ("network_args", "optimizer_args", "lr_scheduler_args")
_MODULE = ("-m", "--module")  # what follows is the name of a module
FILES = (".toml", ".json")
SCRIPTS = (".sh", ".bat", ".cmd", ".ps1", ".txt", "")


def is_dataset_config(values: Mapping[str, Any] | None) -> bool:
    """Whether a file's values are those of a dataset config."""
    return values is not None and isinstance(values.get("datasets"), list)


def arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments in a config_file, in which sections have no meaning."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= files.flatten(value) if isinstance(value, Mapping) else {str(name): value}
    return flat


def names(values: Mapping[str, Any]) -> set[str]:
    """Return the names of arguments in a file, in sections or not."""
    inner = (value for value in values.values() if isinstance(value, Mapping))
    return {*map(str, values), *(str(name) for value in inner for name in value)}


def starts_training(file: ConfigFile, is_training: Callable[[str], bool]) -> bool:
    """Whether a script starts a training, by the names of the programs in its commands."""
    commands = file.commands if file.path.suffix.lower() in SCRIPTS else []
    started = [
        name
        for each in commands
        for name, word in zip(_programs(each.words), each.words, strict=True)
        if word.endswith(".py") or name != word
    ]
    return any(map(is_training, started))


def _programs(words: Sequence[str]) -> list[str]:
    """Return the names of the programs that words can be: of scripts without folders, and of modules without packages."""
    is_module = [before in _MODULE for before in ("", *words)]
    return [
        word.rpartition(".")[2] if named else re.split(r"[/\\]", word)[-1].removesuffix(".py")
        for word, named in zip(words, is_module, strict=False)
    ]


def read(
    given: Sequence[ConfigFile],
    is_training: Callable[[str], bool],
    translate: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> FormerSettings:
    """Read the files of one run; the arguments of a command replace those of a config_file.

    Settings have the names of arguments, and those of a dataset config "general." or "datasets.0." before them.
    `is_training` tells whether a script trains, by its name; `translate` turns another program's config of the same
    trainer into arguments.
    """
    dataset: ConfigFile | None = None
    config: dict[str, Any] = {}
    command: dict[str, Any] = {}
    unread: dict[str, str] = {}
    for file in given:
        if file.path.is_dir():
            config["train_data_dir"] = str(file.path)
        elif file.path.suffix.lower() not in FILES:
            command |= _command(file, is_training, unread)
        elif is_dataset_config(file.values):
            dataset = file
        else:
            config |= translate(arguments(_table(file)))
    origin = given[0]
    if (name := command.pop("config_file", None)) is not None:
        name = f"{name}" if str(name).endswith(".toml") else f"{name}.toml"
        config = arguments(_table(_named(given, name) or origin.beside(name))) | config
    values = config | command
    name = values.get("dataset_config")
    if dataset is None and isinstance(name, str):
        dataset = _named(given, name) or _found(origin, name)
    values = dict(_spread(values))
    if dataset is not None:
        values |= files.flatten(_table(dataset))
    values |= {key: "(hidden)" for key, value in values.items() if _SECRET.search(key) and value}
    return FormerSettings(values, unread)


def _table(file: ConfigFile) -> dict[str, Any]:
    if file.values is None:
        raise ConfigError("this is no table of settings", file.path, remedy="give a config of the trainer")
    return file.values


def _named(given: Sequence[ConfigFile], name: str) -> ConfigFile | None:
    last = re.split(r"[/\\]", name)[-1]
    return next((file for file in given if file.path.name == last), None)


def _found(origin: ConfigFile, name: str) -> ConfigFile | None:
    try:
        file = origin.beside(name)
    except (UserError, ValueError, OSError):
        return None
    return file if file.path.suffix.lower() in FILES else None


def _command(file: ConfigFile, is_training: Callable[[str], bool], unread: dict[str, str]) -> dict[str, Any]:
    """Return the options of the first command that trains, those of its launcher, and those of other scripts by their name.

    What is not known of them is added to `unread`.
    """
    found: dict[str, Any] = {}
    for each in file.commands:
        words = [word for word in each.words if word != "..."]  # as pages of documentation shorten them
        names = _programs(words)
        at = next((i for i, name in enumerate(names) if is_training(name)), None)
        if at is not None and SCRIPT not in found:
            each.require_followed(str(file.path))
            unread |= each.notes
            before = [word for word in words[:at] if word not in _MODULE]
            launcher = {f"accelerate.{key}": value for key, value in files.parse_arguments(before).items()}
            options = {key: _plain(value) for key, value in files.parse_arguments(words[at + 1 :]).items()}
            found |= {SCRIPT: f"{names[at]}.py", **{k: _plain(v) for k, v in launcher.items()}, **options}
        elif at is not None:
            found[f"another run.{len(found)}"] = " ".join(words[at:])
        elif (other := next((i for i, word in enumerate(words) if word.endswith(".py")), None)) is not None:
            options = files.parse_arguments(words[other + 1 :])
            found |= {f"preparation.{names[other]}.{key}": _plain(value) for key, value in options.items()}
    return found


def _plain(value: Any) -> Any:
    return [files.plain(each) for each in value] if isinstance(value, list) else files.plain(value)


def _spread(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield settings, with lists of `key=value` as settings of their own: "network_args.conv_dim"."""
    for name, value in values.items():
        if name not in _LISTS_OF_PAIRS or value in (None, "", [], True):
            yield name, value
            continue
        pairs = value if isinstance(value, list) else re.findall(r"\w+=(?:\([^)]*\)|\[[^\]]*\]|\S+)", str(value))
        for number, pair in enumerate(pairs or [value]):
            key, equals, text = str(pair).partition("=")
            yield (f"{name}.{key.strip()}", files.plain(text.strip())) if equals else (f"{name}.{number}", pair)


def has_arguments(settings: FormerSettings) -> bool:
    """Whether more is told than the dataset: the arguments of the training."""
    return any(not key.startswith(("general.", "datasets.", "train_data_dir")) for key in settings.values)


def existing_folder(path: str) -> Path | None:
    """Return a folder that a setting names, if it is there."""
    folder = user_files.existing(path)
    return folder if folder is not None and folder.is_dir() else None


def not_told(draft: ImportDraft, example: str) -> UserError:
    """Return the error for files that do not say which model is trained; `example` is one that the trainer has."""
    return UserError(
        "the config does not tell which model it trains: the started script does",
        code="model-not-told",
        field="FILE",
        value=str(draft.request.files[0]) if draft.request.files else None,
        remedy=f"give --command with the command line, or --model, such as --model {example}",
    )


def not_here(model: str, key: str, value: object) -> UserError:
    """Return the error for a model that the trainers have and that is not here, as a setting tells it."""
    return UserError(
        f"{model} cannot be trained here",
        code="unknown-model",
        field=key,
        value=value,
        remedy="choose a model of docs/reference/models.md, and give it with --model to take the other settings",
    )


def values_of(file: ConfigFile) -> dict[str, Any] | None:
    """Return the values of a config or dataset config, of a broken one none; None for other files, such as scripts."""
    try:
        return file.values if file.path.suffix.lower() in FILES else None
    except UserError:
        return {}
