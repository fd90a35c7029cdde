"""kohya's sd-scripts, and the pages around it that write its settings: SDXL, SD3, FLUX.1 and Chroma."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, final

from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.files import ConfigFile
from reelworks.annexes.imports.kohya import adapters, levels, reading, sizes, training
from reelworks.annexes.imports.kohya import datasets as dataset_rules
from reelworks.annexes.imports.kohya.levels import FormerDataset, OutcomesByKey
from reelworks.annexes.imports.kohya.sizes import Sizing
from reelworks.annexes.imports.rules import Fate, ImportedKey
from reelworks.annexes.imports.sd_scripts import clips as former_clips
from reelworks.annexes.imports.sd_scripts import gui, keys, models
from reelworks.annexes.imports.sd_scripts.folders import repeated_folders, repeats_of, usable
from reelworks.annexes.imports.trainer import FormerTrainer, choose_model
from reelworks.annexes.imports.values import is_on
from reelworks.models import registry


@final
class _SdScripts(FormerTrainer):
    name = "sd-scripts"
    gives = "a dataset config with subsets, a config_file, a script that starts sdxl_train_network.py or others, or a folder of folders named 10_word"
    buckets = staticmethod(former_clips.buckets)
    caption = staticmethod(former_clips.caption)

    def recognises(self, file: ConfigFile) -> bool:
        if file.path.is_dir():
            return bool(repeated_folders(file.path))
        if (values := reading.values_of(file)) is not None:
            if reading.is_dataset_config(values):
                return any(isinstance(each, dict) and "subsets" in each for each in values["datasets"])
            known = reading.names(values)
            return "pretrained_model_name_or_path" in known and (
                "dataset_config" in known or "train_data_dir" in known or "output_name" in known
            )
        return reading.starts_training(file, models.is_training)

    def read(self, files: Sequence[ConfigFile]) -> FormerSettings:
        return reading.read(files, models.is_training, gui.translate)

    def convert(self, draft: ImportDraft) -> Iterator[ImportedKey]:
        outcomes = OutcomesByKey()
        draft.begin("script")
        preset, key = models.find(draft)
        _choose(draft, preset, key, outcomes)
        _take_data(draft)
        datasets, left_out = usable(draft.settings)
        side = registry.release_of(draft.get("model.name")).side
        sizings = [sizes.of_dataset(draft, each, (side, side), are_videos=False) for each in datasets]
        levels.convert(draft, datasets, keys.DATASETS, keys.DATASET_DEFAULTS, outcomes)
        for key in draft.settings.values:
            if (place := next((each for each in left_out if each and key.startswith(each)), None)) is not None:
                outcomes.add(key, left_out[place])
        for number, each in enumerate(datasets):
            _fix_tags(draft, number, each, outcomes)
        for number in range(min(len(datasets), len(draft.request.data))):
            draft.remove(f"dataset.{number}.root")
        draft.begin("")
        sizes.write(draft, sizings)
        sizes.tell(draft, datasets, sizings, outcomes)
        _tell_longest_sides(draft, datasets, sizings, outcomes)
        _regularise(draft, datasets)
        dataset_rules.finish(draft, len(datasets))
        is_adapter = adapters.trains_adapter(draft, models.script_of(draft) if draft.settings.get("script") else "")
        if is_adapter:
            own = keys.of_family(draft)
            outcomes.add("network_module", adapters.begin(draft, own.targets, own.why))
        names = {*keys.DATASETS, *sizes.SETTINGS, *keys.ALSO.values()}
        rules = {**keys.RULES, **outcomes.rules(names, draft.settings)}
        yield from training.convert(draft, rules, _defaults(draft, is_adapter=is_adapter))


SD_SCRIPTS = _SdScripts()


def _choose(draft: ImportDraft, preset: str, key: str, outcomes: OutcomesByKey) -> None:
    weights = draft.settings.get("pretrained_model_name_or_path")
    usable_weights = isinstance(weights, str) and weights and not weights.startswith("<")
    draft.begin("pretrained_model_name_or_path")
    same = isinstance(weights, str) and registry.find(weights) == preset
    remark = choose_model(draft, preset, str(weights) if usable_weights and not same else None)
    outcomes.add("pretrained_model_name_or_path", (Fate.TAKEN, remark))
    if key != "pretrained_model_name_or_path":
        draft.begin(key)
        draft.set("model.name", preset)
        outcomes.add(key, (Fate.TAKEN, f'model.name = "{preset}"'))
    if draft.settings.get("script") and key != "script":
        outcomes.add("script", (Fate.NO_MEANING, "--model decides"))


def _take_data(draft: ImportDraft) -> None:
    """Look for folders with repeats in the folder of `--data`, in place of `train_data_dir`."""
    if draft.request.data and not draft.settings.count("datasets"):
        folder = draft.request.data[0]
        draft.settings.values["train_data_dir"] = str(folder)
        draft.took_data = bool(repeated_folders(folder))


def _tell_longest_sides(
    draft: ImportDraft, datasets: Sequence[FormerDataset], sizings: Sequence[Sizing], outcomes: OutcomesByKey
) -> None:
    """Tell where sides are limited there, so that pictures of other shapes have fewer pixels than squares."""
    for dataset, sizing in zip(datasets, sizings, strict=True):
        longest = dataset.get(draft.settings, "max_bucket_reso", 1024)
        found = dataset.find(draft.settings, "max_bucket_reso") or dataset.find(draft.settings, "enable_bucket")
        if (
            found
            and sizing.bucketed
            and not sizing.no_upscale
            and longest < math.sqrt(2 * sizing.width * sizing.height)
        ):
            remark = f"pictures that are no squares are larger here: sides are at most {longest} there, max_bucket_reso"
            outcomes.add(found.key, (Fate.NOT_POSSIBLE, remark))


def _fix_tags(draft: ImportDraft, number: int, dataset: FormerDataset, outcomes: OutcomesByKey) -> None:
    """Count the tags that stay in place without those of the prefix, which is joined to the caption before, there."""
    if not draft.get(f"dataset.{number}.shuffle_tags") and not draft.get(f"dataset.{number}.tag_dropout"):
        return
    separator = draft.get(f"dataset.{number}.tag_separator", ",")
    kept = draft.get(f"dataset.{number}.keep_tags", 0)
    if prefix := dataset.find(draft.settings, "caption_prefix"):
        *tags, rest = str(prefix.value).split(separator)
        if kept < len(tags) + bool(rest.strip()):
            remark = "there, its tags are shuffled or dropped with the others; here, it stays in place: dataset.caption"
            outcomes.add(prefix.key, (Fate.NOT_POSSIBLE, remark))
        if tags and (keep := dataset.find(draft.settings, "keep_tokens")):
            draft.begin(keep.key)
            remark = draft.set(f"dataset.{number}.keep_tags", max(kept - len(tags), 0))
            outcomes.add(keep.key, (Fate.TAKEN, f"{remark}, without those of caption_prefix"))
    if suffix := dataset.find(draft.settings, "caption_suffix"):
        remark = "there, its tags are shuffled or dropped with the others; here, it stays behind them: dataset.caption"
        outcomes.add(suffix.key, (Fate.NOT_POSSIBLE, remark))


def _regularise(draft: ImportDraft, datasets: Sequence[FormerDataset]) -> None:
    """Repeat regularisation pictures as often in all as the others, where both can be counted."""
    counted = former_clips.count_pictures(draft.settings, datasets, draft.clips)
    if counted is None:
        return
    subjects, regular = 0, 0
    for dataset, pictures in zip(datasets, counted, strict=True):
        times = pictures * repeats_of(draft.settings, dataset)
        if is_on(dataset.get(draft.settings, "is_reg", False)):
            regular += pictures
        else:
            subjects += times
    if not regular or not subjects:
        return
    for number, dataset in enumerate(datasets):
        if is_on(dataset.get(draft.settings, "is_reg", False)):
            repeats: int | float = subjects / regular
            repeats = int(repeats) if math.isclose(repeats, int(repeats)) else repeats
            draft.set(f"dataset.{number}.repeats", repeats, "is_reg: as often in all as the other pictures")


def _defaults(draft: ImportDraft, *, is_adapter: bool) -> dict[str, Any]:
    values = {**keys.DEFAULTS, **(keys.OF_ADAPTERS if is_adapter else {})}
    if str(draft.settings.get("loss_type")) in keys.HUBER and not draft.is_flow:
        values["huber_schedule"] = "snr"
    if models.script_of(draft).startswith("train_db") and draft.settings.get("stop_text_encoder_training") != -1:
        values["train_text_encoder"] = True
    return {**values, **keys.of_family(draft).defaults}
