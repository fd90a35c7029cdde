"""Checkpoints of your own training loop: save and load objects that have a `state_dict()`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reelworks.checkpoint.config import Retention
from reelworks.checkpoint.store import CheckpointStore

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from reelworks.checkpoint.save import Saved


class StatefulStore(CheckpointStore):
    """The checkpoints of one run; reading never creates anything.

    Args:
        root: Folder of the checkpoints.
        policy: Rules for which checkpoints stay after a save; None keeps all.

    Examples:
        >>> import tempfile, torch, reelworks as rw
        >>> model = torch.nn.Linear(2, 2)
        >>> store = rw.CheckpointStore(tempfile.mkdtemp(), policy=rw.Retention(keep_last=1))
        >>> _ = store.save(1, {"model": model})
        >>> _ = store.save(2, {"model": model})
        >>> store.load_latest({"model": model}), store.steps()
        (2, [2])
    """

    def __init__(self, root: str | Path, policy: Retention | None = None) -> None:
        super().__init__(root)
        self.policy = policy

    def save(self, step: int, state: Mapping[str, Any], *, metrics: Mapping[str, float] | None = None) -> Saved:
        """Write and publish a checkpoint, then delete those that the policy does not keep.

        Collective over the default process group, if there is one. Torch is imported here.

        Args:
            step: Optimizer steps done.
            state: Objects with a `state_dict()`, such as modules, optimizers and loaders, by name; or nested dicts
                of tensors and plain values.
            metrics: Metrics known by now, by which `keep_best` ranks.

        Raises:
            SaveFailed: The checkpoint could not be saved; earlier ones are unchanged.
        """
        from reelworks.checkpoint import retention, save
        from reelworks.distributed import collectives

        saved = save.save(self, step, {name: _plain(part) for name, part in state.items()}, metrics=metrics or {})
        policy = self.policy
        if policy is not None:
            collectives.on_first(lambda: retention.apply_retention(self, policy))
        return saved

    def load_latest(self, state: Mapping[str, Any]) -> int | None:
        """Load the newest valid checkpoint into the objects in `state`.

        Collective over the default process group, if there is one; the number of processes may differ from that of
        the save. Torch is imported here.

        Args:
            state: As for `save`. Parts that are missing here are not loaded.

        Returns:
            The checkpoint's step; None if the store has no checkpoint.

        Raises:
            UserError: All checkpoints are bad, or the newest is of another model.
        """
        from torch.optim import Optimizer

        from reelworks.checkpoint import load, verify
        from reelworks.distributed import collectives

        newest = collectives.on_first(lambda: verify.newest_valid(self, full=True))
        if newest is None:
            return None
        step = newest[0].step
        for part in state.values():
            if isinstance(part, Optimizer):
                _allocate_state(part)
        values = {name: _plain(part) for name, part in state.items()}
        load.load(self.path(step), values)
        for name, part in state.items():
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(values[name])
        return step


def _plain(part: Any) -> Any:
    return part.state_dict() if hasattr(part, "state_dict") else part


def _allocate_state(optimizer: Optimizer) -> None:
    """Make a new optimizer allocate its state, which a checkpoint is loaded into, by a step with zero gradients."""
    import torch

    if optimizer.state:
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    gradients = [p.grad for p in parameters]
    for p in parameters:
        p.grad = torch.zeros_like(p)
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for p, gradient in zip(parameters, gradients, strict=True):
        p.grad = gradient
