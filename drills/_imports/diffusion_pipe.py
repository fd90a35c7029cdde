"""Configs that diffusion-pipe publishes: those of its folder of examples, and the blocks of `[model]` in its docs."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from drills._imports import Example

_BLOCK = re.compile(r"^```\w*\n(\[model\].*?)^```", re.DOTALL | re.MULTILINE)


def examples(mirror: Path) -> Iterator[Example]:
    """Yield the configs of a checkout of tdrussell/diffusion-pipe, each with a dataset config of its examples."""
    folder = mirror / "examples"
    datasets = sorted(folder.glob("*dataset*.toml"))
    mains = [path for path in sorted(folder.glob("*.toml")) if path not in datasets]
    for main in mains:
        own = folder / main.name.replace("example", "dataset")
        yield Example(main.name, (main, own if own in datasets and own != main else folder / "dataset.toml"))
    for dataset in datasets:
        yield Example(f"wan_14b_min_vram with {dataset.name}", (folder / "wan_14b_min_vram.toml", dataset))
    written = Path(tempfile.mkdtemp(prefix="reelworks-examples-"))
    rest = (folder / "wan_14b_min_vram.toml").read_text(encoding="utf-8")
    adapter = rest[rest.index("[adapter]") :]
    top = rest[: rest.index("[model]")]
    page = (mirror / "docs" / "supported_models.md").read_text(encoding="utf-8")
    for number, block in enumerate(_BLOCK.findall(page)):
        kind = re.search(r"type = '(.+?)'", block)
        name = f"supported_models-{number}-{kind[1] if kind else ''}"
        file = written / f"{name}.toml"
        file.write_text(f"{top}\n{block}\n{adapter}", encoding="utf-8")
        edits = re.search(r"kontext|edit", block, re.IGNORECASE)
        yield Example(name, (file, folder / ("flux_kontext_dataset.toml" if edits else "dataset.toml")))
