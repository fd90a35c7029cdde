"""Measures by networks have the values of the networks, are kept by content, weights and caption, and cost no other measure."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import drawn_scenes as drawn
import numpy as np
import pytest
import tiny_recipe
import torch
import transformers
from metric_networks import TINY, save_classifier
from PIL import Image, ImageDraw, ImageFont
from refused import refused
from safetensors.torch import load, load_file, save_file
from transformers.models.yolos import modeling_yolos

from reelworks.annexes.quality import clip_measures, registry
from reelworks.annexes.quality.measure import ClipPictures
from reelworks.annexes.quality.networks import Networks, WaitingClip
from reelworks.annexes.quality.picture import TEXT_PACKAGE
from reelworks.annexes.quality.run import MeasureResult, measure_catalog
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.query import filters
from reelworks.data.catalog.scan.scan import scan_sources
from reelworks.data.catalog.store.store import Catalog
from reelworks.inference.evaluate import networks
from reelworks.training.recipe import dataset as recipe_dataset
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.dataset import RecipeData

CAPTIONS = ("a red", "red", "", "a")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny networks with random weights, in the layouts of the published ones."""
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    TINY["clip"](folder / "clip")
    TINY["clip"](folder / "other")
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = transformers.CLIPVisionConfig(**size, image_size=16, patch_size=8, projection_dim=8)
    transformers.CLIPVisionModelWithProjection(vision).save_pretrained(folder / "aesthetic")
    head = {"layers.0.weight": torch.randn(4, 8), "layers.0.bias": torch.randn(4)}
    head |= {"layers.2.weight": torch.randn(1, 4), "layers.2.bias": torch.randn(1)}
    file = folder / "aesthetic" / "model.safetensors"
    save_file(load(file.read_bytes()) | head, file, metadata={"format": "pt"})
    sizes = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    transformers.CLIPImageProcessor(**sizes).save_pretrained(folder / "aesthetic")
    save_classifier(folder / "marks")
    text = {**size, "vocab_size": 99, "max_position_embeddings": 16}
    of_siglip = transformers.SiglipConfig(text_config=text, vision_config={**size, "image_size": 16, "patch_size": 8})
    labels = {0: "Face", 1: "N/A", 2: "Stock mark"}
    yolos = transformers.YolosConfig(**size, image_size=[32, 32], patch_size=8, num_detection_tokens=3, id2label=labels)
    transformers.YolosForObjectDetection(yolos).save_pretrained(folder / "boxes")
    transformers.YolosImageProcessor(size={"shortest_edge": 32, "longest_edge": 64}).save_pretrained(folder / "boxes")
    TINY["dinov2"](folder / "dinov2")
    TINY["clip"](folder / "siglip")
    (folder / "siglip" / "model.safetensors").unlink()
    transformers.SiglipModel(of_siglip).save_pretrained(folder / "siglip")
    return folder


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for number, caption in enumerate(CAPTIONS):
        pixels = np.random.default_rng(number).integers(0, 256, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "data" / f"{number}.png")
        (tmp_path / "data" / f"{number}.txt").write_text(caption, encoding="utf-8")
    scan(tmp_path)
    return tmp_path / "catalog"


def scan(folder: Path) -> None:
    scan_sources([Source("data", folder / "data")], folder / "catalog", workers=1)


def measured(catalog: Path, *entries: str) -> MeasureResult:
    return measure_catalog(catalog, entries, workers=1)


def column(catalog: Path, name: str) -> list[float]:
    """The values of a column, by the names of the files."""
    rows = Catalog.open(catalog).live()
    order = np.argsort(rows.path.to_pylist())
    return [float(value) for value in rows.scores[name][order]]


def frames(catalog: Path, number: int) -> list[Any]:
    return [np.asarray(Image.open(catalog.parent / "data" / f"{number}.png"))]


