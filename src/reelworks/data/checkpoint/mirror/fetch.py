"""Resume a run from its mirror when the run folder has no checkpoint, as on a new disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

from reelworks.core import files as core_files
from reelworks.core import retry, storage, units
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.checkpoint import disk_space, manifest, names
from reelworks.data.checkpoint.config import KeepBest
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.manifest import BadCheckpoint, FileEntry, Manifest, NewerFormat
from reelworks.data.checkpoint.mirror import files
from reelworks.data.checkpoint.mirror.remote import MirrorAway, MirrorError, RemoteFilesystem, folder_of
from reelworks.data.checkpoint.policy import CheckpointFacts, rank_best
from reelworks.data.checkpoint.verify import check_file, save_id, too_new, verify
from reelworks.data.run.folder import RunFolder

T = TypeVar("T")


def bring_back(place: RemoteFilesystem, run: RunFolder, resume: str, keep_best: KeepBest | None = None) -> int | None:
    """Prove that the mirror is the run's, and fetch its files and newest good checkpoint if the run folder has none.

    The best one by `keep_best` is fetched too, since all that compare with it look for it in the run folder. Checkpoints
    that are damaged here are replaced. Call it under the run's lock, before anything is written into either.

    `resume` is the value of --resume: "auto", "never", or a step, which is fetched if the run folder lacks it. Returns
    the step that was fetched to go on from; None if nothing was needed, or the mirror is empty.

    Raises:
        UserError: The mirror is not this run's, none of its checkpoints is valid, or the run folder has no
            checkpoint and the mirror cannot be reached; training never starts silently from the beginning.
    """
    place.require_outside(run.path)
    store = CheckpointFolder(run.checkpoints_folder)
    named = int(resume) if resume.isdecimal() else None
    steps = store.steps()
    damaged = [*takewhile(lambda step: _is_damaged(store.path(step)), reversed(steps))]  # after the newest complete one
    needed = len(damaged) == len(steps) if named is None else named not in steps
    try:
        with place.answering("read"):
            index = _once_more(partial(files.own_index, place, run))
        if needed:
            with place.answering("written"):
                _once_more(place.probe)
    except MirrorAway as error:
        if needed:
            raise
        logger.warning(error.problem)  # each copy asks again whose mirror it is
        return None
    if index is None:
        return None
    if not needed:
        return next((step for step in damaged if named is None and replace(place, store, step)), None)
    with place.answering("read"):
        there = [s for s in _once_more(place.steps) if _once_more(partial(place.manifest_data, s)) is not None]
    if not there and named is None:
        logger.warning("the mirror has no checkpoint: the run begins anew")
        if not run.exists:  # and keeps its mirror
            storage.mkdirs(run.path)
            run.write_info(index.run)
        return None
    if resume == "never":
        raise MirrorError(
            "the mirror already holds a run",
            code="mirror-holds-a-run",
            url=place.url,
            remedy="omit --resume to continue from it, or give this run another address",
        )
    with place.answering("read"):
        # Before any checkpoint, since a run folder that has one is not restored again.
        for path in _once_more(partial(files.pull, place, run, index)):
            logger.warning("the mirror has lost %s", path)
        newest = _fetch_newest(place, store, [s for s in reversed(there) if named in (None, s)])
        best = rank_best(_once_more(partial(facts, place, store)), keep_best)[:1]
    for step in best if newest is not None and named is None and best != [newest] else ():
        replace(place, store, step)
    return newest


def facts(place: RemoteFilesystem, store: CheckpointFolder) -> list[CheckpointFacts]:
    """Return what the policy reads of each complete checkpoint of a mirror; pins and late metrics are those of `store`."""
    mirrored = []
    for step in place.steps():
        with suppress(BadCheckpoint):  # neither counts nor is deleted
            mirrored.append(store.facts_of(place.complete(step)))
    return mirrored


def replace(place: RemoteFilesystem, store: CheckpointFolder, step: int) -> bool:
    """Put the mirror's copy of a save in the place of one that is damaged or missing here; tells whether it could."""
    here = save_id(store.path(step))
    try:
        with place.answering("read"):
            remote = _once_more(partial(place.complete, step))
            if is_same := here in ("", remote.save_id):
                _fetch(place, store, remote)
    except (BadCheckpoint, UserError) as error:
        logger.warning("checkpoint of step %d is not brought back from the mirror: %s", step, error)
        return False
    return is_same


def _once_more(work: Callable[[], T]) -> T:
    """Return `work()`, repeated after an error: storage may fail once, and bytes of a good file may go wrong on the way."""
    pause = retry.WAITS_SECONDS[-1:]
    return retry.with_retries(work, waits_seconds=pause, may_vanish=lambda error: not isinstance(error, UserError))


def _is_damaged(path: Path) -> bool:
    try:
        verify(path, full=False)
    except (NewerFormat, OSError):
        pass  # resuming will refuse it
    except BadCheckpoint:
        return True
    return False


def _fetch_newest(place: RemoteFilesystem, store: CheckpointFolder, steps: list[int]) -> int | None:
    bad = []
    for step in steps:
        try:
            _fetch(place, store, _once_more(partial(place.complete, step)))
            return step
        except NewerFormat as error:
            raise too_new(error, folder_of(step)) from error
        except BadCheckpoint as error:
            bad.append(f"checkpoint of step {step} in the mirror is skipped: {error.reason}")
            logger.warning(bad[-1])
    if bad:
        raise MirrorError(
            "no checkpoint of the mirror is valid:" + "".join(f"\n    {reason}" for reason in bad),
            code="mirror-without-good-checkpoint",
            url=place.url,
            remedy="repair them, or start a new run with another output and another mirror address",
        )
    return None


def _fetch(place: RemoteFilesystem, store: CheckpointFolder, remote: Manifest) -> None:
    """Fetch one checkpoint into a temporary folder, compare all digests, and publish it."""
    step = remote.step
    logger.info(f"fetching the checkpoint of step {step} ({units.size(remote.total_bytes)}) from {place.url}")
    storage.mkdirs(store.root)
    with core_files.writing("output", store.root.parent):
        disk_space.require(store.root, remote.total_bytes, "the mirror's checkpoint")
    temporary = store.root / names.fresh("tmp", step)
    try:
        for entry in remote.files:
            _once_more(partial(_fetch_file, place, f"{folder_of(step)}/{entry.path}", temporary, entry))
        manifest.write(temporary, remote)
    except BaseException:
        storage.rmtree_if_possible(temporary)
        raise
    if store.path(step).exists():
        store.quarantine(step, "replaced by the checkpoint of this step from the mirror")
    store.publish(temporary, step)
    store.log("fetched", step, save_id=remote.save_id, source=place.url)


def _fetch_file(place: RemoteFilesystem, path: str, folder: Path, entry: FileEntry) -> None:
    place.get(path, folder / entry.path)
    check_file(folder, entry, full=True)
