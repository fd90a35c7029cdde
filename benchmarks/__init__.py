"""What the project promises in figures, measured; each prints ratios from one run."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("tests/makers", "scripts")]
