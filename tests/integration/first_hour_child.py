"""Commands of a person in one process, against a hub on this machine; prints a JSON line for each.

The published Wan is as small here as the pipeline that the hub serves in its place.
"""

from __future__ import annotations

import json
import sys

import shrunk_reelworks
from typer.testing import CliRunner

from reelworks.commands.main import app
from reelworks.core.errors import UserError

if __name__ == "__main__":
    shrunk_reelworks.shrink_wan()
    for line in sys.stdin:
        done = CliRunner().invoke(app, json.loads(line)[1:])
        said = done.output + (str(done.exception) if isinstance(done.exception, UserError) else "")
        failed = done.exception is not None and not isinstance(done.exception, UserError | SystemExit)
        print(json.dumps({"code": done.exit_code, "said": said, "fault": repr(done.exception) if failed else None}))
