"""A scan in a process of its own that notes each file that it opens: `scan_and_die.py DATA CATALOG OPENED`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan import journal, scan
from reelworks.data.media import probe


def main(data: str, catalog: str, opened: str) -> None:
    noted = os.open(opened, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    journal._SECONDS_BETWEEN_WRITES = 0.0
    real = probe.probe

    def probed(path: Path) -> probe.Probe:
        os.write(noted, f"{path.name}\n".encode())
        time.sleep(0.003)  # so that there is time to be killed
        return real(path)

    probe.probe = probed
    scan.scan_sources([Source("d", Path(data))], Path(catalog), workers=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
