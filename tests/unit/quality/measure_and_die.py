"""Measuring in a process of its own that notes each clip: `measure_and_die.py CATALOG NOTED`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from reelworks.annexes.quality import run
from reelworks.data.catalog.store.measured_columns import Column


class Noted:
    """Mean of red, measured slowly enough to be killed."""

    name, version, reads = "noted", 1, ("stills",)
    columns = (Column("noted", "0 to 255", "mean of red"),)

    def values(self, clip: Any) -> tuple[float, ...]:
        """Return the mean."""
        file = os.open(os.environ["NOTED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{clip.path.name}\n".encode())
        os.close(file)
        time.sleep(0.005)
        return (float(clip.stills[0].rgb[..., 0].mean()),)


if __name__ == "__main__":
    os.environ["NOTED"] = sys.argv[2]
    run._SECONDS_BETWEEN_WRITES = 0.0
    run.measure_catalog(Path(sys.argv[1]), [f"{__file__}:Noted"], workers=1)
