"""Fit the autoencoder of the demo to the footage itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.media.decode import Request, load
from reelworks.data.media.reading import MediaError
from reelworks.models.autoencoders.pca import PcaNetwork, to_blocks
from reelworks.models.components import PCA_FRAMES

_WIDE, _HIGH = Shape(PCA_FRAMES, 64, 96), Shape(PCA_FRAMES, 96, 64)
_FPS = 8.0  # of the frames of a group
_STARTS = (0.0, 0.5, 0.99)  # draws of the first frame: groups of one clip
_HELD_OUT = 16  # each so manyth clip
_MOST_CLIPS = 500  # that are read, evenly spread: frames stay in memory


@dataclass(frozen=True)
class FittedAutoencoder:
    """An autoencoder that was written to a file, and the PSNR of clips held out, in dB."""

    file: Path
    psnr_db: float


def fit(catalog: Path, file: Path, *, seed: int = 0) -> FittedAutoencoder:
    """Fit it to the readable clips of a catalog, and write the weights."""
    read = list(_clips(Catalog.open(catalog)))
    if not read:
        raise UserError(
            "no clip of it can be read",
            code="no-clip-to-learn-from",
            field="CATALOG",
            value=str(catalog),
            remedy="scan a folder with footage",
        )
    network = PcaNetwork()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        held_out = read[::_HELD_OUT]
        trained = [clip for i, clip in enumerate(read) if i % _HELD_OUT or len(read) == 1]
        network.fit(torch.cat([to_blocks(_pixels(clip)).flatten(0, 3) for clip in trained]))
        errors = [network.decode(network.encode(clip)).clamp(-1, 1) - clip for clip in map(_pixels, held_out)]
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(network.state_dict(), file)
    error = torch.cat([each.flatten() for each in errors]).square().mean()
    return FittedAutoencoder(file, float(10 * torch.log10(4 / error)))  # pixels span 2


def _clips(catalog: Catalog) -> Iterator[np.ndarray]:
    """Yield groups of eight frames of each readable clip, `[groups, T, H, W, 3]`."""
    rows = catalog.live()
    readable = np.flatnonzero(rows.readable)
    for row in readable[:: -(-len(readable) // _MOST_CLIPS) or None].tolist():
        is_image = bool(rows.is_image[row])
        whole = _WIDE if rows.width[row] >= rows.height[row] else _HIGH
        shape = Shape(1, whole.height, whole.width) if is_image else whole
        step = 1.0 if is_image else max(1.0, float(rows.fps[row]) / _FPS)
        groups = []
        for start in _STARTS[:1] if is_image else _STARTS:
            request = Request(rows.file(row), is_image, shape, step, first_frame_draw=start, short_clips="hold")
            try:
                frames_THWC = load(request)
            except MediaError:  # damaged behind its header; training tells so, too
                break
            groups.append(np.broadcast_to(frames_THWC, (PCA_FRAMES, *frames_THWC.shape[1:])))
        if groups:
            yield np.stack(groups)


def _pixels(groups_NTHWC: np.ndarray) -> Tensor:
    return torch.from_numpy(groups_NTHWC).movedim(-1, 2).float() / 127.5 - 1
