"""A run of three stages of the demo's model, killed at random until it was killed often enough.

Lives of four kinds take turns, each of a few kills and a start that nobody disturbs:

- "in stages": at random times, and in the middle of saves and of the store of latents, wherever these times fall;
- "at borders": at a random storage call from a stage's last optimizer step on, while it is saved and the next one begins;
- "later stages edited": the same as in stages, and stages that have not begun are edited between two starts;
- "other worlds": each start on one, two or four ranks, one of which is killed.

Notes behind the optimizer's steps tell which clips were trained (`_histories.watch`). Of each life every step must have the
clips that it has in a run that nobody killed, no epoch may train a clip twice or never, and `reelworks coverage` must tell
the same. Weights, averages, optimizer and position at the end must be those of that run to the bit, but for other worlds, whose
sums have another order; edited lives are compared with a run that had the edited stages from its start.
"""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
import time
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drills._histories import account, start, truth
from drills._histories.start import Start
from drills._histories.truth import Entry, Step, Truth

Json = dict[str, Any]
Edited = frozenset[str]
KINDS = IN_STAGES, AT_BORDERS, EDITED, OTHER_WORLDS = (
    "in stages",
    "at borders",
    "later stages edited",
    "other worlds",
)
_KILLS_OF_A_LIFE = 4
_WORLDS = (1, 2, 4)
_BORDER_CALLS = 90  # at most so many storage calls of a border pass before a kill; a save makes about sixty
_MOST_STARTS = 12  # of one life
STAGES: list[Json] = [
    {
        "name": "pictures",
        "steps": 14,
        "bucket": [{"resolution": "80px", "num_frames": 1, "batch_size": 4}],
    },
    {
        "name": "clips",
        "epochs": 1,
        "ema": "reset",
        "bucket": [{"resolution": "80px", "num_frames": [1, 8], "batch_size": [4, 4]}],
        "train": {"learning_rate": 2e-3},
    },
    {
        "name": "longer",
        "clips": 200,
        "optimizer": "reset",
        "bucket": [{"resolution": "80px", "num_frames": [8, 16], "batch_size": [4, 2], "keep_prob": [1.0, 0.7]}],
        "train": {"learning_rate": 1e-3, "warmup_steps": 3},
    },
]
# What an edited stage has in place of its keys: other rates, sizes of micro-batches and ends.
_EDITS: dict[str, Json] = {
    "clips": {"train": {"learning_rate": 5e-4, "weight_decay": 0.1}},
    "longer": {
        "clips": 160,
        "ema": "reset",
        "bucket": [{"resolution": "80px", "num_frames": [8, 16], "batch_size": [6, 2]}],
    },
}
_NAMES = [str(stage["name"]) for stage in STAGES]


@dataclass
class Life:
    """A run that is killed: its starts, what they noted, and which stages were edited."""

    kind: str
    output: Path
    edited: Edited = frozenset()
    starts: int = 0
    kills: int = 0
    killed_in: Counter[str] = field(default_factory=Counter)
    killed_at_borders: int = 0
    entries: list[Entry] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def truth(self) -> Truth:
        """What holds of it."""
        return truth.hold(self.entries)

    @property
    def stage_under_way(self) -> int:
        """Index of the stage of the newest checkpoint, which may be at its end; -1 without any."""
        from reelworks.data.checkpoint.folder import CheckpointFolder

        saved = CheckpointFolder(self.output / "checkpoints").list()
        return _NAMES.index(saved[-1].stage) if saved else -1


@dataclass(frozen=True)
class Calm:
    """A run that nobody killed.

    Attributes:
        final: Digests of the files of its last checkpoint: weights, average, optimizer, position in the data.
        borders: Last step of each stage.
    """

    truth: Truth
    final: dict[str, str]
    borders: list[int]
    seconds: float


