"""Names that a model's first release, and with it ComfyUI and kohya's tools, gives the layers of a network; torch-free.

Where a release has one layer for what diffusers splits, such as a query, key and value, the parts lie below each
other in its rows. A few layers have their two halves of rows the other way round.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

from reelworks.models.family import FamilyConfig
from reelworks.models.lora.release_rules import RULES, Rule
from reelworks.models.sd3.config import SD3Config


class Place(NamedTuple):
    """Where a layer of diffusers lies in a release.

    Attributes:
        layer: The release's layer.
        part: Which of its parts, from above.
        heights: Rows of its parts, in proportion to each other.
        swapped: Its halves of rows are the other way round there.
    """

    layer: str
    part: int = 0
    heights: tuple[int, ...] = (1,)
    swapped: bool = False


_UNET = {
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
}
_UNET_BLOCK = re.compile(r"(down|mid|up)_blocks?\.(?:(\d+)\.)?(resnets|attentions)\.(\d+)\.(.+)")


def place(config: FamilyConfig | None, layer: str) -> Place:
    """Where a layer of a family lies in its release; of None, and where names are the same, the layer itself."""
    if config is None:
        return Place(layer)
    if config.network.name == "UNet2DConditionModel":
        return Place(_of_unet(layer))
    found = next((p for rule in _compiled(config.network.name) if (p := _apply(*rule, layer))), Place(layer))
    if (
        isinstance(config, SD3Config)
        and layer == f"transformer_blocks.{config.num_layers - 1}.norm1_context.linear"
    ):
        return found._replace(swapped=True)  # it ends in scale and shift as the last norm does
    return found


@functools.cache
def _compiled(network: str) -> list[tuple[re.Pattern[str], Place]]:
    return list(_patterns(RULES.get(network, [])))


def _patterns(rules: list[Rule]) -> Iterator[tuple[re.Pattern[str], Place]]:
    for parts, release, heights, swapped in rules:
        names = parts.split()
        for i, name in enumerate(names):
            pattern = re.compile(re.escape(name).replace(r"\.N\.", r"\.(\d+)\."))
            layer = release.replace(".N.", r".\1.")
            yield pattern, Place(layer, i, heights or (1,) * len(names), swapped)


def _apply(pattern: re.Pattern[str], found: Place, layer: str) -> Place | None:
    match = pattern.fullmatch(layer)
    return found._replace(layer=match.expand(found.layer)) if match else None


def _of_unet(layer: str) -> str:
    """SDXL's release counts all blocks in a row: two with a step down, or three, to a list of diffusers."""
    match = _UNET_BLOCK.fullmatch(layer)
    if match is None:
        return _UNET.get(layer, layer)
    side, block, kind, i, rest = match.groups()
    rest = rest.replace("time_emb_proj", "emb_layers.1")
    if side == "mid":
        return f"middle_block.{1 if kind == 'attentions' else 2 * int(i)}.{rest}"
    within = 1 if kind == "attentions" else 0
    first = 1 if side == "down" else 0
    return f"{'input' if first else 'output'}_blocks.{first + 3 * int(block) + int(i)}.{within}.{rest}"
