"""Run a job's command, and write into its file which process it is and how it ended."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from reelworks.annexes.page import jobs
from reelworks.core import system
from reelworks.data.run.process import Process


def main() -> None:
    """Run the command of a job: its file and the time of its start are the arguments, and the page writes both there."""
    path = Path(sys.argv[1])
    system.handle_stops(lambda *_: None)  # the command alone is asked to end; handlers are not inherited
    sys.stdin.read()
    job = jobs.read(path)
    if (job.state, str(job.started)) != ("running", sys.argv[2]):  # the page ended before; the next one starts the job
        return
    command = [sys.executable, "-m", "reelworks", *job.arguments]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **system.REACHABLE)
    job = replace(job, process=Process.running(process.pid))
    jobs.write(path, job)
    code = process.wait()
    state: jobs.State = "done" if code == 0 else "stopped" if code in (jobs.REQUEUE, system.ENDED) else "failed"
    jobs.write(path, replace(job, state=state, code=code, ended=time.time()))


if __name__ == "__main__":
    main()