class Drill:
    """Footage, the demo's autoencoder, and runs on them below a folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        self._calm: dict[Edited, Calm] = {}
        self._prepare()
        self._names = {str(file): f"footage/{file.name}" for file in sorted((folder / "footage").iterdir())}

    def _prepare(self) -> None:
        from reelworks.data.catalog.config import DatasetConfig
        from reelworks.data.catalog.scan import scan
        from reelworks.demo import autoencoder, make

        make.make(self.folder / "footage")
        source = DatasetConfig(path=str(self.folder / "footage")).place
        scan.scan_sources([source], self.folder / "catalog", workers=1)
        autoencoder.fit(self.folder / "catalog", self.folder / "autoencoder.safetensors", seed=0)

    def recipe(self, output: Path, edited: Edited) -> Json:
        """Return the demo's recipe with three stages in place of its buckets, saves that are frequent, and no previews."""
        from reelworks.demo import sample_recipe

        recipe: Json = tomllib.loads(sample_recipe.path("demo").read_text(encoding="utf-8"))
        for key in ("bucket", "samples"):
            del recipe[key]
        del recipe["train"]["max_steps"], recipe["train"]["learning_rate_schedule"]
        recipe["train"] |= {"micro_batches_per_step": 4, "same_bucket_run": 4, "warmup_steps": 5, "threads": 1}
        recipe["dataset"][0]["path"] = str(self.folder / "footage")
        recipe["autoencoder"]["weights"] = str(self.folder / "autoencoder.safetensors")
        recipe["validation"]["every_steps"] = 10
        recipe["checkpoints"] = {"every_steps": 4, "keep_last": 2}
        stages = [stage | (_EDITS[stage["name"]] if stage["name"] in edited else {}) for stage in STAGES]
        return recipe | {"output": str(output), "stage": stages}

    def encode(self) -> None:
        """Store the latents of all stages, which no later run has to wait for."""
        self.start(Life("calm", self.folder / "encoding"), {"by": "itself"})

    def calm(self, edited: Edited) -> Calm:
        """Return the run that has the edited stages from its start, and is not killed."""
        if edited not in self._calm:
            life = Life("calm", self.folder / f"calm-{len(self._calm)}", edited)
            began = time.perf_counter()
            if not self.start(life, {"by": "itself"}):
                raise RuntimeError("; ".join(life.wrong) or "the run that nobody killed did not end")
            found = life.truth
            if wrong := truth.wrong_training(found):
                raise RuntimeError(f"the run that nobody killed: {wrong}")
            last = {step.key[0]: step.step for step in found.steps}
            seconds = time.perf_counter() - began
            self._calm[edited] = Calm(found, _final_state(life.output), [last[i] for i in sorted(last)], seconds)
        return self._calm[edited]

    def start(self, life: Life, end: Json, world: int = 1) -> bool:
        """Train until it ends as it is told, or by itself; returns whether it came to its end."""
        folder = self.folder / "starts" / life.output.name / str(life.starts)
        life.starts += 1
        orders = {"folder": str(folder), "end": end, "bare": True}
        ended = start.run(Start(self.recipe(life.output, life.edited), folder, orders, {}, world))
        life.entries += truth.read(folder, self._names, frozenset(), {name: name for name in self._names.values()})
        if ended.killed:
            life.kills += 1
            self._note_kill(life)
            return False
        if ended.crashed or ended.refused or any(ended.codes):
            life.wrong.append(f"a start ended otherwise: {ended.crashed or ended.refused or ended.codes}")
        return True

    def _note_kill(self, life: Life) -> None:
        found = life.truth
        under_way = max((begin.key[0] for begin in found.begins), default=0)
        life.killed_in[_NAMES[under_way]] += 1
        last = found.steps[-1].step if found.steps else 0
        life.killed_at_borders += last in self.calm(life.edited).borders

    def live(self, kind: str, number: int, most_kills: int) -> Life:
        """Live through one life of at most so many kills, and say what is wrong with it."""
        life = Life(kind, self.folder / f"life-{number}")
        done = False
        for _ in range(_MOST_STARTS):
            if done or life.kills == most_kills:
                break
            world = self.chance.choice(_WORLDS) if kind == OTHER_WORLDS else 1
            done = self.start(life, self._end(life, world), world)
            if kind == EDITED and not done and not life.edited and self.chance.random() < 0.7:
                life.edited = frozenset(name for name in _NAMES[life.stage_under_way + 1 :] if name in _EDITS)
        if not done and not self.start(life, {"by": "itself"}, 1 if kind != OTHER_WORLDS else 2):
            life.wrong.append("the last start was not killed, and did not end")
        life.wrong += self.differences(life)
        return life

    def _end(self, life: Life, world: int) -> Json:
        calm = self.calm(life.edited)
        rank = {"by": "kill", "rank": self.chance.randrange(world)}
        if life.kind == AT_BORDERS:
            border = calm.borders[0 if life.kills < 2 else 1]
            call = self.chance.randint(1, _BORDER_CALLS)
            return rank | {"scope": "any", "since_step": border, "call": call, "half": 1 if call % 3 == 0 else 0}
        return rank | {"seconds": self.chance.uniform(0, calm.seconds * (1 + 0.5 * (world - 1)))}

    def differences(self, life: Life) -> list[str]:
        """Say where a life that came to its end differs from the run that nobody killed, or from its own account."""
        expected, found = self.calm(life.edited), life.truth
        wrong = truth.wrong_training(found)
        if (counts := (len(found.steps), len(expected.truth.steps)))[0] != counts[1]:
            wrong.append(f"other steps: {counts[0]}, not {counts[1]}")
        wrong += [
            f"other clips: in step {one.step}"
            for one, other in zip(found.steps, expected.truth.steps, strict=False)
            if _clips(one) != _clips(other)
        ]
        wrong += account.differences(start.covered_by_command(life.output), found)
        if life.kind != OTHER_WORLDS and _final_state(life.output) != expected.final:
            wrong.append("another end: weights, averages, optimizer or position differ")
        return wrong


