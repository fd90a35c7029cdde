"""Make a LoRA of the difference of two sets of full weights, layer by layer."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from reelworks.annexes.lora import output
from reelworks.annexes.lora.base_network import BaseNetwork
from reelworks.annexes.lora.full_weights import FullWeights, bare_names, open_weights
from reelworks.annexes.lora.output import NewAdapterFile, rewriting
from reelworks.annexes.lora.request import ExtractLoraRequest
from reelworks.annexes.lora.results import LayerResult, LoraResult, ratio, share
from reelworks.core import log, requests, results, torch_state, units
from reelworks.core.errors import UserError, first_few
from reelworks.models import identify, registry
from reelworks.models.adapters import files as lora_files
from reelworks.models.adapters import low_rank
from reelworks.models.adapters.adapter_types.adapter_type import Adapter
from reelworks.models.adapters.adapter_types.registry import LORA
from reelworks.models.adapters.conventions import CONVENTIONS, Convention

_ROWS = 1024  # that are subtracted at once


@dataclass(frozen=True)
class NotHeld:
    """Differences that a LoRA of linear layers does not hold.

    Attributes:
        kind: What the tensors are: "norms and biases", "convolutions", or "others".
        tensors: Number of tensors that differ.
        norm: Frobenius norm of their differences together.
        share: Their part of the squared norm of the whole difference.
    """

    kind: str
    tensors: int
    norm: float
    share: float | None


@dataclass(frozen=True)
class Extraction:
    """Result of an extraction.

    Attributes:
        result: The LoRA's layers, whose errors are those of their own differences.
        model: The network; None if it is not known.
        equal: Number of linear layers that do not differ, which the LoRA lacks.
        not_held: Differences that are not in the LoRA.
        difference: Frobenius norm of the whole difference.
        relative_error_in_all: What the LoRA lacks of the whole difference, `not_held` included, as a share of it.
    """

    result: LoraResult = field(metadata=results.INLINED)
    model: str | None
    equal: int
    not_held: list[NotHeld]
    difference: float
    relative_error_in_all: float | None


@requests.telling(ExtractLoraRequest)
@torch_state.own()
def extract(request: ExtractLoraRequest) -> Extraction:
    """Write a LoRA whose updates are near the differences of two sets of weights.

    Raises:
        UserError: The weights are damaged, in codes, of different networks, or equal.
    """
    with (
        rewriting(request) as new,
        open_weights(request.base, "base", request.part) as base,
        open_weights(request.tuned, "tuned", request.part) as tuned,
    ):
        network = _network_of(base, request.model)
        names = _common_names(base, tuned, request)
        found = _Differences(new, network, request)
        with log.stage("decomposing differences", lambda: f"{found.done} of {len(names)} tensors"):
            for bare, (own, theirs) in names.items():
                # No name for the difference, which would live until the next one is there.
                dtype = new.dtype_of(base.facts[own].dtype or torch.float32)
                found.add(bare, _difference(base.read(own), tuned.read(theirs)), dtype)
        return found.finish(request)


def _difference(base: Tensor, tuned: Tensor) -> Tensor:
    """Return a difference in float32, with the memory of one matrix beside those that are given."""
    difference = tuned.float().reshape(tuned.shape or (1,))
    parts = (torch.split(each, _ROWS) for each in (difference, base.reshape(difference.shape)))
    for rows, own in zip(*parts, strict=True):
        rows.sub_(own.float())
    return difference


def _network_of(base: FullWeights, model: str | None) -> BaseNetwork | None:
    """Return the network whose tensors the weights are; None for one that is not known."""
    if model is not None:
        network = BaseNetwork([registry.preset_name(model)])
        if not any(network.targets_of(name.removesuffix(".weight")) for name in bare_names(base.facts)):
            raise UserError(
                "it has none of the layers of the base",
                code="weights-do-not-fit",
                field="model",
                value=model,
                remedy="name the network of the weights, or leave it out",
            )
        return network
    with log.stage("comparing the weights with known models"):
        match = identify.closest({name: tensor.shape for name, tensor in base.facts.items()})
    return BaseNetwork(match.names) if match.fitting == match.total else None


def _common_names(base: FullWeights, tuned: FullWeights, request: ExtractLoraRequest) -> dict[str, tuple[str, str]]:
    """Return the names of both for each tensor by its bare one.

    Raises:
        UserError: Weights of one are missing in the other, or have another shape.
    """
    own, theirs = bare_names(base.facts), bare_names(tuned.facts)
    alone = [name for name in own if name not in theirs and len(base.facts[own[name]].shape) > 1]
    alone += [name for name in theirs if name not in own and len(tuned.facts[theirs[name]].shape) > 1]
    common = {name: (own[name], theirs[name]) for name in own if name in theirs}
    others = [name for name, (a, b) in common.items() if base.facts[a].shape != tuned.facts[b].shape]
    if alone or others:
        verb, kind, some = ("are", "in one of them only", alone) if alone else ("have", "other shapes", others)
        unlike, both = units.plural(len(some), "weight", verb), len(common) - len(others)
        raise UserError(
            f"weights of another network than {request.base}, or under other names: {unlike} {kind}, and "
            f"{units.count(both)} {units.verb(both, 'are')} in both: {first_few(some)}",
            code="weights-do-not-fit",
            field="tuned",
            value=str(request.tuned),
            remedy="name two sets of weights of one network, in the same layout",
        )
    return common


class _Differences:
    """Differences that are found tensor by tensor; `done` are those that were looked at."""

    def __init__(self, new: NewAdapterFile, network: BaseNetwork | None, request: ExtractLoraRequest) -> None:
        self._new, self._network, self._rank = new, network, request.rank
        self.done, self._equal = 0, 0
        self._others: dict[str, list[float]] = defaultdict(list)
        self._convention: Convention = CONVENTIONS["diffusers"]

    def add(self, name: str, difference: Tensor, dtype: torch.dtype) -> None:
        """Write the difference of a tensor in a dtype, or note that it is not held."""
        self.done += 1
        norm = float(difference.norm())
        if not math.isfinite(norm):
            raise UserError(
                f"the difference of {name} has infinities or NaN",
                code="weights-unreadable",
                remedy="download or export the weights again",
            )
        layer, network = name.removesuffix(".weight"), self._network
        is_linear = layer != name and difference.ndim == 2
        if is_linear and network is not None:
            is_linear = any(isinstance(network.layers[t.layer], nn.Linear) for t in network.targets_of(layer))
        if norm == 0:
            self._equal += is_linear
        elif is_linear:
            product, stem = low_rank.approximate(difference, min(self._rank, *difference.shape)), self._stem(layer)
            written = self._new.add_product(stem, product, dtype, self._convention)
            error = float(difference.addmm_(written.B, written.A, alpha=-1).norm())
            self._new.results.append(LayerResult(stem, LORA.name, written.rank, norm, ratio(error, norm)))
        else:
            kinds = {0: "norms and biases", 1: "norms and biases", 2: "others", 3: "others"}
            self._others[kinds.get(difference.ndim, "convolutions")].append(norm)

    def _stem(self, layer: str) -> str:
        """Return the name of a layer in the convention whose layers the weights have."""
        if self._network is None:
            return f"transformer.{layer}"
        if layer in self._network.layers:
            return f"{self._network.part}.{layer}"
        self._convention = CONVENTIONS["comfyui"]
        return self._convention.stem(layer)

    def finish(self, request: ExtractLoraRequest) -> Extraction:
        """Write the file and return what is told of it."""
        others = {kind: math.hypot(*norms) for kind, norms in self._others.items()}
        layers = self._new.results
        whole = math.hypot(*others.values(), *(layer.norm or 0.0 for layer in layers))
        if not layers:
            raise UserError(
                "its linear layers are equal to those of the base"
                + (f", and {', '.join(others)} differ, which a LoRA does not hold" if others else ""),
                code="weights-equal",
                field="tuned",
                value=str(request.tuned),
                remedy="name the tuned weights",
            )
        model = None if self._network is None else self._network.names[0]
        notes = (
            [] if model else ["the network is not known: layers have the names of the weights, as in diffusers' files"]
        )
        rank = max(layer.rank or 1 for layer in layers)
        about = lora_files.release_header(model or "unknown", self._convention, Adapter(rank=rank, alpha=rank), None)
        remark = f"extracted: {Path(request.tuned).name} minus {Path(request.base).name}"
        header = output.header_of({**about, "ss_sd_model_name": Path(request.base).name}, self._new.layers, remark)
        if self._convention.is_peft:
            header |= output.peft_settings(self._new.layers)
        result = self._new.finish(header, self._convention, notes)
        not_held = [
            NotHeld(kind, len(self._others[kind]), norm, ratio(norm**2, whole**2)) for kind, norm in others.items()
        ]
        lacking = math.hypot(share(result.norm, result.relative_error) or 0.0, *others.values())
        return Extraction(result, model, self._equal, not_held, whole, ratio(lacking, whole))
