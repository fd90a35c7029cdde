"""Translations of the options of previews, checkpoints and GPUs to recipe keys."""

from __future__ import annotations

from typing import Any

from reelworks.annexes.imports import datasets
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome


def _prompts(value: Any, draft: ImportDraft) -> Outcome:
    prompt = draft.settings.get("validation_prompt")
    found = [prompt.strip()] if isinstance(prompt, str) and prompt.strip() not in ("", "None") else []
    if draft.settings.get("validation_disable") is True or not found:
        return Fate.DEFAULT, "no previews"
    if datasets.needs_picture(draft):
        return Fate.NOT_POSSIBLE, datasets.PICTURE_NEEDED
    return Fate.TAKEN, draft.set("samples.prompts", found)


def _preview_size(value: Any, draft: ImportDraft) -> Outcome:
    width, _, height = str(value).split(",")[0].strip().lower().partition("x")
    sides = [float(side) for side in (width, height or width)]
    sides = [side * 1000 if 0 < side < 10 else side for side in sides]  # megapixels
    remarks = [
        datasets.set_preview_side(draft, f"samples.{key}", side)
        for key, side in zip(("width", "height"), sides, strict=True)
    ]
    if "," in str(value):
        return Fate.NOT_POSSIBLE, f"{', '.join(remarks)}, the first of the sizes: previews have one"
    return Fate.TAKEN, ", ".join(remarks)


def _preview_frames(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, draft.set("samples.num_frames", datasets.frames_here(draft, int(value)))


def _reported(value: Any, draft: ImportDraft) -> Outcome:
    text = str(value).lower()
    known = ["wandb"] if text == "all" else [name for name in ("wandb", "trackio") if name in text]
    if not known and value not in ("none", "None", "tensorboard", None, "", False):
        return Fate.NOT_POSSIBLE, "this tracker is not there"
    if not known:
        return Fate.DEFAULT, "TensorBoard is always written"
    for key, name in (("tracker_project_name", "project"), ("tracker_run_name", "name")):
        if isinstance(own := draft.settings.get(key), str) and own:
            draft.set(f"logging.{name}", own, key)
    return Fate.TAKEN, draft.set("logging.trackers", known)


def _shared_tokens(value: Any, draft: ImportDraft) -> Outcome:
    split = datasets.preset_of(draft).config.network.sequence
    if split is not None and split.pads:
        return Fate.TAKEN, draft.set("parallel.sequence_degree", value)
    return Fate.NOT_POSSIBLE, (
        "the tokens of this model's sizes cannot all be divided among ranks: set parallel.sequence_degree, and "
        "buckets.aspect_ratios to those of which they can"
    )


def _backends(value: Any, draft: ImportDraft) -> Outcome:
    if draft.settings.count("data"):
        return Fate.TAKEN, "[[dataset]]"
    return Fate.TO_FILL_IN, "the data backends are not found: give them too, or replace the path of [[dataset]]"
