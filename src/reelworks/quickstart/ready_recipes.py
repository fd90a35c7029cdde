"""Recipes for 20 pictures that are ready for each model and size of GPU, as `new lora` writes them; torch-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from reelworks.core import results
from reelworks.core.errors import UserError
from reelworks.models import registry
from reelworks.quickstart import quickstart
from reelworks.quickstart.quickstart import QuickstartResult
from reelworks.quickstart.request import NewLoraRequest
from reelworks.training.memory import published_sizes

SIZES_GB = (8, 12, 16, 24, 48, 80)


@dataclass(frozen=True)
class ReadyRecipe:
    """A recipe that fits.

    Attributes:
        vram_gb: The smallest of the sizes that it is for; a larger one is, too, until the next recipe of the model.
        result: What `reelworks new lora` makes of them.
    """

    vram_gb: int
    result: QuickstartResult = field(metadata=results.INLINED)


def models() -> list[str]:
    """Return a model of each family and number of parameters, of those that need no companions or first frame.

    Distilled ones, and those with sound, stand for where there are no others.
    """
    plain: dict[str, list[str]] = {}
    for name, preset in registry.PRESETS.items():
        known, conditioning = preset.release, preset.config.conditioning
        if known is None or known.weights is None or conditioning.companions.needs or conditioning.needs_first_frame:
            continue
        plain.setdefault(registry.family_of(name).name, []).append(name)
    chosen: list[str] = []
    for names in plain.values():
        by_size: dict[int, str] = {}
        undistilled = [name for name in names if not registry.release_of(name).distilled]
        for name in sorted(undistilled or names, key=lambda name: registry.PRESETS[name].sound is not None):
            if (sizes := published_sizes.of_preset(name)) is not None:
                by_size.setdefault(sizes.parameters, name)
        chosen += by_size.values()
    return chosen


def of_model(model: str, gpu: str | None = None) -> Iterator[ReadyRecipe]:
    """Yield the recipes of a model that differ, for the sizes in which it fits."""
    former = ""
    for size in SIZES_GB:
        request = NewLoraRequest(model=model, vram_gb=size, gpu=gpu, output=Path(f"{model}-{size}.toml"))
        try:
            made = quickstart.make(request)
        except UserError as error:
            if error.code != "gpu-too-small":
                raise
            continue
        if made.choice.fits and made.text != former:
            former = made.text
            yield ReadyRecipe(size, made)
