"""Metrics of pixels and of features, against other implementations and on clips whose values are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.ndimage
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_networks import TINY
from PIL import Image

from reelworks.core.errors import UserError
from reelworks.inference.evaluate import clips, registry, report
from reelworks.inference.evaluate.clips import MeasuredClip
from reelworks.inference.evaluate.features import frechet, kernel
from reelworks.inference.evaluate.measure import MetricResult, PreviewMetrics, measure
from reelworks.inference.evaluate.metric import Settings, Skip
from reelworks.inference.evaluate.request import EvalRequest

GENERATOR = np.random.default_rng(0)


def noise(frames: int = 3, height: int = 24, width: int = 32) -> Any:
    return GENERATOR.integers(0, 256, (frames, height, width, 3), dtype=np.uint8)


def value(name: str, clip: MeasuredClip) -> float:
    return registry.named(name, "")(Settings()).value(clip)  # type: ignore[no-any-return]


def test_psnr_of_known_differences() -> None:
    frames = noise() // 2
    apart = np.arange(1, len(frames) + 1, dtype=np.uint8)  # of each frame, whose ratios have a mean
    made = MeasuredClip("a", frames, reference=frames + apart[:, None, None, None])
    assert value("psnr", made) == pytest.approx(np.mean(20 * np.log10(255 / apart)))
    same = MeasuredClip("a", frames, reference=frames)
    assert (value("psnr", same), value("ssim", same)) == (100.0, pytest.approx(1.0))
    with pytest.raises(Skip, match="frames or size \\(64×48, 9 frames and 32×24\\)"):
        value("psnr", MeasuredClip("a", noise(9, 48, 64), reference=noise(1)))


@pytest.mark.parametrize(("height", "width"), [(10, 24), (24, 10)])
def test_ssim_leaves_out_a_clip_smaller_than_its_window(height: int, width: int) -> None:
    frames = noise(1, height, width)
    with pytest.raises(Skip, match="smaller than a window"):
        value("ssim", MeasuredClip("a", frames, reference=frames))


def test_flicker_of_a_clip_smaller_than_a_block_is_that_of_its_light() -> None:
    frames = np.zeros((5, 4, 6, 3), np.uint8)
    frames[::2] = 50
    assert value("flicker", MeasuredClip("a", frames)) == pytest.approx(50)


def test_ssim_is_that_of_gaussian_filters() -> None:
    """As Wang et al. 2004 define it, without the borders, where a window would leave the frame."""
    a = noise()
    b = (a * 0.8 + noise() * 0.2).astype(np.uint8)
    expected = []
    for x, y in zip(a.astype(np.float64), b.astype(np.float64), strict=True):

        def mean(image: Any) -> Any:
            return scipy.ndimage.gaussian_filter(image, (1.5, 1.5, 0), truncate=3.5)[5:-5, 5:-5]

        covariance = mean(x * y) - mean(x) * mean(y)
        variances = mean(x * x) - mean(x) ** 2 + mean(y * y) - mean(y) ** 2
        c1, c2 = 6.5025, 58.5225
        similar = (2 * mean(x) * mean(y) + c1) * (2 * covariance + c2)
        expected.append((similar / ((mean(x) ** 2 + mean(y) ** 2 + c1) * (variances + c2))).mean())
    assert value("ssim", MeasuredClip("a", a, reference=b)) == pytest.approx(np.mean(expected), abs=1e-9)


@settings(max_examples=20)
@given(st.integers(0, 255), st.integers(0, 40))
def test_motion_and_flicker_of_known_light(first: int, step: int) -> None:
    """A still clip has neither; a fade moves but does not flicker; a lamp that blinks flickers by its brightness."""

    def light(levels: list[int]) -> MeasuredClip:
        frames = np.stack([np.full((16, 24, 3), level, np.uint8) for level in levels])
        return MeasuredClip("light", frames)

    still, fade, blink = (light(levels) for levels in ([first] * 5, [20 + step * i for i in range(5)], [0, step] * 3))
    assert [value("motion", still), value("flicker", still)] == [0, 0]
    assert value("motion", fade) == pytest.approx(step)
    assert value("flicker", fade) == pytest.approx(0, abs=1e-9)
    assert value("flicker", blink) == pytest.approx(step)
    with pytest.raises(Skip, match="needs 2 frames"):
        value("motion", light([first]))


@settings(max_examples=15)
@given(st.integers(2, 30), st.integers(2, 30), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_distances_are_those_of_their_definitions(n: int, m: int, features: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    a, b = generator.normal(size=(n, features)), generator.normal(0.3, 2, (m, features))
    covariances = [np.atleast_2d(np.cov(x.T)) for x in (a, b)]
    # The trace of the root of a product; scipy.linalg.sqrtm finds none for products without full rank.
    root = np.sqrt(np.real(np.linalg.eigvals(covariances[0] @ covariances[1])).clip(min=0)).sum()
    expected = np.square(a.mean(0) - b.mean(0)).sum() + np.trace(sum(covariances)) - 2 * root
    assert frechet(a, b) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    if min(n, m) > 2 * features:
        by_scipy = np.real(np.trace(scipy.linalg.sqrtm(covariances[0] @ covariances[1])))
        assert root == pytest.approx(by_scipy, rel=1e-6)
    assert frechet(a, a) == pytest.approx(0, abs=1e-9)

    def mean(x: Any, y: Any, skip: bool) -> float:
        terms = [
            (x[i] @ y[j] / features + 1) ** 3 for i in range(len(x)) for j in range(len(y)) if not (skip and i == j)
        ]
        return float(np.mean(terms))

    unbiased = mean(a, a, True) + mean(b, b, True) - 2 * mean(a, b, False)
    assert kernel(a, b) == pytest.approx(unbiased, rel=1e-9, abs=1e-9)


@pytest.mark.slow
def test_networks_from_local_folders(tmp_path: Path) -> None:
    """Sets of the same clips have distance 0, other clips do not; CLIP scores prompts; missing files are reasons."""
    torch.manual_seed(0)
    weights = {name: str(save(tmp_path / name)) for name, save in TINY.items()}
    same = [MeasuredClip(f"{i}", noise(4, 30, 40), caption="a red circle") for i in range(6)]
    other = [MeasuredClip(f"{i}", noise(4, 30, 40) // 4) for i in range(6)]
    names = [name for name in registry.names() if name.startswith(("fid", "kid", "fvd", "clip"))]
    kinds = registry.all_named(names, "")
    settings = Settings(weights, min_samples=5)

    def results(references: list[MeasuredClip]) -> dict[str, MetricResult]:
        return {m.name: m for m in measure(kinds, same, references, settings)[0]}

    near, far = results(same), results(other)
    assert not [m.skipped for m in near.values() if m.skipped]
    for name in names:
        if name != "clip-score":
            assert abs(near[name].value or 0) < 1e-6 or name.startswith("kid"), name
            assert (far[name].value or 0) > (near[name].value or 0), name
    assert near["clip-score"].by_clip["0"] == pytest.approx(_score_by_transformers(weights["clip"], same[0]), abs=1e-3)
    assert len(settings.networks) == 4  # each is loaded once

    lacking = Settings({**weights, "clip": str(tmp_path / "nothing"), "dinov2": str(tmp_path)}, min_samples=100)
    del lacking.weights["videomae"]  # type: ignore[attr-defined]
    results = measure(kinds, same, other, lacking)[0]
    reasons = {m.name: m.skipped for m in results}
    assert all(m.value is None and not m.clips for m in results if m.skipped), "clips are counted for a value alone"
    assert "not there" in (reasons["fid-clip"] or "")
    assert "cannot be loaded" in (reasons["kid-dinov2"] or "")
    assert "--weights videomae=PATH" in (reasons["fvd-videomae"] or "")
    assert "too few samples, 24 and 24" in (reasons["fid-inception"] or "")


def _score_by_transformers(folder: str, clip: MeasuredClip) -> float:
    import transformers

    model = transformers.CLIPModel.from_pretrained(folder).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)([clip.caption], return_tensors="pt")
    pixels = transformers.CLIPImageProcessor.from_pretrained(folder)(images=list(clip.frames), return_tensors="pt")
    with torch.no_grad():
        out = model(tokens["input_ids"], pixels["pixel_values"], tokens["attention_mask"])
    cosines = out.logits_per_image / model.logit_scale.detach().exp()
    assert cosines.abs().max() > 0.01  # or nothing would be compared
    return float(100 * cosines.clamp(min=0).mean())


OWN = """
from reelworks.inference.evaluate.metric import Skip

