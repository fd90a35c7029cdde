"""Models of ai-toolkit: the presets that its names mean."""

from __future__ import annotations

import re
from collections.abc import Iterator

from reelworks.annexes.imports import tables, trainer
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.values import ends_of
from reelworks.models import registry

# The architecture alone, if the weights' own name does not tell more.
_TABLE = tables.table("ai_toolkit", "models")
PRESETS: dict[str, str] = _TABLE["presets"]
# Architectures that other models share, which the name of the weights tells apart, with what a name contains.
BY_WEIGHTS: dict[str, list[list[str]]] = _TABLE["by_weights"]
SHIFTS: dict[str, float] = _TABLE["shifts"]
BY_SIZE = frozenset(_TABLE["by_size"]["architectures"])  # whose shifts are those of a picture's size there
_TRANSFORMERLESS = ("sd1", "sd2", "sdxl", "vega", "ssd")


def architecture(settings: FormerSettings) -> str:
    """Return the name of the architecture, of which older configs have a switch each."""
    arch = settings.get("model.arch")
    if isinstance(arch, str) and arch:
        return arch.partition(":")[0].replace("flex1", "flex")
    return next((name for switch, name in _TABLE["switches"].items() if settings.get(f"model.{switch}") is True), "sd1")


def is_transformer(settings: FormerSettings) -> bool:
    """Whether the network is a transformer, whose LoRAs ai-toolkit scales by 1 whatever alpha says."""
    return architecture(settings) not in _TRANSFORMERLESS


def choose(draft: ImportDraft) -> None:
    """Put the model into the draft; raises `UserError`, one line, for a model that is not there."""
    settings = draft.settings
    arch, path = architecture(settings), settings.get("model.name_or_path")
    path = path if isinstance(path, str) and path.lower() != "none" else ""
    known = dict(PRESETS)
    for part, preset in BY_WEIGHTS.get(arch, ()):
        if part in ends_of(path).casefold():
            known[arch] = preset
            break
    draft.begin("model.arch" if "model.arch" in settings.values else "model.name_or_path")
    preset = trainer.find_model(draft, draft.key, _names(arch, path), known)
    if draft.request.model is None:
        preset = preset.removesuffix("-sound")
        has_sound = any(key.endswith(".do_audio") and value is True for key, value in settings.values.items())
        preset += "-sound" if has_sound and f"{preset}-sound" in registry.PRESETS else ""
    # Of the weights of releases ai-toolkit keeps copies.
    of_release = registry.find(path) in (preset, preset.removesuffix("-sound")) or path.startswith("ai-toolkit/")
    trainer.choose_model(draft, preset, None if not path or of_release else path)


def _names(arch: str, path: str) -> Iterator[str]:
    flexible = re.search(r"(?:^|/)flex", path.casefold())  # pruned from Flux, with another number of blocks
    if flexible is None and (own := registry.find(path)) is not None and arch in (*PRESETS, "sd1"):
        yield own
    yield path.rpartition("/")[2] if flexible is not None else arch
