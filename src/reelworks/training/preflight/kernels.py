"""Check the attention kernels of a run before its first step: a wrong gradient is found before anything is trained on it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import cast

import torch

from reelworks.core import log
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.buckets.table import Bucket
from reelworks.data.distributed import collectives
from reelworks.data.distributed.mesh import World
from reelworks.models.api import Denoiser, DenoiserInputs
from reelworks.models.attention import attention, attention_audit
from reelworks.models.attention.attention_audit import AttentionFault, AttentionReport
from reelworks.models.attention.attention_calls import AttentionCall, CallKind, Recorder
from reelworks.models.precision import audit, audited
from reelworks.models.precision.repeats import RepeatedOperations
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.memory import dry_run, meter
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe

_TRUSTED = {"cpu"}  # devices whose kernels were never found wrong; `check` compares them all the same


def require_right(
    denoiser: Denoiser, encoders: FrozenEncoders, data: RecipeData, world: World
) -> tuple[AttentionFault, ...]:
    """Check the kernels of a run on a GPU, and tell which are replaced, in the whole run. Collective.

    Raises:
        UserError: No kernel is right for a call.
    """
    if world.device.type in _TRUSTED:
        return ()
    shapes = examples(data.recipe, denoiser, encoders, data.table.buckets)[world.rank :: world.size]

    def check() -> tuple[AttentionFault, ...]:
        about = f"{data.recipe.model.attention} {attention_audit.versions()} {attention.package_versions()}"
        key = audited.key_of(denoiser, shapes, sharded=world.shards, units=denoiser.sharding().blocks, about=about)
        with contextlib.suppress(ValueError, TypeError, KeyError):  # the cache has none, or none that can be read
            found = json.loads(audited.find(key) or "")
            return tuple(AttentionFault(**{**each, "kind": CallKind(*each["kind"])}) for each in found)
        with log.stage("comparing attention kernels with exact attention"):
            faults = run(data.recipe, denoiser, shapes, world).faults
        audited.note(key, json.dumps([asdict(fault) for fault in faults]))
        return faults

    of_ranks = [check()] if world.size == 1 else collectives.on_all(check)
    faults = tuple(dict.fromkeys(fault for faults in of_ranks for fault in faults))
    if world.is_main:
        for line in replacement_lines(faults):
            logger.warning(line)
    for fault in faults:
        if fault.instead is None:
            raise refusal(data.recipe, fault)
    return faults


def refusal(recipe: Recipe, fault: AttentionFault) -> UserError:
    """Return the error for a call that no kernel computes rightly."""
    return UserError(
        f"{fault}, and no other kernel is right",
        code="attention-is-wrong",
        field="model.attention",
        value=recipe.model.attention,
        remedy="set it to another kernel, or install another version of torch",
    )


def run(recipe: Recipe, denoiser: Denoiser, shapes: Sequence[DenoiserInputs], world: World) -> AttentionReport:
    """Compare each kind of call that the network makes for these shapes; use the denoiser before it is sharded."""
    compute = denoiser.contract.compute if world.shards else None
    attend = attention.function_of(denoiser, recipe.model.attention)
    return attention_audit.audit(calls_of(denoiser, compute, shapes), world.device, attend)


def replacement_lines(faults: Sequence[AttentionFault]) -> Iterator[str]:
    """Yield a line for each kernel and kind of call that is replaced."""
    for fault in {(each.kernel, each.kind): each for each in faults if each.instead is not None}.values():
        yield f"{fault}; the {fault.instead} kernel, which is right, takes its place for these calls"


def examples(
    recipe: Recipe, denoiser: Denoiser, encoders: FrozenEncoders, buckets: Sequence[Bucket]
) -> list[DenoiserInputs]:
    """Return a micro-batch of each bucket on the meta device, one of those that have as many frames, tokens and clips."""
    geometry, meta = encoders.autoencoder.geometry, torch.device("meta")
    alike = {
        (geometry.latent(bucket.shape)[0], bucket.tokens, bucket.batch_size): bucket
        for bucket in buckets
        if bucket.batch_size and denoiser.runs_on_meta
    }
    return [dry_run.blank(encoders, one, one.batch_size * recipe.clips_per_place, meta) for one in alike.values()]


def calls_of(denoiser: Denoiser, compute: torch.dtype | None, shapes: Sequence[DenoiserInputs]) -> list[AttentionCall]:
    """Record forward and backward passes on the meta device, where layouts are those of any device."""
    shadow = cast(Denoiser, audit.shadow_of(denoiser, compute))
    shadow.contract = replace(shadow.contract, storage=compute or shadow.contract.storage)
    attention.use_native(shadow)
    with meter.few_blocks(shadow.module), Recorder() as recorder, RepeatedOperations():  # type: ignore[no-untyped-call]
        for inputs in shapes:
            meter.run_pass(shadow, inputs)
    calls = recorder.calls
    # Some networks leave out the mask of a micro-batch in which no caption is shorter than the longest.
    unmasked = [replace(call, mask=None) for call in calls if call.mask is not None and call.mask.shape[-2] == 1]
    return list(dict.fromkeys([*calls, *unmasked]))
