"""Checkpoints of a training loop of your own: save and load objects that have a `state_dict()`, and plain values."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from reelworks.core import arguments
from reelworks.core.arguments import checked
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.core.words import tells_arguments
from reelworks.data.checkpoint import names, read_lock, retention, verify
from reelworks.data.checkpoint.config import Retention
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.manifest import BadCheckpoint
from reelworks.data.run import lock
from reelworks.data.run.lock import LockHandle, LockLost

if TYPE_CHECKING:
    from reelworks.data.checkpoint.save import Saved

_OTHER_WRITER = "end the other process, or save into another folder"
T = TypeVar("T")


class _Held(NamedTuple):
    """A lock that this process holds on a folder of checkpoints."""

    pid: int
    stack: ExitStack
    handle: LockHandle

    def is_ours(self) -> bool:
        """Whether the lock is still held; its file may have been removed with the folder."""
        with suppress(LockLost, OSError):
            self.handle.check()
            return True
        return False


# By the lock's file: all stores of a process that share a folder share its lock.
_locks: dict[Path, _Held] = {}
_one_at_a_time = threading.RLock()  # a handler of a signal may save within a save


@atexit.register
def _release_locks() -> None:
    for held in _locks.values():
        if held.pid == os.getpid():
            held.stack.close()


class CheckpointStore(CheckpointFolder):
    """The checkpoints of one training; reading never creates anything, and one process at a time saves.

    The folder is locked from the first `save` to `close`, or to the end of the process.

    Args:
        root: Folder of the checkpoints.
        policy: Rules for which checkpoints stay after a save; None keeps all.

    Examples:
        >>> import tempfile, torch, reelworks as rw
        >>> model = torch.nn.Linear(2, 2)
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> state = {"model": model, "optimizer": optimizer, "epoch": 0}
        >>> store = rw.CheckpointStore(tempfile.mkdtemp(), policy=rw.Retention(keep_last=1))
        >>> _ = store.save(1, state)
        >>> _ = store.save(2, state | {"epoch": 3})
        >>> store.load_latest(state), state["epoch"], store.steps()
        (2, 3, [2])
        >>> store.read(2)["epoch"]
        3
    """

    @checked(root=arguments.PATH, policy=arguments.optional(arguments.a(Retention)))
    def __init__(self, root: str | Path, policy: Retention | None = None) -> None:
        super().__init__(Path(root).absolute(), self._require_lock)
        self.policy = policy

    def __repr__(self) -> str:
        return f"CheckpointStore({str(self.root)!r}, steps {self.steps()})"

    @checked(step=arguments.whole(0))
    def save(self, step: int, state: Mapping[str, Any], *, metrics: Mapping[str, float] | None = None) -> Saved:
        """Write and publish a checkpoint, then delete those that the policy does not keep.

        Collective over the default process group, if there is one. A checkpoint that the step has is replaced, unless it
        has the same content. Those of later steps are of another branch of the training and are set aside. Torch is
        imported here.

        Args:
            step: Optimizer steps done.
            state: By the names of parts: objects with a `state_dict` and a `load_state_dict`, such as modules, optimizers
                and loaders; tensors, arrays and plain values, also in dicts, lists and tuples. Values that differ between
                ranks are stored for each; of a module those of the first rank.
            metrics: Metrics known by now, by which `keep_best` ranks.

        Raises:
            DiskFull: The disk has too little room; earlier checkpoints are unchanged.
            SaveFailed: The checkpoint could not be saved; earlier ones are unchanged.
            UserError: A value could not be restored, or another process saves into this folder.
        """
        from reelworks.data.checkpoint import save
        from reelworks.data.distributed import collectives

        _require_parts(state)
        numbers = _numbers(metrics or {})
        with _one_at_a_time:
            collectives.on_first(self._begin_to_write)
            saved = save.save(self, step, state, metrics=numbers)
            collectives.on_first(lambda: self._make_room(step))
        return saved

    @tells_arguments
    def load_latest(self, state: MutableMapping[str, Any]) -> int | None:
        """Load the newest checkpoint that proves good while it is read, and return its step; None if there is none.

        Collective over the default process group, if there is one; the number of processes may differ from that of the
        save. Torch is imported here.

        Args:
            state: As for `save`; other parts of the checkpoint are not read. Objects are restored by `load_state_dict`;
                dicts, lists and arrays get the saved content, and tensors in them that fit are filled in place; all
                other values are put into `state`.

        Raises:
            UserError: All checkpoints are bad, or the newest is of another model, lacks a part, or has values of each
                of another number of ranks.
        """
        from reelworks.data.checkpoint import load
        from reelworks.data.distributed import collectives

        _require_parts(state)
        collectives.on_first(self.recover)
        found = load.load_newest(self, lambda info: load.load(info.path, state))
        return None if found is None else found[0].step

    @checked(step=arguments.whole())
    def load(self, step: int, state: MutableMapping[str, Any]) -> None:
        """Load the checkpoint of a step into `state`, as `load_latest` does.

        Raises:
            UserError: There is no checkpoint of this step, or it is bad, or as `load_latest`.
        """
        from reelworks.data.checkpoint import load

        _require_parts(state)
        self._checked(step, lambda: load.load(self.path(step), state))

    @checked(
        step=arguments.whole(),
        parts=arguments.optional(arguments.each(arguments.TEXT)),
        rank=arguments.optional(arguments.whole(0)),
    )
    def read(self, step: int, parts: Sequence[str] | None = None, *, rank: int | None = None) -> dict[str, Any]:
        """Return what was saved at a step: the state dicts of objects, and tensors whole and in CPU memory.

        Args:
            step: Step of the checkpoint.
            parts: Names of the parts to read; None reads all.
            rank: Whose values are returned where those of ranks differ; None for this rank's, if there are as many
                ranks as at the save. Not collective with a rank.

        Raises:
            UserError: As `load` does.
        """
        from reelworks.data.checkpoint import load

        chosen = None if parts is None else list(parts)
        return self._checked(step, lambda: load.read(self.path(step), chosen, rank))

    def _checked(self, step: int, work: Callable[[], T]) -> T:
        """Return the result of work that reads a checkpoint, and say which one is bad."""
        self.recover()
        if step not in self.steps():
            raise self.unknown(step)
        with read_lock.reading(self.path(step)):
            save = verify.save_id(self.path(step))
            try:
                return work()
            except BadCheckpoint as error:
                is_same = verify.save_id(self.path(step)) == save
                told = error if is_same else BadCheckpoint("another save replaced it while it was read")
                raise verify.bad_named("step", step, told) from error

    def close(self) -> None:
        """Let other processes save into the folder; the next `save` locks it again."""
        if (held := _locks.pop(self._lock_file, None)) is not None and held.pid == os.getpid():
            held.stack.close()

    @property
    def _lock_file(self) -> Path:
        return self.root.resolve() / names.LOCK

    def _begin_to_write(self) -> None:
        """Lock the folder for this process, and remove what killed ones have left."""
        held = _locks.get(self._lock_file)
        if held is None or held.pid != os.getpid() or not held.is_ours():
            stack = ExitStack()
            handle = stack.enter_context(lock.hold(self._lock_file, doing="writer", field="root", remedy=_OTHER_WRITER))
            _locks[self._lock_file] = _Held(os.getpid(), stack, handle)
        self.sweep()

    def _make_room(self, saved_step: int) -> None:
        """Set aside checkpoints of later steps than the one just saved, and apply the policy; a failing disk is logged."""
        try:
            for step in self.steps():
                if step > saved_step:
                    moved = self.set_aside(step, f"of another branch: step {saved_step} was saved after it")
                    logger.warning(
                        "checkpoint of step %d is set aside as %s: step %d was saved after it",
                        step,
                        moved.name,
                        saved_step,
                    )
            if self.policy is not None:
                retention.apply_retention(self, self.policy)
        except OSError as error:
            logger.warning("old checkpoints were not deleted (%s)", error)

    def _require_lock(self) -> None:
        if (held := _locks.get(self._lock_file)) is not None:
            held.handle.check()


def _require_parts(state: Any) -> None:
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise UserError(
            "not a dict of parts by name",
            code="state-invalid",
            field="state",
            value=type(state).__name__,
            remedy='name each object, as in {"model": model, "optimizer": optimizer}',
        )


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    try:
        return {str(name): float(value) for name, value in metrics.items()}
    except (TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise UserError(
            f"a metric is no number ({error})",
            code="metric-invalid",
            field="metrics",
            value=repr(metrics)[:100],
            remedy='give numbers by name, as in {"loss": 0.5}',
        ) from error
