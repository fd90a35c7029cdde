"""Lives through a history, and says what was wrong."""

from __future__ import annotations

import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drills._histories import account, changes, start, truth
from drills._histories.disk import CUT, DAMAGED, GONE, GOOD, LOST
from drills._histories.start import Ended, Start
from drills._histories.truth import Begin, Entry
from drills._histories.world import World
from reelworks.core import results
from reelworks.core.errors import UserError
from reelworks.data.buckets.assign import Reason
from reelworks.data.run.folder import RunFolder
from reelworks.training.coverage import clip_history

Json = dict[str, Any]
TRAINING, ACCOUNT = "training", "account"
_SPARE_STEPS = 8


@dataclass(frozen=True)
class Problem:
    """Something that is wrong.

    Attributes:
        part: `TRAINING` or `ACCOUNT`.
        start: After which start, from 0.
        text: Its kind, a colon, and particulars.
    """

    part: str
    start: int
    text: str

    @property
    def signature(self) -> str:
        """What it has in common with others of its kind."""
        return f"{self.part}: {general(self.text.partition(': ')[0])}"


def general(text: str) -> str:
    """A text without its numbers, names and folders."""
    text = re.sub(r"/[\w./-]+/", "…/", text)
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", text)
    return re.sub(r"\b[0-9a-f]{8,}\b|\d+", "N", text)


@dataclass
class Verdict:
    """What came of a history.

    Attributes:
        problems: In their order.
        refusals: What starts said that refused, by number of the start.
        seconds: All of it.
        starts: How many there were.
        start_seconds: Of the starts alone.
    """

    problems: list[Problem] = field(default_factory=list)
    refusals: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    starts: int = 0
    start_seconds: float = 0.0

    def wrong(self, part: str) -> bool:
        """True if a part of it is wrong."""
        return any(problem.part == part for problem in self.problems)

    @property
    def signatures(self) -> set[str]:
        """Of all problems."""
        return {problem.signature for problem in self.problems}


Say = Callable[[str], None]
Alter = Callable[[Json], Json]


def play(history: Json, folder: Path, *, say: Say = lambda line: None, alter: Alter = lambda told: told) -> Verdict:
    """Live through a history in a folder of its own, which is removed again.

    Args:
        history: As `draw` makes them.
        folder: Where it happens; nothing may be there yet.
        say: Told what happens.
        alter: Changes what coverage tells before it is compared, for tests of the comparison.
    """
    began = time.perf_counter()
    folder = folder.resolve()
    folder.mkdir(parents=True)
    life = _Life(history, World.begin(folder, history), say, alter)
    try:
        life.live()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    life.verdict.seconds = time.perf_counter() - began
    return life.verdict