def test_agreement_is_the_cosine_of_caption_and_picture(catalog: Path, weights: Path, decoded: list[str]) -> None:
    result = measured(catalog, f"agreement={weights / 'clip'}", "sharpness")
    assert (result.measured, result.failed) == (4, ())
    model = transformers.CLIPModel.from_pretrained(weights / "clip")
    processor = transformers.CLIPImageProcessor.from_pretrained(weights / "clip")
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights / "clip")
    for number, (caption, value) in enumerate(zip(CAPTIONS, column(catalog, "agreement"), strict=True)):
        if not caption:
            assert np.isnan(value)
            continue
        inputs = processor(images=frames(catalog, number), return_tensors="pt")
        found = model(**inputs, **tokenizer([caption], return_tensors="pt"))
        assert value == pytest.approx(float(found.image_embeds[0].detach() @ found.text_embeds[0].detach()), abs=1e-5)
    assert np.isfinite(column(catalog, "sharpness")).all()


def test_siglip_is_taken_where_clip_is(catalog: Path, weights: Path, decoded: list[str]) -> None:
    measured(catalog, f"agreement={weights / 'siglip'}")
    model = transformers.SiglipModel.from_pretrained(weights / "siglip")
    processor = transformers.CLIPImageProcessor.from_pretrained(weights / "siglip")
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights / "siglip")
    ids = tokenizer([CAPTIONS[0]], padding="max_length", max_length=16, return_tensors="pt")["input_ids"]
    found = model(**processor(images=frames(catalog, 0), return_tensors="pt"), input_ids=ids)
    expected = found.image_embeds[0].detach() @ found.text_embeds[0].detach()
    assert column(catalog, "agreement")[0] == pytest.approx(float(expected), abs=1e-5)


def test_it_is_measured_again_for_another_caption_or_other_weights_and_not_else(
    catalog: Path, weights: Path, decoded: list[str]
) -> None:
    entry = f"agreement={weights / 'clip'}"
    measured(catalog, entry)
    before = column(catalog, "agreement")
    decoded.clear()
    assert measured(catalog, entry).measured == 0
    (catalog.parent / "data" / "0.txt").write_text("a", encoding="utf-8")
    (catalog.parent / "data" / "1.png").rename(catalog.parent / "data" / "9.png")
    (catalog.parent / "data" / "1.txt").rename(catalog.parent / "data" / "9.txt")
    scan(catalog.parent)
    told = column(catalog, "agreement")
    assert np.isnan(told[0]), "the former value is that of another caption"
    assert told[3] == before[1], "a moved clip keeps its value"
    assert measured(catalog, entry).measured == 1
    assert decoded == ["0.png"]
    assert np.isfinite(column(catalog, "agreement")[0])
    assert measured(catalog, f"agreement={weights / 'other'}").measured == 4
    assert column(catalog, "agreement")[3] != told[3]


def test_values_are_those_of_their_clips_where_a_network_measures_only_some_of_them(
    catalog: Path, weights: Path, decoded: list[str]
) -> None:
    entries = (f"agreement={weights / 'clip'}", f"aesthetic={weights / 'aesthetic'}")
    measured(catalog, entries[0])
    before = column(catalog, "agreement")
    (catalog.parent / "data" / "3.txt").write_text("red", encoding="utf-8")
    scan(catalog.parent)
    assert measured(catalog, *entries).measured == 4
    now = column(catalog, "agreement")
    assert now[:2] == before[:2]
    assert np.isfinite(now[3])
    assert now[3] != before[3]


def test_aesthetic_is_the_published_head_upon_the_embedding(catalog: Path, weights: Path, decoded: list[str]) -> None:
    measured(catalog, f"aesthetic={weights / 'aesthetic'}")
    vision = transformers.CLIPVisionModelWithProjection.from_pretrained(weights / "aesthetic")
    processor = transformers.CLIPImageProcessor.from_pretrained(weights / "aesthetic")
    head = load_file(weights / "aesthetic" / "model.safetensors")
    for number, value in enumerate(column(catalog, "aesthetic")):
        hidden = vision(**processor(images=frames(catalog, number), return_tensors="pt")).image_embeds
        hidden = hidden / hidden.norm()
        for layer in (0, 2):
            hidden = hidden @ head[f"layers.{layer}.weight"].T + head[f"layers.{layer}.bias"]
        assert value == pytest.approx(hidden.item(), abs=1e-5)


