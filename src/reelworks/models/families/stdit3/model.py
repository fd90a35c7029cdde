"""STDiT3: a transformer over video latents with alternating spatial and temporal attention.

Source: Open-Sora v1.2, whose state-dict keys and numbers this network reproduces. It draws no
random numbers: an input selects the captions to drop.

Shape legend: B batch, C latent channels, D width, T frames, H W latent size, S tokens per frame,
L text tokens, K caption width; R is T if frames differ in their timesteps, else 1.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from reelworks.data.distributed.sequence import SequenceGroup, Shares
from reelworks.models import recompute
from reelworks.models.families.stdit3 import layers
from reelworks.models.families.stdit3.spec import STDiT3Config
from reelworks.models.recompute import Recompute


def modulate(x_BTSD: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Normalise tokens, then shift and scale them."""
    return torch.addcmul(shift, F.layer_norm(x_BTSD, x_BTSD.shape[-1:], eps=1e-6), 1 + scale)


class STDiT3Block(nn.Module):
    """Self-attention within frames or across frames, attention to the text, then an MLP."""

    def __init__(self, config: STDiT3Config, *, temporal: bool) -> None:
        super().__init__()
        D = config.hidden_size
        self.temporal = temporal
        self.scale_shift_table = nn.Parameter(torch.empty(6, D))
        self.attn = layers.SelfAttention(D, config.num_heads, qk_norm=config.qk_norm)
        self.cross_attn = layers.CrossAttention(D, config.num_heads)
        self.mlp = layers.MLP(D, int(D * config.mlp_ratio), D)

    def forward(
        self,
        x_BTSD: Tensor,
        text_BLD: Tensor,
        mask_B11L: Tensor | None,
        modulation_BR6D: Tensor,
        rotation: layers.Rotation,
        shares: Shares | None = None,
    ) -> Tensor:
        """Return tokens `[B, T, S, D]`; `modulation_BR6D` depends on the timesteps, `shares` as in `SelfAttention`."""
        table = (self.scale_shift_table + modulation_BR6D).unsqueeze(2)
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = table.unbind(3)
        x_BTSD = torch.addcmul(x_BTSD, gate, self._attend(modulate(x_BTSD, shift, scale), rotation, shares))
        x_BTSD = x_BTSD + self.cross_attn(x_BTSD.flatten(1, 2), text_BLD, mask_B11L).view_as(x_BTSD)
        return torch.addcmul(x_BTSD, mlp_gate, self.mlp(modulate(x_BTSD, mlp_shift, mlp_scale)))

    def _attend(self, x_BTSD: Tensor, rotation: layers.Rotation, shares: Shares | None) -> Tensor:
        if not self.temporal:
            out: Tensor = self.attn(x_BTSD, None, shares)
            return out
        return self.attn(x_BTSD.transpose(1, 2), rotation).transpose(1, 2)  # type: ignore[no-any-return]


class STDiTFinalLayer(nn.Module):
    """Projects tokens to the values of their patches."""

    def __init__(self, hidden_size: int, out_features: int) -> None:
        super().__init__()
        self.scale_shift_table = nn.Parameter(torch.empty(2, hidden_size))
        self.linear = nn.Linear(hidden_size, out_features)

    def forward(self, x_BTSD: Tensor, time_BD: Tensor, clean_BD: Tensor | None, frame_mask: Tensor | None) -> Tensor:
        """Project `[B, T, S, D]`, modulated by `time_BD`, or `clean_BD` where `frame_mask` is False."""
        x_BTSD = self._modulate(x_BTSD, time_BD)
        if frame_mask is not None and clean_BD is not None:
            # v1.2 was trained with condition frames modulated twice, by the timestep, then by time 0.
            twice = self._modulate(x_BTSD, clean_BD)
            x_BTSD = torch.where(frame_mask[:, :, None, None], x_BTSD, twice)
        out: Tensor = self.linear(x_BTSD)
        return out

    def _modulate(self, x_BTSD: Tensor, time_BD: Tensor) -> Tensor:
        shift, scale = (self.scale_shift_table + time_BD[:, None])[:, :, None, None].unbind(1)
        return modulate(x_BTSD, shift, scale)


def modulation_of_frames(
    head: nn.Module, time_BD: Tensor, clean_BD: Tensor | None, frame_mask: Tensor | None
) -> Tensor:
    """Return `[B, R, k, D]` of a head with k·D outputs: of `time_BD`, or `clean_BD` where `frame_mask` is False.

    It is selected per frame once here, so that blocks need no mask. Selecting parameters instead of results is nearly
    free, so a mask that is all True needs no shortcut, which would have to wait for the device.
    """
    out: Tensor = head(time_BD)[:, None]
    if clean_BD is not None and frame_mask is not None:
        out = torch.where(frame_mask[:, :, None], out, head(clean_BD)[:, None])
    return out.view(*out.shape[:2], -1, time_BD.shape[-1])