class _Life:
    """A history while it is lived."""

    def __init__(self, history: Json, world: World, say: Say, alter: Alter) -> None:
        self.history, self.world, self.say, self.alter = history, world, say, alter
        self.verdict = Verdict()
        self.entries: list[Entry] = []
        self.loose = 0  # of the last entries, how many a kill may have kept from the record
        self.unsure: list[Entry] = []  # what killed starts begun and had no step of: it may be recorded or not
        self.begin_again = False
        made = [
            one["do"] for part in (*history["starts"], history) for one in part.get("changes", part.get("after", []))
        ]
        self._alike = account.GONE_WITH_A_NAME if changes.RENAMING.intersection(made) else set()

    def live(self) -> None:
        """All starts, and what comes after."""
        for number, orders in enumerate(self.history["starts"]):
            self._change(number - 1, orders.get("changes", []))
            self._start(number, orders)
        self._change(len(self.history["starts"]) - 1, self.history.get("after", []))

    def _change(self, number: int, what: list[Json]) -> None:
        for one in what:
            self.say(f"   {one['do']}: {changes.apply(self.world, one)}")
        if what and number >= 0:
            self.world.whole_recipe()
            self._compare(number)

    def _start(self, number: int, orders: Json) -> None:
        made = self._made(number, orders)
        self.say(f"{number}: {self._told(made)}")
        began = time.perf_counter()
        try:
            ended = start.run(made)
        except TimeoutError as error:
            self._wrong(TRAINING, number, [f"hangs: {error}"])
            return
        self.verdict.start_seconds += time.perf_counter() - began
        self.verdict.starts += 1
        self._look(number, made, ended)

    def _told(self, made: Start) -> str:
        world = f", {made.world} ranks" if made.world > 1 else ""
        return f"{made.orders['end']} {made.options or ''}{world}{', typed' if made.typed else ''}"

    def _made(self, number: int, orders: Json) -> Start:
        """What the start is told, by what is there now."""
        world, end = self.world, orders["end"]
        options: Json = {}
        if (orders.get("scratch") or self.begin_again) and not world.stages:
            options["restart_data"] = True
        if "resume" in orders and (steps := world.checkpoints()):
            options["resume"] = str(steps[orders["resume"] % len(steps)])
        recipe = world.whole_recipe()
        train = recipe["train"]
        if end["by"] == "epochs" and not world.stages:
            train["max_epochs"] = (0 if options.get("restart_data") else world.epoch) + 1 + end["epochs"]
        else:
            train["max_steps"] = world.step + end.get("steps", _SPARE_STEPS)
        watched = {
            "folder": str(world.root / f"start-{number}"),
            "end": end,
            "vanish": self._vanish(orders),
            "bare": not self.history.get("typed"),
        }
        return Start(
            recipe,
            Path(watched["folder"]),
            watched,
            options,
            orders.get("world", 1),
            self.history.get("typed", False),
        )

    def _vanish(self, orders: Json) -> list[str]:
        """Files that go behind the scan's back: they are gone for the starts after."""
        if "vanish" not in orders:
            return []
        among = [f for f in self.world.disk.there() if f.state == GOOD]
        chosen = random.Random(orders["vanish"]).sample(among, min(len(among), 2))
        self.vanishing = chosen
        return [str(self.world.disk.place(file)) for file in chosen]

    def _look(self, number: int, made: Start, ended: Ended) -> None:
        """Read the notes of a start, and compare."""
        ids = self.world.disk.by_place()
        names = {identity: name for name, identity in self.world.disk.by_name().items()}
        new = truth.read(made.folder, ids, self._left(), names)
        self.say(f"   exit {ended.codes}, {self._went(new)}")
        self.entries += new
        if new:
            self.loose = len(new) if ended.killed else 0
            stepped = [i for i, entry in enumerate(new) if isinstance(entry, truth.Step)]
            behind = new[max(stepped, default=-1) + 1 :]
            begun = [i for i, entry in enumerate(behind) if isinstance(entry, Begin)]
            self.unsure += behind[begun[0] :] if begun and ended.killed else []
        for path in made.orders["vanish"]:
            if not Path(path).exists():
                self.world.disk.files[ids[path]].state = GONE
        if ended.refused is not None:
            self.verdict.refusals[number] = ended.refused
            self.say(f"   refused: {ended.refused}")
        self.begin_again = "--restart-data" in (ended.refused or "")
        if ended.crashed is not None:
            self._wrong(TRAINING, number, [f"crashed: {ended.crashed}"])
            self.say(ended.output[-3000:])
        held = truth.hold(self.entries)
        self.world.step = held.steps[-1].step if held.steps else 0
        if held.begins:
            self.world.epoch = held.begins[-1].key[1] + (held.begins[-1].key in held.ended)
        wrong = truth.wrong_training(held)
        begins = [entry for entry in new if isinstance(entry, Begin)]
        wrong += truth.wrong_plan(held) if begins else []
        for begin in begins:
            wrong += self._implausible(begin)
        self._wrong(TRAINING, number, wrong)
        self._compare(number)

    def _left(self) -> frozenset[str]:
        datasets = self.world.disk.datasets
        return frozenset(f.id for f in self.world.disk.files.values() if not datasets[f.dataset].used)

    def _went(self, new: list[Entry]) -> str:
        told = []
        for entry in new:
            if isinstance(entry, truth.Began):
                told.append(f"from {entry.resumed}")
            elif isinstance(entry, Begin):
                told.append(f"{entry.key} segment {entry.segment}")
            elif isinstance(entry, truth.Step):
                told.append(str(entry.step))
            else:
                told.append("end")
        return " ".join(told)

    def _implausible(self, begin: Begin) -> list[str]:
        """Compare the clips that the trainer saw, and reasons that the disk tells, with the disk."""
        there = {file.id: file for file in self.world.disk.there()}
        vanished = {file.id for file in getattr(self, "vanishing", [])}
        seen = {identity for identity, _ in begin.live}
        wrong = []
        if missing := sorted(there.keys() - seen):
            wrong.append(f"not seen: {missing} in {begin.key}")
        if strange := sorted(seen - there.keys() - vanished):
            wrong.append(f"seen though gone: {strange} in {begin.key}")
        for (identity, _), reason in begin.live.items():
            file = there.get(identity)
            if file is None or file.state == CUT:
                continue
            unreadable = file.state in (DAMAGED, LOST)
            named = identity in self.world.in_exclude_file
            right = (
                reason == Reason.UNREADABLE
                if unreadable
                else reason == Reason.IN_EXCLUDE_FILE
                if named
                else reason == Reason.NO_CAPTION
                if file.caption is None
                else reason not in (Reason.UNREADABLE, Reason.IN_EXCLUDE_FILE, Reason.NO_CAPTION)
            )
            if not right:
                wrong.append(f"wrong reason: {identity} {file.state} is {reason.label}")
        return wrong

    def _compare(self, number: int) -> None:
        """Compare the account with all that holds, or with what holds less what a kill cut off."""
        if not truth.hold(self.entries).begins:
            return
        try:
            told = self.alter(self._covered())
        except (
            UserError,
            RuntimeError,
            ArithmeticError,
            LookupError,
            TypeError,
            OSError,
            AssertionError,
        ) as error:
            self._wrong(ACCOUNT, number, [f"raises {type(error).__name__}, {_first_line(error)}: {error}"])
            return
        best: list[str] | None = None
        for entries in self._versions():
            wrong = account.differences(told, truth.hold(entries), self._alike)
            if best is None or len(wrong) < len(best):
                best = wrong
            if not best:
                break
        self._wrong(ACCOUNT, number, best or [])

    def _covered(self) -> Json:
        if self.history.get("typed"):
            return start.covered_by_command(self.world.run)
        told = clip_history.cover(RunFolder(self.world.run))
        return results.as_json(told.report(told.places()))

    def _versions(self) -> list[list[Entry]]:
        """What may be told: all that was noted, or less: at most one step that was taken as the kill came."""
        versions = [self.entries]
        for back in range(1, self.loose):
            last = self.entries[-back]
            if isinstance(last, truth.Began):
                break
            versions.append(self.entries[:-back])
            if isinstance(last, Begin):
                versions += [[*self.entries[:-back], truth.Reopened(last.key, at)] for at in (None, last.segment)]
            if isinstance(last, truth.Step):
                break
        unsure = {id(entry) for entry in self.unsure}
        return versions + [[e for e in version if id(e) not in unsure] for version in versions if unsure]

    def _wrong(self, part: str, number: int, texts: list[str]) -> None:
        """Take up what was not wrong before, and tell it by kind."""
        known = {problem.text for problem in self.verdict.problems}
        new = [Problem(part, number, text) for text in dict.fromkeys(texts) if text not in known]
        self.verdict.problems += new
        for signature, number_of in Counter(problem.signature for problem in new).items():
            first = next(problem.text for problem in new if problem.signature == signature)
            self.say(f"   WRONG {number_of} × {part}: {first}")


def _first_line(error: BaseException) -> str:
    return general(str(error).splitlines()[0] if str(error) else "")
