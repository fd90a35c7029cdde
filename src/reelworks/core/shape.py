"""Shapes of clips and of their latents."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Shape:
    """Frames, height and width of a clip in pixels; a picture has one frame."""

    num_frames: int
    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.num_frames}×{self.height}×{self.width}"


@dataclass(frozen=True)
class Geometry:
    """What an autoencoder and a denoiser together do to a shape.

    Attributes:
        stride: Pixels per latent element along (time, height, width).
        patch: Latent elements per token along (time, height, width).
        frame_rule: `(a, b)`: frame counts are a·n + b; (1, 0) takes any.
    """

    stride: tuple[int, int, int]
    patch: tuple[int, int, int]
    frame_rule: tuple[int, int] = (1, 0)

    @property
    def multiple(self) -> tuple[int, int]:
        """Heights and widths of a bucket are multiples of these."""
        return self.stride[1] * self.patch[1], self.stride[2] * self.patch[2]

    def accepts_frames(self, num_frames: int) -> bool:
        """Say whether the frame rule allows `num_frames`; one frame (a picture) is always allowed."""
        a, b = self.frame_rule
        return num_frames == 1 or (num_frames >= max(b, 1) and (num_frames - b) % a == 0)

    def latent(self, shape: Shape) -> tuple[int, int, int]:
        """Latent (T, H, W) of a pixel shape."""
        st, sh, sw = self.stride
        return -(-shape.num_frames // st), shape.height // sh, shape.width // sw

    def tokens(self, shape: Shape) -> int:
        """Tokens that the denoiser sees for one clip of this shape."""
        pt, ph, pw = self.patch
        t, h, w = self.latent(shape)
        return -(-t // pt) * -(-h // ph) * -(-w // pw)
