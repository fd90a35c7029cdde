"""SimpleTuner of bghira: options in JSON, TOML, a `.env` file or a command, and data backends, become one recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

from reelworks.annexes.imports import settle, trainer
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.files import ConfigError, ConfigFile
from reelworks.annexes.imports.rules import ImportedKey
from reelworks.annexes.imports.simpletuner import clips, files, keys, models
from reelworks.core.errors import UserError


@final
class _SimpleTuner(trainer.FormerTrainer):
    name = "simpletuner"
    gives = "config.json, config.toml or config.env, with the multidatabackend.json that it names"
    buckets = staticmethod(clips.buckets)
    caption = staticmethod(clips.caption)
    recognises = staticmethod(files.recognises)

    def read(self, given: Sequence[ConfigFile]) -> FormerSettings:
        settings = files.read(given)
        if not isinstance(settings.get("model_family"), str):
            raise ConfigError(
                "there is no model_family, without which no model is known",
                *(file.path for file in given),
                remedy="add it to the config, such as model_family = flux, or MODEL_FAMILY=flux in a config.env",
            )
        if settings.get("controlnet") is True and settings.get("model_type") != "lora":
            raise UserError(
                "ControlNets are not trained here",
                code="config-unreadable",
                field="controlnet",
                value=True,
                remedy="train a LoRA of a model that takes a control (flux-control, VACE), with dataset.control",
            )
        return settings

    def convert(self, draft: ImportDraft) -> Iterator[ImportedKey]:
        models.choose(draft)
        trainer.prepare(draft, "SimpleTuner", "data", "1024px")
        if draft.is_flow:  # timesteps have a density, which no setting says
            shift = models.shift_of(draft.settings, None) or models.DEFAULT_SHIFT
            draft.set("objective.timestep_shift", shift, "default of flow_schedule_shift")
            draft.set("objective.timestep_sampling", "logit-normal", "default of SimpleTuner")
        converted = trainer.convert_by_rules(draft, keys.RULES, keys.defaults(draft.settings), keys.FIRST)
        yield from settle.settle(draft, converted)


SIMPLETUNER = _SimpleTuner()
