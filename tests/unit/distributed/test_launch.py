"""The launcher ends with the code of the rank that failed first, whatever its end was, and leaves none behind."""

from __future__ import annotations

import subprocess

import pytest

from reelworks.training.distributed import launch


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        (["exit 0", "exit 0"], 0),
        (["exit 0", "exit 3"], 3),
        (["exit 75", "exit 75"], 75),
        (["kill -9 $$", "sleep 60"], 128 + 9),  # as a shell tells of it
        (["sleep 60", "exit 2"], 2),
    ],
)
def test_the_code_is_that_of_the_first_to_fail(monkeypatch: pytest.MonkeyPatch, ends: list[str], code: int) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(rank: int, *_: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sh", "-c", ends[rank]]))
        return started[-1]

    monkeypatch.setattr(launch, "_start", start)
    monkeypatch.setattr(launch, "_GRACE_SECONDS", 0.05)
    monkeypatch.setattr(launch.signal, "signal", lambda *_: None)
    assert launch.launch(len(ends), []) == code
    assert None not in [rank.poll() for rank in started]
