"""ai-toolkit of Ostris: a job in YAML or JSON, whose first training process becomes a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from reelworks.annexes.imports import files as config_files
from reelworks.annexes.imports import settle, trainer
from reelworks.annexes.imports.ai_toolkit import clips, keys, model_keys, models
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.files import ConfigError, ConfigFile
from reelworks.annexes.imports.rules import ImportedKey
from reelworks.core.errors import UserError

_TRAIN = ("sd_trainer", "diffusion_trainer", "ui_trainer", "fine_tune")


@final
class _AiToolkit(trainer.FormerTrainer):
    name = "ai-toolkit"
    gives = "a job in YAML or JSON, such as config/examples/train_lora_flux_24gb.yaml"
    buckets = staticmethod(clips.buckets)
    caption = staticmethod(clips.caption)

    def recognises(self, file: ConfigFile) -> bool:
        if file.path.suffix.lower() not in (".yaml", ".yml", ".json"):
            return False
        values = file.values
        inner = values.get("config") if values is not None and "job" in values else None
        return isinstance(inner, Mapping) and "process" in inner

    def read(self, files: Sequence[ConfigFile]) -> FormerSettings:
        values = files[0].values or {}
        inner = values.get("config")
        config: Mapping[str, Any] = inner if isinstance(inner, Mapping) else {}
        processes = config.get("process")
        processes = [each for each in processes if isinstance(each, Mapping)] if isinstance(processes, list) else []
        if not processes:
            problem = "there is no config.process with a training process in it"
            remedy = "give a job of ai-toolkit that trains, such as those in config/examples"
            raise ConfigError(problem, files[0].path, remedy=remedy)
        first = next((n for n, each in enumerate(processes) if each.get("type") in _TRAIN), None)
        if first is None:
            raise UserError(
                "processes of this type train neither a LoRA nor a model",
                code="config-unreadable",
                field="config.process.type",
                value=processes[0].get("type"),
                remedy=f"give a job with a process of type {', '.join(_TRAIN)}",
            )
        settings = FormerSettings(dict(_settings(values, config, processes, first)))
        if not model_keys.has_network(settings) and (other := _other_network(settings)):
            raise UserError(
                "the job trains neither a LoRA nor all weights",
                code="config-unreadable",
                field=other,
                remedy="give it a network, as in network: {type: lora, linear: 16}",
            )
        return settings

    def convert(self, draft: ImportDraft) -> Iterator[ImportedKey]:
        models.choose(draft)
        trainer.prepare(draft, "ai-toolkit", "datasets", "512px")
        converted = trainer.convert_by_rules(draft, keys.RULES, keys.defaults(draft.settings), keys.FIRST)
        yield from settle.settle(draft, converted)


AI_TOOLKIT = _AiToolkit()


def _other_network(settings: FormerSettings) -> str:
    """Return the table of what is trained in place of weights; "" if there is none."""
    tables = {key.partition(".")[0] for key, value in settings.values.items() if value is not None}
    return next((name for name in ("embedding", "decorator", "adapter") if name in tables), "")


def _settings(
    values: Mapping[str, Any], config: Mapping[str, Any], processes: Sequence[Mapping[str, Any]], first: int
) -> Iterator[tuple[str, Any]]:
    """Yield the settings of the process that trains by their names within it, and those around it."""
    for name, value in values.items():
        if name != "config":
            yield from config_files.flatten(value, str(name)).items()
    for name, value in config.items():
        if name != "process":
            yield from config_files.flatten(value, f"config.{name}").items()
    yield from config_files.flatten(processes[first]).items()
    for number, process in enumerate(processes):
        if number != first:
            yield f"process.{number}", str(process.get("type"))
