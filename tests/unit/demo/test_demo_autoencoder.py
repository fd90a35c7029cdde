"""Fit of the demo's autoencoder on a scanned folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from refused import refused

from reelworks.catalog.store import Catalog
from reelworks.core import digests
from reelworks.demo import autoencoder
from reelworks.demo.make import DemoSummary


@pytest.fixture(scope="module")
def catalog(demo: DemoSummary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("catalog")
    Catalog.scan(demo.folder, to=folder)
    return folder


def test_it_decodes_clips_held_out_and_damaged_files_do_not_stop_it(
    catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = autoencoder.fit(catalog, tmp_path / "again.safetensors", seed=3)
    again = autoencoder.fit(catalog, tmp_path / "1.safetensors", seed=3)
    assert few.psnr_db == again.psnr_db
    files = [digests.digest_bytes((tmp_path / f"{name}.safetensors").read_bytes()) for name in ("again", "1")]
    assert files[0] == files[1]
    monkeypatch.setattr(autoencoder, "_MOST_CLIPS", 10)
    assert again.psnr_db > autoencoder.fit(catalog, tmp_path / "of-ten.safetensors").psnr_db > 10
    assert again.psnr_db > 25


def test_a_catalog_without_a_readable_clip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "footage").mkdir()
    (tmp_path / "footage" / "a.png").write_bytes(b"no picture")
    Catalog.scan(tmp_path / "footage", to=tmp_path / "catalog")
    with refused("no-clip-to-learn-from", "CATALOG"):
        autoencoder.fit(tmp_path / "catalog", tmp_path / "weights.safetensors")
