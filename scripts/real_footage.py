"""Gather real photographs and clips from installed packages: `python scripts/real_footage.py`."""

import sys
from pathlib import Path

from reelworks.testing import real_footage

if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/real-footage-data")
    print(
        f"{len(real_footage.gather(folder))} files in {folder}; next: reelworks train recipes/real-footage.toml"
    )
