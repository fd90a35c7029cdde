"""musubi-tuner: Wan, HunyuanVideo 1.5, FLUX.1 Kontext, FLUX.2, Qwen-Image, Z-Image, Krea 2 and Ideogram 4."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import final

from reelworks.annexes.imports import captions
from reelworks.annexes.imports.captions import Beside, FormerCaption
from reelworks.annexes.imports.datasets import pictures_only
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.files import ConfigFile
from reelworks.annexes.imports.kohya import adapters, levels, reading, sizes, training
from reelworks.annexes.imports.kohya import datasets as dataset_rules
from reelworks.annexes.imports.kohya.levels import FormerDataset, OutcomesByKey
from reelworks.annexes.imports.kohya.sizes import Sizing
from reelworks.annexes.imports.musubi import keys, models
from reelworks.annexes.imports.rules import Fate, ImportedKey
from reelworks.annexes.imports.trainer import FormerBuckets, FormerTrainer, choose_model
from reelworks.annexes.imports.values import is_on, whole_of

_NO_CAPTION = "pictures without a caption file are left out"
_VIDEO_WITHOUT = "a video without a caption file stops the caching of captions"
_FOLDERS = ("image_directory", "video_directory", "image_jsonl_file", "video_jsonl_file")
_MOST_FRAMES = 1025


@final
class _Musubi(FormerTrainer):
    name = "musubi-tuner"
    gives = "a dataset config with image_directory or video_directory, a config_file, or a script that starts wan_train_network.py or others"

    def recognises(self, file: ConfigFile) -> bool:
        if file.path.is_dir():
            return False
        if (values := reading.values_of(file)) is not None:
            if reading.is_dataset_config(values):
                tables = [each for each in values["datasets"] if isinstance(each, dict)]
                return any(key in each for each in tables for key in _FOLDERS)
            known = reading.names(values)
            return "dit" in known and ("dataset_config" in known or "network_module" in known)
        return reading.starts_training(file, models.is_training)

    def read(self, files: Sequence[ConfigFile]) -> FormerSettings:
        return reading.read(files, models.is_training)

    def convert(self, draft: ImportDraft) -> Iterator[ImportedKey]:
        outcomes = OutcomesByKey()
        preset, key, model = models.find(draft)
        _choose(draft, preset, key, outcomes)
        datasets = _datasets_of(draft.settings)
        sizings = [_sizing(draft, each) for each in datasets]
        levels.convert(draft, datasets, keys.DATASETS, {}, outcomes)
        draft.begin("")
        for number, sizing in enumerate(sizings):
            if sizing.is_video and datasets[number].find(draft.settings, "frame_extraction") is None:
                draft.set("data.clip_start", "start", "default of frame_extraction")
        if any(sizing.is_video for sizing in sizings):
            for number, sizing in enumerate(sizings):
                kind = "video" if sizing.is_video else "image"
                draft.set(f"dataset.{number}.filter", f"kind == '{kind}'", "a dataset has one kind there")
        sizes.write(draft, sizings)
        sizes.tell(draft, datasets, sizings, outcomes)
        _tell_lengths(draft, datasets, sizings, outcomes)
        dataset_rules.finish(draft, len(datasets))
        draft.set("objective.caption_dropout", 0.0, "captions are never left out there")
        draft.set("encode.store", True, "latents and embeddings are always stored there")
        script = str(draft.settings.get("script", ""))
        if adapters.trains_adapter(draft, script):
            targets = (draft.settings.get("network_weights") and model.of_files) or model.targets
            outcomes.add("network_module", adapters.begin(draft, targets, "the layers that its network adapts"))
        names = {*keys.DATASETS, *sizes.SETTINGS, *keys.LENGTHS}
        rules = {**keys.RULES, **outcomes.rules(names, draft.settings)}
        defaults = {
            **keys.DEFAULTS,
            "timestep_sampling": models.sampling_of(draft.settings),
            **(keys.OF_ADAPTERS if draft.get("lora.type") else {}),
        }
        yield from training.convert(draft, rules, defaults)

    def buckets(self, settings: FormerSettings, dataset: int) -> FormerBuckets:
        """Return the rules of its buckets, whose last batch may be smaller (dataset/bucket.py)."""
        own = _datasets_of(settings)[dataset]
        if _is_video(settings, own):
            return FormerBuckets(least_frames=min(_lengths_of(settings, own)))
        keeps_size = all(is_on(own.get(settings, name, False)) for name in ("enable_bucket", "bucket_no_upscale"))
        return FormerBuckets(enlarges=not keeps_size)

    def caption(self, settings: FormerSettings, beside: Beside) -> FormerCaption:
        """Return the caption of a clip: the whole text of its file, or that of the list (dataset/datasources.py)."""
        dataset = _datasets_of(settings)[beside.clip.dataset]
        ending = dataset.find(settings, "caption_extension")
        if beside.path and ending is None:
            return captions.stops("without caption_extension no caption is found, and their caching stops")
        text = beside.text(str(ending.value) if ending else "")
        if text is None:
            return captions.stops(_NO_CAPTION if beside.clip.is_image else _VIDEO_WITHOUT)
        return captions.former([text.strip()])


MUSUBI = _Musubi()


def _choose(draft: ImportDraft, preset: str, key: str, outcomes: OutcomesByKey) -> None:
    weights = draft.settings.get("dit")
    is_pair = preset in models.PAIRS
    usable = isinstance(weights, str) and weights and not weights.startswith("<")
    if is_pair and draft.settings.get("dit_high_noise"):
        usable = False
    draft.begin("dit")
    outcomes.add("dit", (Fate.TAKEN, choose_model(draft, preset, str(weights) if usable else None)))
    if is_pair:
        _choose_experts(draft, outcomes)
    draft.begin(key)
    draft.set("model.name", preset, None if draft.settings.get(key) is not None else "as given with --model")
    for name in ("script", "task", "model_version", key):
        outcomes.add(name, (Fate.TAKEN, f'model.name = "{preset}"'))


def _choose_experts(draft: ImportDraft, outcomes: OutcomesByKey) -> None:
    """Choose which of the two networks of Wan 2.2 is trained, each at its own timesteps."""
    experts, sources, why = models.experts_of(draft.settings)
    draft.begin(sources[0] if sources else "dit")
    draft.set("model.experts", experts, None if sources else why)
    if experts == "both":
        outcomes.add(sources[0], (Fate.TAKEN, f'model.experts = "{experts}", {why}'))
        outcomes.add(
            "dit", (Fate.NOT_POSSIBLE, "model.weights is a folder or hub id with both networks: the published ones")
        )
    elif not sources:
        outcomes.add(
            "dit", (Fate.NOT_POSSIBLE, f'model.experts = "{experts}": a network is trained at its own timesteps alone')
        )


def _sizing(draft: ImportDraft, dataset: FormerDataset) -> Sizing:
    settings = draft.settings
    found = sizes.of_dataset(draft, dataset, (960, 544), are_videos=_is_video(settings, dataset))
    return replace(
        found,
        is_video=found.is_video and not pictures_only(draft),
        frames=tuple(each for each in _lengths_of(settings, dataset) if each > 1) or (5,),
        each_length=_extraction_of(dataset, settings) == "head",
    )


def _tell_lengths(
    draft: ImportDraft, datasets: Sequence[FormerDataset], sizings: Sequence[Sizing], outcomes: OutcomesByKey
) -> None:
    differs = {number: sizes.frames_differ(number, sizings) for number in range(len(sizings))}
    for number, (dataset, sizing) in enumerate(zip(datasets, sizings, strict=True)):
        for name in keys.LENGTHS:
            found = dataset.find(draft.settings, name)
            if found is None:
                continue
            fate, remark = _lengths_outcome(name, dataset, sizing, draft.settings)
            if fate is Fate.TAKEN and differs[number]:
                fate, remark = Fate.NOT_POSSIBLE, f"{remark}; videos take longer lengths of other datasets too"
            outcomes.add(found.key, (fate, remark))
        names_frames = dataset.find(draft.settings, "target_frames") is not None
        if sizing.is_video and not names_frames and _extraction_of(dataset, draft.settings) != "full":
            remark = f"single frames of videos, the default of target_frames, are not trained: {_of_frames(sizing)}"
            for folder in filter(None, (dataset.find(draft.settings, name) for name in _FOLDERS)):
                outcomes.add(folder.key, (Fate.NOT_POSSIBLE, remark))


def _of_frames(sizing: Sizing) -> str:
    return f"bucket.num_frames = {list(sizing.frames)}"


def _lengths_outcome(name: str, dataset: FormerDataset, sizing: Sizing, settings: FormerSettings) -> tuple[Fate, str]:
    is_full = _extraction_of(dataset, settings) == "full"
    if (name == "max_frames") != is_full:
        return Fate.NO_MEANING, "frame_extraction decides which of target_frames and max_frames counts"
    if not sizing.is_video:
        return Fate.NO_MEANING, "pictures have one frame"
    remark = _of_frames(sizing)
    if is_full:
        return Fate.TAKEN, f"{remark}; videos of fewer frames are left out"
    lengths = _lengths_of(settings, dataset)
    if lengths == (1,):
        return Fate.NOT_POSSIBLE, f"single frames of videos are not trained: {remark}"
    if len(lengths) > 1:
        if _extraction_of(dataset, settings) == "head":
            return Fate.TAKEN, f"{remark}, and dataset.lengths: a video is trained once at each that it has"
        return Fate.TAKEN, f"{remark}; a video is trained once, at the longest that it has, and there once at each"
    return Fate.TAKEN, remark


def _datasets_of(settings: FormerSettings) -> list[FormerDataset]:
    """Return the datasets that musubi-tuner trains, which are tables with a folder or a list of repeats from 1."""
    found = [
        FormerDataset((f"datasets.{number}.", "general."))
        for number in range(settings.count("datasets"))
        if any(settings.get(f"datasets.{number}.{name}") for name in _FOLDERS)
    ]
    return found or [FormerDataset(("general.",))]


def _is_video(settings: FormerSettings, dataset: FormerDataset) -> bool:
    """Whether a dataset has videos, as its settings tell: a folder of pictures wins."""
    named = [name for name in _FOLDERS if dataset.find(settings, name) is not None]
    return named != [] and all(name.startswith("video") for name in named)


def _extraction_of(dataset: FormerDataset, settings: FormerSettings) -> str:
    """Return which parts of a video are read: a single one of `uniform` is its beginning."""
    kind = str(dataset.get(settings, "frame_extraction", "head"))
    return "head" if kind == "uniform" and dataset.get(settings, "frame_sample", 1) <= 1 else kind


def _lengths_of(settings: FormerSettings, dataset: FormerDataset) -> tuple[int, ...]:
    """Return the lengths of clips in frames, each rounded down to 4 n + 1; with `full` all up to the most."""
    if _extraction_of(dataset, settings) == "full":
        most = min(max(int(dataset.get(settings, "max_frames", 129)), 1), _MOST_FRAMES)
        return tuple(range(1, most + 1, 4))
    given = dataset.get(settings, "target_frames", [1])
    lengths = set()
    for each in given:
        with suppress(TypeError, ValueError):
            lengths.add((min(max(whole_of(each), 1), _MOST_FRAMES) - 1) // 4 * 4 + 1)
    return tuple(sorted(lengths)) or (1,)
