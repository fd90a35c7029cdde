"""Distances between two sets of features, from their means and covariances, and by a kernel.

Legend: N and M samples, D features.
"""

from __future__ import annotations

import numpy as np

from reelworks.inference.evaluate.metric import Array


def frechet(a_ND: Array, b_MD: Array) -> float:
    """Return the Fréchet distance of normal distributions fitted to both sets (Heusel et al. 2017), at least 0.

    |μa − μb|² + tr(Σa + Σb − 2 (Σa Σb)^½). The trace of the root is the sum of the singular values of A·Bᵀ, for centred
    sets A and B divided by √(n − 1): it needs no root of a matrix, also where there are fewer samples than features.
    """
    centred = [(x - x.mean(axis=0)) / np.sqrt(len(x) - 1) for x in (a_ND, b_MD)]
    means = np.square(a_ND.mean(axis=0) - b_MD.mean(axis=0)).sum()
    traces = sum(np.square(x).sum() for x in centred)
    if max(len(a_ND), len(b_MD)) > a_ND.shape[1]:  # factors of D rows have the same covariances, and are smaller
        centred = [np.linalg.qr(x, mode="r") if len(x) > x.shape[1] else x for x in centred]
    root = np.linalg.svd(centred[0] @ centred[1].T, compute_uv=False).sum()
    return max(float(means + traces - 2 * root), 0.0)


def kernel(a_ND: Array, b_MD: Array) -> float:
    """Return the unbiased squared distance by the kernel (x·y / D + 1)³ (Bińkowski et al. 2018); it may be below 0."""
    n, m, features = len(a_ND), len(b_MD), a_ND.shape[1]

    def similar(x: Array, y: Array) -> Array:
        result: Array = (x @ y.T / features + 1) ** 3
        return result

    aa, bb = similar(a_ND, a_ND), similar(b_MD, b_MD)
    within_a = (aa.sum() - np.trace(aa)) / (n * (n - 1))
    within_b = (bb.sum() - np.trace(bb)) / (m * (m - 1))
    return float(within_a + within_b - 2 * similar(a_ND, b_MD).mean())
