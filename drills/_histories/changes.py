"""What people change between two starts, each as a function of the world and of chance.

A change in a history is `{"do": its name, "seed": number}`: with the same world and number it does the same. Other
keys name what is chosen instead of drawing it. Where a change finds nothing to work on, it does nothing.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from typing import Any

from drills._histories.disk import CUT, DAMAGED, FOLDERS, GONE, GOOD, LOST, WORDS, Dataset, File
from drills._histories.world import TABLES, World

Json = dict[str, Any]
Change = Callable[..., str]
CHANGES: dict[str, Change] = {}
WEIGHTS: dict[str, int] = {}
RENAMING = {"rename", "swap", "part", "part_below"}


def change(weight: int) -> Callable[[Change], Change]:
    """Take a function in as a change that is drawn so often."""

    def register(function: Change) -> Change:
        name = function.__name__.removeprefix("do_")
        CHANGES[name], WEIGHTS[name] = function, weight
        return function

    return register


def apply(world: World, what: Json) -> str:
    """Make a change; returns what was changed, for people."""
    given = {key: value for key, value in what.items() if key not in ("do", "seed")}
    return CHANGES[what["do"]](world, random.Random(what.get("seed", 0)), **given)


def draw(chance: random.Random) -> Json:
    """Draw a change."""
    names = sorted(WEIGHTS)
    (name,) = chance.choices(names, [WEIGHTS[name] for name in names])
    return {"do": name, "seed": chance.randrange(1 << 20)}


def _some(world: World, chance: random.Random, files: list[str] | None, *states: str, most: int = 3) -> list[File]:
    """Files that are named, or a few of those in one of the states."""
    if files is not None:
        return [world.disk.files[identity] for identity in files]
    among = [f for f in world.disk.there() if f.state in states]
    return chance.sample(among, min(len(among), chance.randint(1, most)))


def _told(files: list[File]) -> str:
    return ", ".join(f"{file.id} ({file.dataset}/{file.path})" for file in files) or "none"


# Clips.


@change(6)
def do_add(world: World, chance: random.Random, number: int | None = None) -> str:
    keys = [d.key for d in world.disk.datasets.values() if d.used]
    many = number or chance.randint(1, 3)
    return _told([world.disk.add_file(chance.choice(keys), chance) for _ in range(many)])


@change(5)
def do_remove(world: World, chance: random.Random, files: list[str] | None = None) -> str:
    chosen = _some(world, chance, files, GOOD, DAMAGED)
    for file in chosen:
        file.state = GONE
        world.disk.write(file)
    return _told(chosen)


@change(1)
def do_restore(world: World, chance: random.Random) -> str:
    gone = [f for f in world.disk.files.values() if f.state == GONE and world.disk.datasets[f.dataset].used]
    for file in gone[:2]:
        file.state = GOOD
        world.disk.write(file)
    return _told(gone[:2])


@change(5)
def do_edit(world: World, chance: random.Random, files: list[str] | None = None) -> str:
    chosen = _some(world, chance, files, GOOD)
    for file in chosen:
        file.content = world.disk.new_content()
        world.disk.write(file)
    return _told(chosen)


@change(5)
def do_damage(world: World, chance: random.Random, files: list[str] | None = None) -> str:
    chosen = _some(world, chance, files, GOOD)
    for file in chosen:
        listed = world.disk.datasets[file.dataset].list_name is not None
        file.state = chance.choice([DAMAGED, DAMAGED, CUT, LOST if listed else DAMAGED])
        world.disk.write(file)
    return _told(chosen)


@change(4)
def do_heal(world: World, chance: random.Random, files: list[str] | None = None) -> str:
    chosen = _some(world, chance, files, DAMAGED, CUT, LOST)
    for file in chosen:
        file.state = GOOD
        if chance.random() < 0.4:
            file.content = world.disk.new_content()
        world.disk.write(file)
    return _told(chosen)


@change(4)
def do_captions(world: World, chance: random.Random, files: list[str] | None = None) -> str:
    chosen = _some(world, chance, files, GOOD)
    for file in chosen:
        new = f"{chance.choice(WORDS)} said {chance.randrange(1000)}"
        file.caption = None if file.caption is not None and chance.random() < 0.4 else new
        world.disk.write_caption(file)
    return _told(chosen)


@change(2)
def do_scores(world: World, chance: random.Random) -> str:
    chosen = _some(world, chance, None, GOOD)
    for file in chosen:
        file.score = round(chance.uniform(0, 10), 2)
    return _told(chosen)


@change(5)
def do_exclude_list(world: World, chance: random.Random, files: list[str] | None = None) -> str:
    """Edit the file in place: lines come, and others go."""
    stay = [identity for identity in world.in_exclude_file if chance.random() < 0.5]
    more = _some(world, chance, files, GOOD, DAMAGED) if files is not None or chance.random() < 0.8 else []
    world.in_exclude_file = list(dict.fromkeys([*stay, *(file.id for file in more)]))
    world.foreign = ["a/no such clip.mp4"] if chance.random() < 0.2 else []
    return ", ".join(world.in_exclude_file) or "none"


# The recipe.


def _put(world: World, table: str, key: str, value: Any) -> str:
    """Set a key; None takes it out."""
    values = {**world.recipe.get(table, {}), key: value}
    world.recipe[table] = {name: v for name, v in values.items() if v is not None}
    return f"{table}.{key} = {value}"


def _one_of(chance: random.Random, *values: Any, given: Any = None) -> Any:
    return chance.choice(values) if given is None else given


@change(5)
def do_filter(world: World, chance: random.Random, text: str | None = None, dataset: str | None = None) -> str:
    chosen = _dataset(world, chance, dataset)
    general = [
        "height >= 24",
        "kind == 'image'",
        "not contains(caption, 'cat')",
        "width <= 40 or num_frames > 1",
    ]
    scored = ["aes > 3", "aes > 6 or height < 32"] if chosen.list_name is not None else []
    text = _one_of(chance, None, *general, *scored, given=text)
    chosen.settings.pop("filter", None)
    if text:
        chosen.settings["filter"] = text
    return f"{chosen.name}: {text}"


@change(4)
def do_duplicates(world: World, chance: random.Random, how: str | None = None) -> str:
    """Let near-duplicates count once, or all, in the datasets whose lists tell them."""
    listed = [d for d in world.disk.datasets.values() if d.list_name is not None]
    for dataset in listed:
        dataset.settings["duplicates"] = how or chance.choice(["keep", "best", "weight"])
    return ", ".join(f"{d.name}: {d.settings['duplicates']}" for d in listed) or "none"


def _dataset(world: World, chance: random.Random, key: str | None = None) -> Dataset:
    used = [d for d in world.disk.datasets.values() if d.used]
    return chance.choice(used) if key is None else world.disk.datasets[key]


@change(4)
def do_split(world: World, chance: random.Random, share: float | None = None) -> str:
    if chance.random() < 0.2:
        return _put(world, "validation", "group", _one_of(chance, "file", "folder"))
    return _put(world, "validation", "split", _one_of(chance, 0.0, 0.1, 0.25, given=share))


@change(4)
def do_buckets(world: World, chance: random.Random, table: str | None = None) -> str:
    world.table = _one_of(chance, *TABLES, given=table)
    return world.table


@change(2)
def do_shapes(world: World, chance: random.Random) -> str:
    values: dict[str, list[Any]] = {
        "upscale": [True, False],
        "max_crop": [0.7, 0.2],
        "aspect_ratios": [["1:1"], ["3:2", "1:1", "2:3"]],
    }
    key = chance.choice(sorted(values))
    return _put(world, "buckets", key, chance.choice(values[key]))


@change(4)
def do_batch_sizes(world: World, chance: random.Random, sizes: list[int] | None = None) -> str:
    world.batch_sizes = sizes or [chance.randint(1, 5) for _ in range(3)]
    return str(world.batch_sizes)


@change(4)
def do_keep_prob(world: World, chance: random.Random) -> str:
    world.keep_probs = chance.choice([[1.0], [0.5], [1.0, 0.6], [0.8, 0.8, 0.0]])
    return str(world.keep_probs)


@change(4)
def do_seed(world: World, chance: random.Random, seed: int | None = None) -> str:
    world.recipe["seed"] = chance.randrange(1000) if seed is None else seed
    return str(world.recipe["seed"])


@change(3)
def do_accumulation(world: World, chance: random.Random) -> str:
    return _put(world, "train", "gradient_accumulation_steps", chance.randint(1, 4))


@change(2)
def do_step_shape(world: World, chance: random.Random) -> str:
    shape = chance.choice([(None, None), (4, 2), (4, 4), (2, 1)])
    _put(world, "train", "same_bucket_run", shape[1])
    return _put(world, "train", "micro_batches_per_step", shape[0])


@change(4)
def do_incomplete_batch(world: World, chance: random.Random) -> str:
    return _put(world, "buckets", "incomplete_batch", _one_of(chance, "partial", "pad", "merge", "repeat"))


@change(5)
def do_repeats(world: World, chance: random.Random, repeats: int | None = None, dataset: str | None = None) -> str:
    chosen = _dataset(world, chance, dataset)
    if repeats is None and chance.random() < 0.2:
        chosen.settings["repeats"] = chance.choice([0.5, 1.5, 1.0])
        return f"{chosen.name}: {chosen.settings['repeats']}"
    chosen.settings["repeats"] = _one_of(chance, 1, 2, 3, given=repeats)
    return f"{chosen.name}: {chosen.settings['repeats']}"


@change(3)
def do_locality(world: World, chance: random.Random) -> str:
    _put(world, "data", "shuffle_window", chance.choice([4, 10]))
    return _put(world, "data", "locality", _one_of(chance, None, "folder", "file"))


@change(3)
def do_cost(world: World, chance: random.Random, formula: bool | None = None) -> str:
    """Change the formula, or the content of the measured table at the same path."""
    if formula or (formula is None and chance.random() < 0.4):
        return _put(world, "cost", "per_clip_us", chance.choice([0.0, 10.0, 500.0]))
    world.costs = chance.choice([c for c in (2.0, 3.0, 5.0, 6.0, None) if c != world.costs])
    return f"measured {world.costs}"


@change(3)
def do_frame_interval(world: World, chance: random.Random) -> str:
    return _put(world, "data", "frame_interval", chance.choice([1, 2]))


@change(3)
def do_short_clips(world: World, chance: random.Random) -> str:
    return _put(world, "data", "short_clips", _one_of(chance, "reject", "hold", "loop"))


@change(2)
def do_crop(world: World, chance: random.Random) -> str:
    return _put(world, "data", "crop", _one_of(chance, "center", "random"))


@change(2)
def do_asynchronous(world: World, chance: random.Random) -> str:
    return _put(world, "checkpoints", "asynchronous", chance.choice([True, False, "auto"]))


@change(2)
def do_saves(world: World, chance: random.Random) -> str:
    _put(world, "checkpoints", "keep_last", chance.choice([1, 2, 4]))
    return _put(world, "checkpoints", "every_steps", chance.choice([1, 2, 3]))


@change(2)
def do_strategy(world: World, chance: random.Random) -> str:
    return _put(world, "parallel", "strategy", _one_of(chance, "fsdp", "replicated"))


@change(1)
def do_workers(world: World, chance: random.Random) -> str:
    return _put(world, "data", "num_workers", chance.choice([0, 0, 1, 2]))


@change(2)
def do_skip_steps(world: World, chance: random.Random) -> str:
    first = world.step + chance.randint(1, 3)
    return _put(world, "train", "skip_steps", [[first, first + chance.randint(0, 1)]])


@change(4)
def do_resolutions(world: World, chance: random.Random) -> str:
    """Use each clip at both resolutions of the table that has two, or at the largest that it fills."""
    world.each_resolution, world.table = not world.each_resolution, "two"
    return str(world.each_resolution)


@change(6)
def do_stage(world: World, chance: random.Random) -> str:
    """Edit a stage, finished or not; or write one before the last."""
    if not world.stages:
        return "there are none"
    if chance.random() < 0.3:
        new = {"name": f"s{len(world.stages) + 10}", "steps": chance.randint(1, 4)}
        world.stages.insert(len(world.stages) - 1, new)
        return f"{new['name']} is new"
    chosen = chance.choice(world.stages)
    if chance.random() < 0.5:
        chosen["table"] = chance.choice(["one", "two", "small", "long"])
    elif chosen is not world.stages[-1]:
        for key in ("steps", "epochs", "clips"):
            chosen.pop(key, None)
        chosen |= chance.choice([{"steps": chance.randint(1, 6)}, {"epochs": chance.randint(1, 2)}])
    return str(chosen)


# Folders and names.


@change(4)
def do_run_moved(world: World, chance: random.Random) -> str:
    number = int(world.run.name.removeprefix("run-")) + 1
    world.move_run(world.root / f"run-{number}")
    return world.run.name


@change(4)
def do_data_moved(world: World, chance: random.Random) -> str:
    number = int(world.disk.footage.name.removeprefix("data-")) + 1
    world.disk.move_all(world.root / f"data-{number}")
    return world.disk.footage.name


@change(4)
def do_rename(world: World, chance: random.Random, dataset: str | None = None) -> str:
    chosen = _dataset(world, chance, dataset)
    before, chosen.name = chosen.name, f"{chosen.name[:3]}{chance.randrange(100)}"
    return f"{before} is {chosen.name}"


@change(3)
def do_swap(world: World, chance: random.Random) -> str:
    used = [d for d in world.disk.datasets.values() if d.used]
    if len(used) < 2:
        return "there is one dataset"
    one, other = chance.sample(used, 2)
    one.name, other.name = other.name, one.name
    return f"{one.key} is {one.name}, {other.key} is {other.name}"


@change(2)
def do_part(world: World, chance: random.Random, dataset: str | None = None) -> str:
    """Split a dataset: some of its files move to a dataset of their own, with the paths that they have."""
    chosen = _dataset(world, chance, dataset)
    key = f"{chosen.key}p{len(world.disk.datasets)}"
    list_name = chosen.list_name and chosen.list_name.replace(chosen.key, key)
    folder = key if list_name is None else chosen.folder
    world.disk.add_dataset(Dataset(key, key, folder, list_name, dict(chosen.settings)))
    mine = [f for f in world.disk.files.values() if f.dataset == chosen.key and f.state != GONE]
    moved = [file for file in mine if chance.random() < 0.5] or mine[:1]
    for file in moved if len(moved) < len(mine) else moved[1:]:
        world.disk.move(file, key, file.path)
    return f"{len(moved)} of {chosen.name} are {key}"


@change(2)
def do_part_below(world: World, chance: random.Random) -> str:
    """Split a dataset: its sub-folders become datasets, so that paths grow shorter."""
    among = [d for d in world.disk.datasets.values() if d.used and d.key == "a" and d.list_name is None]
    if not among:
        return "done before"
    (whole,) = among
    whole.used = False
    for below in FOLDERS:
        key = f"a-{below}"
        world.disk.add_dataset(Dataset(key, key, f"{whole.folder}/{below}", None, dict(whole.settings)))
        for file in [f for f in world.disk.there(used=False) if f.dataset == whole.key]:
            if file.path.startswith(f"{below}/"):
                world.disk.move(file, key, file.path.removeprefix(f"{below}/"))
    return f"{whole.name} is a-x and a-y"


@change(1)
def do_drop(world: World, chance: random.Random, dataset: str | None = None) -> str:
    used = [d for d in world.disk.datasets.values() if d.used]
    if len(used) < 2:
        return "there is one dataset"
    chosen = _dataset(world, chance, dataset)
    chosen.used = False
    return f"{chosen.name} is left out"


@change(1)
def do_bring_back(world: World, chance: random.Random) -> str:
    names = {d.name for d in world.disk.datasets.values() if d.used}
    for dataset in world.disk.datasets.values():
        has_files = any(f.dataset == dataset.key and f.state != GONE for f in world.disk.files.values())
        if not dataset.used and has_files and dataset.name not in names:
            dataset.used = True
            return dataset.name
    return "none"


@change(4)
def do_plans_deleted(world: World, chance: random.Random) -> str:
    found = list((world.run / "plan").glob("plan-*"))
    for plan in found:
        shutil.rmtree(plan)
    return f"{len(found)} plans"


@change(3)
def do_catalog_deleted(world: World, chance: random.Random) -> str:
    shutil.rmtree(world.catalog_folder, ignore_errors=True)
    return str(world.catalog_folder)
