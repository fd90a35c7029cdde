"""Prompts of previews: lines with options (`--w 1024`), in a file or a config, or a file of TOML or of JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reelworks.annexes.imports import datasets, tables
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome
from reelworks.annexes.imports.values import number_of, whole_of
from reelworks.core import toml, user_files

_MOST = 64
_NAMES = tables.table("kohya", "names")
_OPTIONS: dict[str, str] = _NAMES["options_of_prompts"]
_KEYS: dict[str, str] = _NAMES["previews"]


def prompts(value: Any, draft: ImportDraft) -> Outcome:
    """Read prompts, a list of lines or a file; their sizes, steps and guidance are taken if all prompts have the same."""
    if datasets.needs_picture(draft):
        return Fate.TO_FILL_IN, datasets.PICTURE_NEEDED
    try:
        found = _of_lines(value) if isinstance(value, list) else _read(Path(str(value)).expanduser())
    except (OSError, ValueError, TypeError, KeyError, RuntimeError):
        return Fate.TO_FILL_IN, "this file cannot be read: write its prompts to samples.prompts"
    found = [each for each in found if each.get("prompt")][:_MOST]
    if not found:
        return Fate.TO_FILL_IN, "there are no prompts in it: set samples.prompts"
    remark = f"samples.prompts, {len(found)} of them"
    draft.set("samples.prompts", [str(each["prompt"]).strip() for each in found], "sample_prompts")
    differs = [name for name in _KEYS if len({str(each.get(name)) for each in found}) > 1]
    # Some take classifier-free guidance by the name that others have for the input.
    by_name = str(draft.get("model.name")).startswith(("flux2", "kandinsky"))
    is_input = by_name or datasets.conditioning_of(draft).guidance == "embedded"
    unused = ("scale", "cfg_scale") if is_input else ("guidance_scale",)
    for name, key in _KEYS.items():
        given = found[0].get(name)
        if given is None or name in differs:
            continue
        if name in unused:
            remark += f", without {name}"
            continue
        amount = number_of(given) if key == "samples.guidance_scale" else whole_of(given)
        if amount >= 1:
            remark += f", {draft.set(key, _legal(key, amount), f'sample_prompts: {name}')}"
    for name, instead in _NAMES["in_place_of"].items():
        if any(each.get(name) is not None for each in found):
            remark += f", without {name}: {instead}"
    if differs:
        return Fate.TAKEN, f"{remark}; all previews have one size, and these differ: {', '.join(differs)}"
    return Fate.TAKEN, remark


def _legal(key: str, amount: float) -> float:
    """Return a size that every model can generate, and a length as of all video models here."""
    if key in ("samples.width", "samples.height"):
        return max(int(amount) // 32 * 32, 32)
    return (int(amount) - 1) // 4 * 4 + 1 if key == "samples.num_frames" else amount


def _read(path: Path) -> list[dict[str, Any]]:
    text = user_files.read_text(path, user_files.SETTINGS, encoding="utf-8-sig")
    if path.suffix.lower() == ".toml":
        table = toml.parse(text)["prompt"]
        return [{**table, **subset} for subset in table["subset"]]
    if path.suffix.lower() == ".json":
        given = json.loads(text)
        return [each if isinstance(each, Mapping) else _of_line(str(each)) for each in given]  # type: ignore[misc]
    return _of_lines(text.splitlines())


def _of_lines(lines: list[str]) -> list[dict[str, Any]]:
    return [_of_line(line.strip()) for line in lines if line.strip() and not line.startswith("#")]


def _of_line(line: str) -> dict[str, Any]:
    prompt, *options = line.split(" --")
    found: dict[str, Any] = {"prompt": prompt}
    for option in options:
        if (match := re.match(r"([a-z]+) (\S+)", option, re.IGNORECASE)) and match[1].lower() in _OPTIONS:
            found[_OPTIONS[match[1].lower()]] = match[2]
    return found
