"""How right and how fast the measures of `reelworks measure` are.

`python -m benchmarks.measures` draws pictures and clips with known answers (blurred by a known radius, letterboxed by known
pixels, cut at known frames, and so on), encodes them, scans and measures them as a catalog, and compares. `photographs` has the same for pictures that are composed of
photographs and frames of clips, by which no limit of a measure was set. `precision` and
`recall` are those of the filter that is named, or of exact numbers for borders, cuts and flashes, or of pairs for duplicates.
`clips_per_second` is for one process, of its processor time, on clips of 49 frames in 480p and 720p; `ratio_to_decoding` is the
time that decoding alone takes, divided by the time with the measure. `--embeddings models/dinov2` finds duplicates by a network
too, with copies that are changed more.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import drawn_scenes as drawn
import numpy as np
from numpy.typing import NDArray

from benchmarks import _measured_cases as cases
from benchmarks._results import keep
from reelworks.annexes.quality import registry, sampling
from reelworks.annexes.quality.measure import SampledClip
from reelworks.annexes.quality.picture import TEXT_PACKAGE
from reelworks.annexes.quality.run import measure_catalog
from reelworks.annexes.quality.sampling import MeasureRequest
from reelworks.core import machine
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.query import filters
from reelworks.data.catalog.scan.scan import scan_sources
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.media import decode

RESULTS = Path(__file__).parent / "results" / "measures.json"
Mask = NDArray[np.bool_]
Scene = cases.Scene
_HAS_TEXT = importlib.util.find_spec(TEXT_PACKAGE) is not None
DETECTIONS = cases.DETECTIONS | ({"text_area": cases.TEXT} if _HAS_TEXT else {})


def measured(folder: Path, names: tuple[str, ...]) -> CatalogRows:
    """Scan and measure a folder, and return its rows by path."""
    catalog = folder.with_name(f"{folder.name}-catalog")
    scan_sources([Source("d", folder)], catalog, workers=machine.cores())
    result = measure_catalog(catalog, names, workers=machine.cores())
    assert not result.failed, result.failed
    return Catalog.open(catalog).live()


def rates(found: Mask, right: Mask, sought: Mask) -> dict[str, float]:
    """Return precision and recall of what was found, of which some is right, among what was sought."""
    return {
        "precision": float(right[found].mean()) if found.any() else 1.0,
        "recall": float((found & right)[sought].mean()),
        "cases": len(found),
    }


def detected(folder: Path, name: str, scene: Scene, seeds: int) -> dict[str, Any]:
    """Measure the cases of a filter."""
    detection, drawn_in = DETECTIONS[name], dict[str, bool]()
    for seed in range(seeds):
        below = folder / str(seed)
        below.mkdir(parents=True)
        for path, there in detection.make(np.random.default_rng(seed), below, scene):
            drawn_in[str(path.relative_to(folder))] = there
    columns = {column: measure for measure, kind in all_measures().items() for column in kind} | {"text_area": "text"}
    rows = measured(folder, (columns[name],))
    sought = np.array([drawn_in[path] for path in rows.path.to_pylist()], dtype=np.bool_)
    return {"filter": detection.filter} | rates(filters.keeps(rows, detection.filter), sought, sought)


def all_measures() -> dict[str, list[str]]:
    """Return the names of the columns of each measure."""
    return {name: [column.name for column in registry.named(name, "x").columns] for name in registry.names()}


Make = Callable[[np.random.Generator, Path, Scene], Iterator[cases.Case]]


def exact(folder: Path, measure: str, make: Make, scene: Scene, seeds: int) -> dict[str, dict[str, Any]]:
    """Measure cases whose numbers are known; what is found is what has a number above the tolerance."""
    known: dict[str, cases.Case] = {}
    for seed in range(seeds):
        below = folder / str(seed)
        below.mkdir(parents=True)
        known |= {str(case.path.relative_to(folder)): case for case in make(np.random.default_rng(seed), below, scene)}
    rows = measured(folder, (measure,))
    ordered = [known[path] for path in rows.path.to_pylist()]
    groups = [[name] for name in ordered[0].values] if measure == "cuts" else [list(ordered[0].values)]
    result = {}
    for names in groups:
        truth = np.array([[case.values[name] for name in names] for case in ordered])
        values = np.stack([rows.scores[name] for name in names], axis=1)
        tolerance = np.array([case.tolerance for case in ordered])[:, None]
        right = np.all(np.abs(values - truth) <= tolerance, axis=1)
        found, sought = np.any(values > tolerance, axis=1), np.any(truth > 0, axis=1)
        result[names[0] if measure == "cuts" else measure] = rates(found, right, sought)
    return result


def paired(folder: Path, scene: Scene, each: int, seeds: int, measure: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Measure pairs of copies of these kinds; all are in one catalog."""
    numbers: dict[str, tuple[int, str]] = {}
    for seed in range(seeds):
        below = folder / str(seed)
        below.mkdir(parents=True)
        for path, number, kind in cases.duplicates(np.random.default_rng(seed), below, scene, each, kinds):
            numbers[str(path.relative_to(folder))] = (10_000 * seed + number, kind)
    rows = measured(folder, (measure,))
    group = dict(zip(rows.path.to_pylist(), rows.scores["duplicate_group"].tolist(), strict=True))
    members: dict[float, list[int]] = {}
    for path, of in group.items():
        if not np.isnan(of):
            members.setdefault(of, []).append(numbers[path][0])
    pairs = [(a, b) for ids in members.values() for i, a in enumerate(ids) for b in ids[:i]]
    hits = {kind: list[bool]() for kind in kinds}
    original = {numbers[path][0]: path for path in group if not numbers[path][1]}
    for copied, (number, kind) in numbers.items():
        if kind:
            hits[kind].append(group[copied] == group[original[number]])
    return {
        "precision": float(np.mean([a == b for a, b in pairs])) if pairs else 1.0,
        "recall": float(np.mean([hit for found in hits.values() for hit in found])),
        "recall_by_copy": {kind: float(np.mean(found)) for kind, found in hits.items()},
        "cases": len(numbers),
    }


