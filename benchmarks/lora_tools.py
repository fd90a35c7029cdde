"""How much memory and time `reelworks lora` takes on files that are larger than the memory it may have.

`python -m benchmarks.lora_tools` writes weights of 3 GB with the layers of Wan 14B, tuned ones, and a LoRA of 3 GB, to a
temporary folder, and runs each verb that reads them in a process of its own. `peak_gb` is the highest resident memory of that
process, of which importing torch alone takes `import_gb`. The folder is deleted at the end.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks._results import keep
from reelworks.data.checkpoint.safetensors_header import TensorRange
from reelworks.models.export import safetensors_file

RESULTS = Path(__file__).parent / "results" / "lora_tools.json"
WIDTH, HIDDEN = 5120, 13824
# The linear layers of a block of Wan 14B, in the names of its release, with outputs and inputs.
BLOCK = {f"{kind}_attn.{part}": (WIDTH, WIDTH) for kind in ("self", "cross") for part in "qkvo"} | {
    "ffn.0": (HIDDEN, WIDTH),
    "ffn.2": (WIDTH, HIDDEN),
}
SPARE = 1.3  # of the disk


def layers(total_bytes: float, bytes_of: Any) -> dict[str, tuple[int, int]]:
    """Return layers of as many blocks as make so many bytes."""
    found: dict[str, tuple[int, int]] = {}
    taken = block = 0
    while taken < total_bytes:
        for layer, shape in BLOCK.items():
            if taken < total_bytes:
                found[f"blocks.{block}.{layer}"] = shape
                taken += bytes_of(*shape)
        block += 1
    return found


def write(path: Path, shapes: Mapping[str, tuple[int, ...]], *, seed: int, scale: float = 1.0) -> None:
    """Write random numbers in bfloat16, a tensor at a time."""
    entries = [TensorRange(name, torch.bfloat16, shape) for name, shape in shapes.items()]
    generator = torch.Generator().manual_seed(seed)
    values: Iterator[Tensor] = (
        torch.randn(entry.shape, generator=generator).mul_(scale).to(entry.dtype) for entry in entries
    )
    safetensors_file.write(path, entries, values, {})


# A small process between: the peak of a new process begins with that of the one that starts it.
_STARTER = """
import os, sys
pid = os.posix_spawn(sys.executable, [sys.executable, *sys.argv[1:]], os.environ)
_, status, usage = os.wait4(pid, 0)
print("\\n" + str(usage.ru_maxrss), file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def measured(*arguments: object) -> tuple[dict[str, Any], float, float]:
    """Run a verb and return its answer, its peak of memory in GB and its seconds."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _STARTER, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )
    *errors, peak_kb = done.stderr.splitlines()
    if done.returncode:
        raise SystemExit("\n".join(errors))
    return json.loads(done.stdout or "{}"), int(peak_kb) * 1024 / 1e9, time.perf_counter() - began


def verbs(folder: Path, gb: float, rank: int) -> dict[str, list[object]]:
    """Write the files and return the arguments of each verb."""
    base, tuned, lora, large = (folder / f"{name}.safetensors" for name in ("base", "tuned", "lora", "large"))
    weights = layers(gb * 1e9, lambda rows, columns: 2 * rows * columns)
    for seed, path in enumerate((base, tuned)):
        write(path, {f"{layer}.weight": shape for layer, shape in weights.items()}, seed=seed, scale=0.02)
    for path, ranks, total in ((lora, 32, weights), (large, rank, layers(gb * 1e9, lambda o, i: 2 * rank * (o + i)))):
        shapes = {f"diffusion_model.{layer}.lora_A.weight": (ranks, i) for layer, (_, i) in total.items()}
        shapes |= {f"diffusion_model.{layer}.lora_B.weight": (o, ranks) for layer, (o, _) in total.items()}
        write(path, shapes, seed=3, scale=0.02)
    model, out = ["--model", "wan-2.1-14b"], folder / "out.safetensors"
    return {
        "apply": ["apply", base, lora, "-o", folder / "applied", "--shard-size", "1GB"],
        "extract": ["extract", base, tuned, "--rank", 32, "-o", out],
        "resize": ["resize", large, "--rank", 16, "-o", out],
        "resize --keep": ["resize", large, "--keep", 0.5, "-o", out],
        "merge": ["merge", f"{large}=0.7", f"{lora}=0.5", "-o", out],
        "convert": ["convert", large, "--to", "diffusers", "-o", out, *model],
        "info": ["info", large, *model],
    }


def run(gb: float, rank: int, only: list[str] | None) -> dict[str, Any]:
    """Measure each verb."""
    need = 5 * gb * 1e9
    if shutil.disk_usage(tempfile.gettempdir()).free < SPARE * need:
        raise SystemExit(f"{tempfile.gettempdir()} needs {SPARE * need / 1e9:.0f} GB")
    _, import_gb, _ = measured("-c", "import torch")
    result: dict[str, Any] = {"gb": gb, "rank": rank, "import_gb": round(import_gb, 2), "verbs": {}}
    with tempfile.TemporaryDirectory(prefix="lora-tools-") as place:
        folder = Path(place)
        for verb, arguments in verbs(folder, gb, rank).items():
            if only and verb not in only:
                continue
            answer, peak_gb, seconds = measured("-m", "reelworks", "lora", *arguments, "--json")
            figures = {"peak_gb": round(peak_gb, 2), "seconds": round(seconds, 1), "layers": len(answer["layers"])}
            result["verbs"][verb] = figures | {"relative_error": answer["relative_error"]}
            for path in [] if verb == "info" else map(Path, answer["files"]):
                path.unlink()
    result["peak_gb"] = max((figures["peak_gb"] for figures in result["verbs"].values()), default=0.0)
    return result


def main() -> None:
    """Measure, print, and save if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=3.0)
    parser.add_argument("--rank", type=int, default=320, help="of the large LoRA")
    parser.add_argument("--only", nargs="*", help="verbs to measure")
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    args = parser.parse_args()
    result = run(args.gb, args.rank, args.only)
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        for verb, figures in result["verbs"].items():
            print(f"{verb:14} {figures['peak_gb']:.2f} GB, {figures['seconds']:.0f} s, {figures['layers']} layers")
    if args.save:
        keep(RESULTS, result)


if __name__ == "__main__":
    main()