def _clips(step: Step) -> tuple[truth.Key, int, dict[truth.Clip, str]]:
    return step.key, step.plan_step, step.items


def _final_state(output: Path) -> dict[str, str]:
    from reelworks.data.checkpoint.folder import CheckpointFolder

    newest = CheckpointFolder(output / "checkpoints").list()[-1]
    return {file.path: file.digest for file in newest.manifest.files}


def survive(kills: int, seed: int) -> Json:
    """Kill so often; returns what was seen."""
    began = time.perf_counter()
    start.serve()
    lives: list[Life] = []
    with tempfile.TemporaryDirectory() as name:
        drill = Drill(Path(name), seed)
        drill.encode()
        calm = drill.calm(frozenset())
        for number, kind in enumerate(itertools.cycle(KINDS)):
            left = kills - sum(life.kills for life in lives)
            if not left:
                break
            lives.append(drill.live(kind, number, min(left, _KILLS_OF_A_LIFE)))
            told = f"{number}: {kind}, {lives[-1].kills} kills, {len(lives[-1].wrong)} wrong"
            print(told, file=sys.stderr, flush=True)
        trained = Counter(step.key[0] for step in calm.truth.steps for _ in step.items)
    compared = [life for life in lives if life.kind != OTHER_WORLDS]
    return {
        "kills": sum(life.kills for life in lives),
        "lives": len(lives),
        "kills_by_kind": {kind: sum(life.kills for life in lives if life.kind == kind) for kind in KINDS},
        "kills_by_stage": dict(sum((life.killed_in for life in lives), Counter())),
        "kills_at_borders": sum(life.killed_at_borders for life in lives),
        "starts": sum(life.starts for life in lives),
        "steps": sum(len(life.truth.steps) for life in lives),
        "wrong": [f"{life.kind}: {text}" for life in lives for text in life.wrong],
        "compared": len(compared),
        "equal": sum(not life.wrong for life in compared),
        "clips_by_stage": {name: trained[i] for i, name in enumerate(_NAMES)},
        "last_steps": dict(zip(_NAMES, calm.borders, strict=True)),
        "seconds": round(time.perf_counter() - began, 1),
    }