@pytest.mark.parametrize(("name", "layers"), [("sac+logos", ("layers.0.", "layers.2.")), ("linear", ("",))])
def test_the_head_may_lie_beside_clip_as_laion_published_it(
    weights: Path, tmp_path: Path, name: str, layers: Any
) -> None:
    folder = shutil.copytree(weights / "clip", tmp_path / "clip")
    head = {
        f"{layer}{part}": torch.randn(size) for layer in layers for part, size in (("weight", (8, 8)), ("bias", (8,)))
    }
    head[f"{layers[-1]}weight"], head[f"{layers[-1]}bias"] = torch.randn(1, 8), torch.randn(1)
    torch.save(head, folder / f"{name}.pth")
    frames = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)
    found = clip_measures.Aesthetic(folder).of_clips([ClipPictures(frames, "")])
    model = transformers.CLIPModel.from_pretrained(folder)
    processor = transformers.CLIPImageProcessor.from_pretrained(folder)
    with torch.no_grad():
        inputs = processor(images=list(frames), return_tensors="pt")
        hidden = torch.nn.functional.normalize(
            model.visual_projection(model.vision_model(**inputs).pooler_output), dim=-1
        )
        for layer in layers:
            hidden = hidden @ head[f"{layer}weight"].T + head[f"{layer}bias"]
    assert found.item() == pytest.approx(float(hidden.mean()), abs=1e-5)


def test_a_classifier_gives_a_column_for_each_of_its_labels_and_a_recipe_filters_by_it(
    catalog: Path, weights: Path, decoded: list[str]
) -> None:
    recipe = recipe_file.parse(
        tiny_recipe.least(
            output=str(catalog.parent / "run"),
            dataset=[{"path": str(catalog.parent / "data"), "filter": "watermark >= 0.0", "missing_caption": "a"}],
            bucket=[{"resolution": "16px", "num_frames": 1, "batch_size": 2}],
            data={"measures": [f"classes={weights / 'marks'}"]},
        )
    )
    recipe_dataset.scan_recipe(recipe)
    data = RecipeData.open(recipe)
    marks, none = (data.rows.scores[name] for name in ("watermark", "no_watermark"))
    assert marks + none == pytest.approx(1.0)
    assert not data.failed_filters.is_valid().to_pylist().count(True)


@pytest.mark.parametrize(
    ("kind", "folder"),
    [
        (clip_measures.Agreement, "clip"),
        (clip_measures.Agreement, "siglip"),
        (clip_measures.Aesthetic, "aesthetic"),
        (clip_measures.Classes, "marks"),
        (clip_measures.Objects, "boxes"),
    ],
)
def test_a_clip_has_the_same_values_whatever_is_measured_with_it(
    weights: Path, monkeypatch: pytest.MonkeyPatch, kind: type[clip_measures.FrameNetwork], folder: str
) -> None:
    rng, measure = np.random.default_rng(0), kind(weights / folder)
    sizes = [(3, 24, 32), (1, 40, 24), (2, 24, 32), (3, 40, 24), (3, 24, 32)]
    captions = ("a red", "", "red red red", "a", "a red")
    clips = [
        ClipPictures(rng.integers(0, 256, (*size, 3), dtype=np.uint8), caption)
        for size, caption in zip(sizes, captions, strict=True)
    ]
    alone = np.concatenate([measure.of_clips([clip]) for clip in clips])
    of_frames = [measure.of_clips([ClipPictures(frame[None], clips[0].caption)]) for frame in clips[0].frames]
    mean, largest = np.mean(of_frames, axis=0), np.max(of_frames, axis=0)
    mean[:, kind.of_largest] = largest[:, kind.of_largest]
    assert alone[:1] == pytest.approx(mean, abs=1e-5)
    for at_once in (1, 2, 4, 32):
        monkeypatch.setattr(clip_measures, "_FRAMES_AT_ONCE", at_once)
        assert measure.of_clips(clips) == pytest.approx(alone, abs=1e-5, nan_ok=True)