def speeds(folder: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Return clips per second of processor time, and the ratio to decoding alone, for each measure and for all together."""
    folder.mkdir()
    requests = []
    for height, width in ((480, 854), (720, 1280)):
        rng = np.random.default_rng(height)
        shown = drawn.pan(drawn.scene(rng, height, width + 200), 49, height, width, 3.0)
        grained = (drawn.noisy(rng, frame, 2.0) for frame in shown)  # as of a camera
        path, at = folder / f"{height}.mp4", np.arange(2 * drawn.SAMPLE_RATE, dtype=np.float32)
        drawn.write_clip(path, grained, crf=23, preset="medium", sound_S=np.sin(at / 20))
        requests.append(MeasureRequest(SampledClip(path, False, height, width, 49, 24.0), 0, True, ()))

    def seconds(work: Callable[[MeasureRequest], object]) -> float:
        began = time.process_time()
        for request in requests:
            work(request)
        return time.process_time() - began

    def decoded(request: MeasureRequest) -> None:
        decode.visit(request.path, [range(request.num_frames)], lambda *_: None)

    sets = {name: (name,) for name in registry.names()} | {"all": tuple(registry.names())}
    sets |= {"text_area": ("text",)} if _HAS_TEXT else {}
    taken: dict[str, list[float]] = {name: [] for name in sets}
    alone: list[float] = []
    for _ in range(repeats):
        alone.append(seconds(decoded))
        for name, names in sets.items():
            taken[name].append(seconds(partial(_apply, names)))
    return {
        name: {
            "clips_per_second": len(requests) / statistics.median(values),
            "ratio_to_decoding": statistics.median(alone) / statistics.median(values),
        }
        for name, values in taken.items()
    }


def _apply(names: tuple[str, ...], request: MeasureRequest) -> None:
    sampling.measure(request._replace(measures=names))


def figures(folder: Path, scene: Scene, seeds: int, each: int, weights: str | None) -> dict[str, Any]:
    """Return the figures of every measure on pictures of such scenes; of duplicates by a network if its weights are named."""
    found: dict[str, Any] = {name: detected(folder / name, name, scene, seeds) for name in DETECTIONS}
    found |= exact(folder / "borders", "borders", cases.borders, scene, seeds)
    found |= exact(folder / "cuts", "cuts", cases.cuts, scene, seeds)
    found["duplicates"] = paired(folder / "duplicates", scene, each, seeds, "duplicates", drawn.COPIES)
    if weights is not None:
        kinds = drawn.COPIES | cases.STRONG_COPIES
        found["embeddings"] = paired(folder / "embeddings", scene, each, seeds, f"duplicates={weights}", kinds)
    return found


def run(seeds: int, each: int, repeats: int, weights: str | None) -> dict[str, Any]:
    """Return the figures on drawn scenes and on photographs, and the speed of each measure and of all together."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        found, on_photographs = (
            figures(folder / kind, scene, seeds, each, weights)
            for kind, scene in (("drawn", drawn.scene), ("photographs", cases.Composed()))
        )
        fast = speeds(folder / "speed", repeats)
    of = {column: measure for measure, columns in all_measures().items() for column in columns}
    with_speeds = {name: figure | fast.get(of.get(name, name), {}) for name, figure in found.items()}
    return {
        "machine": platform.machine(),
        "seeds": seeds,
        "measures": with_speeds,
        "photographs": on_photographs,
        "all": fast["all"],
    }


def main() -> None:
    """Measure, print, and keep the result if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=8, help="pairs of each kind of copy and seed")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--embeddings", metavar="FOLDER", help="weights of CLIP, SigLIP or DINOv2")
    parser.add_argument("--json", action="store_true", help="print one JSON value as the last line")
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {RESULTS.name}")
    options = parser.parse_args()
    result = run(options.seeds, options.pairs, options.repeats, options.embeddings)
    shown = [*result["measures"].items(), *((f"- photos: {n}", f) for n, f in result["photographs"].items())]
    for name, figure in shown:
        print(
            f"{name:24} precision {figure['precision']:.3f}, recall {figure['recall']:.3f} of {figure['cases']}"
            + (
                f", {figure['clips_per_second']:.1f} clips/s, {figure['ratio_to_decoding']:.2f} of the speed of decoding"
                if "clips_per_second" in figure
                else ""
            )
        )
    together = result["all"]
    print(f"{'all together':24} {together['clips_per_second']:.1f} clips/s, {together['ratio_to_decoding']:.2f}")
    if options.save:
        keep(RESULTS, result)
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
