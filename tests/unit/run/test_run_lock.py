from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reelworks.core.errors import UserError
from reelworks.run import lock

_HOLD = """
import sys, time
from pathlib import Path
from reelworks.run import lock
with lock.hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "run" / ".lock"  # the folder is made
    with lock.hold(path):
        with pytest.raises(UserError, match=f"another training .*process {os.getpid()}") as caught:
            lock.hold(path).__enter__()
        assert (caught.value.field, caught.value.value) == ("output", str(path.parent))
    with lock.hold(path):
        pass


def test_who_asks_names_the_work_and_the_field(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    busy = {"doing": "scan", "field": "catalog", "remedy": "wait"}
    with lock.hold(path, **busy), pytest.raises(UserError, match="another scan") as caught:
        lock.hold(path, **busy).__enter__()
    assert (caught.value.field, caught.value.remedy) == ("catalog", "wait")


def test_a_lock_ends_with_its_process_and_says_who_held_it(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    holder = subprocess.Popen([sys.executable, "-c", _HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"process {holder.pid} on "):
            lock.hold(path).__enter__()
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    with lock.hold(path):
        pass


def test_an_unknown_holder_is_no_crash(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with lock.hold(path):
        path.write_text("[]")
        with pytest.raises(UserError, match="its process is not known"):
            lock.hold(path).__enter__()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written") as caught:
        lock.hold(tmp_path / "file" / ".lock", field="catalog").__enter__()
    assert caught.value.field == "catalog"
