"""Files of weights replace each other whole, and what killed processes leave of them goes with the next."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from reelworks.core import files, system


@pytest.mark.parametrize("suffix", [".safetensors", ""])
@pytest.mark.parametrize("locks", [True, False])
def test_what_a_killed_process_left_is_swept_and_what_another_writes_is_not(
    tmp_path: Path, locks: bool, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In files of its own kind: beside a result, whatever its name, and never those of other programs."""

    def has_none(*args: Any, **options: Any) -> None:
        raise system.NoLocks

    if not locks:
        monkeypatch.setattr(system, "lock", has_none)
    target, days = tmp_path / f"new{suffix}", time.time() - 2 * 86_400
    left = [files.temporary_name(tmp_path / name) for name in (f"a{suffix}", f"new{suffix}")]
    folder = files.temporary_name(target)
    folder.mkdir()
    kept = [
        files.temporary_name(tmp_path / "b.json"),
        tmp_path / f".a{suffix}.part",
        tmp_path / f"a{suffix}",
    ]
    for file in (*left, folder / "part.safetensors", *kept):
        file.touch()
    files.sweep(target)
    assert {*left, folder, *kept} == {*tmp_path.iterdir()}  # as fresh as one that is written now
    os.utime(folder, (days, days))
    files.sweep(target)
    assert folder.exists()  # since what is in it is fresh
    for file in (*left, folder / "part.safetensors", folder, *kept):
        os.utime(file, (days, days))
    with (folder / "part.safetensors").open("rb") as held:
        files.hold(held)
        files.sweep(target)
        assert {*tmp_path.iterdir()} == {*kept, folder, *left * (not locks)}
    files.sweep(target)
    assert {*tmp_path.iterdir()} == {*kept, *[*left, folder] * (not locks)}