def test_any_labels_are_columns_and_equal_ones_are_one(
    catalog: Path, weights: Path, decoded: list[str], tmp_path: Path
) -> None:
    odd = shutil.copytree(weights / "marks", tmp_path / "odd")
    names = ["crane", "Crane", "3D render", "class", "path", "!!!", "sharpness", "text", "ﬁsh"]
    config = json.loads((odd / "config.json").read_text(encoding="utf-8"))
    config["id2label"] = {str(number): name for number, name in enumerate(names)}
    model = transformers.ViTForImageClassification(
        transformers.ViTConfig(**{**config, "id2label": dict(enumerate(names)), "label2id": {}})
    )
    model.save_pretrained(odd)
    result = measured(catalog, f"classes={odd}")
    assert result.failed == ()
    expected = [
        "crane",
        "class_3d_render",
        "class_class",
        "class_path",
        "class_5",
        "class_sharpness",
        "class_text",
        "fish",
    ]
    assert [c.name for c in result.columns] == expected
    assert sum(np.array(column(catalog, name)) for name in expected) == pytest.approx(1)
    rows = Catalog.open(catalog).live()
    assert filters.keeps(rows, " and ".join(f"{name} > 0" for name in expected)).all()
    assert list(clip_measures._numbers_by_name({0: "text", 1: "3d"}, ("_area", "_count"))) == [
        "class_text",
        "class_3d",
    ]


@pytest.mark.parametrize("config", [None, "{", "[]", "{}", '{"id2label": ["a", "b"]}', '{"id2label": {"a": "b"}}'])
@pytest.mark.parametrize("measure", ["classes", "objects"])
def test_a_folder_without_labels_is_told(catalog: Path, tmp_path: Path, measure: str, config: str | None) -> None:
    (tmp_path / "weights").mkdir()
    if config is not None:
        (tmp_path / "weights" / "config.json").write_text(config, encoding="utf-8")
    with refused("measure-weights-invalid", "--only", says="cannot be loaded"):
        measured(catalog, f"{measure}={tmp_path / 'weights'}")


@pytest.mark.parametrize("name", ["clip", "siglip", "dinov2"])
@pytest.mark.quick_cases(1)
def test_near_duplicates_are_those_whose_embeddings_are_alike(
    catalog: Path, weights: Path, decoded: list[str], name: str
) -> None:
    data = catalog.parent / "data"
    picture = np.asarray(Image.open(data / "0.png"))
    Image.fromarray(picture[:, ::-1]).save(data / "mirrored.png")
    Image.fromarray(picture).resize((64, 48)).save(data / "large.png")
    Image.new("RGB", (32, 24), "grey").save(data / "even.png")
    scan(catalog.parent)
    entry = f"duplicates={weights / name}"
    assert measured(catalog, entry).failed == ()
    rows = Catalog.open(catalog).live()
    named = {path: i for i, path in enumerate(rows.path.to_pylist())}
    group, rank = rows.scores["duplicate_group"], rows.scores["duplicate_rank"]
    assert group[named["0.png"]] == group[named["mirrored.png"]] == group[named["large.png"]]
    assert rank[named["large.png"]] == 0
    assert np.isnan(group[named["even.png"]])
    decoded.clear()
    assert measured(catalog, entry).measured == 0
    assert decoded == []


