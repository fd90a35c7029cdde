"""Verify checkpoints, and choose the one to resume from.

There are two depths: sizes cost a stat for each file and detect files that a crash cut off; digests read
everything and detect data that the storage changed. The index of the tensors is always compared by its digest, and
loading compares that of each tensor that it reads, so that a checkpoint may be bad although its sizes are right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from reelworks.core import digests, retry
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import manifest, names
from reelworks.data.checkpoint.folder import CheckpointFolder, CheckpointInfo
from reelworks.data.checkpoint.manifest import BadCheckpoint, FileEntry, NewerFormat

Skipped = list[tuple[int, str]]


def verify(path: Path, full: bool) -> None:
    """Check a checkpoint folder against its manifest; `full` also compares digests.

    Raises:
        BadCheckpoint: A file is missing or has another size or content; names the file.
        OSError: The storage still fails after retries; the checkpoint may be good.
    """
    for entry in manifest.read(path).files:
        check_file(path, entry, full)


def check_file(path: Path, entry: FileEntry, full: bool) -> None:
    """Check one file of a checkpoint; raises as `verify` does."""
    file = path / entry.path
    try:
        size = retry.with_retries(lambda: file.stat().st_size)
        if size != entry.size:
            raise BadCheckpoint(f"{entry.path} has {size} bytes instead of {entry.size}")
        reads = full or entry.path in (names.STATE, names.CURSOR)  # which a resume reads before it loads
        if reads and retry.with_retries(lambda: digests.of_file(file)) != entry.digest:
            raise BadCheckpoint(f"{entry.path} has changed since it was written")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise BadCheckpoint(f"{entry.path} is missing") from error


def read_extra(path: Path, name: str) -> bytes:
    """Read a checkpoint's extra file, such as `cursor.json`; raises `BadCheckpoint` if it has changed."""
    entries = {entry.path: entry for entry in manifest.read(path).files}
    if name not in entries:
        raise UserError(
            f"the checkpoint has no {name}",
            code="checkpoint-part-missing",
            field="checkpoint",
            value=str(path),
            remedy="its files are " + ", ".join(sorted(entries)),
        )
    check_file(path, entries[name], full=True)
    return (path / name).read_bytes()


def save_id(path: Path) -> str:
    """Return which save a checkpoint is of; empty if that cannot be read. Another one may replace it while it is read."""
    with suppress(BadCheckpoint, OSError):
        return manifest.read(path).save_id
    return ""


def has_extra(path: Path, name: str) -> bool:
    """Whether a checkpoint has an extra file."""
    return any(entry.path == name for entry in manifest.read(path).files)


def extra_names(path: Path) -> list[str]:
    """Return the names of a checkpoint's extra files."""
    inside = [entry.path for entry in manifest.read(path).files if "/" not in entry.path]
    return [name for name in inside if name != names.STATE]


def damage(path: Path, full: bool = False) -> str:
    """Return what `verify` finds wrong with a checkpoint, or why it cannot be read now; empty if it is good."""
    try:
        verify(path, full)
    except BadCheckpoint as error:
        return error.reason
    except OSError as error:
        return f"cannot be read now ({error.strerror or error})"
    return ""


def too_new(error: NewerFormat, checkpoint: str) -> UserError:
    """Return the error for a checkpoint that a newer Reelworks wrote."""
    remedy = "update Reelworks"
    return UserError(error.reason, code="checkpoint-bad", field="checkpoint", value=checkpoint, remedy=remedy)


def newest_valid(
    store: CheckpointFolder, full: bool, *, bad: Mapping[int, str] = MappingProxyType({})
) -> tuple[CheckpointInfo, Skipped] | None:
    """Return the newest valid checkpoint. In a distributed run, call it on rank 0 and broadcast the result.

    Bad checkpoints are skipped; `bad` are known to be bad, with the reasons.

    Returns:
        The checkpoint and the `(step, reason)` of each newer one that was bad, newest first; None for an empty store.

    Raises:
        UserError: All are bad, one has a newer format, or the storage fails: a run never starts from the
            beginning, or from an older state, unless it is asked to.
    """
    skipped: Skipped = []
    for step in reversed(store.steps()):
        save = save_id(store.path(step))
        try:
            if step in bad:
                raise BadCheckpoint(bad[step])
            info = _verified(store, step, full)
        except BadCheckpoint as error:
            if save_id(store.path(step)) != save:  # another process has replaced it since
                return newest_valid(store, full, bad=bad)
            if store.path(step).exists():  # another process may have deleted it since
                skipped.append((step, error.reason))
            continue
        return info, skipped
    if skipped:
        reasons = "".join(f"\n    step {step}: {reason}" for step, reason in skipped)
        raise UserError(
            f"no checkpoint is valid:{reasons}",
            code="no-good-checkpoint",
            field="checkpoints",
            value=str(store.root),
            remedy="repair them, or move them away",
        )
    return None


def named(store: CheckpointFolder, step: int, full: bool) -> CheckpointInfo:
    """Return the verified checkpoint of exactly this step; raises `UserError` if it does not exist, or is bad."""
    if step not in store.steps():
        raise store.unknown(step)
    try:
        return _verified(store, step, full)
    except BadCheckpoint as error:
        raise bad_named("step", step, error) from error


def bad_named(field: str, value: object, error: BadCheckpoint) -> UserError:
    """Return the error for a bad checkpoint that somebody named by a step or path."""
    if isinstance(error, NewerFormat):
        return too_new(error, names.of_step(value) if isinstance(value, int) else str(value))
    return UserError(
        f"the checkpoint is bad: {error.reason}",
        code="checkpoint-bad",
        field=field,
        value=value,
        remedy=f"choose another {field}" + (", or none for the newest good one" if field == "step" else ""),
    )


@contextmanager
def bad_told(path: Path) -> Iterator[None]:
    """Turn the reason why a checkpoint is bad into the error for whoever named it by its path."""
    try:
        yield
    except BadCheckpoint as error:
        raise bad_named("checkpoint", str(path), error) from error


def _verified(store: CheckpointFolder, step: int, full: bool) -> CheckpointInfo:
    """Verify a checkpoint and return its facts; errors that do not prove it bad become a `UserError`."""
    try:
        verify(store.path(step), full)
    except NewerFormat as error:
        raise too_new(error, str(store.path(step))) from error
    except OSError as error:
        raise UserError(
            f"the checkpoint cannot be read now ({error.strerror or error})",
            code="checkpoint-unreadable",
            field="checkpoint",
            value=str(store.path(step)),
            remedy="try again when the storage works, or choose another step",
        ) from error
    return store.info(step)
