"""A pass of a deep network, from passes of shallow ones.

Blocks that are alike add the same to memory and to arithmetic, each of them: a straight line goes through all depths.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import nn

from reelworks.models.api import Denoiser, DenoiserInputs
from reelworks.train import meter
from reelworks.train.meter import Pass

_FEW = 3  # the first and the last may be the fullest, and one is between them
_LONG = 12  # of shorter ones two passes with few take as long as one with all


class _Run(NamedTuple):
    """Places of blocks of a list that are alike and follow one another."""

    start: int
    stop: int
    listed: int


class _List(NamedTuple):
    parent: nn.Module
    name: str
    blocks: nn.ModuleList


def measure(denoiser: Denoiser, inputs: DenoiserInputs) -> Pass:
    """What `meter.measure` finds, in a fraction of the time where a network has many blocks that are alike."""
    groups: dict[_Run, list[_List]] = {}
    _collect(denoiser.module, groups)
    with _cut(groups, {}):
        base = meter.measure(denoiser, inputs)
    peak, flops = base
    for run in groups:
        with _cut(groups, {run: 1}):
            more = meter.measure(denoiser, inputs)
        left_out = run.stop - run.start - _FEW
        peak += left_out * (more.peak_bytes - base.peak_bytes)
        flops += left_out * (more.flops - base.flops)
    return Pass(peak, flops)


def _collect(parent: nn.Module, groups: dict[_Run, list[_List]]) -> None:
    """Find lists with a long run, and none within one; those with the same may be walked side by side."""
    for name, child in list(parent.named_children()):
        run = _longest_run(child) if isinstance(child, nn.ModuleList) else None
        if isinstance(child, nn.ModuleList) and run is not None and run.stop - run.start > _LONG:
            groups.setdefault(run, []).append(_List(parent, name, child))
        else:
            _collect(child, groups)


def _longest_run(blocks: nn.ModuleList) -> _Run | None:
    runs, start = [], 0
    for _, same in itertools.groupby(blocks, key=_looks):
        stop = start + len(list(same))
        runs.append(_Run(start, stop, len(blocks)))
        start = stop
    return max(runs, key=lambda run: run.stop - run.start, default=None)


def _looks(block: nn.Module) -> tuple[Any, ...]:
    """Its modules, and the shapes of what they hold."""
    held = [*block.named_parameters(), *block.named_buffers()]
    return (
        *((name, type(module)) for name, module in block.named_modules()),
        *((name, value.shape, value.dtype) for name, value in held),
    )


@contextmanager
def _cut(groups: dict[_Run, list[_List]], more: dict[_Run, int]) -> Iterator[None]:
    """Leave few blocks of each run, and some more of one, for as long as it is open."""
    every = [(one, run) for run, group in groups.items() for one in group]
    try:
        for one, run in every:
            kept = [*one.blocks[: run.start + _FEW + more.get(run, 0)], *one.blocks[run.stop :]]
            setattr(one.parent, one.name, nn.ModuleList(kept))
        yield
    finally:
        for one, _ in every:
            setattr(one.parent, one.name, one.blocks)
