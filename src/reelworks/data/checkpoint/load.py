"""Load a checkpoint into objects, or read its values, on any number of ranks; what is read is verified while it is read.

Nothing in a checkpoint is executed: plain values are JSON, and tensors are read as they are.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from reelworks.core import arguments
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.checkpoint import names, read_lock, restored_optimizer, shards, state_file, tree, verify
from reelworks.data.checkpoint.folder import CheckpointFolder, CheckpointInfo
from reelworks.data.checkpoint.manifest import BadCheckpoint
from reelworks.data.checkpoint.shards import StoredTensor
from reelworks.data.checkpoint.state_file import StoredState
from reelworks.data.checkpoint.tree import Node, ObjectState, TreeDecoder
from reelworks.data.checkpoint.verify import extra_names as extra_names
from reelworks.data.checkpoint.verify import has_extra as has_extra
from reelworks.data.checkpoint.verify import read_extra as read_extra
from reelworks.data.distributed import collectives
from reelworks.data.schedule.cursor import Cursor

T = TypeVar("T")

# Number of differing tensors that an error names.
_NAMED = 5
# Names that wrappers put before those of the wrapped module.
_WRAPPERS = frozenset({"module", "_orig_mod", "_forward_module", "_checkpoint_wrapped_module"})


def load(path: Path, state: MutableMapping[str, Any] | Mapping[str, Any], *, fixed: bool = False) -> None:
    """Load the parts of a checkpoint that `state` names. Collective over the default process group, if there is one.

    An object with `load_state_dict` gets what its `state_dict` returned at the save. Dicts, lists and arrays get the saved
    content, tensors in them that fit in place. All other values are put into `state`. The number of ranks and the sharding
    of DTensors may differ from those of the save.

    Args:
        path: The checkpoint's folder.
        state: Objects and values by the names of parts.
        fixed: Whether all parts must have the tensors that were saved, as modules must. Values are then cast to the
            dtype of the tensor they are loaded into.

    Raises:
        BadCheckpoint: A file is missing or has changed; some objects may have new values then. Equal on all ranks.
        UserError: The checkpoint lacks a part, or is of another model or optimizer; names what differs.
    """
    stored = collectives.each(lambda: state_file.read(path))
    rank, world_size = collectives.rank(), collectives.world_size()
    nodes = collectives.each(lambda: {part: stored.node(part, rank, world_size) for part in state})
    tensors = collectives.each(lambda: _destinations(path, stored, nodes, state, fixed))
    collectives.each(lambda: shards.read(path, stored.tensors, tensors))
    values = collectives.each(lambda: _decoded(nodes, tensors))
    for part, live in state.items():
        restored = _put(live, values[part])
        if isinstance(state, MutableMapping):
            state[part] = restored
        elif restored is not live:
            raise UserError(
                "its restored value cannot be put into the state, which is no dict",
                code="state-not-mutable",
                field=part,
                remedy="give a dict, and take the value from there afterwards",
            )


def load_newest(
    store: CheckpointFolder,
    attempt: Callable[[CheckpointInfo], T],
    *,
    quarantine: bool = False,
    repair: Callable[[int], bool] = lambda step: False,
) -> tuple[CheckpointInfo, T] | None:
    """Load the newest checkpoint of a store that proves good while it is read, by `attempt`. Collective.

    A bad one is passed over with a warning, unless `repair`, which is called once for a step on the first rank, tells that
    it has put a good copy in its place. With `quarantine`, which only the store's writer may give, the bad ones are set
    aside once a good one is loaded: before, it may be the storage or the memory that fails, and all may be good.

    Returns:
        The checkpoint and the result of `attempt`; None for an empty store.

    Raises:
        UserError: As `verify.newest_valid` does, or `attempt`.
    """
    bad: dict[int, str] = {}
    reported, repaired = set[int](), set[int]()
    while True:
        found = collectives.on_first(lambda: verify.newest_valid(store, full=False, bad=bad))
        if found is None:
            return None
        info, skipped = found
        for step, reason in skipped if collectives.rank() == 0 else ():
            if step not in reported:
                reported.add(step)
                logger.warning("checkpoint of step %d is skipped: %s", step, reason)
        try:
            with ExitStack() as stack:
                collectives.on_first(partial(_protect, info.path, stack))
                result = attempt(info)
        except BadCheckpoint as error:
            is_same = collectives.on_first(partial(verify.save_id, info.path)) == info.manifest.save_id
            if is_same and (info.step in repaired or not collectives.on_first(partial(repair, info.step))):
                bad[info.step] = error.reason
            repaired.add(info.step)
            continue  # with another one, or with what has replaced it since
        for each in reversed(skipped) if quarantine else ():  # the newest last, since few are kept
            collectives.on_first(partial(_quarantine, store, *each))
        return info, result


def average_step(path: Path) -> int:
    """Return the step of its run since which a checkpoint's average is kept; 0 for a checkpoint that has no cursor."""
    if not has_extra(path, names.CURSOR):
        return 0
    return Cursor(**json.loads(read_extra(path, names.CURSOR))).stage.average_step