def test_a_picture_with_black_borders_has_the_values_of_the_picture(
    catalog: Path, weights: Path, decoded: list[str]
) -> None:
    """By every measure of frames, those by networks too; that of borders tells them, and the two are near-duplicates."""
    data = catalog.parent / "data"
    picture = drawn.bordered(np.asarray(Image.open(data / "0.png")), 6, 10, 0, 0)
    drawn.write_picture(data / "boxed.png", picture).with_suffix(".txt").write_text(CAPTIONS[0], encoding="utf-8")
    scan(catalog.parent)
    of_networks = {"agreement": "clip", "aesthetic": "aesthetic", "classes": "marks", "objects": "boxes"}
    result = measured(
        catalog,
        *(name for name in registry.names() if name != "duplicates"),
        *(f"{name}={weights / folder}" for name, folder in {**of_networks, "duplicates": "dinov2"}.items()),
    )
    assert result.failed == ()
    rows = Catalog.open(catalog).live()
    plain, boxed = (rows.path.to_pylist().index(name) for name in ("0.png", "boxed.png"))
    pairs = {c.name: (rows.scores[c.name][plain], rows.scores[c.name][boxed]) for c in result.columns}
    told = {name: pairs.pop(name)[1] for name in list(pairs) if name.startswith("border_")}
    assert list(told.values()) == [6, 10, 0, 0]
    assert sorted(pairs.pop("duplicate_rank")) == [0, 1]
    assert {name: a for name, (a, _) in pairs.items()} == pytest.approx(
        {name: b for name, (_, b) in pairs.items()}, abs=1e-5, nan_ok=True
    )


def test_kept_embeddings_have_the_cosines_of_the_network(weights: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (8, 1, 28, 28, 3), dtype=np.uint8)
    measure = clip_measures.DuplicatesByNetwork(weights / "dinov2")
    kept = measure.of_clips([ClipPictures(frame, "") for frame in frames])[:, :-2].view(np.int8).astype(np.float64)
    model = transformers.Dinov2Model.from_pretrained(weights / "dinov2")
    processor = transformers.BitImageProcessor.from_pretrained(weights / "dinov2")
    sides = [side for frame in frames for side in (frame[0], np.ascontiguousarray(frame[0, :, ::-1]))]
    pooled = model(**processor(images=sides, return_tensors="pt")).pooler_output.detach().double().numpy()
    expected = networks.unit(networks.unit(pooled).reshape(8, 2, -1).sum(axis=1))
    found = networks.unit(kept)
    assert found @ found.T == pytest.approx(expected @ expected.T, abs=0.06)


@pytest.mark.slow
def test_other_weights_group_anew_and_one_measure_of_duplicates_is_named(
    catalog: Path, weights: Path, decoded: list[str]
) -> None:
    measured(catalog, f"duplicates={weights / 'clip'}")
    assert measured(catalog, f"duplicates={weights / 'other'}").measured == 4
    assert measured(catalog, "duplicates").measured == 4
    with refused("measure-column-invalid", says="same column 'duplicate_group'"):
        measured(catalog, f"duplicates={weights / 'clip'}", "duplicates")


