"""The autoencoder of principal components: what its encoder and its decoder promise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from refused import refused
from safetensors.torch import save_file

from reelworks.models.autoencoders.pca import PcaAutoencoder, PcaNetwork, to_blocks
from reelworks.models.components import PCA_CHANNELS, PCA_FRAMES, autoencoder_geometry
from reelworks.models.config import AutoencoderConfig
from reelworks.models.factory import build_autoencoder

HEIGHT, WIDTH = 32, 64


def _moving_squares(count: int) -> torch.Tensor:
    """Return groups of eight frames in which a square of random brightness moves by a random step."""
    draws = torch.Generator().manual_seed(0)
    groups = torch.full((count, PCA_FRAMES, 3, HEIGHT, WIDTH), -0.8)
    for group in groups:
        x, step = torch.randint(0, 24, (), generator=draws).item(), torch.randint(-2, 3, (), generator=draws).item()
        color = torch.rand((3, 1, 1), generator=draws) * 2 - 1
        for t, frame in enumerate(group):
            left = min(max(x + step * t, 0), WIDTH - 12)
            frame[:, 8:20, left : left + 12] = color
    return groups


@pytest.fixture(scope="module")
def network() -> PcaNetwork:
    torch.manual_seed(0)
    network = PcaNetwork()
    network.fit(to_blocks(_moving_squares(60)).flatten(0, 3))
    return network


@pytest.fixture(scope="module")
def weights(network: PcaNetwork, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pca") / "autoencoder.safetensors"
    save_file(network.state_dict(), path)
    return path


def _built(weights: Path) -> PcaAutoencoder:
    built = build_autoencoder(AutoencoderConfig(name="pca", weights=str(weights)))
    assert isinstance(built, PcaAutoencoder)
    return built


def _clip(num_frames: int) -> torch.Tensor:
    return torch.cat(list(_moving_squares(num_frames // PCA_FRAMES)))[None].transpose(1, 2)


def test_latents_have_the_shape_of_the_geometry(weights: Path) -> None:
    autoencoder = _built(weights)
    latent = autoencoder.encode(_clip(16))
    assert latent.shape == (1, PCA_CHANNELS, 2, HEIGHT // 32, WIDTH // 32)
    assert autoencoder.decode(latent, 16).shape == (1, 3, 16, HEIGHT, WIDTH)
    geometry = autoencoder_geometry(AutoencoderConfig(name="pca", weights=str(weights)))
    assert [n for n in range(1, 20) if geometry.accepts_frames(n)] == [1, 8, 16]


def test_latents_of_the_fitted_footage_are_centred(network: PcaNetwork) -> None:
    latent = network.encode(_moving_squares(60)).unflatten(1, (3, -1))
    assert latent.mean(dim=(0, 1, 3, 4)).abs().max() < 1e-3
    by_component = latent.square().mean(dim=(0, 1, 3, 4))
    assert (by_component[:-1] >= by_component[1:] - 1e-3).all()  # the coarse comes first


def test_a_fitted_decoder_is_the_linear_inverse(network: PcaNetwork) -> None:
    groups = _moving_squares(60)
    blocks = to_blocks(groups).flatten(0, 3)
    centred = blocks - blocks.mean(dim=0)
    variances = torch.linalg.eigvalsh(centred @ centred.T).flip(0) / blocks.numel()
    error = (network.decode(network.encode(groups)) - groups).square().mean().item()
    assert error == pytest.approx(variances[PCA_CHANNELS // 3 :].sum().item(), rel=0.2, abs=1e-6)
    assert error < 0.01 * groups.var().item()


def test_the_order_of_frames_lies_in_the_channels(weights: Path) -> None:
    autoencoder, clip = _built(weights), _clip(16)
    latent, reversed_ = autoencoder.encode(clip), autoencoder.encode(clip.flip(2))
    assert not torch.allclose(latent, reversed_.flip(2), atol=0.1)
    apart = torch.cat([autoencoder.encode(part) for part in clip.split(PCA_FRAMES, dim=2)], dim=2)
    torch.testing.assert_close(latent, apart)


def test_a_picture_is_eight_equal_frames(weights: Path) -> None:
    autoencoder, picture = _built(weights), _clip(8)[:, :, :1]
    latent = autoencoder.encode(picture)
    torch.testing.assert_close(latent, autoencoder.encode(picture.expand(-1, -1, 8, -1, -1)))
    assert autoencoder.decode(latent, 1).shape == picture.shape


def test_weights_of_something_else_are_refused(tmp_path: Path, weights: Path) -> None:
    save_file({"components": torch.zeros(3, 3)}, tmp_path / "other.safetensors")
    with refused("weights-do-not-fit", "autoencoder.weights"):
        _built(tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="this encoder needs weights"):
        AutoencoderConfig(name="pca")
    with pytest.raises(ValueError, match='"pca" is always float32'):
        AutoencoderConfig(name="pca", weights=str(weights), dtype="bfloat16")
