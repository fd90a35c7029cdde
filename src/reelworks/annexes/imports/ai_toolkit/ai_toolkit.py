"""ai-toolkit of Ostris: a job in YAML or JSON, whose first training process becomes a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from reelworks.annexes.imports import captions, datasets, tables, trainer
from reelworks.annexes.imports import files as config_files
from reelworks.annexes.imports.ai_toolkit import data_keys, model_keys, models, train_keys
from reelworks.annexes.imports.captions import Beside, FormerCaption
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.files import ConfigError, ConfigFile
from reelworks.annexes.imports.rules import ImportedKey
from reelworks.annexes.imports.trainer import FormerBuckets
from reelworks.core.errors import UserError

_TRAIN = ("sd_trainer", "diffusion_trainer", "ui_trainer", "fine_tune")
_TABLE = tables.table("ai_toolkit", "defaults")
_FIRST: list[str] = _TABLE["first"]
_RULES = tables.read("ai_toolkit", "keys", datasets, train_keys, model_keys, data_keys)
# A whole table may be null.
_RULES |= {name[:-2]: rule for name, rule in _RULES.items() if name.endswith(".*") and name[:-2] not in _RULES}


@final
class _AiToolkit(trainer.FormerTrainer):
    name = "ai-toolkit"
    gives = "a job in YAML or JSON, such as config/examples/train_lora_flux_24gb.yaml"

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
        converted = trainer.convert_by_rules(draft, _RULES, _defaults(draft.settings), _FIRST)
        yield from trainer.settle(draft, converted)

    def buckets(self, settings: FormerSettings, dataset: int) -> FormerBuckets:
        """Return the rules of its buckets, whose last batch is filled with clips of that batch (toolkit/buckets.py)."""
        return FormerBuckets(enlarges=False)

    def caption(self, settings: FormerSettings, beside: Beside) -> FormerCaption:
        """Return the caption of a clip, as `CaptionProcessingDTOMixin.get_caption` makes it (toolkit/dataloader_mixins.py)."""
        get = settings.below(f"datasets.{beside.clip.dataset}").get
        ending = str(get("caption_ext", get("caption_type", ".txt")))
        text = beside.text(f".{ending.lstrip('.')}") or ""
        tags = (text if text.strip() else get("default_caption") or "").split(",")
        trigger, is_reg = get("trigger_word") or settings.get("trigger_word") or "", get("is_reg") is True
        replaced = [tag.replace("[name]", trigger).replace("[trigger]", trigger) for tag in tags]
        whole = ", ".join(replaced)
        why = "[trigger] and [name] become the trigger word" if replaced != tags else ""
        if trigger.strip() and trigger not in whole and not is_reg:
            replaced[0] = f"{trigger} {replaced[0]}"
            why = why or "the trigger word is put before captions that lack it"
        if get("random_triggers"):
            return FormerCaption(
                frozenset([captions.plain(", ".join([*replaced, "…"]))]), "random_triggers are put behind"
            )
        if get("shuffle_tokens") is True:
            why = "all tags are shuffled, those of keep_tokens and the trigger word too"
            return FormerCaption(frozenset([captions.mixed([], [tag.strip() for tag in replaced])]), why)
        return captions.former([", ".join(replaced)], why)


AI_TOOLKIT = _AiToolkit()


def _other_network(settings: FormerSettings) -> str:
    """Return the table of what is trained in place of weights; "" if there is none."""
    given = {key.partition(".")[0] for key, value in settings.values.items() if value is not None}
    return next((name for name in ("embedding", "decorator", "adapter") if name in given), "")


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


def _defaults(settings: FormerSettings) -> dict[str, Any]:
    """Return the defaults that mean something for this config."""
    found = tables.defaults(_TABLE["all"])
    if model_keys.has_network(settings):
        replaced = {"network.linear": "network.rank", "network.linear_alpha": "network.alpha"}
        found |= {key: value for key, value in _TABLE["network"].items() if replaced.get(key) not in settings.values}
    if any(key.startswith(("sample.prompts", "sample.samples")) for key in settings.values):
        found |= _TABLE["previews"]
    for number in range(settings.count("datasets")):
        found |= {f"datasets.{number}.{key}": value for key, value in tables.defaults(_TABLE["dataset"]).items()}
    return found
