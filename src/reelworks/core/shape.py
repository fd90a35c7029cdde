"""Shapes of clips and of their latents."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

from reelworks.core import arguments
from reelworks.core.errors import UserError


@dataclass(frozen=True, order=True)
class Shape:
    """Frames, height and width of a clip in pixels; a picture has one frame."""

    num_frames: int
    height: int
    width: int

    def __str__(self) -> str:
        """Return what people read: "854×480, 17 frames"; of a picture its size alone."""
        size = f"{self.width}×{self.height}"
        return size if self.num_frames == 1 else f"{size}, {self.num_frames} frames"


@dataclass(frozen=True)
class Geometry:
    """Constraints that an autoencoder and a denoiser put on shapes, and the latent shapes that result.

    Attributes:
        stride: Pixels per latent element along (time, height, width).
        patch: Latent elements per token along (time, height, width).
        frame_rule: `(a, b)`: frame counts are a·n + b; (1, 0) allows any, (0, 1) pictures only.
        chunk_frames: Frames that are encoded together, with the latent frames of each chunk rounded up;
            None encodes a clip in one piece.
        drops_rest: Heights and widths need not be multiples of the stride; the remaining pixels have no latent.
        filled_tokens: Tokens to which clips that are not square are filled up; 0 if they are not.

    Examples:
        >>> import reelworks as rw
        >>> rw.Geometry(stride=(4, 8, 8), patch=(1, 2, 2)).multiple
        (16, 16)
    """

    stride: Annotated[tuple[int, int, int], arguments.exactly(3, arguments.whole(1))]
    patch: Annotated[tuple[int, int, int], arguments.exactly(3, arguments.whole(1))]
    frame_rule: Annotated[tuple[int, int], arguments.exactly(2, arguments.whole(0))] = (1, 0)
    chunk_frames: Annotated[int | None, arguments.optional(arguments.whole(1))] = None
    drops_rest: Annotated[bool, arguments.FLAG] = False
    filled_tokens: Annotated[int, arguments.whole(0)] = dataclasses.field(default=0, repr=False)

    def __post_init__(self) -> None:
        arguments.check(self)

    @property
    def multiple(self) -> tuple[int, int]:
        """Divisors that a bucket's height and width must have, `(height, width)`."""
        return self.stride[1] * self.patch[1], self.stride[2] * self.patch[2]

    def accepts_frames(self, num_frames: int) -> bool:
        """Whether the frame rule allows `num_frames`; one frame (a picture) is always allowed."""
        a, b = self.frame_rule
        return num_frames == 1 or (a > 0 and num_frames >= max(b, 1) and (num_frames - b) % a == 0)

    @property
    def frame_words(self) -> str:
        """The frame rule as a sentence for messages."""
        a, b = self.frame_rule
        return f"this model takes {a}n+{b} frames" if a else "this model takes pictures only"

    def nearest_frames(self, num_frames: int) -> int:
        """Return the allowed frame count nearest to `num_frames`."""
        a, b = self.frame_rule
        below = (num_frames - b) // max(a, 1) * a + b
        allowed = (n for n in (1, below, below + a) if self.accepts_frames(n))
        return min(allowed, key=lambda n: abs(n - num_frames))

    def require(self, shape: Shape, fields: tuple[str, str, str], *, whole_patches: bool = False) -> None:
        """Refuse a shape that the autoencoder would not decode to the same shape.

        Args:
            fields: Recipe keys or options of frames, height and width, for the error.
            whole_patches: Require that height and width also fill the denoiser's patches.

        Raises:
            UserError: A value does not fit; the error names its field and the nearest valid value.
        """
        frames, *sizes = fields
        multiples = self.multiple if whole_patches else self.stride[1:]
        for field, size, multiple in zip(sizes, (shape.height, shape.width), multiples, strict=True):
            if size < multiple or size % multiple:
                near = max(round(size / multiple), 1) * multiple
                raise UserError(
                    f"this {'model' if whole_patches else 'autoencoder'} takes multiples of {multiple}",
                    code="size-not-a-multiple",
                    field=field,
                    value=size,
                    remedy=f"use {near}",
                )
        if not self.accepts_frames(shape.num_frames):
            raise UserError(
                self.frame_words,
                code="frame-count-not-taken",
                field=frames,
                value=shape.num_frames,
                remedy=f"use {self.nearest_frames(shape.num_frames)}",
            )

    def latent(self, shape: Shape) -> tuple[int, int, int]:
        """Return the latent size (T, H, W) of a pixel shape."""
        st, sh, sw = self.stride
        chunk = self.chunk_frames or shape.num_frames
        full_chunks, rest = divmod(shape.num_frames, chunk)
        frames = full_chunks * -(-chunk // st) + -(-rest // st)
        return frames, shape.height // sh, shape.width // sw

    def tokens(self, shape: Shape) -> int:
        """Return the number of the denoiser's tokens for one clip of this shape."""
        pt, ph, pw = self.patch
        t, h, w = self.latent(shape)
        tokens = -(-t // pt) * -(-h // ph) * -(-w // pw)
        return tokens if h == w else max(tokens, self.filled_tokens)
