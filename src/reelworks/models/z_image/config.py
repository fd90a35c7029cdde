"""Sizes of Z-Image networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Self

from reelworks.core.config import Config
from reelworks.models.family import ComponentShapes, Conditioning, Network


class ZImageConfig(Config):
    """Arguments of diffusers' ZImageTransformer2DModel; defaults are the published ones."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    pictures_only: ClassVar[bool] = True
    conditioning: ClassVar[Conditioning] = Conditioning()
    network: ClassVar[Network] = Network(
        "ZImageTransformer2DModel", ("noise_refiner", "context_refiner", "layers")
    )

    in_channels: int = 16
    dim: int = 3840
    n_layers: int = 30
    n_refiner_layers: int = 2
    n_heads: int = 30
    n_kv_heads: int = 30
    cap_feat_dim: int = 2560
    axes_dims: tuple[int, int, int] = (32, 48, 48)
    axes_lens: tuple[int, int, int] = (1536, 512, 512)

    def fit(self, neighbours: ComponentShapes) -> Self:
        """Take the widths of the neighbours."""
        return self.model_copy(
            update={"in_channels": neighbours.latent_channels, "cap_feat_dim": neighbours.text_dim}
        )


PRESETS: dict[str, ZImageConfig] = {
    "z-image": ZImageConfig(),
    "z-image-tiny": ZImageConfig(
        dim=32, n_layers=2, n_refiner_layers=1, n_heads=2, n_kv_heads=2, axes_dims=(4, 6, 6)
    ),
}