class STDiT(nn.Module, ABC):
    """The parts that STDiT2 and STDiT3 have in common; their further modules stand in the order of the release."""

    y_embedder: nn.Module
    final_layer: nn.Module

    def __init__(self, config: STDiT3Config, gradient_checkpointing: Recompute) -> None:
        super().__init__()
        D = config.hidden_size
        self.config, self.gradient_checkpointing = config, gradient_checkpointing
        self.sequence: SequenceGroup | None = None  # ranks that share the tokens of this one's clips
        self.rope = layers.RotaryEmbedding(config.head_dim)
        self.pos_embed = layers.PositionEmbedding(D, config.input_sq_size)
        self.x_embedder = layers.PatchEmbedding(config.in_channels, D, config.patch_size)
        self.t_embedder = layers.ScalarEmbedding(D)

    def transform(
        self,
        x: Tensor,
        y: Tensor,
        mask: Tensor | None,
        drop_text: Tensor | None,
        size: tuple[Tensor, Tensor],
        blocks: Iterable[nn.Module],
        modulation: Any,
        *final: Tensor | None,
    ) -> Tensor:
        """Return `[B, out_channels, T, H, W]` in float32: the latents as tokens, through blocks, as latents again.

        Args:
            x: As in `STDiT3.forward`, like `y`, `mask` and `drop_text`.
            size: Height and width of the clips.
            blocks: Blocks in the order of their use.
            modulation: Modulation that all blocks are given.
            final: Further inputs of the final layer.
        """
        B, _, T, H, W = x.shape
        _, ph, pw = self.config.patch_size
        grid = (-(-H // ph), -(-W // pw))
        tokens = self.x_embedder(x)
        tokens = tokens + self.pos_embed(grid, size[0][0], size[1][0]).to(tokens.dtype)
        text_BLD = self.y_embedder(y.squeeze(1), drop_text)
        mask_B11L = None if mask is None else layers.tile_rows(mask.bool(), B)[:, None, None]
        # The tokens of each frame are divided over the ranks of a group; a position is on one rank in all frames.
        shares = None if self.sequence is None else self.sequence.shares(tokens.shape[2])
        tokens = tokens if shares is None else shares.split(tokens, 2)
        given = (text_BLD, mask_B11L, modulation, self.rope(T), shares)
        for block in blocks:
            tokens = recompute.run_block(block, self.gradient_checkpointing, tokens, *given)
        patches = self.final_layer(tokens, *final)
        patches = patches if shares is None else shares.gather(patches, 2)
        # Cloned because FSDP2 warns of an output that is a view; it is small.
        return layers.unpatchify(patches, grid, self.config.patch_size)[..., :H, :W].float().clone()


class STDiT3(STDiT):
    """The STDiT3 network; see the module's docstring."""

    def __init__(self, config: STDiT3Config, *, gradient_checkpointing: Recompute = False) -> None:
        super().__init__(config, gradient_checkpointing)
        D = config.hidden_size
        self.fps_embedder = layers.ScalarEmbedding(D)
        self.t_block = nn.Sequential(nn.SiLU(), nn.Linear(D, 6 * D))
        self.y_embedder = layers.CaptionEmbedding(config.caption_channels, D, config.model_max_length)
        self.spatial_blocks = nn.ModuleList(STDiT3Block(config, temporal=False) for _ in range(config.depth))
        self.temporal_blocks = nn.ModuleList(STDiT3Block(config, temporal=True) for _ in range(config.depth))
        _, ph, pw = config.patch_size
        self.final_layer = STDiTFinalLayer(D, ph * pw * config.out_channels)

    def forward(
        self,
        x: Tensor,
        timestep: Tensor,
        y: Tensor,
        mask: Tensor | None = None,
        x_mask: Tensor | None = None,
        *,
        fps: Tensor,
        height: Tensor,
        width: Tensor,
        drop_text: Tensor | None = None,
    ) -> Tensor:
        """Return `[B, out_channels, T, H, W]` in float32.

        Args:
            x: `[B, C, T, H, W]` latents; sizes need not be multiples of the patch.
            timestep: `[B]` in [0, 1000], float32.
            y: `[B, 1, L, K]` text embeddings.
            mask: `[n, L]` non-zero where a token is attended to; sample b uses row b mod n; None is all.
            x_mask: `[B, T]` True where a frame has its timestep, False where it is a condition (time 0).
            fps: `[n]` frames per second.
            height: `[n]` pixels; the first is used for all, since a batch has one shape.
            width: `[n]` pixels, likewise.
            drop_text: `[B]` True where the caption is replaced by the empty one; its mask stays.
        """
        fps_BD = self.fps_embedder(layers.tile_rows(fps, len(x)))
        time_BD = self.t_embedder(timestep) + fps_BD
        clean_BD = None if x_mask is None else self.t_embedder(torch.zeros_like(timestep)) + fps_BD
        modulation = modulation_of_frames(self.t_block, time_BD, clean_BD, x_mask)
        blocks = (block for pair in zip(self.spatial_blocks, self.temporal_blocks, strict=True) for block in pair)
        return self.transform(x, y, mask, drop_text, (height, width), blocks, modulation, time_BD, clean_BD, x_mask)