def _quarantine(store: CheckpointFolder, step: int, reason: str) -> None:
    with suppress(FileNotFoundError):  # somebody has moved or deleted it since
        store.quarantine(step, reason)


def _protect(path: Path, stack: ExitStack) -> None:
    """Protect a checkpoint from deletion as long as the stack is open."""
    try:
        stack.enter_context(read_lock.reading(path))
    except UserError as error:  # its run has just deleted it, and has a newer one
        raise BadCheckpoint(error.problem) from error


def read(path: Path, parts: list[str] | None = None, rank: int | None = None) -> dict[str, Any]:
    """Return the values of a checkpoint: objects as their `state_dict` returned them, tensors whole and in CPU memory.

    Not collective. `rank` chooses whose values are returned where those of ranks differ: by default this rank's, if the
    number of ranks is that of the save. Raises as `load` does.
    """
    stored = state_file.read(path)
    world_size = collectives.world_size() if rank is None else None
    saved = arguments.whole(0, stored.world_size - 1)
    own = collectives.rank() if rank is None else arguments.checked_value("rank", rank, saved)
    nodes = {part: stored.node(part, own, world_size) for part in (stored.parts if parts is None else parts)}
    names = set().union(*map(tree.tensor_names, nodes.values()))
    return {part: _put(None, value) for part, value in _decoded(nodes, read_tensors(path, stored, names)).items()}


def read_tensors(path: Path, stored: StoredState, wanted: set[str]) -> dict[str, Tensor]:
    """Return tensors by name, whole and in CPU memory; raises as `shards.read` does."""
    tensors = {n: _new(replace(stored.tensors[n], device="cpu")) for n in sorted(wanted)}
    shards.read(path, stored.tensors, tensors)
    return tensors


