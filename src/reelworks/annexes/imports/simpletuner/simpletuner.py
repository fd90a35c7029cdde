"""SimpleTuner of bghira: options in JSON, TOML, a `.env` file or a command, and data backends, become one recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

from reelworks.annexes.imports import captions, tables, trainer
from reelworks.annexes.imports.captions import Beside, FormerCaption
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.files import ConfigError, ConfigFile
from reelworks.annexes.imports.rules import ImportedKey
from reelworks.annexes.imports.simpletuner import data_keys, files, lora_keys, models, train_keys
from reelworks.annexes.imports.trainer import FormerBuckets
from reelworks.core.errors import UserError

_TABLE = tables.table("simpletuner", "defaults")
_FIRST: list[str] = _TABLE["first"]
_RULES = tables.read("simpletuner", "keys", lora_keys, train_keys, data_keys)
# A whole table may be null.
_RULES |= {name[:-2]: rule for name, rule in _RULES.items() if name.endswith(".*") and name[:-2] not in _RULES}


@final
class _SimpleTuner(trainer.FormerTrainer):
    name = "simpletuner"
    gives = "config.json, config.toml or config.env, with the multidatabackend.json that it names"
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
        converted = trainer.convert_by_rules(draft, _RULES, _defaults(draft.settings), _FIRST)
        yield from trainer.settle(draft, converted)

    def buckets(self, settings: FormerSettings, dataset: int) -> FormerBuckets:
        """Return the rules of its buckets, whose last batch is filled with clips drawn anew (helpers/multiaspect/sampler.py)."""
        least, pixels, frames = data_keys.option(settings, dataset, "minimum_image_size"), 0, 0
        if data_keys.is_given(least):
            is_side = data_keys.option(settings, dataset, "resolution_type", "pixel_area") == "pixel"
            pixels = int(least * least if is_side else data_keys.megapixels(settings, dataset, least) * 1e6)
        if data_keys.is_video(settings, dataset):
            wanted = _whole(settings.get(f"data.{dataset}.video.num_frames"), data_keys.FRAMES)
            frames = models.frames_there(settings, _whole(settings.get(f"data.{dataset}.video.min_frames"), wanted))
        return FormerBuckets(least_pixels=pixels, least_frames=frames)

    def caption(self, settings: FormerSettings, beside: Beside) -> FormerCaption | None:
        """Return the captions of a clip, as `PromptHandler.magic_prompt` makes them (helpers/prompts.py)."""
        number = beside.clip.dataset
        strategy = data_keys.option(settings, number, "caption_strategy", "filename")
        prompt = data_keys.option(settings, number, "instance_prompt")
        if data_keys.option(settings, number, "only_instance_prompt") is True or strategy == "instanceprompt":
            texts = [str(each).strip() for each in (prompt if isinstance(prompt, list) else [prompt or ""])]
            return captions.former(texts, "one of several instance prompts is drawn" if len(texts) > 1 else "")
        if strategy == "filename":
            name = beside.clip.path.rpartition("/")[2].rpartition(".")[0]
            texts, why = [name.replace("_", " ")], "captions are file names"
        elif strategy == "textfile":
            text, why = beside.text(".txt"), ""
            if text is None:
                return captions.stops("a clip without a text file stops the trainer")
            whole = data_keys.option(settings, number, "disable_multiline_split") is True
            texts = [text] if whole else [line for line in text.split("\n") if line] or [""]
        else:
            return None
        if settings.get(f"data.{number}.caption_filter_list"):
            why = "words of caption_filter_list are taken out"
            return FormerCaption(frozenset(captions.plain(f"{text} …") for text in texts), why)
        before = (
            f"{prompt} " if data_keys.option(settings, number, "prepend_instance_prompt") is True and prompt else ""
        )
        if settings.get(f"data.{number}.caption_shuffle.enable") is not True:
            return captions.former([before + text for text in texts], why)
        return FormerCaption(frozenset(_shuffled(settings, number, before, text) for text in texts), why)


SIMPLETUNER = _SimpleTuner()


def _shuffled(settings: FormerSettings, number: int, before: str, text: str) -> captions.Caption:
    get = settings.below(f"data.{number}.caption_shuffle").get
    mark = {"space": " ", "period": "."}.get(str(get("split_on", "comma")), ",")
    tags = [tag.strip() for tag in text.split(mark) if tag.strip()]
    kept = _whole(get("position_start"), 0)
    if len(tags) - kept < 2:
        return captions.plain(before + text)
    found = captions.mixed(tags[:kept], tags[kept:], joint=" " if mark == " " else f"{mark} ")
    return found._replace(text=captions.plain(before + found.text).text)


def _whole(value: Any, otherwise: int) -> int:
    """Return a number of at least 1; another one for what a stranger wrote in its place."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 10**6 else otherwise


def _defaults(settings: FormerSettings) -> dict[str, Any]:
    """Return the defaults that mean something for this config."""
    found = tables.defaults(_TABLE["all"])
    if settings.get("model_type") == "lora":
        found |= _TABLE["lora"]
    if settings.get("validation_prompt"):
        found |= _TABLE["previews"]
    if not settings.get("max_train_steps"):
        found["num_train_epochs"] = 1
    if models.family(settings).startswith("ltx"):
        found["ltx_i2v_prob"] = 0.1
    if not settings.count("data"):
        found["data_backend_config"] = None
    for number in range(settings.count("data")):
        found |= {f"data.{number}.{key}": value for key, value in tables.defaults(_TABLE["dataset"]).items()}
        if data_keys.is_video(settings, number):
            found[f"data.{number}.video.num_frames"] = data_keys.FRAMES
    return found
