"""Drills of the loader: random histories of a loop of one's own, whose clips are known by their captions and colours alone."""

from __future__ import annotations

import itertools
import logging
import random
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loader_footage import SumOfThreads
from PIL import Image

import reelworks as rw
from reelworks.core.errors import UserError

_CHANGES = (
    "fail",
    "fail",
    "added",
    "removed",
    "edited",
    "buckets",
    "micro-batches",
    "seed",
    "ranks",
    "ranks",
    "nothing",
)
_MOST_STARTS = 12
_PIXELS = (32, 48)


@dataclass
class Settings:
    """What a start is given besides the files."""

    seed: int
    batch_size: int
    micro_batches: int | None
    ranks: int

    def dataset(self, catalog: rw.Catalog) -> rw.Dataset:
        entry = rw.BucketEntry("32px", num_frames=[1], batch_size=[self.batch_size])
        table = rw.BucketTable.from_entries([entry], geometry=rw.Geometry((1, 1, 1), (1, 4, 4)), aspect_ratios=["1:1"])
        return rw.Dataset(catalog, table, seed=self.seed)


@dataclass
class Account:
    """Clips that were trained in an epoch, and the step at which each that failed was told of, all by name."""

    trained: Counter[str] = field(default_factory=Counter)
    failed: dict[str, int] = field(default_factory=dict)

    def copy(self, step: int) -> Account:
        """Return the account as it was at a step."""
        return Account(self.trained.copy(), {name: at for name, at in self.failed.items() if at <= step})


