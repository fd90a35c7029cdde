"""Sizes of LTX-2 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Self

from reelworks.core.config import Config
from reelworks.core.errors import UserError
from reelworks.models.family import ComponentShapes, Conditioning, Network


class LTX2Config(Config):
    """Arguments of diffusers' LTX2VideoTransformer3DModel; defaults are those of LTX-2.

    Beside the branch for frames the network has one for sound, and attention between both. Frames alone are trained.
    """

    patch_size: ClassVar[tuple[int, int, int]] = (1, 1, 1)
    pictures_only: ClassVar[bool] = False
    conditioning: ClassVar[Conditioning] = Conditioning(frames=True)

    in_channels: int = 128
    out_channels: int = 128
    num_attention_heads: int = 32
    attention_head_dim: int = 128
    cross_attention_dim: int = 4096
    audio_in_channels: int = 128
    audio_num_attention_heads: int = 32
    audio_attention_head_dim: int = 64
    audio_cross_attention_dim: int = 2048
    num_layers: int = 48
    caption_channels: int = 3840
    rope_type: str = "split"
    gated_attn: bool = False
    cross_attn_mod: bool = False
    audio_gated_attn: bool = False
    audio_cross_attn_mod: bool = False
    use_prompt_embeddings: bool = True
    perturbed_attn: bool = False

    @property
    def network(self) -> Network:
        """Place of the network in diffusers; parameters of sound, and of its attention with frames, are left out."""
        in_blocks = (
            f"transformer_blocks.{i}.{modality}_"
            for i in range(self.num_layers)
            for modality in ("audio", "video")
        )
        return Network(
            "LTX2VideoTransformer3DModel",
            ("transformer_blocks",),
            without_gradient=("audio_", "av_cross_attn_", *in_blocks),
        )

    def fit(self, neighbours: ComponentShapes) -> Self:
        """Take the widths of the neighbours.

        Raises:
            UserError: If the network does not project texts, and they are not as wide as it.
        """
        width = self.num_attention_heads * self.attention_head_dim
        if not self.use_prompt_embeddings and neighbours.text_dim != width:
            raise UserError(
                f"this model takes texts of its own width, {width}",
                field="text.dim",
                value=neighbours.text_dim,
                remedy="choose the text encoder that the model was trained with",
            )
        text_dim = neighbours.text_dim if self.use_prompt_embeddings else self.caption_channels
        channels = neighbours.latent_channels
        return self.model_copy(
            update={"in_channels": channels, "out_channels": channels, "caption_channels": text_dim}
        )


_GATED = {
    "gated_attn": True,
    "cross_attn_mod": True,
    "audio_gated_attn": True,
    "audio_cross_attn_mod": True,
    "use_prompt_embeddings": False,
    "perturbed_attn": True,
}
_TINY = LTX2Config(
    num_attention_heads=2,
    attention_head_dim=16,
    cross_attention_dim=32,
    audio_in_channels=4,
    audio_num_attention_heads=2,
    audio_attention_head_dim=8,
    audio_cross_attention_dim=16,
    num_layers=1,
)
PRESETS: dict[str, LTX2Config] = {
    "ltx-2": LTX2Config(),
    "ltx-2.3": LTX2Config().model_copy(update=_GATED),
    # All that either release has.
    "ltx-2-tiny": _TINY.model_copy(update=_GATED | {"use_prompt_embeddings": True}),
}
