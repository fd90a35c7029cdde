"""Before the first step: every shape on the meta device, and the largest bucket for real.

A dtype or a shape that does not fit, or memory that does not suffice, fails here or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from reelworks.buckets.table import Bucket, BucketTable
from reelworks.core.errors import UserError
from reelworks.distributed.mesh import World
from reelworks.encoders import conditioning
from reelworks.encoders.encoders import LiveEncoder
from reelworks.models.api import Autoencoder, Denoiser, DenoiserInputs, ImageEncoder, TextEncoder
from reelworks.precision import audit, storage_dtype
from reelworks.precision.boundary import DtypeError, Predictor
from reelworks.train.state import TrainState

Encoder = Autoencoder | TextEncoder | ImageEncoder


def audit_shapes(denoiser: Denoiser, encoder: LiveEncoder, table: BucketTable, world: World) -> int:
    """Run every bucket's shape through the model without numbers; returns how many.

    Raises:
        DtypeError: Two dtypes meet that must not; names the module.
    """
    shapes, units = examples(denoiser, encoder, table), denoiser.sharding().blocks
    return audit.audit(denoiser, shapes, sharded=world.shards, units=units)


def require_encoders(encoder: LiveEncoder) -> None:
    """Refuse encoders whose weights lie in memory in another dtype than they declare.

    Raises:
        DtypeError: Names the parameter.
    """
    for fault in faults_of_encoders(encoder):
        raise fault


def faults_of_encoders(encoder: LiveEncoder) -> Iterator[DtypeError]:
    """Compare what the encoders hold with what they declare."""
    for component in encoders(encoder).values():
        for module in networks(component):
            yield from storage_dtype.faults(module, component.contract)


def encoders(encoder: LiveEncoder) -> dict[str, Encoder]:
    """The encoders that there are, by their tables in a recipe."""
    found: dict[str, Encoder] = {"autoencoder": encoder.autoencoder, "text": encoder.text_encoder}
    return found if encoder.image_encoder is None else {**found, "image_encoder": encoder.image_encoder}


def networks(component: Encoder) -> list[nn.Module]:
    """The networks that an encoder holds, by itself or in a pipeline of diffusers; it may hold none."""
    held: list[Any] = []
    for value in vars(component).values():
        held += getattr(value, "components", {"": value}).values()
    return [value for value in held if isinstance(value, nn.Module)]


def examples(denoiser: Denoiser, encoder: LiveEncoder, table: BucketTable) -> list[DenoiserInputs]:
    """Inputs of every bucket's shape without numbers; none where the model cannot run so."""
    buckets = table.buckets if denoiser.runs_on_meta else ()
    return [blank(encoder, bucket, 1, torch.device("meta")) for bucket in buckets]


def largest(table: BucketTable, used: set[int]) -> Bucket:
    """The bucket whose micro-batch has the most tokens, among those that hold clips."""
    return max((table.buckets[i] for i in sorted(used)), key=lambda b: b.tokens * b.batch_size)


def rehearse(denoiser: Predictor[DenoiserInputs], encoder: LiveEncoder, state: TrainState, bucket: Bucket) -> None:
    """Run the largest bucket forward and backward, beside the optimizer's state.

    Leaves weights, average and optimizer as they were: its gradients are dropped.

    Raises:
        DtypeError: Two dtypes meet that must not, where the model cannot run without numbers.
        UserError: Memory does not suffice; names the bucket.
    """
    try:
        inputs = blank(encoder, bucket, bucket.batch_size, encoder.device)
        with audit.watched(denoiser) as run:
            torch.autograd.backward(run(inputs).sum())
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "alloc" not in str(error):
            raise
        raise UserError(
            f"the largest bucket does not fit into memory ({str(error).splitlines()[0][:200]})",
            code="out-of-memory",
            field="bucket.batch_size",
            value=f"{bucket.batch_size} for {bucket.name}",
            remedy="lower it, set model.gradient_checkpointing or parallel.offload = true, or drop that bucket",
        ) from error
    finally:
        state.optimizer.zero_grad()


def blank(encoder: LiveEncoder, bucket: Bucket, batch: int, device: torch.device) -> DenoiserInputs:
    """Inputs of a bucket's shape; zeros. Of the encoder only sizes are looked at."""
    t, h, w = encoder.autoencoder.geometry.latent(bucket.shape)
    text = encoder.text_encoder

    def full(*shape: int, value: float = 0.0) -> torch.Tensor:
        return torch.full(shape, value, dtype=torch.float32, device=device)

    latent = full(batch, encoder.autoencoder.latent_channels, t, h, w)
    return DenoiserInputs(
        latent=latent,
        time=full(batch, value=500.0),
        text=full(batch, text.max_length, text.dim),
        text_mask=torch.ones(batch, text.max_length, dtype=torch.bool, device=device),
        pooled=full(batch, text.pooled_dim),
        guidance=full(batch, value=1.0),
        frame_mask=torch.ones(batch, t, dtype=torch.bool, device=device),
        fps=full(batch, value=24.0),
        height=full(batch, value=float(bucket.shape.height)),
        width=full(batch, value=float(bucket.shape.width)),
        drop_text=torch.zeros(batch, dtype=torch.bool, device=device),
        **conditioning.blank(encoder, latent),
    )