def test_a_detector_gives_the_area_and_the_number_of_each_label(
    catalog: Path, weights: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = measured(catalog, f"objects={weights / 'boxes'}")
    assert result.failed == ()
    assert [column.name for column in result.columns] == [
        "face_area",
        "face_count",
        "stock_mark_area",
        "stock_mark_count",
    ]
    assert np.isfinite(column(catalog, "face_area")).all()
    measure = clip_measures.Objects(weights / "boxes")
    boxes = torch.tensor([[[0.25, 0.5, 0.5, 1.0], [0.25, 0.25, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]]] * 2)  # centre, size
    sure, unsure = [9.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 9.0]  # the last is "nothing there"
    logits = torch.tensor([[sure, sure, unsure], [sure, unsure, [0.0, 0.0, 9.0, 0.0]]])
    output = modeling_yolos.YolosObjectDetectionOutput(logits=logits, pred_boxes=boxes)
    monkeypatch.setattr(measure, "_model", lambda **_: output)
    clip = ClipPictures(np.zeros((2, 24, 32, 3), dtype=np.uint8), "")
    # Faces cover the left half of both frames, in the first with another one within it; the mark all of the second.
    assert measure.of_clips([clip]) == pytest.approx(np.array([[0.5, 2, 0.5, 1]]))


def test_the_area_of_boxes_counts_what_several_cover_once() -> None:
    boxes = np.array([[0.0, 0.0, 0.5, 0.5], [0.25, 0.25, 0.75, 0.75], [0.9, 0.9, 1.2, 1.1]])
    assert clip_measures.covered_area(boxes) == pytest.approx(0.25 + 0.25 - 0.0625 + 0.01)
    assert clip_measures.covered_area(boxes[:0]) == 0


def test_each_clip_that_a_network_fails_on_is_told_and_no_other() -> None:
    class Failing:
        name, weights = "odd", None

        def __init__(self, weights: None) -> None:
            pass

        def of_clips(self, clips: Any) -> Any:
            raise ValueError("no picture")

    found = Networks({"odd": Failing})
    for place, entries in enumerate([("odd",), (), ("odd",)]):
        assert found.add(WaitingClip(place, ClipPictures(np.zeros((1, 8, 8, 3), np.uint8), ""), entries)) == []
    problem = "odd: ValueError: no picture"
    assert [each.problems for each in found.rest()] == [[problem], [], [problem]]


def test_a_network_measures_in_the_dtypes_of_torch_whatever_a_program_has_set() -> None:
    seen = []

    class Measure:
        name, weights = "seen", None

        def __init__(self, weights: None) -> None:
            seen.append(torch.ones(1).dtype)

        def of_clips(self, clips: Any) -> Any:
            seen.append(torch.ones(1).dtype)
            raise ValueError

    found = Networks({"seen": Measure})
    torch.set_default_dtype(torch.float64)
    try:
        found.add(WaitingClip(0, ClipPictures(np.zeros((1, 8, 8, 3), np.uint8), ""), ("seen",)))
        found.rest()
        assert seen == [torch.float32, torch.float32]
    finally:
        torch.set_default_dtype(torch.float32)


def test_weights_that_are_missing_damaged_or_not_wanted_are_told(
    catalog: Path, weights: Path, decoded: list[str]
) -> None:
    with refused("measure-weights-invalid", says="agreement=models/clip"):
        measured(catalog, "agreement")
    with refused("measure-weights-invalid", says="write sharpness alone"):
        measured(catalog, f"sharpness={weights / 'clip'}")
    with refused("folder-missing"):
        measured(catalog, "agreement=nowhere")
    with refused("measure-weights-invalid", says="cannot be loaded"):
        measured(catalog, f"aesthetic={weights / 'clip'}")
    assert measured(catalog).columns, "without names all that need no weights are measured"


def test_text_is_found_where_it_is_and_nowhere_else(catalog: Path, decoded: list[str]) -> None:
    if importlib.util.find_spec(TEXT_PACKAGE) is None:
        with refused("package-missing", says="reelworks.text."):
            measured(catalog, "text")
        pytest.skip("its package is not installed")
    for number, words in enumerate(("a line of text", "")):
        picture = Image.new("RGB", (480, 270), (40, 90, 60))
        font = ImageFont.load_default(40)
        ImageDraw.Draw(picture).text((60, 120), words, font=font, fill="white")
        picture.save(catalog.parent / "data" / f"{number}.png")
    left, upper, right, lower = ImageDraw.Draw(picture).textbbox((60, 120), "a line of text", font=font)
    scan(catalog.parent)
    measured(catalog, "text")
    shares = column(catalog, "text_area")
    assert shares[0] == pytest.approx((right - left) * (lower - upper) / (480 * 270), rel=0.35)
    assert shares[1] == 0
