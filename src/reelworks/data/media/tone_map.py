"""Convert frames of high dynamic range or wide gamut to the SDR that models are trained on (BT.709, gamma 2.4).

    code values  --EOTF of PQ, or OETF⁻¹ and OOTF of HLG-->  light in cd/m²
    light        --EETF of BT.2390 on the largest of R, G, B-->  light below the white of SDR
    light        --matrix of BT.2087, gamma of BT.1886-->  code values of SDR

The white of SDR is put at 203 cd/m², the reference white of BT.2408, and the source is taken to be mastered for
1000 cd/m², whatever its metadata say: many files state none, and frames must not depend on where decoding began.
Highlights beyond 1000 cd/m² become white.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Light = NDArray[Any]  # floats of 32 bits

SOURCE_PEAK, SDR_WHITE = 1000.0, 203.0  # cd/m²
_GAMMA = 2.4  # BT.1886

# SMPTE ST 2084, also BT.2100 table 4.
_M1, _M2 = 2610 / 16384, 2523 / 4096 * 128
_C1, _C2, _C3 = 3424 / 4096, 2413 / 4096 * 32, 2392 / 4096 * 32
# HLG, BT.2100 table 5.
_A = 0.17883277
_B, _C = 1 - 4 * _A, 0.5 - _A * np.log(4 * _A)
_HLG_GAMMA = 1.2  # of the OOTF for a display of 1000 cd/m²
_LUMA_2020 = np.array([0.2627, 0.6780, 0.0593], dtype=np.float32)
# Linear light of other primaries to that of BT.709, both with the white D65: BT.2087-0, M2, and SMPTE EG 432-1.
_TO_709 = {
    "bt2020": np.array(
        [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]], np.float32
    ),
    "p3": np.array([[1.2249, -0.2249, 0], [-0.0421, 1.0421, 0], [-0.0196, -0.0786, 1.0983]], np.float32),
}


def to_sdr(codes_HWC: NDArray[np.uint16], transfer: str, primaries: str) -> NDArray[np.uint8]:
    """Convert R'G'B' code values of 16 bits, full range, to those of SDR, 8 bits.

    `transfer` is "pq", "hlg", or that of SDR, of which only the gamut is converted: "" for the gamma of videos, and "srgb".
    `primaries` are "bt2020", "p3", or "" for those of BT.709. Values [H, W, 3].
    """
    values = codes_HWC.astype(np.float32) / 65535
    if transfer in ("pq", "hlg"):
        light = tone_map(pq_to_light(values) if transfer == "pq" else hlg_to_light(values)) / SDR_WHITE
    else:
        light = srgb_to_light(values) if transfer == "srgb" else values**_GAMMA
    if primaries:
        light = light @ _TO_709[primaries].T
    light = np.clip(light, 0, 1)
    sdr = light_to_srgb(light) if transfer == "srgb" else light ** (1 / _GAMMA)
    return np.asarray(np.round(sdr * 255).astype(np.uint8))


def srgb_to_light(codes: Light) -> Light:
    """Return light in [0, 1] by IEC 61966-2-1."""
    return np.where(codes <= 0.04045, codes / 12.92, ((codes + 0.055) / 1.055) ** 2.4)


def light_to_srgb(light: Light) -> Light:
    """Return code values of light, the inverse of `srgb_to_light`."""
    return np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)


def tone_map(nits_HWC: Light) -> Light:
    """Compress light so that its largest channel stays below the white of SDR; the hue is kept."""
    peak = np.maximum(nits_HWC.max(axis=-1, keepdims=True), 1e-6)
    return np.asarray(nits_HWC * (eetf(peak) / peak))


def eetf(nits: Light) -> Light:
    """Return the electrical-electrical transfer function of BT.2390, section 5.4, for light, with black at 0."""
    top, most = light_to_pq(SOURCE_PEAK), light_to_pq(SDR_WHITE)
    e1, most = np.minimum(light_to_pq(nits) / top, 1), most / top
    knee = 1.5 * most - 0.5
    t = np.maximum(e1 - knee, 0) / (1 - knee)
    spline = (2 * t**3 - 3 * t**2 + 1) * knee + (t**3 - 2 * t**2 + t) * (1 - knee) + (-2 * t**3 + 3 * t**2) * most
    return pq_to_light(np.where(e1 < knee, e1, spline) * top)


def pq_to_light(codes: Light) -> Light:
    """Return light in cd/m² by the EOTF of SMPTE ST 2084."""
    root = np.maximum(codes, 0) ** (1 / _M2)
    return (10_000 * (np.maximum(root - _C1, 0) / (_C2 - _C3 * root)) ** (1 / _M1)).astype(np.float32)


def light_to_pq(nits: Light | float) -> Light:
    """Return code values in [0, 1] of light in cd/m², the inverse of `pq_to_light`."""
    power = np.maximum(np.asarray(nits) / 10_000, 0) ** _M1
    return np.asarray(((_C1 + _C2 * power) / (1 + _C3 * power)) ** _M2, dtype=np.float32)


def hlg_to_light(codes_HWC: Light) -> Light:
    """Return the light in cd/m² that a display of 1000 cd/m² shows for HLG (BT.2100: inverse OETF, then OOTF)."""
    scene = np.where(codes_HWC <= 0.5, codes_HWC**2 / 3, (np.exp((codes_HWC - _C) / _A) + _B) / 12)
    luma = np.maximum(scene @ _LUMA_2020, 1e-9)[..., None]
    return (SOURCE_PEAK * luma ** (_HLG_GAMMA - 1) * scene).astype(np.float32)
