"""STDiT2: a transformer over video latents whose blocks attend within frames, then across them.

Source: Open-Sora v1.1, whose state-dict keys and numbers this network reproduces. It draws no
random numbers: an input selects the captions to drop.

Shape legend: B batch, C latent channels, D width, T frames, H W latent size, S tokens per frame,
L text tokens, K caption width; R is T if frames differ in their timesteps, else 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from reelworks.models.families.stdit2.spec import STDiT2Config
from reelworks.models.families.stdit3.attention import MLP, CrossAttention, Rotation, SelfAttention
from reelworks.models.families.stdit3.embeddings import (
    CaptionEmbedding,
    PatchEmbedding,
    PositionEmbedding,
    RotaryEmbedding,
    ScalarEmbedding,
    tile_rows,
    unpatchify,
)
from reelworks.models.families.stdit3.model import FinalLayer, modulate


class Modulation(NamedTuple):
    """Modulation that depends on timesteps, sizes and length: `[B, R, 6, D]` and `[B, R, 3, D]`."""

    spatial: Tensor
    temporal: Tensor


class Block(nn.Module):
    """Attention within frames, across frames and to the text, then an MLP."""

    def __init__(self, config: STDiT2Config) -> None:
        super().__init__()
        D, heads = config.hidden_size, config.num_heads
        self.scale_shift_table = nn.Parameter(torch.empty(6, D))
        self.scale_shift_table_temporal = nn.Parameter(torch.empty(3, D))
        self.attn = SelfAttention(D, heads, qk_norm=config.qk_norm)
        self.attn_temp = SelfAttention(D, heads, qk_norm=config.qk_norm, rotate_first=True)
        self.cross_attn = CrossAttention(D, heads)
        self.mlp = MLP(D, int(D * config.mlp_ratio), D)

    def forward(
        self, x_BTSD: Tensor, text_BLD: Tensor, mask_B11L: Tensor | None, modulation: Modulation, rotation: Rotation
    ) -> Tensor:
        """Return tokens `[B, T, S, D]`."""
        spatial = (self.scale_shift_table + modulation.spatial).unsqueeze(2)
        temporal = (self.scale_shift_table_temporal + modulation.temporal).unsqueeze(2)
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = spatial.unbind(3)
        B, T, S, D = x_BTSD.shape
        out = self.attn(modulate(x_BTSD, shift, scale).flatten(0, 1), None)
        x_BTSD = torch.addcmul(x_BTSD, gate, out.view(B, T, S, D))
        shift, scale, gate = temporal.unbind(3)
        out = self.attn_temp(modulate(x_BTSD, shift, scale).transpose(1, 2).flatten(0, 1), rotation)
        x_BTSD = torch.addcmul(x_BTSD, gate, out.view(B, S, T, D).transpose(1, 2))
        x_BTSD = x_BTSD + self.cross_attn(x_BTSD.flatten(1, 2), text_BLD, mask_B11L).view_as(x_BTSD)
        return torch.addcmul(x_BTSD, mlp_gate, self.mlp(modulate(x_BTSD, mlp_shift, mlp_scale)))


class STDiT2(nn.Module):
    """The STDiT2 network; see the module's docstring.

    Attributes:
        config: Sizes of the network.
        gradient_checkpointing: Whether only block inputs are stored for the backward pass.
    """

    def __init__(self, config: STDiT2Config, *, gradient_checkpointing: bool = False) -> None:
        """Allocate parameters without values; `weights.fill` sets them."""
        super().__init__()
        D = config.hidden_size
        self.config, self.gradient_checkpointing = config, gradient_checkpointing
        self.rope = RotaryEmbedding(config.head_dim)
        self.pos_embed = PositionEmbedding(D, config.input_sq_size)
        self.x_embedder = PatchEmbedding(config.in_channels, D, config.patch_size)
        self.t_embedder = ScalarEmbedding(D)
        self.csize_embedder = ScalarEmbedding(D // 3)
        self.ar_embedder = ScalarEmbedding(D // 3)
        self.fl_embedder = ScalarEmbedding(D)
        self.fps_embedder = ScalarEmbedding(D)
        self.t_block = nn.Sequential(nn.SiLU(), nn.Linear(D, 6 * D))
        self.t_block_temp = nn.Sequential(nn.SiLU(), nn.Linear(D, 3 * D))
        self.y_embedder = CaptionEmbedding(config.caption_channels, D, config.model_max_length)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        _, ph, pw = config.patch_size
        self.final_layer = FinalLayer(D, ph * pw * config.out_channels)

    def forward(
        self,
        x: Tensor,
        timestep: Tensor,
        y: Tensor,
        mask: Tensor | None = None,
        x_mask: Tensor | None = None,
        *,
        num_frames: Tensor,
        height: Tensor,
        width: Tensor,
        ar: Tensor,
        fps: Tensor,
        drop_text: Tensor | None = None,
    ) -> Tensor:
        """Return `[B, out_channels, T, H, W]` in float32.

        Args:
            x: `[B, C, T, H, W]` latents; sizes need not be multiples of the patch.
            timestep: `[B]` in [0, 1000], float32.
            y: `[B, 1, L, K]` text embeddings.
            mask: `[n, L]` non-zero where a token is attended to; sample b uses row b mod n; None is all.
            x_mask: `[B, T]` True where a frame has its timestep, False where it is a condition (time 0).
            num_frames: `[n]` number of frames of the clip.
            height: `[n]` pixels; positions follow from the first, since a batch has one shape.
            width: `[n]` pixels, likewise.
            ar: `[n]` height / width.
            fps: `[n]` frames per second.
            drop_text: `[B]` True where the caption is replaced by the empty one; its mask stays.
        """
        B, _, T, H, W = x.shape
        grid = (-(-H // self.config.patch_size[1]), -(-W // self.config.patch_size[2]))
        tokens = self.x_embedder(x)
        tokens = tokens + self.pos_embed(grid, height[0], width[0]).to(tokens.dtype)
        size_BD = tile_rows(self._sizes(height, width, ar), B)
        length_BD = tile_rows(self.fl_embedder(num_frames) + self.fps_embedder(fps), B)
        time_BD = self.t_embedder(timestep)
        clean_BD = None if x_mask is None else self.t_embedder(torch.zeros_like(timestep))
        modulation = Modulation(
            self._modulation(self.t_block, time_BD, clean_BD, size_BD, x_mask),
            self._modulation(self.t_block_temp, time_BD, clean_BD, length_BD, x_mask),
        )
        text_BLD = self.y_embedder(y.squeeze(1), drop_text)
        mask_B11L = None if mask is None else tile_rows(mask.bool(), B)[:, None, None]
        rotation = self.rope(T)
        for block in self.blocks:
            tokens = self._run(block, tokens, text_BLD, mask_B11L, modulation, rotation)
        # As in v1.1, sizes enter only the final modulation of condition frames.
        condition_BD = None if clean_BD is None else clean_BD + size_BD
        patches = self.final_layer(tokens, time_BD, condition_BD, x_mask)
        # Cloned because FSDP2 warns of an output that is a view; it is small.
        return unpatchify(patches, grid, self.config.patch_size)[..., :H, :W].float().clone()

    def _sizes(self, height: Tensor, width: Tensor, ar: Tensor) -> Tensor:
        parts = (self.csize_embedder(height), self.csize_embedder(width), self.ar_embedder(ar))
        return torch.cat(parts, dim=-1)

    def _modulation(
        self, head: nn.Module, time_BD: Tensor, clean_BD: Tensor | None, info_BD: Tensor, x_mask: Tensor | None
    ) -> Tensor:
        """Return `[B, R, 6 or 3, D]`, selected per frame once here, so that blocks need no mask."""
        out: Tensor = head(time_BD + info_BD)[:, None]
        if clean_BD is not None and x_mask is not None:
            out = torch.where(x_mask[:, :, None], out, head(clean_BD + info_BD)[:, None])
        return out.view(*out.shape[:2], -1, self.config.hidden_size)

    def _run(self, block: nn.Module, *args: Tensor | Modulation | Rotation | None) -> Tensor:
        if self.gradient_checkpointing and torch.is_grad_enabled():
            out: Tensor = checkpoint(block, *args, use_reentrant=False)
        else:
            out = block(*args)
        return out
