"""Training of the demo's autoencoder on a scanned folder."""

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


def test_its_decoder_learns_and_damaged_files_do_not_stop_it(
    catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autoencoder, "_MOST_CLIPS", 40)
    untrained = autoencoder.train(catalog, tmp_path / "0.safetensors", steps=1)
    trained = autoencoder.train(catalog, tmp_path / "1.safetensors", steps=60)
    again = autoencoder.train(catalog, tmp_path / "2.safetensors", steps=60)
    assert trained.psnr_db > untrained.psnr_db > 15
    files = [digests.digest_bytes((tmp_path / f"{i}.safetensors").read_bytes()) for i in range(3)]
    assert trained.psnr_db == again.psnr_db
    assert files[1] == files[2] != files[0]


def test_a_catalog_without_a_readable_clip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "footage").mkdir()
    (tmp_path / "footage" / "a.png").write_bytes(b"no picture")
    Catalog.scan(tmp_path / "footage", to=tmp_path / "catalog")
    with refused("no-clip-to-learn-from", "CATALOG"):
        autoencoder.train(tmp_path / "catalog", tmp_path / "weights.safetensors")
