"""Commands of a person in one process, against a hub on this machine; prints a JSON line for each.

The published Wan is as small here as the pipeline that the hub serves in its place.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from typer.testing import CliRunner

from reelworks.cli.main import app
from reelworks.core.errors import UserError
from reelworks.models import registry


def shrink(name: str, text: str, **sizes: int) -> None:
    """Give a published preset and its text encoder the sizes of tiny ones."""
    registry.PRESETS[name] = replace(registry.PRESETS[name], config=registry.PRESETS["wan-tiny"].config)
    known = registry.TEXT_ENCODERS[text]
    networks = tuple(network._replace(vocabulary=80) for network in known.networks)
    registry.TEXT_ENCODERS[text] = replace(known, networks=networks, **sizes)


if __name__ == "__main__":
    shrink("wan-2.1-1.3b", "wan", dim=32, max_length=12)
    for line in sys.stdin:
        done = CliRunner().invoke(app, json.loads(line)[1:])
        said = done.output + (str(done.exception) if isinstance(done.exception, UserError) else "")
        failed = done.exception is not None and not isinstance(done.exception, UserError | SystemExit)
        print(json.dumps({"code": done.exit_code, "said": said, "fault": repr(done.exception) if failed else None}))
