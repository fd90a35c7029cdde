"""Train the autoencoder of the demo on the footage itself: its encoder is computed, its decoder learns for a minute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from reelworks.catalog.store import Catalog
from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.media.decode import MediaError, Request, load
from reelworks.models.autoencoders.pca import PcaNetwork
from reelworks.models.components import PCA_FRAMES

STEPS = 500
_SHAPE = Shape(PCA_FRAMES, 64, 96)
_FPS = 8.0  # of the frames of a group
_STARTS = (0.0, 0.5, 0.99)  # draws of the first frame: groups of one clip
_BATCH_SIZE = 8
_LEARNING_RATE, _WARMUP_STEPS = 3e-3, 50
_MOST_NOISE = 0.5  # on latents, which a denoiser does not hit exactly
_MOST_SHIFT = 6  # pixels by which groups are rolled, so that edges lie anywhere in a block
_HELD_OUT = 16  # each so manyth group
_MOST_CLIPS = 500  # that are read, evenly spread: frames stay in memory


@dataclass(frozen=True)
class TrainedAutoencoder:
    """An autoencoder that was written to a file, and the PSNR of groups held out, in dB."""

    file: Path
    steps: int
    psnr_db: float


def train(catalog: Path, file: Path, *, steps: int = STEPS, seed: int = 0) -> TrainedAutoencoder:
    """Train on the readable clips of a catalog, and write the weights."""
    read = list(_groups(Catalog.open(catalog)))
    if not read:
        raise UserError(
            "no clip of it can be read",
            code="no-clip-to-learn-from",
            field="CATALOG",
            value=str(catalog),
            remedy="scan a folder with footage",
        )
    groups = torch.from_numpy(np.stack(read))
    held_out = torch.arange(len(groups)) % _HELD_OUT == 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _trained(groups[~held_out], steps)
    with torch.inference_mode():
        wanted = _pixels(groups[held_out])
        error = (network.decode(network.encode(wanted)).clamp(-1, 1) - wanted).square().mean()
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(network.state_dict(), file)
    return TrainedAutoencoder(file, steps, float(10 * torch.log10(4 / error)))  # pixels span 2


def _groups(catalog: Catalog) -> Iterator[np.ndarray]:
    rows = catalog.live()
    readable = np.flatnonzero(rows.readable)
    for row in readable[:: -(-len(readable) // _MOST_CLIPS) or None].tolist():
        is_image = bool(rows.is_image[row])
        shape = Shape(1, _SHAPE.height, _SHAPE.width) if is_image else _SHAPE
        for start in _STARTS[:1] if is_image else _STARTS:
            step = 1.0 if is_image else max(1.0, float(rows.fps[row]) / _FPS)
            try:
                frames_THWC = load(
                    Request(rows.file(row), is_image, shape, step, first_frame_draw=start, short_clips="hold")
                )
            except MediaError:  # damaged behind its header; training tells so, too
                break
            yield np.broadcast_to(frames_THWC, (PCA_FRAMES, *frames_THWC.shape[1:]))


def _pixels(groups_NTHWC: Tensor) -> Tensor:
    return groups_NTHWC.movedim(-1, 2).float() / 127.5 - 1


def _trained(groups_NTHWC: Tensor, steps: int) -> PcaNetwork:
    network = PcaNetwork()
    network.fit(_pixels(groups_NTHWC))
    optimizer = torch.optim.AdamW(network.decoder.parameters(), _LEARNING_RATE, weight_decay=0.01)
    for step in range(steps):
        rate = _LEARNING_RATE * min((step + 1) / _WARMUP_STEPS, 1 - step / steps)
        optimizer.param_groups[0]["lr"] = rate
        wanted = _augmented(_pixels(groups_NTHWC[torch.randint(len(groups_NTHWC), (_BATCH_SIZE,))]))
        latent = network.encode(wanted)
        noise = _MOST_NOISE * torch.rand(len(latent), 1, 1, 1) * torch.randn_like(latent)
        difference = network.decode(latent + noise) - wanted
        loss = difference.abs().mean() + difference.square().mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(network.decoder.parameters(), 1.0)
        optimizer.step()
    return network


def _augmented(video_NTCHW: Tensor) -> Tensor:
    """Roll a batch by some pixels, and mirror half of all batches."""
    by = torch.randint(-_MOST_SHIFT, _MOST_SHIFT + 1, (2,)).tolist()
    rolled = video_NTCHW.roll(by, dims=(3, 4))
    return rolled.flip(4) if torch.rand(()) < 0.5 else rolled
