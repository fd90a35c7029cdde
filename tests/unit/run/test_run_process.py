"""A process is known by its start, not by an id that another one may have by now."""

import subprocess
import sys
from dataclasses import replace

import places
import pytest

from reelworks.core import system
from reelworks.data.run import lock
from reelworks.data.run.process import Process


@pytest.mark.parametrize("pid", [-1, 0, -(2**40), 2**31, 2**70])
def test_what_is_no_id_is_no_process(pid):
    assert Process.running(pid) is None
    assert not Process(pid, Process.here().boot, 1).lives()
    assert not Process(pid, Process.here().boot, 1).ask_to_end()


def test_only_the_very_process_is_signalled():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], **system.REACHABLE) as child:
        known = Process.running(child.pid)
        assert known is not None
        assert known.lives()
        for other in (replace(known, started=known.started - 1), replace(known, boot="x")):
            assert not other.lives()
            assert not other.ask_to_end()
        assert child.poll() is None
        assert known.ask_to_end()
        assert child.wait(10) != 0
    assert not known.lives()
    assert not known.ask_to_end()


def test_a_lock_is_held_by_who_holds_it_whatever_its_file_says(tmp_path):
    file, link = tmp_path / ".lock", tmp_path / "foreign.lock"
    with lock.hold(file):
        told = file.read_text(encoding="utf-8")
        places.link(link, file)
        assert lock.holder(file) is not None
        assert lock.holder(link) is None  # the lock of another folder
    for text in (told, "", "{", "[1]", "[" * 100_000, told.replace('"pid": ', '"pid": -')):
        file.write_text(text, encoding="utf-8")
        assert lock.holder(file) is None
        assert not lock.ask_holder(file)
    with lock.hold(file):
        file.write_text("", encoding="utf-8")  # the disk was full
        assert lock.holder(file) is not None
        assert not lock.ask_holder(file)


def test_a_holder_on_another_machine_is_not_asked(tmp_path, monkeypatch):
    """Another process has its id here."""
    monkeypatch.setattr(Process, "ask_to_end", lambda _: True)
    with lock.hold(tmp_path / ".lock"):
        assert lock.ask_holder(tmp_path / ".lock")
        monkeypatch.setattr(lock.socket, "gethostname", lambda: "elsewhere")
        assert not lock.ask_holder(tmp_path / ".lock")


def test_looking_takes_no_lock_away(tmp_path):
    file = tmp_path / ".lock"
    file.touch()
    looking = subprocess.Popen([sys.executable, "-c", _LOOKS, str(file)], stdout=subprocess.PIPE)
    try:
        assert looking.stdout is not None
        looking.stdout.readline()
        for _ in range(300):
            with lock.hold(file):
                pass
    finally:
        looking.kill()
        looking.communicate()


_LOOKS = """
import sys
from pathlib import Path
from reelworks.core import system
from reelworks.data.run import lock
print(flush=True)
while True:
    lock.holder(Path(sys.argv[1]))
"""
