"""The index of frame times keeps what it has, also where some of its files were deleted."""

from __future__ import annotations

from pathlib import Path

from reelworks.data.media import frame_index
from reelworks.data.media.frame_index import PackedTimes


def test_a_deleted_file_of_the_index_costs_its_own_videos_alone(tmp_path: Path) -> None:
    times = {name: PackedTimes(name.encode(), b"keys", 0.001) for name in "abc"}
    for name in "ab":
        frame_index.write(tmp_path, {name: times[name]})
    first, second = sorted(tmp_path.iterdir())
    first.unlink()
    (tmp_path / "times-copy.parquet").write_bytes(second.read_bytes())
    frame_index.write(tmp_path, {"c": times["c"]})
    assert frame_index._read(tmp_path) == {"b": times["b"], "c": times["c"]}
