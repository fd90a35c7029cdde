"""Choose the attention kernels of a run before its first step: the quickest of those that are right.

A wrong gradient is found before anything is trained on it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, cast

import torch

from reelworks.core import log
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.buckets.table import Bucket
from reelworks.data.distributed import collectives
from reelworks.data.distributed.mesh import World
from reelworks.models.api import Denoiser, DenoiserInputs
from reelworks.models.attention import attention, attention_audit
from reelworks.models.attention.attention_audit import AttentionFault, AttentionReport, QuickerKernel, ReplacedKernels
from reelworks.models.attention.attention_calls import AttentionCall, CallKind, Recorder
from reelworks.models.attention.torch_kernels import versions
from reelworks.models.precision import audit, audited
from reelworks.models.precision.repeats import RepeatedOperations
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.memory import dry_run, meter
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe

_TRUSTED = {"cpu"}  # devices that have one kernel, never found wrong; `check` compares it all the same
_TIMED = {"cuda"}  # devices that have several
_KINDS = {"faults": AttentionFault, "quicker": QuickerKernel}  # what the cache has of each


def choose(denoiser: Denoiser, encoders: FrozenEncoders, data: RecipeData, world: World) -> ReplacedKernels:
    """Compare and time the kernels of a run on a GPU, and tell which are replaced, in the whole run. Collective.

    Raises:
        UserError: No kernel is right for a call.
    """
    if world.device.type in _TRUSTED:
        return ReplacedKernels()
    shapes = examples(data.recipe, denoiser, encoders, data.table.buckets)[world.rank :: world.size]

    def found() -> ReplacedKernels:
        about = f"{data.recipe.model.attention} {versions()} {attention.package_versions()}"
        key = audited.key_of(denoiser, shapes, sharded=world.shards, units=denoiser.sharding().units, about=about)
        with contextlib.suppress(ValueError, TypeError, KeyError):  # the cache has none, or none that can be read
            noted = json.loads(audited.find(key) or "")
            return ReplacedKernels(
                *(
                    tuple(result(**{**each, "kind": CallKind(*each["kind"])}) for each in noted[name])
                    for name, result in _KINDS.items()
                )
            )
        with log.stage("comparing attention kernels with exact attention"):
            report = run(data.recipe, denoiser, shapes, world)
        audited.note(key, json.dumps({name: [asdict(each) for each in getattr(report, name)] for name in _KINDS}))
        return ReplacedKernels(report.faults, report.quicker)

    of_ranks = [found()] if world.size == 1 else collectives.on_all(found)
    faults = tuple(dict.fromkeys(fault for rank in of_ranks for fault in rank.faults))
    # All ranks take the same kernel, also where their measurements differ.
    quicker = {one.kind: one for rank in reversed(of_ranks) for one in rank.quicker}
    replaced = ReplacedKernels(faults, tuple(quicker.values()))
    if world.is_main:
        for line in replaced.fault_lines():
            logger.warning(line)
        for line in replaced.quicker_lines():
            logger.info(line)
    for fault in faults:
        if fault.instead is None:
            raise refusal(data.recipe, fault)
    return replaced


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
    times = recipe.model.attention == "native" and world.device.type in _TIMED
    return attention_audit.audit(calls_of(denoiser, compute, shapes), world.device, attend, times=times)


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
    recorder = Recorder()
    repeats: Any = RepeatedOperations()  # type: ignore[no-untyped-call]
    with dry_run.without_numbers(denoiser), meter.few_blocks(shadow.module), recorder.recording(), repeats:
        for inputs in shapes:
            meter.run_pass(shadow, inputs)
    calls = recorder.calls
    # Some networks leave out the mask of a micro-batch in which no caption is shorter than the longest.
    unmasked = [replace(call, mask=None) for call in calls if call.mask is not None and call.mask.shape[-2] == 1]
    return list(dict.fromkeys([*calls, *unmasked]))
