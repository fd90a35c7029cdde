"""Files of SimpleTuner: `config.json`, `.toml` or `.env`, the data backends and the LyCORIS config that it names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reelworks.annexes.imports import files as config_files
from reelworks.annexes.imports import tables
from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.files import ConfigError, ConfigFile
from reelworks.core import user_files

_OPTIONS = ("model_family", "data_backend_config", "model_type", "lora_rank", "train_batch_size")
_NAMES = tables.table("simpletuner", "names")
_LAUNCH = ("num_processes", "num_machines", "dynamo_backend")
_LYCORIS = "lycoris_config"
_TRAINED = ("image", "video")


def recognises(file: ConfigFile) -> bool:
    """Return whether a file has options of SimpleTuner, or is a list of its data backends."""
    suffix = file.path.suffix.lower()
    if suffix == ".env" or file.path.name == "config.env":
        return {"MODEL_FAMILY", "DATALOADER_CONFIG", "TRAINER_EXTRA_ARGS", "TRAINING_NUM_PROCESSES"} & _variables(
            file
        ).keys() != set()
    if suffix == ".json" and _backends(file) is not None:
        return True
    if suffix in (".json", ".toml"):
        values = _options(file)
        return "model_family" in values or ("data_backend_config" in values and "model_type" in values)
    return any(_option(word) in _OPTIONS[:2] for command in file.commands for word in command.words)


def read(given: Sequence[ConfigFile]) -> FormerSettings:
    """Read options, and the files that they name; of several files, each may be either kind."""
    options: dict[str, Any] = {}
    unread: dict[str, str] = {}
    backends: list[Any] | None = None
    for file in given:
        own = _backends(file) if file.path.suffix.lower() == ".json" else None
        if own is not None:
            backends = own
        else:
            options |= _read_options(file, unread)
    values: dict[str, Any] = config_files.flatten(_of_launch(given) | options)
    named = options.get("data_backend_config")
    if backends is None and isinstance(named, str) and (found := _named(given, named)) is not None:
        backends = _backends(found)
        if backends is None and found.values is None:  # which raises for what is no JSON
            unread["data_backend_config"] = f"{named} is no list of data backends"
    elif backends is None and isinstance(named, list):
        backends = named
    values |= dict(_entries(backends or []))
    if str(options.get("lora_type", "")).lower() == "lycoris":
        lycoris = options.get(_LYCORIS, "config/lycoris_config.json")
        if isinstance(lycoris, str) and (found := _named(given, lycoris)) is not None:
            lycoris = found.values
        values |= config_files.flatten(dict(lycoris), "lycoris") if isinstance(lycoris, Mapping) else {}
    return FormerSettings(values, unread)


def _of_launch(given: Sequence[ConfigFile]) -> dict[str, Any]:
    """Return the settings that the launch takes from a config.env, beside a config that has all others."""
    beside = {file.path.with_name("config.env") for file in given if file.path.name in ("config.json", "config.toml")}
    files = [ConfigFile(path) for path in beside - {file.path for file in given} if path.is_file()]
    found = {key: value for file in files for key, value in _of_variables(_variables(file)).items()}
    return {key: found[key] for key in _LAUNCH if key in found}


def _read_options(file: ConfigFile, unread: dict[str, str]) -> dict[str, Any]:
    suffix = file.path.suffix.lower()
    if suffix == ".env":
        unread |= file.script.unread_variables()
        return _of_variables(_variables(file))
    if suffix in (".json", ".toml"):
        options = _options(file)
        if not options:
            remedy = "give config.json, config.toml or config.env, and the list of data backends"
            raise ConfigError("no options of SimpleTuner are in it", file.path, remedy=remedy)
        return options
    options = {}
    for command in file.commands:
        if any(word.startswith("--") for word in command.words):
            command.require_followed(str(file.path))
            unread |= command.notes
            options |= config_files.parse_arguments(command.words)
    return _normal({name: config_files.plain(value) for name, value in options.items()})


def _options(file: ConfigFile) -> dict[str, Any]:
    values = file.values or {}
    inner = values.get("config")
    if isinstance(inner, Mapping) and "_metadata" in values:  # as its page stores configs
        values = dict(inner)
    return _normal(values)


def _normal(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by their own names, with texts that are numbers or switches as such."""
    return {_option(str(name)): config_files.plain(value) for name, value in values.items()}


def _option(name: str) -> str:
    own = name.lstrip("-").partition("=")[0].replace("-", "_")
    return str(_NAMES["aliases"].get(own, own))


def _variables(file: ConfigFile) -> dict[str, str]:
    return {name: value for name, value in file.script.variables.items() if isinstance(value, str)}


def _of_variables(variables: Mapping[str, str]) -> dict[str, Any]:
    extra = variables.get("TRAINER_EXTRA_ARGS", "")
    options: dict[str, Any] = {}
    for name, value in variables.items():
        if name != "TRAINER_EXTRA_ARGS" and value != "":
            options[_NAMES["variables"].get(name, name.lower())] = value
    try:
        words = [word for word in shlex.split(extra) if not word.startswith("$")]
    except ValueError:
        words = extra.split()
    found = _normal(options | config_files.parse_arguments(words))
    if "model_family" not in found and "pretrained_model_name_or_path" in found:
        switches = [family for name, family in _NAMES["families"].items() if found.pop(name, False) is True]
        found["model_family"] = switches[0] if switches else "sdxl"  # which was trained without any of these switches
    return found


def _backends(file: ConfigFile) -> list[Any] | None:
    """Return the entries of a list of data backends; None for another file."""
    try:
        values = user_files.parse_json(file.text)
    except (ValueError, RecursionError):
        return None
    is_list = isinstance(values, list) and any(isinstance(each, Mapping) and "id" in each for each in values)
    return values if is_list else None


def _entries(backends: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of each backend: of those that are trained by their numbers, of others by what they hold."""
    counts: dict[str, int] = {}
    for entry in backends:
        if not isinstance(entry, Mapping):
            continue
        kind = entry.get("dataset_type", "image")
        off = entry.get("disabled", entry.get("disable", False)) is True
        place = "disabled" if off else "data" if kind in _TRAINED else str(kind)
        number = counts.get(place, 0)
        counts[place] = number + 1
        yield from config_files.flatten(dict(entry), f"{place}.{number}").items()


def _named(given: Sequence[ConfigFile], name: str) -> ConfigFile | None:
    """Return the file of a path in a config, which may begin at the folder of SimpleTuner; None if it is not found."""
    parts = re.split(r"[/\\]", name)
    for file in given:
        folder = file.path.resolve().parent
        ends = ["/".join(parts[start:]) for start in range(len(parts))]
        for named in [name, *(f"{up}/{end}" for up in (folder, *folder.parents[:3]) for end in ends)]:
            if (path := user_files.existing(named)) is not None and path.is_file():
                return ConfigFile(path)
    return None