def _decoded(nodes: Mapping[str, Node], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    decoder = TreeDecoder(tensors)
    try:
        return {part: decoder.value(node) for part, node in nodes.items()}
    except Exception as error:
        raise BadCheckpoint(f"its state is not understood ({type(error).__name__}: {error})") from error


# Where tensors are read to


class _Live:
    """A part of a state as it is before loading: its tensors by place, and the objects in it."""

    def __init__(self, part: Any) -> None:
        self.tensors: dict[tree.Path, Tensor] = {}
        self.modules: dict[tree.Path, dict[str, Tensor]] = {}
        self.plain_modules = set[tree.Path]()
        self.optimizers: dict[tree.Path, torch.optim.Optimizer] = {}
        self.objects: list[tree.Path] = []
        self._walk(part, ())

    def _walk(self, value: Any, path: tree.Path) -> None:
        if tree.is_object(value):
            self.objects.append(path)
        if isinstance(value, nn.Module):
            weights = value.state_dict().items()
            if _loads_plainly(value):
                self.plain_modules.add(path)
            self.modules[path] = {
                key: v for key, v in weights if isinstance(v, Tensor) and _is_weight(key) and not is_lazy(v)
            }
        elif isinstance(value, torch.optim.Optimizer):
            self.optimizers[path] = value
        elif isinstance(value, Tensor):
            self.tensors[path] = value
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                self._walk(inner, (*path, key))
        elif isinstance(value, list | tuple | deque):
            for i, inner in enumerate(value):
                self._walk(inner, (*path, i))


def _loads_plainly(module: nn.Module) -> bool:
    """Whether a module takes exactly the tensors that it has; those with their own way of loading may take others."""
    return type(module).load_state_dict is nn.Module.load_state_dict and all(
        type(inner)._load_from_state_dict.__module__.startswith("torch.") and not inner._load_state_dict_pre_hooks
        for inner in module.modules()
    )


def _is_weight(key: Any) -> bool:
    """Whether a key of a module's state is that of a tensor with a fixed shape, and not of its own extra state."""
    return str(key).rpartition(".")[2] != "_extra_state"


def _destinations(
    path: Path, stored: StoredState, nodes: Mapping[str, Node], state: Mapping[str, Any], fixed: bool
) -> dict[str, Tensor]:
    """Return the tensors to read into, by name: those that are there already where they fit, or else new ones."""
    into: dict[str, Tensor] = {}
    for part, node in nodes.items():
        live = _Live(state[part])
        _require_saved(part, live.objects, node)
        wanted = {place: name for place, leaf in tree.leaves(node) if (name := tree.tensor_of(leaf)) is not None}
        shapes = {place: stored.tensors[name].shape for place, name in wanted.items()}
        for place, weights in live.modules.items():
            own = {(*place, key): tensor for key, tensor in weights.items()}
            if place in live.plain_modules:
                saved = {p: shape for p, shape in shapes.items() if p[:-1] == place and _is_weight(p[-1])}
                _require_same(path, part, own, saved)
            _require_memory(own, part)
            into |= {
                wanted[p]: tensor
                for p, tensor in own.items()
                if shapes.get(p) == tuple(tensor.shape) and _takes_values(tensor.shape, tensor.stride())
            }
        if fixed:
            _require_same(path, part, live.tensors, shapes)
        inside: dict[tree.Path, dict[tree.Path, str | None]] = {place: {} for place in live.optimizers}
        for p, leaf in tree.leaves(node) if inside else ():
            for depth in range(len(p) + 1):  # in one pass: some loops have an optimizer for each weight
                if p[:depth] in inside:
                    inside[p[:depth]][p[depth:]] = tree.tensor_of(leaf)
        for place, mine in inside.items():
            restored_optimizer.require_same_groups(live.optimizers[place], mine, ".".join(map(str, (part, *place))))
            tensors = {p: name for p, name in mine.items() if name is not None}
            into |= restored_optimizer.like_weights(live.optimizers[place], tensors, stored.tensors)
        for place, name in wanted.items():
            if (tensor := live.tensors.get(place)) is not None and tuple(tensor.shape) == shapes[place]:
                # A new one that is placed alike if the values would have to be cast.
                dtype = tensor.dtype if fixed else stored.tensors[name].dtype
                is_place = tensor.dtype == dtype and _takes_values(tensor.shape, tensor.stride())
                into.setdefault(name, tensor if is_place else torch.empty_like(tensor, dtype=dtype))
        into |= {name: _new(stored.tensors[name]) for name in tree.tensor_names(node) - into.keys()}
    return into


def _require_saved(part: str, objects: Iterable[tree.Path], node: Node) -> None:
    """Refuse objects at whose place nothing was saved: they would keep what they hold, and leave their container."""
    saved = {place[:depth] for place, _ in tree.leaves(node) for depth in range(len(place) + 1)}
    for place in objects:
        if place not in saved:
            raise UserError(
                "the checkpoint has nothing for this object",
                code="checkpoint-part-missing",
                field=".".join(map(str, (part, *place))),
                remedy="leave it out of the state, or choose another checkpoint",
            )


def _new(stored: StoredTensor) -> Tensor:
    device = torch.device(stored.device)
    if device.type != "cpu" and not torch.get_device_module(device).is_available():
        device = torch.device("cpu")
    return torch.empty(stored.shape, dtype=stored.dtype, device=device)


def _require_same(
    path: Path, part: str, own: Mapping[tree.Path, Tensor], saved: Mapping[tree.Path, tuple[int, ...]]
) -> None:
    """Refuse a checkpoint whose tensors have other names or shapes than those that a part has."""
    shapes = {place: tuple(tensor.shape) for place, tensor in own.items()}
    differing = sorted((p for p in shapes.keys() | saved.keys() if shapes.get(p) != saved.get(p)), key=str)
    if not differing:
        return
    text = f"this is a checkpoint of another {part}:"
    for place in differing[:_NAMED]:
        name = ".".join(map(str, (part, *place)))
        text += f"\n    {name}: {_shape(shapes.get(place))} expected, {_shape(saved.get(place))} in the checkpoint"
    if len(differing) > _NAMED:
        text += f"\n    and {len(differing) - _NAMED} more"
    remedy = "load it into what it was saved from, or choose another checkpoint"
    if shapes.keys() != saved.keys() and {_unwrapped(p) for p in shapes} == {_unwrapped(p) for p in saved}:
        wrapper = next(p for place in {*shapes, *saved} for p in _names(place) if p in _WRAPPERS)
        remedy = (
            f"one of them is wrapped: save and load the module inside, which is the attribute {wrapper} of the wrapper"
        )
    raise UserError(text, code="checkpoint-state-differs", field="checkpoint", value=str(path), remedy=remedy)


def _require_memory(own: Mapping[tree.Path, Tensor], part: str) -> None:
    """Refuse a module on the meta device, into which torch loads nothing, with a warning."""
    for place, tensor in own.items():
        if tensor.is_meta:
            raise UserError(
                "it is on the meta device and has no memory to load into",
                code="module-without-memory",
                field=".".join(map(str, (part, *place))),
                remedy="give it memory before, with module.to_empty(device=...)",
            )


def _names(place: tree.Path) -> list[str]:
    return ".".join(map(str, place)).split(".")


def _unwrapped(place: tree.Path) -> tree.Path:
    return tuple(name for name in _names(place) if name not in _WRAPPERS)


def _shape(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else f"[{', '.join(map(str, shape))}]"


# Values into their places


def _put(live: Any, value: Any) -> Any:
    """Put a restored value where `live` is, in place if it can change; returns what belongs there.

    Containers are matched by the places in them alone: what was saved in a list is loaded into the objects of a tuple.
    """
    if isinstance(value, ObjectState) or tree.is_object(live):
        return _load_object(live, value if isinstance(value, ObjectState) else ObjectState(value))
    if isinstance(live, Tensor) and isinstance(value, Tensor):
        return _put_tensor(live, value)
    if isinstance(live, np.ndarray) and isinstance(value, np.ndarray):
        is_alike = (live.shape, live.dtype, live.flags.writeable) == (value.shape, value.dtype, True)
        if is_alike and _takes_values(live.shape, live.strides, live.itemsize):
            live[...] = value
            return live
        return value
    if not isinstance(value, dict) and type(value) not in (list, tuple, deque):
        return value
    there = _by_place(live)
    items = {key: _put(there.get(key), item) for key, item in _by_place(value).items()}
    if type(value) is tuple:
        return tuple(items.values())
    into = live if _is_alike(live, value) else value
    into.clear()
    if isinstance(into, dict):
        for key, item in items.items():  # `update` of a Counter would count them
            into[key] = item
    else:
        into.extend(items.values())
    return into


def _by_place(value: Any) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    return dict(enumerate(value)) if isinstance(value, list | tuple | deque) else {}


def _is_alike(live: Any, value: Any) -> bool:
    """Whether a container can hold the content of another one, and none would see a difference."""
    settings = ("default_factory", "maxlen")
    return type(live) is type(value) and all(getattr(live, key, 0) == getattr(value, key, 0) for key in settings)


def _takes_values(shape: Iterable[int], strides: Iterable[int], own: int = 1) -> bool:
    """Whether a tensor can be filled: each of its numbers has memory of its own, as in none that is expanded or unfolded."""
    steps = sorted((abs(stride), size - 1) for stride, size in zip(strides, shape, strict=True) if size > 1)
    filled = accumulate((stride * more for stride, more in steps), initial=own)  # behind the dimensions before
    return all(stride >= behind for (stride, _), behind in zip(steps, filled, strict=False))


def _put_tensor(live: Tensor, value: Tensor) -> Tensor:
    is_alike = (live.shape, live.dtype, live.device) == (value.shape, value.dtype, value.device)
    if value is live or not is_alike or live.is_meta or not _takes_values(live.shape, live.stride()):
        return value
    with torch.no_grad():
        live.copy_(value)
    return live


def _load_object(live: Any, saved: ObjectState) -> Any:
    if not tree.is_object(live):
        return saved.state
    try:
        tree.set_state(live, saved.state)
    except RuntimeError as error:
        raise UserError(
            f"it does not take what was saved ({error})",
            code="checkpoint-state-differs",
            field=type(live).__name__,
            remedy="load it into one of the same settings, or choose another checkpoint",
        ) from error
    if isinstance(live, torch.optim.Optimizer):
        restored_optimizer.put_back(live, saved)
    return live
