"""Functions for processes of a cluster that are slow or die, and a driver to be killed; without torch, to start soon."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from reelworks.core.errors import UserError
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan import examine, journal, scan
from reelworks.data.catalog.scan.examine import FileRequest, Finding

DEADLY = "deadly"


def examine_unless_deadly(orders: list[FileRequest]) -> list[Finding]:
    """Die on some files, as a decoder does on a segmentation fault."""
    if DEADLY in str(orders[0].file):
        os._exit(139)
    return examine.examine_on_node(orders)


def examine_and_note(orders: list[FileRequest]) -> list[Finding]:
    """Note each file that is opened beside the folder."""
    if orders[0].open:
        with Path(orders[0].file).parent.with_name("opened").open("a", encoding="utf-8") as noted:
            noted.write(f"{orders[0].file}\n")
        time.sleep(0.01)  # so that there is time to be killed
    return examine.examine(orders)


def elsewhere(orders: list[FileRequest]) -> list[Finding]:
    """Examine as on a node that has no such folder."""
    return examine.examine_on_node(
        [order._replace(file=Path("/elsewhere") / Path(order.file).name) for order in orders]
    )


def refuse(value: int) -> None:
    """Find that a value of the user is wrong."""
    raise UserError("is too small", code="too-small", field="value", value=value, remedy="give more")


def sleep(seconds: float) -> float:
    """Take a while."""
    time.sleep(seconds)
    return seconds


def main(data: str, catalog: str) -> None:
    """Scan on the cluster of RAY_ADDRESS, and write the journal at once."""
    journal._SECONDS_BETWEEN_WRITES = 0.0
    scan.examine_on_node = examine_and_note
    scan._FILES_PER_CALL = 4
    scan.scan_sources([Source("d", Path(data))], Path(catalog), engine="ray")


if __name__ == "__main__":
    sys.modules["ray_child"] = sys.modules["__main__"]
    main(*sys.argv[1:])