class Brightness:
    name, higher_is_better, requires_reference = "brightness", True, False

    def __init__(self, settings):
        pass

    def value(self, clip):
        if clip.name.endswith("dark"):
            raise Skip("too dark")
        return float(clip.frames.mean())

class Nothing:
    name = "nothing"
"""


def test_folders_a_metric_of_a_file_and_every_reason(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN, encoding="utf-8")
    own = registry.named(f"{file}:Brightness", "--metric")
    assert registry.named(f"{file}:Brightness", "--metric") is own is registry.named("brightness", "--metric")
    for level, name in ((10, "a"), (30, "b"), (0, "c-dark")):
        picture = Image.fromarray(np.full((16, 16, 3), level, np.uint8))
        (tmp_path / "made" / "sub").mkdir(parents=True, exist_ok=True)
        picture.save(tmp_path / "made" / "sub" / f"{name}.png")
        if name == "a":
            (tmp_path / "real" / "sub").mkdir(parents=True, exist_ok=True)
            picture.save(tmp_path / "real" / "sub" / "a.png")
    (tmp_path / "made" / "broken.mp4").write_bytes(b"not a video")
    made, real = (clips.files_of(tmp_path / name, "") for name in ("made", "real"))
    kinds = registry.all_named([f"{file}:Brightness", "psnr", "motion"], "")

    (bright, psnr, motion), unreadable = measure(kinds, clips.read(made, real), clips.read(real), Settings())
    assert bright.by_clip == {"sub/a": 10.0, "sub/b": 30.0}
    assert (bright.value, bright.clips, bright.skipped) == (20.0, 2, "1 × too dark")
    assert (psnr.value, psnr.clips) == (100.0, 1)
    assert "2 × there is no reference of the same name" in (psnr.skipped or "")
    assert motion.value is None
    assert "no clip could be measured; 3 × motion needs 2 frames" in (motion.skipped or "")
    assert [each.name for each in unreadable] == ["broken"]
    (alone,), _ = measure(kinds[1:2], clips.read(made), None, Settings())
    assert "--reference" in (alone.skipped or "")

    wrong = {f"{file}:Nothing": "class-incomplete", "motoin": "class-unknown", "no.py:X": "class-not-importable"}
    for name, code in wrong.items():
        with pytest.raises(UserError) as refused:
            registry.named(name, "--metric")
        assert refused.value.code == code
    with pytest.raises(UserError, match="no such folder"):
        clips.files_of(tmp_path / "nowhere", "--generated")


def test_values_are_of_one_series_if_the_same_was_compared_wherever_it_lies(tmp_path: Path) -> None:
    def pictures(folder: str, *levels: int) -> Path:
        (tmp_path / folder).mkdir(parents=True)
        for name, level in zip("ab", levels, strict=True):
            Image.fromarray(np.full((16, 16, 3), level, np.uint8)).save(tmp_path / folder / f"{name}.png")
        return tmp_path / folder

    def compared(generated: Path, reference: Path, **more: Any) -> str:
        request = EvalRequest(generated=generated, reference=reference, metrics=("psnr",), **more)
        return report.of_folders(request).measured_on

    made, real = pictures("made", 10, 20), pictures("real", 30, 40)
    one = compared(made, real)
    assert one == compared(pictures("later", 11, 21), pictures("elsewhere", 30, 40))
    assert one != compared(made, pictures("other", 30, 41))
    assert one != compared(made, real, min_samples=2)
    (made / "b.png").write_bytes(b"not a picture")
    assert one != compared(made, real)


def test_a_metric_of_previews_that_fails_costs_its_own_value_alone(caplog: pytest.LogCaptureFixture) -> None:
    def of(name: str, value: Any) -> type[Any]:
        facts = {"name": name, "higher_is_better": True, "requires_reference": False, "__init__": lambda _, given: None}
        return type(name, (), facts | {"value": value})

    kinds = (of("ends", lambda _, clip: 1 / 0), of("level", lambda _, clip: float(clip.frames.mean())))
    found = PreviewMetrics(("ends", "level"), kinds, Settings()).values([np.full((1, 4, 4, 3), 7, np.uint8)], ["x"])
    assert {one.name: one.value for one in found} == {"level": 7.0}
    assert "the metric ends failed" in caplog.text
