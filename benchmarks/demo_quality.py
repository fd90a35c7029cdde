"""What the demo's model draws, by three seeds of its trainings: `python -m benchmarks.demo_quality [--json] [--save]`.

Each seed is a run of `reelworks demo` in a folder of its own: footage, autoencoder, a training that is killed and resumed,
ten prompts. `colour`, `shape`, `direction` and `background` are the least of the seeds: of ten clips, how many show that word
of their prompt, as `reelworks.demo.judge` sees it in the frames. `seconds` is the longest of the seeds.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._results import keep

RESULTS = Path(__file__).parent / "results" / "demo_quality.json"
WORDS = ("colour", "shape", "direction", "background")


def run(seed: int, *, quiet: bool) -> dict[str, float]:
    """Run the demo with a seed, and return its summary."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "reelworks", "demo", "--seed", str(seed)],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
        )
        summary = Path(folder, "demo", "summary.json")
        if not summary.exists():  # a demo that learned too little has one, too
            raise SystemExit(f"the demo of seed {seed} ended with code {done.returncode}:\n{done.stdout[-3000:]}")
        found: dict[str, float] = json.loads(summary.read_text(encoding="utf-8"))
    if not quiet:
        print(f"seed {seed}: " + ", ".join(f"{word} {found[word]}" for word in (*WORDS, "seconds")), flush=True)
    return found


def main() -> None:
    """Measure, and print one object or some lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {RESULTS.name}")
    options = parser.parse_args()
    runs = [run(seed, quiet=options.json) for seed in options.seeds]
    figures = {word: min(each[word] for each in runs) for word in WORDS}
    figures["seconds"] = max(each["seconds"] for each in runs)
    if options.save:
        keep(RESULTS, {**figures, "runs": dict(zip(map(str, options.seeds), runs, strict=True))})
    print(json.dumps(figures) if options.json else f"least of {len(runs)} seeds: {figures}")


if __name__ == "__main__":
    main()
