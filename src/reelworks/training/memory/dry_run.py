"""Checks before the first step: run every shape on the meta device, and the largest bucket on the real one.

Wrong dtypes, wrong shapes and a lack of memory are found here, and not hours into a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.buckets.table import Bucket, BucketTable
from reelworks.data.catalog.sources import SOUNDS
from reelworks.data.distributed import collectives
from reelworks.data.distributed.mesh import World
from reelworks.models.api import Autoencoder, Denoiser, DenoiserInputs, ImageEncoder, SoundInputs, TextEncoder, given
from reelworks.models.precision import audit, audited
from reelworks.models.precision.boundary import DtypeError, Predictor
from reelworks.training.encoding import conditioning
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.step import out_of_memory
from reelworks.training.step.state import TrainState

Encoder = Autoencoder | TextEncoder | ImageEncoder


def audit_shapes(denoiser: Denoiser, encoder: FrozenEncoders, table: BucketTable, world: World) -> None:
    """Run the shape of every bucket through the model on the meta device, and raise the first `DtypeError`. Collective.

    Each rank takes a share of the shapes, since hundreds of them take a minute, and leaves out what passed at a start before.
    """
    shapes = examples(denoiser, encoder, table)[world.rank :: world.size]
    how: dict[str, Any] = {"sharded": world.shards, "units": denoiser.sharding().units}

    def first() -> DtypeError | None:
        key = audited.key_of(denoiser, shapes, **how)
        if audited.find(key) is not None:
            return None
        with without_numbers(denoiser):
            for fault in audit.faults(denoiser, shapes, **how):
                return fault
            audited.note(key)
        return None

    for fault in filter(None, [first()] if world.size == 1 else collectives.on_all(first)):
        raise fault


@contextmanager
def without_numbers(denoiser: Denoiser) -> Iterator[None]:
    """Let passes on the meta device be tried: a network that fails there for no fault of its own is known as such, and told."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        denoiser.runs_on_meta = False
        kind, (told, *_) = type(denoiser.module).__name__, f"{type(error).__name__}: {error}".splitlines()
        logger.warning(
            f"{kind} does not run without numbers ({told}): what is computed before the first step leaves out dtypes, attention "
            "kernels and memory. PassRules(shape_only=False) in its family's config says that it is so"
        )


def faults_of_encoders(encoder: FrozenEncoders) -> Iterator[DtypeError]:
    """Yield an error for each weight of an encoder that is not stored in its declared dtype."""
    for component in encoders(encoder).values():
        for module in networks(component):
            yield from audit.storage_faults(module, component.contract)


def encoders(encoder: FrozenEncoders) -> dict[str, Encoder]:
    """Return the encoders by name; the image encoder only if there is one."""
    by_name: dict[str, Encoder] = {"autoencoder": encoder.autoencoder, "text": encoder.text_encoder}
    return by_name if encoder.image_encoder is None else {**by_name, "image_encoder": encoder.image_encoder}


def networks(component: Encoder) -> list[nn.Module]:
    """Return the networks among an encoder's attributes, and in its diffusers pipelines; there may be none."""
    found: list[Any] = []
    for value in vars(component).values():
        parts = getattr(value, "components", None)  # of a pipeline; a network of one's own may call anything so
        found += parts.values() if isinstance(parts, Mapping) else [value]
    return [value for value in found if isinstance(value, nn.Module)]


def examples(denoiser: Denoiser, encoder: FrozenEncoders, table: BucketTable) -> list[DenoiserInputs]:
    """Return inputs of every bucket's shape on the meta device; none if the model cannot run there."""
    buckets = table.buckets if denoiser.runs_on_meta else ()
    return [blank(encoder, bucket, 1, torch.device("meta")) for bucket in buckets]


def rehearse(
    denoiser: Predictor[DenoiserInputs],
    encoder: FrozenEncoders,
    state: TrainState,
    bucket: Bucket,
    file: Path | None = None,
    *,
    clips: int | None = None,
) -> None:
    """Run a bucket forward and backward while the optimizer's state is allocated, and drop the gradients.

    Buffers that the forward pass changes, such as statistics, are put back. If memory does not suffice, a snapshot of the
    GPU's is written to `file`, if given. `clips` is the number of clips that the network sees at once, by default the
    bucket's batch size.

    Raises:
        DtypeError: Two dtypes meet that must not, in a model that cannot run on the meta device.
        UserError: Memory does not suffice; names the bucket.
    """
    # Not weights that are stored as codes, of a byte each: these are large, and never changed.
    kept = [(one, one.to("cpu", copy=True)) for one in state.module.buffers() if one.element_size() > 1]
    try:
        with out_of_memory.naming_bucket(bucket, encoder.device, file, what="the largest bucket"):
            inputs = blank(encoder, bucket, clips or bucket.batch_size, encoder.device)
            with audit.watched(denoiser) as run:
                torch.autograd.backward(run(inputs).sum())
    finally:
        state.optimizer.zero_grad()
        for buffer, value in kept:
            buffer.copy_(value)


def blank(encoder: FrozenEncoders, bucket: Bucket, batch: int, device: torch.device) -> DenoiserInputs:
    """Return inputs of a bucket's shape with constant values; uses only the sizes of the encoder."""
    t, h, w = encoder.autoencoder.geometry.latent(bucket.shape)
    text = encoder.text_encoder

    def full(*shape: int, value: float = 0.0) -> torch.Tensor:
        return torch.full(shape, value, dtype=torch.float32, device=device)

    latent = full(batch, encoder.autoencoder.latent_channels, t, h, w)
    conditions = conditioning.blank(encoder, latent)
    latent = conditioning.prepend_sources(latent, conditions)
    sound: SoundInputs | None = None
    if encoder.sound is not None:
        shape = encoder.sound.latent_shape(bucket.shape.num_frames)
        every = torch.ones(batch, shape[1], dtype=torch.bool, device=device)
        sound = SoundInputs(full(batch, *shape), full(batch, value=500.0), every)
        conditions |= {name: full(batch, *shape) for name in encoder.given if name in SOUNDS}
    return DenoiserInputs(
        latent=latent,
        time=full(batch, value=500.0),
        text=full(batch, text.max_length, text.dim),
        text_mask=torch.ones(batch, text.max_length, dtype=torch.bool, device=device),
        pooled=full(batch, text.pooled_dim),
        guidance=full(batch, value=1.0),
        frame_mask=torch.ones(batch, latent.shape[2], dtype=torch.bool, device=device),
        fps=full(batch, value=24.0),
        height=full(batch, value=float(bucket.shape.height)),
        width=full(batch, value=float(bucket.shape.width)),
        drop_text=torch.zeros(batch, dtype=torch.bool, device=device),
        **given(conditions, batch),
        sound=sound,
    )
