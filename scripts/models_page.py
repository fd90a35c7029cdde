"""docs/reference/models.md: what the tiny networks of all families take, found by trying them.

python scripts/models_page.py > docs/reference/models.md
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from reelworks.models import components, identify, registry
from reelworks.models.config import ModelConfig
from reelworks.models.expert_pair.config import switch_timestep
from reelworks.models.family import Conditioning
from reelworks.testing import contract
from reelworks.training.memory import published_sizes

_ENCODERS = {"clip": "CLIP", "siglip": "SigLIP", None: ""}
_PAGE_HEAD = """# Models

<!-- Written by `python scripts/models_page.py`; do not edit. -->

Each row is a family, with the names that `model.name` takes. All of them pass the same checks
(`tests/contract/`): shapes, gradients, dtypes, sharding on two processes, state dicts, LoRA, generation, and
learning one clip by heart. What the table says was found by running them. *Is shown* says what a network sees of a
clip beside its noise: a `control`, a `source` or a `mask` of the `[[dataset]]`, × the most of a clip, without brackets where it
cannot do without; or the clip's own first frame, perhaps its last one, and what an image encoder (`model.image_encoder`) says
of it. All take a `loss_mask`.
*Frames per second* is the published rate, which `data.fps = "model"` stands for.

| names | parameters | trains on | frames per second | is told given frames | is shown | takes a summary of the caption | takes the guidance scale | empty caption |
|---|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Features:
    """What a tiny network answers to.

    Attributes:
        clips: Takes clips, not pictures alone.
        given_frames: Answers otherwise where frames are given.
        pooled_text: Answers otherwise to another summary of the caption.
        guidance: Answers otherwise to another guidance scale.
        shown: Of "control", "source", "first_frame", "image" and "sound" those to which it answers otherwise.
    """

    clips: bool
    given_frames: bool
    pooled_text: bool
    guidance: bool
    shown: tuple[str, ...]


@torch.no_grad()
def features(name: str) -> Features:
    """Find out what a network takes, by trying."""
    denoiser, inputs = contract.build(name), contract.example(contract.shapes(name)[-1], name)
    answer = denoiser.predict(inputs)

    def feels(**changes: Any) -> bool:
        return not torch.equal(answer, denoiser.predict(dataclasses.replace(inputs, **changes)))

    given, heard = inputs.frame_mask.clone(), inputs.sound
    given[:, 0] = ~given[:, 0]
    return Features(
        clips=inputs.latent.shape[2] > 1,
        given_frames=feels(frame_mask=given),
        pooled_text=feels(pooled=-inputs.pooled),
        guidance=feels(guidance=3 * inputs.guidance),
        shown=tuple(
            key
            for key in ("control", "first_frame", "image")
            if (value := getattr(inputs, key)) is not None and feels(**{key: -value})
        )
        + (("source",) if feels(sources=tuple(-value for value in inputs.sources)) else ())
        + (("sound",) if heard is not None and feels(sound=dataclasses.replace(heard, latent=-heard.latent)) else ()),
    )


def page() -> str:
    """The table of families and features, as docs/reference/models.md."""
    rows = []
    kinds: dict[tuple[object, ...], str] = {}  # the first tiny network of each
    for name in (name for name in contract.FAMILIES if not switch_timestep(ModelConfig(name=name))):
        kinds.setdefault(_kind(name), name)
    for name in kinds.values():
        found, presets = features(name), _presets(name)
        wants = {preset: components.conditioning(ModelConfig(name=preset)) for preset in presets}
        cells = (
            _listed(presets),
            ", ".join(_shown(parameters(preset)) for preset in presets if preset not in contract.FAMILIES),
            "clips and pictures" if found.clips else "pictures",
            _rates(presets) if found.clips else "",
            _which(presets, [p for p in presets if _is_told(wants[p], found)]),
            _beside(presets, wants, found.shown),
            "yes" if found.pooled_text else "no",
            _which(presets, [p for p in presets if wants[p].guidance == "embedded" and found.guidance]),
            wants[name].empty_caption,
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([_PAGE_HEAD, *rows, ""])


def _is_told(wants: Conditioning, found: Features) -> bool:
    """Whether `objective.mask_ratios` has an effect: on the frame mask, or on the control that is told in parts."""
    return (wants.frames and found.given_frames) or (wants.companions.control_parts and "control" in found.shown)


def _rates(presets: list[str]) -> str:
    """Say at which frame rates the presets were trained."""
    by_rate: dict[float | None, list[str]] = {}
    for preset in presets:
        by_rate.setdefault(registry.PRESETS[preset].fps, []).append(preset)
    if list(by_rate) == [None]:
        return "those of the clips"
    return ", ".join(f"{rate:g}" + f" ({_listed(p)})" * (len(by_rate) > 1) for rate, p in by_rate.items())


@functools.cache
def parameters(preset: str) -> int:
    """Return a preset's number of parameters at its published size, as measured before or on the meta device."""
    known = published_sizes.of_preset(preset)
    if known is not None and not preset.startswith("stdit"):  # their releases learnt a variance too
        return known.parameters
    return sum(parameter.numel() for parameter in identify.network(preset).parameters())


def _shown(count: int) -> str:
    """In thousands of millions, or in millions."""
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.0f} M"


def _presets(name: str) -> list[str]:
    """All presets of the family whose tiny network this is, that are shown the same."""
    return [other for other in registry.PRESETS if _kind(other) == _kind(name)]


def _kind(name: str) -> tuple[object, ...]:
    wants = components.conditioning(ModelConfig(name=name))
    told = wants.companions.takes, wants.companions.most_sources, wants.shown.first, wants.shown.last, wants.sound
    config = registry.PRESETS[name].config
    return type(config), config.pictures_only, *told


def _beside(presets: list[str], wants: Mapping[str, Conditioning], found: tuple[str, ...]) -> str:
    """Say what a family is shown beside the noise."""
    cells = []
    for key in found:
        if key == "image":
            told = [p for p in presets if wants[p].shown.encoder]
            names = "" if told == presets else f" ({_listed(told)})"
            what = "both" if wants[told[0]].shown.last else "it"
            cells.append(f"{_ENCODERS[wants[told[0]].shown.encoder]} of {what}{names}")
        elif key == "first_frame":
            cells.append("its first and last frames" if wants[presets[0]].shown.last else "its first frame")
        else:
            most = wants[presets[0]].companions.most_sources if key == "source" else 1
            name = f"`{key}`" + f" × {most}" * (most > 1)
            cells.append(name if key in (*wants[presets[0]].companions.needs, "sound") else f"({name})")
    if wants[presets[0]].companions.sources_as_frames:
        cells.append(f"(`source` × {wants[presets[0]].companions.most_sources})")
    if "mask" in wants[presets[0]].companions.takes:
        cells.append("(`mask`)")
    return ", ".join(cells) or "no"


def _which(presets: list[str], those: list[str]) -> str:
    """Say which of a family's presets."""
    return "no" if not those else "yes" if those == presets else _listed(those)


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(page(), end="")
