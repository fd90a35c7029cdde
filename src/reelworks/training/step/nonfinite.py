"""Find infinities and NaN in tensors, and the place in a step where they first occurred."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from reelworks.core.errors import first_few
from reelworks.data.distributed.mesh import local
from reelworks.data.loader.micro_batch import MicroBatch
from reelworks.models.api import DenoiserInputs
from reelworks.models.objectives.config import ObjectiveConfig

What = Literal["input", "weight", "activation", "gradient"]
# The order in a step: an earlier one causes the later ones.
_ORDER: tuple[What, ...] = ("input", "weight", "activation", "gradient")


@dataclass(frozen=True)
class NonFiniteSource:
    """The first place where numbers are not finite: path of the module, or name of the weight or input."""

    what: What
    path: str


@dataclass(frozen=True)
class NonFiniteCause:
    """Cause of a loss or gradient that is not finite, over all ranks.

    Attributes:
        origin: The first place; None if a second forward pass gave finite numbers.
        clips: `uid` and `path` of each clip whose loss is not finite.
    """

    origin: NonFiniteSource | None
    clips: tuple[dict[str, Any], ...]

    def __str__(self) -> str:
        where = f"first in the {self.origin.what} of {self.origin.path}" if self.origin else "of unknown origin"
        if not self.clips:
            return f"{where}; every clip's loss is finite"
        return f"{where}; the loss of {first_few([clip['path'] for clip in self.clips])}"

    @classmethod
    def from_parts(cls, parts: Iterable[Any]) -> NonFiniteCause:
        """Combine the (origin, clips) of all ranks."""
        parts = list(parts)
        origins = [origin for origin, _ in parts if origin is not None]
        first = min(origins, key=lambda o: _ORDER.index(o.what), default=None)
        return cls(first, tuple(clip for _, clips in parts for clip in clips))


class KeptBatch(NamedTuple):
    """A micro-batch that is kept, with its losses on the device, until its step is known to be finite."""

    batch: MicroBatch
    objective: ObjectiveConfig
    losses: Tensor
    valid_mask: Tensor
    times: Tensor
    kinds: Tensor


def first_bad(kept: list[KeptBatch]) -> KeptBatch:
    """Return the first micro-batch with a loss that is not finite, else the last."""
    assert kept, "a step has a micro-batch on every rank"
    return next((each for each in kept if _bad(each)), kept[-1])


def bad_clips(kept: list[KeptBatch]) -> list[dict[str, Any]]:
    """Return `NonFiniteCause.clips` of micro-batches."""
    clips = []
    for each in kept:
        work = each.batch.request
        clips += [{"uid": int(work.uids[i]), "path": str(work.requests[i].path)} for i in _bad(each)]
    return clips


def _bad(each: KeptBatch) -> list[int]:
    found: list[int] = (each.valid_mask & ~torch.isfinite(each.losses)).nonzero().flatten().tolist()
    return found


@torch.no_grad()
def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the tensors whose local shard holds infinities or NaN; each device is waited for once."""
    parts = {name: local(tensor.detach()) for name, tensor in tensors.items()}
    by_device: dict[torch.device, dict[str, Tensor]] = defaultdict(dict)
    for name, part in parts.items():
        if part.is_floating_point() and part.numel():
            by_device[part.device][name] = part
    bad = set[str]()
    for group in by_device.values():
        # The largest absolute value, as a sum of squares could overflow although all values are finite.
        largest = torch._foreach_norm(list(group.values()), math.inf)
        finite = torch.isfinite(torch.stack([value.float() for value in largest])).tolist()
        bad |= {name for name, is_finite in zip(group, finite, strict=True) if not is_finite}
    return [name for name in parts if name in bad]


@torch.no_grad()
def origin(module: nn.Module, inputs: DenoiserInputs, run: Callable[[], object]) -> NonFiniteSource | None:
    """Find the first place in a step where numbers are not finite. Collective if the module is sharded.

    `run` repeats the forward pass with the inputs. The step's gradients must be in place, and not yet clipped.
    """
    bad_inputs, bad_weights = not_finite(inputs.tensors()), not_finite(dict(module.named_parameters()))
    order, bad_modules = _forward(module, run)
    candidates: tuple[tuple[What, list[str]], ...]
    candidates = (("input", bad_inputs), ("weight", bad_weights), ("activation", bad_modules))
    for what, paths in candidates:
        if paths:
            return NonFiniteSource(what, paths[0])
    gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    bad = {name.rpartition(".")[0] for name in not_finite(gradients)}
    # The backward pass runs in reverse, so the last module to begin is the first to get a gradient.
    path = next((path for path in reversed(order) if path in bad), None)
    return None if path is None else NonFiniteSource("gradient", path)


def _forward(module: nn.Module, run: Callable[[], object]) -> tuple[list[str], list[str]]:
    """Return the paths of modules in the order of their calls, and of those with an output that is not finite."""
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
