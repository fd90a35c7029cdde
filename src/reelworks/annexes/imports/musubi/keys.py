"""Rules of musubi-tuner's settings: its argument parsers of June 2026 and its dataset config."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from reelworks.annexes.imports import datasets as datasets_here
from reelworks.annexes.imports import rules, tables
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.kohya import adapters, datasets, previews, timesteps, training
from reelworks.annexes.imports.musubi import models
from reelworks.annexes.imports.rules import Fate, Outcome
from reelworks.annexes.imports.values import is_on, number_of, text, whole_of
from reelworks.models import registry

DEFAULT_SHIFT = 1.0


def _sampling(value: Any, draft: ImportDraft) -> Outcome:
    return timesteps.sampling(value, draft, default_shift=DEFAULT_SHIFT, shifts_sigma=False)


def _bound(value: Any, draft: ImportDraft) -> Outcome:
    if draft.get("model.experts") is not None:
        switch, experts = registry.PRESETS[draft.get("model.name")].switch_timestep, draft.get("model.experts")
        own = {"high": (switch, 1000.0), "low": (0.0, switch)}.get(experts, (0.0, 1000.0))
        if number_of(value) != own[draft.key == "max_timestep"]:
            told = f"each network is trained at its own timesteps, here from {own[0]:g} to {own[1]:g}"
            return Fate.NOT_POSSIBLE, told
        told, keeps = f'model.experts = "{experts}": it has these timesteps', "preserve_distribution_shape"
        return Fate.TAKEN, told if is_on(
            draft.settings.get(keeps)
        ) else f"{told}; there the density is squeezed into them"
    return timesteps.bound(value, draft, default_sampling=models.sampling_of(draft.settings))


def _of_density(value: Any, draft: ImportDraft) -> Outcome:
    if draft.key == "discrete_flow_shift" and models.sampling_of(draft.settings) == "sigma":
        return Fate.NO_MEANING, "timestep_sampling = sigma draws from timesteps that are not shifted, there too"
    return Fate.NO_MEANING, "the density of timesteps has it"


DEFAULTS: Mapping[str, Any] = training.DEFAULTS
OF_ADAPTERS: Mapping[str, Any] = {"network_dim": 4, "network_alpha": 1}


def _control(value: Any, draft: ImportDraft) -> Outcome:
    """Take the folder of pictures that an edit begins with, if the model takes one."""
    fate, remark = datasets_here.set_companions(draft, draft.numbers[0], [text(value)], "pictures beside the caption")
    several = "; several pictures of a clip, name_0 and name_1, are in a folder each here"
    return fate, remark + several if fate is Fate.TAKEN else remark


def _extraction(value: Any, draft: ImportDraft) -> Outcome:
    """Take what part of a video is read: its beginning, or a random one for all that read several parts."""
    sample = f"{draft.key.rpartition('.')[0]}.frame_sample"
    if value == "head" or (value == "uniform" and draft.settings.get(sample, 1) in (0, 1)):
        return Fate.TAKEN, draft.set("data.clip_start", "start")
    remark = draft.set("data.clip_start", "random")
    if value == "full":
        remark = draft.set("data.clip_start", "start")
        return Fate.TAKEN, f"{remark}, and all lengths of 4 n + 1 frames up to max_frames"
    if value == "uniform":
        return Fate.TAKEN, f"{remark}: each use begins at another frame, frame_sample times in an epoch"
    if value in ("chunk", "slide"):
        return rules.exact_or_nearest(
            remark, "each use begins at another frame; dataset.clip_seconds trains all parts of a video"
        )
    return Fate.NOT_POSSIBLE, "there is no such way to read a video"


def _sample(value: Any, draft: ImportDraft) -> Outcome:
    key = "dataset.*.repeats"
    place = draft.key.rpartition(".")[0]
    if draft.settings.get(f"{place}.frame_extraction") != "uniform":
        return Fate.NO_MEANING, "only frame_extraction = uniform has it"
    return Fate.TAKEN, draft.set(key, max(whole_of(value), 1) * draft.get(key, 1))


def _rate(value: Any, draft: ImportDraft) -> Outcome:
    rate = models.frame_rate_of(draft.settings)
    if rate is None:
        return Fate.NO_MEANING, "pictures have no rate"
    return Fate.TAKEN, f"{draft.set('data.fps', rate)}, by the rate of each file, also without source_fps"


LENGTHS = ("target_frames", "max_frames")

RULES = tables.read("kohya", "keys", training, adapters, previews) | tables.read(
    "musubi", "keys", training, timesteps, sys.modules[__name__]
)
DATASETS = tables.read("musubi", "datasets", datasets_here, datasets, sys.modules[__name__])
