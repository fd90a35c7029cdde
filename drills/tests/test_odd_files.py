"""A file that is not what its name says gives a reason, wherever it is read; no archive ruins a catalog."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from odd_archives import odd_members

from drills._borders import files

KINDS = ("pipe", "zeros", "sparse")  # the drill tries the others, too


@pytest.mark.parametrize("reader", files.READERS)
@pytest.mark.quick_cases(2)
def test_an_odd_file_gives_a_reason(reader: str, tmp_path: Path) -> None:
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        assert files.READERS[reader](tmp_path / kind, files.ODD[kind]) == [], kind


@pytest.mark.parametrize("odd", odd_members())
@pytest.mark.quick_cases(4)
def test_an_odd_archive_leaves_a_catalog_that_can_be_read(odd: str, tmp_path: Path) -> None:
    assert files.scan_archive(tmp_path, odd_members()[odd]) == []


@pytest.mark.slow(reason="odd files are tried in folders, too")
@pytest.mark.parametrize("seed", range(4))
def test_odd_objects_of_a_bucket_are_told_as_files_are(seed: int, tmp_path: Path) -> None:
    assert files.bucket(random.Random(seed), tmp_path) == []
