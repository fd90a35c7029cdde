"""Numbers that are not finite: whether a state has them, and where a step got them from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from reelworks.data.loader import MicroBatch
from reelworks.distributed.mesh import local
from reelworks.models.api import DenoiserInputs

What = Literal["input", "weight", "activation", "gradient"]
# What comes earlier in a step is the cause of what comes later.
_ORDER: tuple[What, ...] = ("input", "weight", "activation", "gradient")
_CLIPS_NAMED = 4


@dataclass(frozen=True)
class NonFiniteSource:
    """The first place where numbers are not finite.

    Attributes:
        what: Of what.
        path: Of the module, or the name of the weight or input.
    """

    what: What
    path: str


@dataclass(frozen=True)
class NonFiniteCause:
    """Why a step is not finite, over all ranks.

    Attributes:
        origin: Where it began; None if doing the step again gave finite numbers.
        clips: `uid` and `path` of each clip whose loss is not finite.
    """

    origin: NonFiniteSource | None
    clips: tuple[dict[str, Any], ...]

    def __str__(self) -> str:
        where = f"first in the {self.origin.what} of {self.origin.path}" if self.origin else "of unknown origin"
        if not self.clips:
            return f"{where}; every clip's loss is finite"
        named = ", ".join(clip["path"] for clip in self.clips[:_CLIPS_NAMED])
        more = f" and {len(self.clips) - _CLIPS_NAMED} more" if len(self.clips) > _CLIPS_NAMED else ""
        return f"{where}; the loss of {named}{more}"

    @classmethod
    def from_parts(cls, parts: Iterable[Any]) -> NonFiniteCause:
        """Put together what each rank found, as (origin, clips)."""
        parts = list(parts)
        origins = [origin for origin, _ in parts if origin is not None]
        first = min(origins, key=lambda o: _ORDER.index(o.what), default=None)
        return cls(first, tuple(clip for _, clips in parts for clip in clips))


@dataclass
class NonFiniteCandidates:
    """The micro-batches of a step with their losses, which stay on the device until a step turns out not to be finite.

    Frames of all of them are held that long: only then it is known which one is to be run again.
    """

    _kept: list[tuple[MicroBatch, Tensor, Tensor]] = field(default_factory=list)

    def keep(self, batch: MicroBatch, losses_B: Tensor, counts_B: Tensor) -> None:
        """Remember a micro-batch, the loss of each clip, and which of them count."""
        self._kept.append((batch, losses_B.detach(), counts_B))

    def first_bad(self) -> tuple[MicroBatch, list[dict[str, Any]]]:
        """Return the first micro-batch with a loss that is not finite, else the last, and the clips as in `NonFiniteCause`."""
        assert self._kept, "a step has a micro-batch on every rank"
        first, clips = None, []
        for batch, losses_B, counts_B in self._kept:
            bad = (counts_B & ~torch.isfinite(losses_B)).nonzero().flatten().tolist()
            if bad and first is None:
                first = batch
            work = batch.work
            clips += [{"uid": int(work.uids[i]), "path": str(work.requests[i].path)} for i in bad]
        return first or self._kept[-1][0], clips


@torch.no_grad()
def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Name the tensors of one device that hold infinities or NaN, by this rank's part of each."""
    parts = {name: local(tensor.detach()) for name, tensor in tensors.items()}
    parts = {name: part for name, part in parts.items() if part.is_floating_point() and part.numel()}
    if not parts:
        return []
    # The largest absolute value: a sum of squares would pass the range of float32 before the values do.
    largest = torch._foreach_norm(list(parts.values()), math.inf)
    fine = torch.isfinite(torch.stack([value.float() for value in largest])).tolist()
    return [name for name, ok in zip(parts, fine, strict=True) if not ok]


@torch.no_grad()
def origin(module: nn.Module, inputs: DenoiserInputs, run: Callable[[], object]) -> NonFiniteSource | None:
    """Find where a step that is not finite got it from.

    Collective where the module is sharded. Gradients are still there, and not yet clipped.

    Args:
        module: The network.
        inputs: What it is given.
        run: Does its forward pass once more.
    """
    given = {f.name: getattr(inputs, f.name) for f in dataclasses.fields(inputs)}
    bad_inputs, bad_weights = not_finite(given), not_finite(dict(module.named_parameters()))
    order, bad_modules = _forward(module, run)
    if bad_inputs:
        return NonFiniteSource("input", bad_inputs[0])
    if bad_weights:
        return NonFiniteSource("weight", bad_weights[0])
    if bad_modules:
        return NonFiniteSource("activation", bad_modules[0])
    gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    bad = {name.rpartition(".")[0] for name in not_finite(gradients)}
    # Gradients flow backwards, so the last module to begin is the first to have one.
    path = next((path for path in reversed(order) if path in bad), None)
    return None if path is None else NonFiniteSource("gradient", path)


def _forward(module: nn.Module, run: Callable[[], object]) -> tuple[list[str], list[str]]:
    """Paths of modules in the order in which they begin, and of those, as they end, whose output is not finite."""
    order: list[str] = []
    bad: list[str] = []

    def check(path: str, out: Any) -> None:
        results = out if isinstance(out, tuple) else (out,)
        if not_finite({str(i): r for i, r in enumerate(results) if isinstance(r, Tensor)}):
            bad.append(path or type(module).__name__)

    handles = []
    for path, child in module.named_modules():
        handles += [
            child.register_forward_pre_hook(lambda _module, _args, path=path: order.append(path)),
            child.register_forward_hook(lambda _module, _args, out, path=path: check(path, out)),
        ]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return order, bad
