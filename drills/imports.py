"""Import of every config that other trainers publish: `python -m drills.imports [--sources DIR] [--json] [--save]`.

Each is imported from a checkout of its trainer, and the recipe planned on a folder of pictures and clips in place of the config's
own. Checkouts are taken from `--sources`, a folder with one for each trainer by its name (`ai-toolkit`, `sd-scripts`, …), or cloned.

Fields, for each trainer and in all: `files`; `known_model`, whose model is here; `planned`, of which `plan` makes steps;
`refused_clearly`, by one error that says why; `wrong`, everything else.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks._results import keep

from drills._imports import Example, ai_toolkit, diffusion_pipe, kohya, onetrainer, simpletuner
from reelworks.annexes.imports import importer
from reelworks.annexes.imports.request import ImportRequest
from reelworks.core.errors import UserError
from reelworks.demo import make
from reelworks.training.plan.plan import plan
from reelworks.training.recipe import dataset, recipe_file
from reelworks.training.recipe.dataset import RecipeData

RESULTS = Path(__file__).parent / "results" / "imports.json"
TRAINERS: dict[str, tuple[str, Callable[[Path], Iterator[Example]]]] = {
    "ai-toolkit": ("ostris/ai-toolkit", ai_toolkit.examples),
    "diffusion-pipe": ("tdrussell/diffusion-pipe", diffusion_pipe.examples),
    "musubi-tuner": ("kohya-ss/musubi-tuner", kohya.examples),
    "onetrainer": ("Nerogar/OneTrainer", onetrainer.examples),
    "sd-scripts": ("kohya-ss/sd-scripts", kohya.examples),
    "simpletuner": ("bghira/SimpleTuner", simpletuner.examples),
}
# Refusals that name a model which is not here, or a training that is none of a network's own.
_NO_MODEL = {"unknown-model", "model-not-named", "model-not-told"}


def outcome(example: Example, trainer: str, footage: Path, folder: Path) -> tuple[str, str]:
    """Import a config and plan its recipe; return "planned", "unknown model", "refused" or "wrong", and what was said."""
    recipe = folder / "recipe.toml"
    request: dict[str, Any] = {"files": example.files, "command": example.command, "output": recipe}
    try:
        importer.convert(ImportRequest(**request, force=True, clips=False, trainer=trainer, data=(footage,)))
    except UserError as error:
        return ("unknown model" if error.code in _NO_MODEL else "refused"), str(error).splitlines()[0]
    except Exception as error:
        return "wrong", f"{type(error).__name__}: {error}"
    try:
        read = recipe_file.load(recipe, [f"catalog={folder / 'catalog'}", f"output={folder / 'run'}"])
        beside = {kind: str(folder / "beside") for kind in read.dataset[0].companions}
        plain = {
            "path": str(footage),
            "missing_caption": "a shape",
            "filter": None,
            "resolutions": read.dataset[0].resolutions,
            **_of_kind(beside),
        }
        read = read.model_copy(update={"dataset": [read.dataset[0].model_copy(update=plain)]})
        dataset.scan_recipe(read)
        steps = plan(RecipeData.open(read), world_size=1).steps
    except Exception as error:
        return "wrong", f"{type(error).__name__}: {error}".splitlines()[0]
    return ("planned", f"{steps} steps") if steps else ("wrong", "a plan without a step")


def _of_kind(beside: dict[str, str]) -> dict[str, str]:
    """Return folders of companions by their keys in a recipe; several sources have one key."""
    return {"source" if kind.startswith("source") else kind: path for kind, path in beside.items()}


def source_of(name: str, repository: str, given: Path | None, folder: Path) -> Path:
    """Return a checkout of a trainer, cloned if none is given."""
    if given is not None:
        return given / name
    target = folder / name
    clone = ["git", "clone", "--quiet", "--depth", "1", f"https://github.com/{repository}", str(target)]
    subprocess.run(clone, check=True, env={**os.environ, "GIT_TERMINAL_PROMPT": "0"})
    return target


def main() -> None:
    """Measure, and print one object or some lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, help="folder of checkouts, each with the name of its trainer")
    parser.add_argument("--only", nargs="+", choices=list(TRAINERS), default=list(TRAINERS))
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {RESULTS.name}")
    options = parser.parse_args()
    figures: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        footage = folder / "footage"
        make.make(footage)
        for number in range(4):  # long enough for every length, and with sound
            importlib.import_module("tests.makers.sound_clips").write(
                footage / f"long-{number}.mp4", seconds=8, events=(1.0,)
            )
            (footage / f"long-{number}.txt").write_text("a flash and a beep", encoding="utf-8")
        shutil.copytree(footage, folder / "beside")  # controls, sources and masks of the same names
        for name in options.only:
            repository, examples = TRAINERS[name]
            found: Counter[str] = Counter()
            for example in examples(source_of(name, repository, options.sources, folder)):
                kind, said = outcome(example, name, footage, folder)
                found[kind] += 1
                if not options.json and kind != "planned":
                    print(f"{name}, {example.name}: {kind}: {said}", flush=True)
                shutil.rmtree(folder / "run", ignore_errors=True)
            figures[name] = {
                "files": found.total(),
                "known_model": found.total() - found["unknown model"],
                "planned": found["planned"],
                "refused_clearly": found["refused"] + found["unknown model"],
                "wrong": found["wrong"],
            }
            if not options.json:
                print(f"{name}: {figures[name]}", flush=True)
    total = {key: sum(one[key] for one in figures.values()) for key in next(iter(figures.values()))}
    if options.save:
        keep(RESULTS, {"trainers": figures, **total})
    print(json.dumps({"trainers": figures, **total}) if options.json else f"in all: {total}")
    sys.exit(bool(total["wrong"]))


if __name__ == "__main__":
    main()
