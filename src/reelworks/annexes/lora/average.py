"""Average the checkpoints of a run after its training, as `power_average` weights them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from reelworks.annexes.lora import output, power_average
from reelworks.annexes.lora.power_average import Combination
from reelworks.annexes.lora.request import AverageRunRequest
from reelworks.annexes.lora.results import LayerResult, LoraResult, ratio
from reelworks.core import files, log, requests, results, toml, torch_state
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import listing, load, read_lock, state_file, verify
from reelworks.data.checkpoint.folder import CheckpointFolder, CheckpointInfo
from reelworks.data.checkpoint.state_file import StoredState
from reelworks.data.run import history
from reelworks.data.run.folder import RunFolder
from reelworks.models.adapters import inject, key_mapping, low_rank
from reelworks.models.adapters.adapter_types.adapter_type import AdapterType
from reelworks.models.adapters.adapter_types.registry import TYPES
from reelworks.models.export import export
from reelworks.models.export.config import Weights
from reelworks.models.export.export import CheckpointTensor
from reelworks.models.export.lora import LoraFile, lora_base_of, lora_file_of

_FAR, _MANY = 0.2, 10.0
ReadT = TypeVar("ReadT")


@dataclass(frozen=True)
class WeightedCheckpoint:
    """A checkpoint of a run, and the number that its weights are multiplied by."""

    step: int
    weight: float


@dataclass(frozen=True)
class RunAverage:
    """Result of an average.

    Attributes:
        result: The layers of a LoRA. Their exact update is the average of the updates; that of the file is the update of
            the averaged tensors, which is what training averages too. Of full weights there is one for each tensor, of the
            type "full", with the norm of the average, and errors are those of rounding.
        averaged: What was averaged: stored averages ("ema"), or trained weights ("model").
        sigma_rel: Width of the wanted profile.
        checkpoints: The checkpoints by step; their weights have the sum 1.
        profile_error: Distance of the profile from the wanted one, as a share of its norm; None for trained weights.
    """

    result: LoraResult = field(metadata=results.INLINED)
    averaged: Weights
    sigma_rel: float
    checkpoints: list[WeightedCheckpoint]
    profile_error: float | None


class _Checkpoint(NamedTuple):
    """A checkpoint that is being read."""

    step: int
    path: Path
    state: StoredState
    tensors: dict[str, CheckpointTensor]

    def read(self, name: str) -> Tensor:
        """Return a tensor, which is compared with its digest."""
        key = self.tensors[name].key
        return _read(self.path, lambda path: load.read_tensors(path, self.state, {key})[key])


@requests.telling(AverageRunRequest)
@torch_state.own()
def average(request: AverageRunRequest) -> RunAverage:
    """Write an average of a run's checkpoints: its LoRA, or full weights.

    Raises:
        UserError: There are fewer than two good checkpoints, or none has what is to be averaged.
    """
    output.require_target(request.output, request.overwrite)
    run = RunFolder(request.run)
    run.info()
    good, notes = _good_checkpoints(run, request)
    newest = good[-1]
    recipes = history.recipes_of(run, [info.step for info in good])
    resolved = [toml.parse(recipes[info.step].read_text(encoding="utf-8")) for info in good]
    given = [values.get("train", {}).get("ema_decay") for values in resolved]
    # Averages without this key have another profile.
    decays = [float(decay) if isinstance(decay, int | float) else None for decay in given]
    recipe = recipes[newest.step]
    lora = lora_file_of(recipe, request.format or "diffusers")
    if lora is None and request.format is not None:
        raise UserError(
            "the run trained full weights, and only LoRA files have several conventions",
            code="lora-format-without-lora",
            field="format",
            value=request.format,
            remedy="leave it out",
        )
    with ExitStack() as stack:
        for info in good:
            stack.enter_context(read_lock.reading(info.path))
        states = [_read(info.path, state_file.read) for info in good]
        kind = _what(request.of, states, decays)
        # Steps since which averages are kept: starts of a stage that began them anew, or of the run.
        began = [_read(info.path, load.average_step) if kind == "ema" else 0 for info in good]
        notes += _begun_anew(good, began, request)
        checkpoints = [
            _Checkpoint(info.step, info.path, state, export.stored_weights(info.path, state, kind))
            for info, state, step in zip(good, states, began, strict=True)
            if step == began[-1]
        ]
        _require_alike(checkpoints)
        combined = _combine(checkpoints, request, kind, decays[-len(checkpoints) :], began[-1])
        about = export.describe_run(run_id=run.info().id, recipe=recipe, step=newest.step, epoch=listing.epoch(newest))
        written, layers = _write(checkpoints, combined, request, kind, about, lora)
    result = LoraResult.of_layers(written, None if lora is None else lora.format, layers, notes + _warnings(combined))
    members = [WeightedCheckpoint(each.step, w) for each, w in zip(checkpoints, combined.weights, strict=True)]
    return RunAverage(result, kind, request.sigma_rel, members, combined.profile_error)


def _good_checkpoints(run: RunFolder, request: AverageRunRequest) -> tuple[list[CheckpointInfo], list[str]]:
    """Return the checkpoints to average, ascending, and notes about others."""
    infos = CheckpointFolder(run.checkpoints_folder).list()
    asked = [info for info in infos if request.until is None or info.step <= request.until]
    damaged = {info.step: damage for info in asked if (damage := verify.damage(info.path))}
    good = [info for info in asked if info.step not in damaged]
    if len(good) < 2:
        raise UserError(
            f"an average needs two good checkpoints, and the run has {len(good)}"
            + (f" up to step {request.until}, of {len(infos)} in all" if len(infos) > len(asked) else ""),
            code="checkpoints-too-few",
            field="run",
            value=str(request.run),
            remedy="keep more of them, with checkpoints.keep_every; `reelworks checkpoints export` writes one",
        )
    return good, [f"left out: step {step}, which is damaged: {damage}" for step, damage in damaged.items()]


def _read(path: Path, read: Callable[[Path], ReadT]) -> ReadT:
    """Return what is read of a checkpoint, of which damage is told."""
    with verify.bad_told(path):
        return read(path)


def _begun_anew(good: Sequence[CheckpointInfo], began: Sequence[int], request: AverageRunRequest) -> list[str]:
    """Return a note on the checkpoints whose averages ended before that of the newest began, and have no part in it."""
    earlier = [str(info.step) for info, step in zip(good, began, strict=True) if step != began[-1]]
    if not earlier:
        return []
    if len(good) - len(earlier) < 2:
        raise UserError(
            f"a stage began a new average after step {began[-1]}, and has one good checkpoint since",
            code="checkpoints-too-few",
            field="run",
            value=str(request.run),
            remedy=f"give --of model, which averages the weights of all stages, or --until {began[-1]} for the stages before",
        )
    steps = f"step {earlier[0]}" if len(earlier) == 1 else f"steps {', '.join(earlier)}"
    return [f"left out: {steps}, since a stage began a new average after step {began[-1]}"]


def _what(asked: Weights | None, states: Sequence[StoredState], decays: Sequence[float | None]) -> Weights:
    """Return what to average: what was asked for, or stored averages of known profiles where all checkpoints have them."""
    known = all("ema" in state.parts for state in states) and None not in decays
    if asked == "ema" and not known:
        raise UserError(
            "the profiles of its stored averages are not known: they are not those of train.ema_decay",
            code="averages-unknown",
            field="of",
            value=asked,
            remedy="give --of model",
        )
    return asked or ("ema" if known else "model")


def _require_alike(checkpoints: Sequence[_Checkpoint]) -> None:
    shapes = {name: tensor.shape for name, tensor in checkpoints[-1].tensors.items()}
    for each in checkpoints:
        if {name: tensor.shape for name, tensor in each.tensors.items()} != shapes:
            raise UserError(
                f"the checkpoint of step {each.step} has other tensors than that of step {checkpoints[-1].step}",
                code="checkpoint-state-differs",
                field="run",
                value=str(each.path),
                remedy="move it away, or average others with --until",
            )


def _combine(
    checkpoints: Sequence[_Checkpoint],
    request: AverageRunRequest,
    kind: Weights,
    decays: Sequence[float | None],
    began: int,
) -> Combination:
    steps = [each.step - began for each in checkpoints]
    if kind == "model":
        return power_average.of_snapshots(steps, request.sigma_rel)
    # Steps up to a checkpoint were trained with the recipe of that checkpoint.
    spans = iter(zip(steps, decays, strict=True))
    end, decay = next(spans)

    def decay_of(step: int) -> float:
        nonlocal end, decay
        if step >= end:
            end, decay = next(spans)
        assert decay is not None
        return decay

    return power_average.of_averages(steps, request.sigma_rel, decay_of)


def _warnings(combined: Combination) -> list[str]:
    notes = []
    if combined.profile_error is not None and combined.profile_error > _FAR:
        notes.append(
            f"the stored averages come only within {combined.profile_error:.0%} of this profile: keep more checkpoints "
            "(checkpoints.keep_every), or give another --sigma-rel"
        )
    if combined.profile_error is None and combined.weights[0] > _FAR:
        notes.append(
            f"the first checkpoint stands for {combined.weights[0]:.0%} of the profile, all that came before it: keep more "
            "checkpoints (checkpoints.keep_every), or give a smaller --sigma-rel"
        )
    if (largest := max(map(abs, combined.weights))) > _MANY:
        notes.append(f"weights reach {largest:.0f}, which multiplies the rounding of the stored numbers too")
    return notes


def _write(
    checkpoints: Sequence[_Checkpoint],
    combined: Combination,
    request: AverageRunRequest,
    kind: Weights,
    about: Mapping[str, str],
    lora: LoraFile | None,
) -> tuple[list[Path], list[LayerResult]]:
    newest = checkpoints[-1]
    tensors = newest.tensors
    if lora is not None:
        lora = lora._replace(base=lora_base_of(newest.path))
        for file in lora.files(request.output):
            output.require_target(file, request.overwrite)
    done: list[str] = []
    layers: list[LayerResult] = []

    def read(name: str) -> Tensor:
        """Return the weighted sum of a tensor, in float32; of whole numbers, those of the newest checkpoint."""
        done.append(name)
        total = newest.read(name)
        if total.is_floating_point():
            total = total.float() * combined.weights[-1]
            for each, weight in zip(checkpoints[:-1], combined.weights[:-1], strict=True):
                total.add_(each.read(name).float(), alpha=weight)
        if lora is None:  # tell how far a tensor of full weights is from its average as it is written
            exact, rounded = total.double(), total.to(export.DTYPES[request.dtype]).double()
            error = float((exact - rounded).norm()) if total.is_floating_point() else 0.0
            norm = float(exact.norm())
            layers.append(LayerResult(name, "full", None, norm, ratio(error, norm)))
        return total

    told = {
        **about,
        "ema_sigma_rel": f"{request.sigma_rel:g}",
        "ema_steps": ", ".join(str(c.step) for c in checkpoints),
    }
    with log.stage("averaging", lambda: f"{len(done)} of {len(tensors)} tensors"):
        with files.writing("output", request.output):
            request.output.parent.mkdir(parents=True, exist_ok=True)
            written = export.export_tensors(
                tensors, read, request.output, weights=kind, dtype=request.dtype, about=told, lora=lora
            )
        if lora is not None:
            layers = [*_layers(checkpoints, combined.weights, lora)]
    return written, layers


def _layers(checkpoints: Sequence[_Checkpoint], weights: Sequence[float], lora: LoraFile) -> Iterator[LayerResult]:
    """Yield how far the update of averaged tensors is from the average of the updates, by layer."""
    kind, factor = TYPES[lora.adapter.type], lora.adapter.alpha / lora.adapter.rank
    names: dict[str, dict[str, str]] = {}
    for name, (layer, each) in inject.parts(checkpoints[-1].tensors).items():
        names.setdefault(layer, {})[each] = name
    for layer, keys in names.items():
        stored = [{each: member.read(name).float() for each, name in keys.items()} for member in checkpoints]
        rank = kind.rank_of(stored[0])
        if kind.depends_on_weight(keys):
            yield LayerResult(layer, kind.name, rank, None, None)
            continue
        members = [key_mapping.multiply(kind, kinds, factor) if rank else kinds for kinds in stored]
        pairs = [*zip(weights, members, strict=True)]
        average = {each: sum(weight * kinds[each] for weight, kinds in pairs) for each in keys}
        norm, error = _compare(kind, average, pairs)  # type: ignore[arg-type]
        yield LayerResult(layer, kind.name, rank, norm, ratio(error, norm))


def _compare(
    kind: AdapterType, average: Mapping[str, Tensor], pairs: Sequence[tuple[float, Mapping[str, Tensor]]]
) -> tuple[float, float]:
    """Return the norm of the average of updates, and its distance from the update of averaged tensors."""
    if len(pairs) * kind.factors(average).rank < min(kind.shape(average)):
        exact = low_rank.add([kind.factors(kinds).scaled(weight) for weight, kinds in pairs])
        return exact.norm(), exact.distance(kind.factors(average))
    dense = torch.zeros(kind.shape(average))
    for weight, kinds in pairs:
        dense.add_(kind.delta(kinds), alpha=weight)
    return float(dense.norm()), float((dense - kind.delta(average)).norm())
