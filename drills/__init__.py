"""Ways in which things go wrong, tried by the hundred: files, kills, disks, scripts and histories that chance chooses.

What they share with the tests lies in `tests/makers`, which imports nothing from here.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "makers"))
