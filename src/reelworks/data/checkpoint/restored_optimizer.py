"""Give optimizers back what was saved: `load_state_dict` of torch casts all of it to the dtype of the weights.

It does so with counts and texts, too: an integer tensor becomes a float, a text the name of a generator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor import empty as empty_dtensor
from torch.optim import Optimizer

from reelworks.core.errors import UserError
from reelworks.data.checkpoint import tree
from reelworks.data.checkpoint.shards import StoredTensor
from reelworks.data.checkpoint.tree import ObjectState


def like_weights(
    optimizer: Optimizer, wanted: Mapping[tree.Path, str], stored: Mapping[str, StoredTensor]
) -> dict[str, Tensor]:
    """Return new tensors for the state of sharded weights, each placed as its weight is.

    `wanted` are the names of stored tensors by their place in the optimizer's state.
    """
    weights, placed = tree.weights(optimizer), {}
    for place, name in wanted.items():
        saved = stored[name]
        match place:
            case ("state", int(i), *_) if i < len(weights) and isinstance(weight := weights[i], DTensor):
                if saved.shape and saved.shape == tuple(weight.shape):
                    placed[name] = torch.empty_like(weight, dtype=saved.dtype, requires_grad=False)
                elif saved.placements:
                    mesh = weight.device_mesh
                    dims = saved.placements if len(saved.placements) == mesh.ndim else [None] * mesh.ndim
                    placements = [Replicate() if dim is None else Shard(dim) for dim in dims]
                    placed[name] = empty_dtensor(
                        saved.shape, dtype=saved.dtype, device_mesh=mesh, placements=placements
                    )
    return placed


def require_same_groups(optimizer: Optimizer, places: Iterable[tree.Path], part: str) -> None:
    """Refuse a state whose parameter groups have other numbers of weights; `places` are those of all its values."""
    saved: dict[int, int] = {}
    for place in places:
        match place:
            case ("param_groups", int(group), *rest):
                saved[group] = saved.get(group, 0) + (rest[0] == "params" and len(rest) > 1)
    own = {i: len(group["params"]) for i, group in enumerate(optimizer.param_groups)}
    if saved and own != saved:
        raise UserError(
            f"the checkpoint's optimizer has groups of {[*saved.values()]} weights, this one of {[*own.values()]}",
            code="checkpoint-state-differs",
            field=part,
            remedy="give it the parameters that it had, in their order, or choose another checkpoint",
        )


def put_back(optimizer: Optimizer, saved: ObjectState) -> None:
    """Put values into a loaded optimizer's state that its `load_state_dict` has cast, and check that all are there.

    Floating-point tensors stay cast where their weight has another dtype now than at the save.

    Raises:
        UserError: A saved value is not there, or another one is.
    """
    weights = tree.weights(optimizer)
    dtypes = saved.weight_dtypes or [""] * len(weights)
    same = [str(weight.dtype) == dtype for weight, dtype in zip(weights, dtypes, strict=True)]
    states = saved.state.get("state", {})
    for i, weight in enumerate(weights):
        if i in states and weight in optimizer.state:
            optimizer.state[weight] = _exact(optimizer.state[weight], states[i], same[i])
    now = optimizer.state_dict()
    for i, alike in enumerate(same):
        _require_equal(now["state"].get(i), states.get(i), f"state.{i}", alike)
    _require_equal(now["param_groups"], saved.state.get("param_groups", []), "param_groups", True)


def _exact(now: Any, saved: Any, same_dtype: bool) -> Any:
    """Return a value of the state with what was saved of it, in the structure that it has now."""
    if isinstance(saved, Tensor):
        is_cast = isinstance(now, Tensor) and now.dtype != saved.dtype
        return saved.to(now.device) if is_cast and (same_dtype or not saved.is_floating_point()) else now
    if isinstance(saved, dict):
        for key in now.keys() & saved.keys() if isinstance(now, dict) else ():
            now[key] = _exact(now[key], saved[key], same_dtype)
        return now
    if isinstance(saved, list | tuple):
        is_alike = type(now) is type(saved) and len(now) == len(saved)
        return type(saved)(_exact(a, b, same_dtype) for a, b in zip(now, saved, strict=True)) if is_alike else now
    return saved


def _require_equal(now: Any, saved: Any, name: str, same_dtype: bool) -> None:
    """Refuse a loaded state that lacks a saved value; it may have more."""
    if isinstance(saved, dict) and isinstance(now, dict):
        for key, value in saved.items():
            _require_equal(now.get(key, _ABSENT), value, f"{name}.{key}", same_dtype)
    elif isinstance(saved, list | tuple) and type(now) is type(saved) and len(now) == len(saved):
        for i, (a, b) in enumerate(zip(now, saved, strict=True)):
            _require_equal(a, b, f"{name}.{i}", same_dtype)
    elif not _is_equal(now, saved, same_dtype):
        raise UserError(
            f"its load_state_dict left {_described(now)} where {_described(saved)} was saved",
            code="optimizer-not-restored",
            field=f"optimizer.{name}",
            remedy="load it yourself from store.read(step), or mend the optimizer's load_state_dict",
        )


_ABSENT = object()


def _is_equal(now: Any, saved: Any, same_dtype: bool) -> bool:
    if isinstance(saved, Tensor):
        if not isinstance(now, Tensor) or now.shape != saved.shape:
            return False
        return now.dtype == saved.dtype or (saved.is_floating_point() and not same_dtype)
    if type(now) is not type(saved) or isinstance(saved, list | tuple):  # of another length
        return False
    if isinstance(saved, float) and math.isnan(saved):
        return math.isnan(now)
    return not isinstance(saved, str | int | float | bool | None) or now == saved


def _described(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else repr(value)[:60]