class Footage:
    """Pictures whose captions are their names and whose colours are told by their numbers."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.catalog_folder = folder / "footage", folder / "catalog"
        self.folder.mkdir()
        self.good, self.of_version = set[str](), dict[int, set[str]]()
        self._numbers = itertools.count()
        for _ in range(number):
            self.add()

    def add(self) -> None:
        name = f"clip{next(self._numbers):03d}"
        self.write(name, _PIXELS[0])
        (self.folder / f"{name}.txt").write_text(name, encoding="utf-8")
        self.good.add(name)

    def write(self, name: str, pixels: int) -> None:
        Image.new("RGB", (pixels, pixels), (int(name[4:]), 7, 9)).save(self.folder / f"{name}.png")

    def spoil(self, name: str, chance: random.Random) -> None:
        """Delete or cut a file that the catalog still lists."""
        file = self.folder / f"{name}.png"
        if chance.random() < 0.5:
            file.unlink(missing_ok=True)
        elif file.exists():
            file.write_bytes(file.read_bytes()[:40])
        self.good.discard(name)

    def scan(self) -> rw.Catalog:
        catalog = rw.Catalog.scan(self.folder, to=self.catalog_folder, workers=1)
        self.of_version[catalog.version] = set(self.good)
        return catalog


@contextmanager
def _warnings() -> Iterator[list[tuple[int, str]]]:
    """Collect the steps and names of clips that warnings tell of."""
    told: list[tuple[int, str]] = []
    handler = logging.Handler()

    def emit(record: logging.LogRecord) -> None:
        if found := re.search(r"a clip of step (\d+) could not be decoded: .*?(clip\d+)\.png", record.getMessage()):
            told.append((int(found[1]), found[2]))

    handler.emit = emit  # type: ignore[method-assign]
    log = logging.getLogger("reelworks")
    former, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield told
    finally:
        log.removeHandler(handler)
        log.propagate = former


class StopError(Exception):
    """An error in the body of a step."""


def histories(chance: random.Random, folder: Path) -> list[str]:
    """Live through an epoch with failures, errors within steps, changes and other ranks; each clip is trained once or told."""
    footage = Footage(folder, chance.randint(6, 16))
    settings = Settings(
        chance.randrange(100), chance.randint(1, 3), chance.choice([None, 1, 2, 3]), chance.randint(1, 3)
    )
    records = folder / "records" if chance.random() < 0.6 else None
    catalog, account, state, wrong = footage.scan(), Account(), None, list[str]()
    for start in range(_MOST_STARTS):
        former = Settings(**vars(settings)), catalog
        if start:
            catalog = _change(chance, footage, settings, catalog)
        loaders, problem = _start(settings, catalog, state, records)
        if problem:
            if records is not None:
                return [f"refused in spite of records: {problem}"]
            if (found := re.search(r"version=(\d+)", problem)) is not None:
                catalog = rw.Catalog.open(footage.catalog_folder, int(found[1]))
            elif catalog is not former[1] and "no longer there" in problem:
                return [f"no way back to version {former[1].version} of {catalog.version}: {problem}"]
            settings = Settings(former[0].seed, former[0].batch_size, former[0].micro_batches, settings.ranks)
            loaders, problem = _start(settings, catalog, state, records)
            if problem:
                return [f"the remedy does not work: {problem}"]
        last = start == _MOST_STARTS - 1
        if not last and chance.random() < 0.25:  # a state is taken before the first step, and the data change again
            state = loaders[0].state_dict()
            continue
        state, account, is_over = _train(chance, loaders, state, account, wrong, last=last)
        if wrong or is_over:
            break
    if wrong:
        return wrong
    return _check(footage.of_version[catalog.version], footage.good, account, state)


def _start(
    settings: Settings, catalog: rw.Catalog, state: dict[str, Any] | None, records: Path | None
) -> tuple[list[rw.Loader], str]:
    data, total = settings.dataset(catalog), SumOfThreads(settings.ranks)
    loaders = [
        rw.Loader(
            data,
            micro_batches_per_step=settings.micro_batches,
            rank=rank,
            world_size=settings.ranks,
            record_to=records,
            max_decode_failures=1,
            all_reduce=total,
        )
        for rank in range(settings.ranks)
    ]
    try:
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
    except UserError as error:
        return [], str(error)
    return loaders, ""


def _change(chance: random.Random, footage: Footage, settings: Settings, catalog: rw.Catalog) -> rw.Catalog:
    kind, names = chance.choice(_CHANGES), sorted(footage.good)
    if kind == "fail" and len(names) > 4:
        footage.spoil(chance.choice(names), chance)
        return catalog
    if kind == "added":
        footage.add()
    elif kind == "removed" and len(names) > 4:
        name = chance.choice(names)
        (footage.folder / f"{name}.png").unlink()
        footage.good.discard(name)
    elif kind == "edited":
        footage.write(chance.choice(names), _PIXELS[1])
    elif kind == "buckets":
        settings.batch_size = chance.randint(1, 3)
    elif kind == "micro-batches":
        settings.micro_batches = chance.choice([None, 1, 2, 3])
    elif kind == "seed":
        settings.seed += 1
    elif kind == "ranks":
        settings.ranks = chance.randint(1, 3)
    return footage.scan() if kind in ("added", "removed", "edited") else catalog


def _train(
    chance: random.Random,
    loaders: list[rw.Loader],
    state: dict[str, Any] | None,
    account: Account,
    wrong: list[str],
    *,
    last: bool,
) -> tuple[dict[str, Any], Account, bool]:
    """Train some steps on all ranks; returns a state, the account at it, and whether the epoch is over."""
    begun = loaders[0].step
    kept = loaders[0].state_dict(), account.copy(begun)  # taken before the first step
    stop = 10**9 if last else begun + chance.choice([0, 1, 1, 2, 3, 10**6])
    how = chance.choice(["error", "interrupt", "break", "break in step"])
    keeps_older = chance.random() < 0.3
    given: dict[int, list[tuple[Any, ...]]] = {}
    ended = [0] * len(loaders)
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        loader = loaders[rank]
        try:
            for step in loader:
                before = loader.state_dict()
                if step.number > stop and how == "break":
                    return
                names, weight, valid = [], 0.0, 0
                for micro_batch in step:
                    if loader.state_dict() != before:
                        errors.append(AssertionError("a state within a step is another than before it"))
                    if step.number > stop and how == "break in step":
                        return
                    if step.number > stop:
                        raise StopError if how == "error" else KeyboardInterrupt
                    weights = micro_batch.loss_weight.tolist()
                    weight += sum(weights)
                    counts = zip(micro_batch.captions, weights, micro_batch.frames, strict=True)
                    for name, share, frames in ((n, w, f) for n, w, f in counts if w):
                        names.append(name)
                        valid += 1
                        if int(frames[0, 8, 8, 0]) != int(name[4:]) or not share > 0:
                            errors.append(AssertionError(f"the frames of {name} are another clip's"))
                given.setdefault(step.number, []).append((names, weight, valid, step.planned, step.valid))
            ended[rank] = 1
        except (StopError, KeyboardInterrupt):
            return
        except BaseException as error:
            errors.append(error)

    with _warnings() as told:
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(loaders))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for loader in loaders:
        loader.close()
    wrong += [f"{type(error).__name__}: {error}" for error in errors]
    account = account.copy(begun)
    for number, ranks in sorted(given.items()):
        weight, valid = sum(rank[1] for rank in ranks), sum(rank[2] for rank in ranks)
        if len(ranks) != len(loaders) or abs(weight - 1) > 1e-5 or {rank[4] for rank in ranks} != {valid}:
            wrong.append(
                f"step {number} on {len(ranks)} ranks has weights of {weight} and {valid} of {ranks[0][3:]} clips"
            )
        account.trained.update(name for rank in ranks for name in rank[0])
    states = [loader.state_dict() for loader in loaders]
    if any(one != states[0] for one in states):
        wrong.append("the ranks have different states")
    account.failed |= {name: step for step, name in told if step <= loaders[0].step}
    is_over = all(ended)
    if keeps_older and not is_over:
        return *kept, False
    return states[0], account, is_over


def _check(planned: set[str], good: set[str], account: Account, state: dict[str, Any] | None) -> list[str]:
    assert state is not None
    cursor, wrong = state["cursor"], []
    twice = [name for name, times in account.trained.items() if times > 1]
    both = account.failed.keys() & account.trained.keys()
    lost = [name for name in planned & good if name not in account.trained and name not in account.failed]
    untold = [name for name in planned - good if name not in account.trained and name not in account.failed]
    for what, names in {"twice": twice, "failed and trained": both, "lost": lost, "silently failed": untold}.items():
        if names:
            wrong.append(f"{what}: {sorted(names)}")
    counts = {"trained": account.trained.total(), "failed": len(account.failed), "skipped": 0}
    told = {key: cursor[key] for key in counts}
    if told != counts or cursor["planned"] != sum(counts.values()):
        wrong.append(f"the state says {told} of {cursor['planned']}, and {counts} happened")
    return wrong


def deleted_folder(chance: random.Random, folder: Path) -> list[str]:
    """Delete the footage, whatever share of it may fail: the loop ends with an error in words, and trains nothing."""
    footage = Footage(folder, chance.randint(4, 30))
    settings = Settings(1, chance.randint(1, 3), chance.choice([None, 2]), chance.randint(1, 3))
    data, total = settings.dataset(footage.scan()), SumOfThreads(settings.ranks)
    shutil.rmtree(footage.folder)
    limit, ends, errors = chance.choice([0.0, 0.1, 1.0]), list[str](), list[str]()

    def work(rank: int) -> None:
        loader = rw.Loader(
            data,
            micro_batches_per_step=settings.micro_batches,
            rank=rank,
            world_size=settings.ranks,
            max_decode_failures=limit,
            all_reduce=total,
        )
        try:
            for step in loader:
                ends.append(f"step {step.number} was given out")
                list(step)
            ends.append("the epoch ended in silence")
        except UserError as error:
            errors.append(str(error))
            named = str(footage.folder) in str(error) or "other ranks" in str(error)
            if error.code not in ("too-many-decode-failures", "no-clip-decoded") or not named:
                ends.append(str(error))

    with _warnings():
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(settings.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if not any(str(footage.folder) in error for error in errors):
        ends.append("no rank names a file")
    return ends


DRILLS: dict[str, Callable[[random.Random, Path], list[str]]] = {
    "histories": histories,
    "deleted folder": deleted_folder,
}
