"""Seconds and memory to make measured columns and near-duplicates of millions of clips, whose values are made up.

`python -m benchmarks.measured_rows --rows 10000000 --save` makes a catalog (`_catalogs.py`), of which `--catalog` keeps the folder
for the next time, and keeps values of all measures beside it as if the clips had been measured. `columns` then tells what writing
the columns of single clips takes, `duplicates` what finding near-duplicates and writing their groups takes, each by
`reelworks measure` in a process of its own. One clip in ten is a changed copy of another one: `recall` is the share of
these that are in the group of their original, `precision` the share of the clips of groups whose group is theirs. Times
depend on what else the machine does (see `load_average`).

Legend: N clips, K coefficients along one axis, X pixels along one axis.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks import _catalogs, scale
from benchmarks._results import AT_START, keep
from benchmarks.schedule import machine_name
from reelworks.annexes.quality import duplicates, registry
from reelworks.data.catalog.store import kept_measures
from reelworks.data.catalog.store.kept_measures import KeptMeasures
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.store import Catalog

RESULTS = Path(__file__).parent / "results" / "measured_rows.json"
_AT_ONCE = 1 << 13  # clips that are made up at once
_COPIES = 10  # of so many clips, one is a copy of the one before
_K, _X = 12, 16
_MEASURE = (
    "from reelworks.annexes.quality.run import measure_catalog; "
    "result = measure_catalog(sys.argv[1], sys.argv[2:], workers=1); assert not result.measured, result.measured"
)


def keep_values(folder: Path) -> None:
    """Keep values beside a catalog for its readable clips, in segments as large as those of long runs become."""
    live = Catalog.open(folder).live()
    at = np.flatnonzero(live.readable)
    keys, kept = kept_measures.keys_of(live)[at], KeptMeasures(folder)
    columns = [
        name
        for measure in registry.names()
        if measure != "duplicates"
        for name in registry.labels(registry.named(measure, "x"))
    ]
    for first in range(0, len(at), _catalogs.PART_ROWS):
        of_part = slice(first, first + _catalogs.PART_ROWS)
        rng = np.random.default_rng(first)
        features = _features(rng, live.is_image[at[of_part]])
        table = {
            "key": pa.array(keys[of_part]),
            **{name: pa.array(rng.random(len(features))) for name in columns},
            registry.labels(duplicates.Duplicates)[0]: pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(features.shape[1]), len(features), [None, pa.py_buffer(features)]
            ),
        }
        kept.add_table(pa.table(table))


def _features(rng: np.random.Generator, is_image: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return features of clips: frames with the spectrum of photographs, whose levels and colours differ as those of photographs do."""
    parts = [_some_features(rng, is_image[at : at + _AT_ONCE]) for at in range(0, len(is_image), _AT_ONCE)]
    return np.concatenate(parts)


def _some_features(rng: np.random.Generator, is_image: NDArray[np.bool_]) -> NDArray[np.uint8]:
    count = len(is_image)
    features = rng.integers(
        0, 256, (count, duplicates.Duplicates.feature_bytes), dtype=np.uint8
    )  # sharpness at the end
    of_frames = features[:, :-2].reshape(count, 2, -1)
    shared = _even(rng, (count, _K * _K)) * rng.lognormal(0, 0.4, (count, 1)).astype(np.float32)
    level = 128 + 40 * _even(rng, (count, 1))
    tint, tints = 10 * _even(rng, (count, 1, 2)), 6 * _even(rng, (count, 16, 2))
    for frame in range(2):
        own = 0.8 * shared + 0.6 * _even(rng, shared.shape)  # of a video both are alike
        of_frames[:, frame, : _X * _X] = (own @ _BASIS + level).clip(0, 255)
        of_frames[:, frame, _X * _X :] = (128 + tint + tints).reshape(count, -1)
    of_frames[is_image, 1] = of_frames[is_image, 0]
    copied = np.flatnonzero(np.arange(count) % _COPIES == 1)
    copies = of_frames[copied - 1]
    luma = copies[..., : _X * _X].reshape(-1, 2, _X, _X).astype(np.int16)
    luma[::2] = luma[::2, ..., ::-1]
    chroma = copies[..., _X * _X :].reshape(-1, 2, 4, 4, 2)
    chroma[::2] = chroma[::2, ..., ::-1, :].copy()
    luma += rng.integers(-5, 6, luma.shape, dtype=np.int16)
    copies[..., : _X * _X] = luma.clip(0, 255).reshape(len(copies), 2, -1)
    of_frames[copied] = copies
    return features


def _even(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return numbers with a mean of 0 and a deviation of 1, which bytes make many times faster than a normal distribution."""
    return (rng.integers(0, 256, shape, dtype=np.uint8).astype(np.float32) - 127.5) / 73.9


def _basis() -> NDArray[np.float32]:
    """Return the pictures of coefficients, `[K K, X X]`, as strong as those of photographs are: weaker, the finer they are."""
    wave = np.cos(np.pi * np.arange(_K)[:, None] * (2 * np.arange(_X) + 1) / (2 * _X))
    strength = 1 / (1 + np.hypot(*np.mgrid[:_K, :_K])).ravel() ** 1.2
    strength[0] = 0  # the mean
    pictures = np.kron(wave, wave) * strength[:, None]
    return (45 / np.sqrt(np.square(pictures).sum(axis=0).mean()) * pictures).astype(
        np.float32
    )  # a deviation of 45 levels


_BASIS = _basis()


def groups(rows: CatalogRows) -> dict[str, float]:
    """Return the share of copies in the group of their original, and of the clips of groups that are of them."""
    group = rows.scores["duplicate_group"][rows.readable]
    number = np.arange(len(group)) % _catalogs.PART_ROWS % _AT_ONCE
    copied = np.flatnonzero(number % _COPIES == 1)
    right = group[copied] == group[copied - 1]
    return {"recall": float(right.mean()), "precision": 2 * int(right.sum()) / max(int(np.isfinite(group).sum()), 1)}


def main() -> None:
    """Parse, measure, print; keep the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--catalog", type=Path, help="folder of the catalog; it is made if there is none")
    parser.add_argument("--only", choices=("columns", "duplicates"), help="measure one of the two; default: both")
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {RESULTS.name}")
    arguments = parser.parse_args()
    single = [name for name in registry.names() if name != "duplicates"]
    with tempfile.TemporaryDirectory() as folder:
        catalog = arguments.catalog or Path(folder, "catalog")
        if not (catalog / "catalog.json").exists():
            _catalogs.make(catalog, arguments.rows)
        if not (catalog / kept_measures.NAME).exists():
            keep_values(catalog)
        result: dict[str, Any] = {"rows": arguments.rows}
        if arguments.only != "duplicates":
            result["columns"] = scale.alone(_MEASURE, str(catalog), *single)
        if arguments.only != "columns":
            result["duplicates"] = scale.alone(_MEASURE, str(catalog), "duplicates")
            result |= groups(Catalog.open(catalog).live())
    result |= {"machine": machine_name(), **AT_START}
    if not arguments.json:
        for name, value in result.items():
            print(f"{name}: {value}")
    if arguments.save:
        keep(RESULTS, result, str(arguments.rows))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
