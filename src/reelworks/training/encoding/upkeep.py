"""Look after a store: sum up, verify and prune what is in it, and show its latents as pictures."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from reelworks.data.media import lettering
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.encoding.reachable import Chunk
from reelworks.training.encoding.request_key import TEXT
from reelworks.training.encoding.store import EncodedStore
from reelworks.training.encoding.stored_batches import StoredLatents

_TILE_PX, _TEXT_PX, _FRAMES = 160, 14, 4


@dataclass(frozen=True)
class Group:
    """Entries of one kind, encoder and dtype."""

    kind: str
    encoder: str
    dtype: str
    entries: int
    bytes: int


@dataclass(frozen=True)
class DamagedValue:
    """A stored tensor that is not what was stored; its clip, or its caption, by name."""

    clip: str
    kind: str
    problem: str


@dataclass(frozen=True)
class StoreCheck:
    """Number of tensors that were read, and those that are damaged."""

    checked: int
    damaged: list[DamagedValue]


@dataclass(frozen=True)
class OrphanedValue:
    """A stored tensor that no recipe reaches; its clip, or its caption, by name."""

    kind: str
    clip: str
    bytes: int


@dataclass(frozen=True)
class PrunedStore:
    """Tensors that no recipe reaches, and whether they were deleted; the bytes are those of files."""

    entries: list[OrphanedValue]
    deleted: bool
    freed_bytes: int


def summarise(store: EncodedStore) -> list[Group]:
    """Return the entries of a store by kind, encoder and dtype, largest first."""
    groups = store.table().group_by(["kind", "encoder", "dtype"]).aggregate([("bytes", "sum"), ("bytes", "count")])
    found = [
        Group(r["kind"], r["encoder"], "packed" if r["kind"] == TEXT else r["dtype"], r["bytes_count"], r["bytes_sum"])
        for r in groups.to_pylist()
    ]
    return sorted(found, key=lambda group: -group.bytes)


def reachable_keys(source: StoredLatents, chunks: Iterable[Chunk]) -> set[str]:
    """Return the keys of all values that a training reads."""
    wanted_of = (wanted for chunk in chunks for wanted in source.keys.wanted(chunk.build_request(source.data)))
    return {each.key for wanted in wanted_of for each in wanted.values()}


def orphans(store: EncodedStore, reached: set[str]) -> list[dict[str, Any]]:
    """Return the descriptions of entries that are not among the keys."""
    table = store.table()
    lost = pa.array([key not in reached for key in table.column("key").to_pylist()], pa.bool_())
    return list(table.filter(lost).to_pylist())


def contact_sheet(source: StoredLatents, encoder: FrozenEncoders, chunks: Iterable[Chunk], count: int) -> bytes:
    """Decode stored latents of some clips, and draw their frames with their names as a PNG file; empty without any."""
    lines: list[tuple[str, list[NDArray[np.uint8]]]] = []
    for chunk in chunks:
        work = chunk.build_request(source.data)
        for wanted in source.keys.wanted(work):
            latent = source.get(wanted["latent"])
            if latent is None or len(lines) >= count:
                continue
            frames = encoder.frames(latent[None].to(encoder.device).float(), work.shape.num_frames)[0].cpu().numpy()
            shown = np.unique(np.linspace(0, len(frames) - 1, _FRAMES).round().astype(int))
            lines.append((f"{wanted['latent'].label}, {work.shape}", [frames[i] for i in shown]))
    if not lines:
        return b""
    height = _TILE_PX + _TEXT_PX + 8
    sheet = Image.new("RGB", (_FRAMES * (_TILE_PX + 4) + 4, len(lines) * height + 4), (247, 247, 244))
    pen = ImageDraw.Draw(sheet)
    for number, (text, tiles) in enumerate(lines):
        lettering.write(pen, (4, number * height + 2), text.replace("×", "x"), _TEXT_PX, (22, 22, 26))
        for column, frame in enumerate(tiles):
            tile = Image.fromarray(frame)
            tile.thumbnail((_TILE_PX, _TILE_PX))
            sheet.paste(tile, (4 + column * (_TILE_PX + 4), number * height + _TEXT_PX + 6))
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()
