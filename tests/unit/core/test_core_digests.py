from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from reelworks.core import digests
from reelworks.data.media import location


def test_json_digests_ignore_the_order_of_keys() -> None:
    assert digests.digest_json({"a": 1, "b": [1, 2]}) == digests.digest_json({"b": [1, 2], "a": 1})
    assert digests.digest_json({"a": [1, 2]}) != digests.digest_json({"a": [2, 1]})
    with pytest.raises(ValueError, match="JSON"):
        digests.digest_json(float("nan"))


def test_array_digests_see_name_dtype_shape_and_content() -> None:
    values = np.arange(6, dtype=np.int64)
    others = [
        digests.digest_arrays(b=values),
        digests.digest_arrays(a=values.astype(np.int32)),
        digests.digest_arrays(a=values.reshape(2, 3)),
        digests.digest_arrays(a=values[::-1]),
        digests.digest_arrays(a=values, b=np.zeros(0)),
    ]
    assert len({digests.digest_arrays(a=values), *others}) == 6


def test_array_digests_do_not_see_memory_layout() -> None:
    values = np.arange(12, dtype=np.uint64).reshape(3, 4)
    same = [np.asfortranarray(values), values.astype(">u8"), np.repeat(values, 2, axis=0)[::2]]
    assert {digests.digest_arrays(a=a) for a in same} == {digests.digest_arrays(a=values)}


def test_a_fingerprint_is_the_same_where_content_is(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"x" * 3_000_000)
    second.write_bytes(b"x" * 3_000_000)
    assert location.fingerprint(first) == location.fingerprint(second)
    second.write_bytes(b"x" * 2_999_999 + b"y")
    assert location.fingerprint(first) != location.fingerprint(second)
    assert location.fingerprint(first).endswith(digests.digest_bytes(b"x" * 3_000_000))


@pytest.mark.parametrize("place", [0, 70_000_000 - 1])
def test_large_files_are_sampled_with_both_ends(tmp_path: Path, place: int) -> None:
    file = tmp_path / "film"
    with file.open("wb") as f:
        f.truncate(70_000_000)  # sparse: costs neither disk nor time
    before = location.fingerprint(file)
    with file.open("r+b") as f:
        f.seek(place)
        f.write(b"!")
    assert location.fingerprint(file) != before


def test_a_large_file_that_was_written_again_is_another_one_wherever_it_differs(tmp_path: Path) -> None:
    """Of the same size: an export with other frames. The digest stays, by which copies of a file are the same content."""
    file = tmp_path / "film"
    with file.open("wb") as f:
        f.truncate(300_000_000)
    former, listed = location.fingerprint(file), file.stat()
    for number, place in enumerate((1_500_000, 150_000_000), start=1):
        with file.open("r+b") as f:
            f.seek(place)
            f.write(bytes([number]))
        os.utime(file, ns=(listed.st_atime_ns, listed.st_mtime_ns + number))
        assert not location.is_as_scanned(file, listed.st_size, listed.st_mtime_ns, former)
        now = location.fingerprint(file)
        assert now != former
        former, listed = now, file.stat()
        assert location.is_as_scanned(file, listed.st_size, listed.st_mtime_ns, former)
    with file.open("r+b") as f:
        f.truncate(60_000_000)
    short = location.fingerprint(file)
    os.utime(file, (0, 0))
    assert location.fingerprint(file) == short
