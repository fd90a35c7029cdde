"""Translations of the settings of a job, of `save`, `logging` and `sample` to recipe keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from reelworks.annexes.imports import datasets
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome


def _prompts(draft: ImportDraft) -> Iterator[str]:
    settings, trigger = draft.settings, draft.settings.get("trigger_word")
    found = [settings.get(f"sample.samples.{number}.prompt") for number in range(settings.count("sample.samples"))]
    plain = settings.get("sample.prompts", [])
    for text in found or (plain if isinstance(plain, list) else []):
        if isinstance(text, str) and (own := text.partition(" --")[0].strip()):
            yield re.sub(r"\[(?:trigger|name)\]", lambda _: trigger if isinstance(trigger, str) else "", own)


def _previews(value: Any, draft: ImportDraft) -> Outcome:
    prompts = list(dict.fromkeys(_prompts(draft)))
    if not prompts:
        return Fate.DEFAULT, "no previews"
    wants = datasets.conditioning_of(draft)
    pictures = _given_pictures(draft.settings)
    kind = next(iter(wants.companions.needs), "reference" if wants.needs_first_frame else None)
    if kind is not None:
        if not pictures:
            return Fate.NOT_POSSIBLE, datasets.PICTURE_NEEDED
        draft.set(f"samples.{kind}", pictures if len(pictures) > 1 and kind == "source" else pictures[0])
    return Fate.TAKEN, draft.set("samples.prompts", prompts)


def _given_pictures(settings: FormerSettings) -> list[str]:
    """Return the pictures of the first preview, which all previews get here."""
    prompts = settings.get("sample.prompts", [])
    first = "sample.samples.0."
    found = [settings.get(f"{first}{key}") for key in ("ctrl_img", "ctrl_img_1", "ctrl_img_2", "ctrl_img_3")]
    if isinstance(prompts, list):
        found += re.findall(r"--ctrl_img\s+(\S+)", str(next(iter(prompts), "")))
    return list(dict.fromkeys(str(path) for path in found if path))


def _preview_side(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, datasets.set_preview_side(draft, draft.key.replace("sample.", "samples."), value)


def _preview_frames(value: Any, draft: ImportDraft) -> Outcome:
    wanted = 1 if datasets.pictures_only(draft) else max(int(value), 1)
    return Fate.TAKEN, draft.set("samples.num_frames", datasets.frames_here(draft, wanted))


def _preview_picture(value: Any, draft: ImportDraft) -> Outcome:
    given = [key for key in ("source", "control", "reference") if draft.get(f"samples.{key}") is not None]
    if not given:
        return Fate.NOT_POSSIBLE, "the model takes no picture for previews here"
    if draft.numbers[:1] == (0,):
        return Fate.TAKEN, f"samples.{given[0]}"
    return Fate.NOT_POSSIBLE, "all previews have the pictures of the first"


def _reported(value: Any, draft: ImportDraft) -> Outcome:
    for key, name in (("project_name", "project"), ("run_name", "name")):
        if isinstance(own := draft.settings.get(f"logging.{key}"), str) and own:
            draft.set(f"logging.{name}", own, f"logging.{key}")
    return Fate.TAKEN, draft.set("logging.trackers", ["wandb"])


def _output(value: Any, draft: ImportDraft) -> Outcome:
    folder, name = draft.settings.get("training_folder"), draft.settings.get("config.name")
    parts = [part.rstrip("/\\") for part in (folder, name) if isinstance(part, str) and part.strip("/\\ ")]
    if not parts:
        return Fate.NO_MEANING, "runs/ and the recipe's name"
    return Fate.TAKEN, draft.set("output", "/".join(parts))


def _previews_of_samples(value: Any, draft: ImportDraft) -> Outcome:
    return (Fate.TAKEN, "samples.prompts") if draft.get("samples.prompts") else _previews(value, draft)
