"""A loss mask weighs each latent element by the mask over the pixels that it stands for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reelworks.core.shape import Geometry, Shape
from reelworks.data.media.decode import has_white_area
from reelworks.training.encoding import conditioning

GEOMETRIES = {
    "pixel": Geometry(stride=(1, 8, 8), patch=(1, 1, 1)),
    "causal": Geometry(stride=(4, 8, 8), patch=(1, 1, 1), frame_rule=(4, 1)),
    "chunks": Geometry(stride=(4, 8, 8), patch=(1, 1, 1), chunk_frames=17, drops_rest=True),
}


@given(st.sampled_from(sorted(GEOMETRIES)), st.integers(0, 8), st.integers(0, 7), st.data())
def test_weights_are_averages_over_cells(name, blocks, rest, data):
    """Every element is the mean of its own frames, rows and columns; the shape is the latents', rests have no part."""
    geometry = GEOMETRIES[name]
    frames = 4 * blocks + 1 if name == "causal" else 1 + blocks * 3
    height, width = 16 + (rest if geometry.drops_rest else 0), 24
    seed = data.draw(st.integers(0, 2**32 - 1))
    grey = np.random.default_rng(seed).integers(16, 256, (1, frames, height, width, 1), dtype=np.uint8)
    found = conditioning.weights(torch.from_numpy(np.repeat(grey, 3, axis=4)), geometry)[0].numpy()
    assert found.shape == geometry.latent(Shape(frames, height, width))
    chunk = geometry.chunk_frames or frames
    stride, cells = geometry.stride[0], []
    for start in range(0, frames, chunk):
        inside = list(range(start, min(start + chunk, frames)))
        first = len(inside) % stride or stride
        cells += [inside[:first], *(inside[i : i + stride] for i in range(first, len(inside), stride))]
    wanted = [
        [[grey[0, cell, 8 * y : 8 * y + 8, 8 * x : 8 * x + 8].mean() / 255 for x in range(3)] for y in range(2)]
        for cell in cells
    ]
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


@pytest.mark.parametrize(("value", "weight"), [(0, 0.0), (15, 0.0), (16, 16 / 255), (255, 1.0)])
def test_noise_in_black_counts_as_black(value, weight):
    """What codecs leave in black has no weight, and such a mask does not count at all."""
    mask = torch.full((1, 1, 8, 8, 3), value, dtype=torch.uint8)
    assert conditioning.weights(mask, GEOMETRIES["pixel"]).item() == pytest.approx(weight)
    assert has_white_area(mask[0].numpy()) is (weight > 0)
