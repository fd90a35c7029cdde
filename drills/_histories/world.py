"""All that a history changes: footage, recipe, folders; and the recipe as it is today."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drills._histories.disk import Dataset, Disk

Json = dict[str, Any]
# Frame counts and resolutions that the tiny network takes.
TABLES: dict[str, list[Json]] = {
    "one": [{"resolution": "32px", "num_frames": [1, 2, 4]}],
    "two": [{"resolution": "32px", "num_frames": [1, 4]}, {"resolution": "16px", "num_frames": [1, 2]}],
    "small": [{"resolution": "16px", "num_frames": [1, 2, 4]}],
    "pictures": [{"resolution": "32px", "num_frames": [1]}],
    "long": [{"resolution": "32px", "num_frames": [1, 5]}],
}


@dataclass
class World:
    """Where a history stands.

    Attributes:
        root: Folder of everything.
        run: The run folder; it may move.
        disk: The footage.
        recipe: Tables of the recipe, without datasets, buckets and folders.
        table: Name of the bucket entries in `TABLES`.
        batch_sizes, keep_probs: One for each entry and frame count, repeated from the first on.
        in_exclude_file: Ids that the exclude list names.
        foreign: Lines of the exclude list that name no clip.
        costs: Milliseconds that the measured table has, or None where the recipe names none.
        catalog: Folder of the catalog, or None for the run's own.
        stages: Stages of the recipe, each with the name of its bucket entries as `table` or none; the last has no end.
        each_resolution: Whether clips are used at each of the resolutions, where the table has two.
        degrees: Ranks that share a clip, as `batch_sizes`, in groups of two; None where each rank has its own.
        step: Newest step that holds.
        epoch: The epoch under way.
    """

    root: Path
    run: Path
    disk: Disk
    recipe: Json
    table: str = "one"
    batch_sizes: list[int] = field(default_factory=lambda: [4, 2, 2])
    keep_probs: list[float] = field(default_factory=lambda: [1.0])
    in_exclude_file: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    costs: float | None = None
    catalog: Path | None = None
    stages: list[Json] = field(default_factory=list)
    each_resolution: bool = False
    degrees: list[int] | None = None
    step: int = 0
    epoch: int = 0

    @classmethod
    def begin(cls, root: Path, history: Json) -> World:
        """Make the footage and the recipe that a history begins with: all by its seed, but for what it names."""
        chance = random.Random(history["seed"])
        disk = Disk(root / "data-0")
        world = cls(root, root / "run-0", disk, _recipe(chance))
        disk.add_dataset(Dataset("a", "a", "a"))
        name = chance.choice(["b.csv", "b.jsonl", None])
        disk.add_dataset(Dataset("b", "b", "b", name))
        for dataset in ("a", "b"):
            disk.add_file(dataset, chance, name="x/same.png")
            disk.add_file(dataset, chance, name="same.mp4" if dataset == "b" else "y/same.mp4")
            for _ in range(chance.randint(8, 16)):
                disk.add_file(dataset, chance)
        if "accumulation" in history:
            world.recipe["train"]["gradient_accumulation_steps"] = history["accumulation"]
        if chance.random() < 0.3:
            world.catalog = root / "catalog"
        if chance.random() < 0.3:
            world.costs = 5.0
        world.table = chance.choice(["one", "one", "two", "small", "long"])
        world.stages = history.get("stages", [])
        world.degrees = history.get("degrees")
        return world

    @property
    def catalog_folder(self) -> Path:
        """Where the catalog lies."""
        return self.catalog or self.run / "catalog"

    def checkpoints(self) -> list[int]:
        """Steps that could be named to resume from."""
        folder = self.run / "checkpoints"
        names = [p.name for p in folder.glob("step-*")] if folder.is_dir() else []
        return sorted(int(name.removeprefix("step-")) for name in names)

    def move_run(self, to: Path) -> None:
        """Move the run folder, if there is one yet."""
        if self.run.exists():
            shutil.move(self.run, to)
        self.run = to

    def whole_recipe(self) -> Json:
        """The recipe as it is today; writes the files that it names."""
        self.disk.write_lists()
        recipe: Json = {**self.recipe, "output": str(self.run), "dataset": self.disk.entries()}
        if self.degrees is not None:
            recipe["parallel"] = {**recipe.get("parallel", {}), "sequence_degree": 2}
        recipe["bucket"] = self._buckets(self.table)
        for stage in self.stages:
            own = {key: value for key, value in stage.items() if key != "table"}
            entries = {"bucket": self._buckets(stage["table"])} if "table" in stage else {}
            recipe.setdefault("stage", []).append(own | entries)
        if self.each_resolution and self.table == "two" and not self.stages:
            for dataset in recipe["dataset"]:
                dataset["resolutions"] = [entry["resolution"] for entry in TABLES["two"]]
        recipe["exclude_file"] = str(self._write_exclude_list())
        if self.catalog is not None:
            recipe["catalog"] = str(self.catalog)
        if self.costs is not None:
            recipe["cost"] = {**recipe.get("cost", {}), "measured": str(self._write_costs())}
        return json.loads(json.dumps(recipe))

    def _buckets(self, table: str) -> list[Json]:
        entries = []
        for entry in TABLES[table]:
            many = range(len(entry["num_frames"]))
            sizes = [self.batch_sizes[i % len(self.batch_sizes)] for i in many]
            chances = [self.keep_probs[i % len(self.keep_probs)] for i in many]
            entries.append({**entry, "batch_size": sizes, "keep_prob": chances})
            if self.degrees is not None:
                entries[-1]["sequence_degree"] = [self.degrees[i % len(self.degrees)] for i in many]
        return entries

    def _write_exclude_list(self) -> Path:
        names = {identity: name for name, identity in self.disk.by_name().items()}
        lines = [names[identity] for identity in self.in_exclude_file if identity in names]
        path = self.root / "exclude.txt"
        path.write_text(
            "".join(f"{line}\n" for line in ["# not to be trained", *lines, *self.foreign]), encoding="utf-8"
        )
        return path

    def _write_costs(self) -> Path:
        path = self.root / "costs.json"
        names = [f"{size} {ratio}" for size in ("32px", "16px") for ratio in ("1:1", "3:2", "2:3")]
        assert self.costs is not None
        lengths = ("", *(f" ×{n}" for n in (1, 2, 4, 5)))
        ms = {
            f"{name}{length}": 1 + (i * self.costs) % 7
            for i, (name, length) in enumerate(itertools.product(names, lengths))
        }
        path.write_text(json.dumps(ms), encoding="utf-8")
        return path


def _recipe(chance: random.Random) -> Json:
    return {
        "version": 1,
        "seed": 7,
        "buckets": {"upscale": True, "max_crop": 0.7, "aspect_ratios": ["3:2", "1:1", "2:3"]},
        "data": {"num_workers": 0, "max_decode_failures": 1.0},
        "model": {"name": "stdit3-tiny", "hidden_size": 16, "depth": 1, "num_heads": 2},
        "autoencoder": {"stride": 8},
        "text_encoder": {"dim": 8, "max_length": 4},
        "precision": {"compute": "float32"},
        "train": {
            "learning_rate": 1e-3,
            "threads": 1,
            "gradient_accumulation_steps": chance.choice([1, 1, 2, 2, 4]),
        },
        "validation": {"split": chance.choice([0.0, 0.0, 0.1]), "timesteps": [500.0], "max_clips": 2},
        "checkpoints": {"every_steps": chance.choice([1, 2, 2, 3]), "keep_last": chance.choice([1, 2, 4])},
    }
