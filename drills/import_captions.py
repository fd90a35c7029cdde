"""What each trainer makes of caption files, by hand, beside what the imported recipe trains: `python -m drills.import_captions`.

Imports a config of each trainer for one folder, and reads the captions of some epochs with a `Loader`. `same` counts clips whose
captions are those that are written down by hand, `told` those that the account names, and `wrong` all others. White space and
the order of shuffled tags make no difference.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks._results import keep

from drills._imports import caption_files
from drills._imports.caption_files import Case
from reelworks.annexes.imports import importer
from reelworks.annexes.imports.importer import Imported
from reelworks.annexes.imports.request import ImportRequest
from reelworks.data.loader.loader import Loader
from reelworks.training.recipe import dataset, recipe_file
from reelworks.training.recipe.dataset import RecipeData

RESULTS = Path(__file__).parent / "results" / "import_captions.json"
_EPOCHS = 10


def outcomes(case: Case, folder: Path) -> dict[str, str]:
    """Return "same", "told" or what is wrong, for each picture of a case."""
    config, recipe = folder / f"config{case.suffix}", folder / "recipe.toml"
    config.write_text(case.config, encoding="utf-8")
    request = ImportRequest(files=(config,), command=case.command, trainer=case.trainer, output=recipe, force=True)
    made = importer.convert(request)
    trained, named = _trained(recipe, folder), _named(made)
    found = {}
    for name, expected in case.expected.items():
        own = trained.get(name)
        if (own is None and expected == "!") or (own is not None and expected != "!" and _is(expected, name, own)):
            found[name] = "same"
        else:
            found[name] = "told" if name in named else f"{expected!r} there, {sorted(own or ())} here, and nothing said"
    return found


def _trained(recipe: Path, folder: Path) -> dict[str, set[str]]:
    read = recipe_file.load(recipe, [f"catalog={folder / 'catalog'}", f"output={folder / 'run'}"])
    dataset.scan_recipe(read)
    found: dict[str, set[str]] = defaultdict(set)
    loader = Loader(RecipeData.open(read))
    for _ in range(_EPOCHS):
        for step in loader:
            for batch in step:
                for clip, caption in zip(batch.metadata, batch.captions, strict=True):
                    found[Path(clip["path"]).stem].add(caption)
    return found


def _named(made: Imported) -> set[str]:
    """Return the pictures that the account names."""
    assert made.clips is not None, made.without_clips
    lists = [*made.clips.other_captions.values(), *made.clips.left_out.values(), *made.clips.here_left_out.values()]
    return {Path(path).stem for names in lists for path in names}


def _is(expected: str, name: str, own: set[str]) -> bool:
    """Return whether the captions that were trained are those that are expected, each of them at least once."""
    data = caption_files.FILES[name][0] or b""
    whole = data.decode(errors="replace")
    wanted = {"=": [whole], "0": [""]}.get(expected, expected.split("|"))
    return {_plain(text) for text in own} == {_plain(text.replace("\\", "|")) for text in wanted} or (
        "<" in expected and {_sorted(text, expected) for text in own} == {_sorted(expected, expected)}
    )


def _plain(text: str) -> str:
    return re.sub(r" ?, ?", ", ", " ".join(text.split())).strip()


def _sorted(text: str, form: str) -> str:
    """Return a text with its last tags sorted, as many as the form has in brackets."""
    tags = [tag for each in re.split(r"[,;]", text.strip("<>").replace("<", "")) if (tag := each.strip(" >"))]
    fixed = len([each for each in form.partition("<")[0].split(",") if each.strip()])
    return ", ".join([*tags[:fixed], *sorted(tags[fixed:])])


def main() -> None:
    """Measure, and print one object or some lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {RESULTS.name}")
    options = parser.parse_args()
    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        pictures = Path(temporary) / "pictures"
        caption_files.write(pictures)
        for number, case in enumerate(caption_files.cases(pictures, Path(temporary))):
            folder = Path(temporary) / str(number)
            folder.mkdir()
            found = outcomes(case, folder)
            kinds = [each if each in ("same", "told") else "wrong" for each in found.values()]
            wrong = {name: said for name, said in found.items() if said not in ("same", "told")}
            counts = {kind: kinds.count(kind) for kind in ("same", "told", "wrong")}
            figures[f"{case.trainer}: {case.name}"] = {**counts, "which": wrong}
            if not options.json:
                print(f"{case.trainer}, {case.name}: {counts}", *wrong.items(), sep="\n  ", flush=True)
    total = {kind: sum(one[kind] for one in figures.values()) for kind in ("same", "told", "wrong")}
    if options.save:
        keep(RESULTS, {"configs": figures, **total})
    print(json.dumps({"configs": figures, **total}) if options.json else f"in all: {total}")
    sys.exit(bool(total["wrong"]))


if __name__ == "__main__":
    main()
