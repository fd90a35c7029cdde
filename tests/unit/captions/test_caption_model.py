"""Vision-language models of transformers caption pictures and clips: real ones, tiny, with random weights."""

from __future__ import annotations

import importlib.util
import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import media_makers as media
import pytest
import safetensors.torch
import tiny_vlm
import torch
from captioned import clips, run, texts
from refused import refused

from reelworks.annexes.captions import record
from reelworks.annexes.captions.answers import CaptionFailed
from reelworks.annexes.captions.captioner import Answer, CaptionQuestion
from reelworks.annexes.captions.request import CaptionRequest
from reelworks.annexes.captions.vision_language import ModelCaptioner
from reelworks.core import optional_imports

HAS_TORCHVISION = importlib.util.find_spec("torchvision") is not None
LENGTHS = (1, 3, 2)
QUESTIONS = [
    CaptionQuestion("a", "video", f"{word} worda", media.numbered(n, (20 + 9 * n, 48)), fps=4.0)
    for n, word in zip(LENGTHS, tiny_vlm.WORDS, strict=False)
]


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vlm.llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture
def qwen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if not HAS_TORCHVISION:
        auto = importlib.import_module("transformers.models.auto.video_processing_auto")
        monkeypatch.setattr(auto, "AutoVideoProcessor", tiny_vlm.qwen_video_processor())
        processing = importlib.import_module("transformers.processing_utils")
        monkeypatch.setattr(processing.ProcessorMixin, "check_argument_for_proper_class", lambda *_: None)
    return tiny_vlm.qwen2_5_vl(tmp_path / "qwen")


def captioner(model: Path, **options: object) -> ModelCaptioner:
    asked = ModelCaptioner(CaptionRequest(data=("x",), model=str(model), **options))
    asked._tokens = 8
    return asked


@pytest.mark.slow
def test_pictures_and_clips_get_captions_of_a_model(llava: Path, tmp_path: Path) -> None:
    data = clips(tmp_path / "data")
    (data / "bad.png").write_bytes(b"bad")
    done = run(data, model=str(llava), batch_size=2, workers=2, max_words=4, prompt="wordb {name}")
    assert done.captioned == 5
    assert [failed.clip for failed in done.failed] == ["data/bad.png"]
    written = texts(data)
    assert len(written) == 5
    for text in written.values():
        assert set(text.split()) <= set(tiny_vlm.WORDS)
        assert len(text.split()) == 4
    about = json.loads((data / record.NAME).read_text(encoding="utf-8").splitlines()[0])["captioner"]
    assert (about["class"], about["dtype"]) == ("LlavaForConditionalGeneration", "float32")


def check_batches(model: Path, questions: list[CaptionQuestion] = QUESTIONS) -> None:
    asked = captioner(model)
    asked._tokens = 16
    together = asked.answer(questions)
    assert together == [found for question in questions for found in asked.answer([question])]
    assert all(isinstance(found, Answer) for found in together)
    assert len({found.text for found in together if isinstance(found, Answer)}) > 1


def test_a_batch_answers_as_each_clip_alone(llava: Path) -> None:
    check_batches(llava)


@pytest.mark.slow
def test_qwen_vl_is_shown_a_clip_as_a_video_with_its_times(qwen: Path, tmp_path: Path) -> None:
    as_long = [
        replace(one, prompt=n * one.prompt, frames=one.frames[:1].repeat(4, 0)) for n, one in enumerate(QUESTIONS, 1)
    ]
    check_batches(qwen, [*as_long, *QUESTIONS])
    asked = captioner(qwen, dtype="bfloat16")
    generate, given = asked._model.generate, []
    asked._model.generate = lambda **inputs: given.append(inputs) or generate(**inputs)
    picture = replace(QUESTIONS[0], kind="picture", fps=0.0)
    found = asked.answer([QUESTIONS[1], picture, QUESTIONS[2]])
    assert all(isinstance(one, Answer) for one in found)
    three_frames, pictures, two_frames = given
    assert three_frames["video_grid_thw"].tolist() == [[2, 4, 4]]
    assert two_frames["video_grid_thw"].tolist() == [[1, 4, 6]]
    assert three_frames["second_per_grid_ts"].tolist() == [0.5]
    assert pictures["image_grid_thw"].tolist() == [[1, 4, 6]]
    assert pictures["pixel_values"].dtype == torch.bfloat16

    data = clips(tmp_path / "data", count=1)
    assert run(data, model=str(qwen), max_words=4, captions=2, dtype="bfloat16").captioned == 2
    for text in texts(data).values():
        assert set(text.split()) <= set(tiny_vlm.WORDS)


@pytest.mark.slow
def test_a_model_without_a_chat_template_is_asked_as_its_card_says(tmp_path: Path) -> None:
    model = tiny_vlm.florence2(tmp_path)
    with refused("captioner-unloadable", "model", says="--prompt"):
        captioner(model)
    asked = captioner(model, prompt="{kind}")
    found = asked.answer([replace(question, prompt="<MORE_DETAILED_CAPTION>") for question in QUESTIONS])
    assert [len(one.text.split()) for one in found if isinstance(one, Answer)] == [8] * 3


@pytest.mark.slow
def test_another_family_does_too(tmp_path: Path) -> None:
    check_batches(tiny_vlm.idefics3(tmp_path))


def test_a_model_captions_the_same_in_a_program_that_has_set_something_in_torch(llava: Path) -> None:
    wanted = captioner(llava).answer(QUESTIONS[:1])
    with torch.device("meta"), torch.autocast("cpu", dtype=torch.bfloat16):
        asked = captioner(llava)
        assert {p.dtype for p in asked._model.parameters()} == {torch.float32}
        assert asked.answer(QUESTIONS[:1]) == wanted


def test_a_clip_that_the_model_cannot_take_does_not_spoil_others(llava: Path) -> None:
    wrong = CaptionQuestion("b", "picture", "<image>", QUESTIONS[0].frames)
    asked = captioner(llava)
    first, failed, last = asked.answer([QUESTIONS[0], wrong, QUESTIONS[2]])
    assert isinstance(failed, CaptionFailed)
    assert "the model cannot take it" in str(failed)
    assert [first, last] == asked.answer([QUESTIONS[0], QUESTIONS[2]])


def test_stop_ends_a_generation(llava: Path) -> None:
    asked = captioner(llava)
    asked._tokens = 10_000
    asked._model.generation_config.no_repeat_ngram_size = 0
    threading.Timer(0.3, asked.stop).start()
    (found,) = asked.answer(QUESTIONS[:1])
    assert isinstance(found, CaptionFailed)
    assert str(found) == "stopped"


def test_what_is_no_model_is_refused(llava: Path, tmp_path: Path) -> None:
    with refused("captioner-unloadable", "model"):
        captioner(tmp_path / "none")
    with refused("device-unknown", "device"):
        captioner(llava, device="toaster")
    of_text = tmp_path / "text"
    of_text.mkdir()
    (of_text / "config.json").write_text(json.dumps({"model_type": "llama"}), encoding="utf-8")
    with refused("captioner-unloadable", "model"):
        captioner(of_text)
    strange = tmp_path / "strange"
    strange.mkdir()
    code = {"AutoConfig": "evil.Config", "AutoProcessor": "evil.Processor", "AutoModelForImageTextToText": "evil.Model"}
    (strange / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": code}), encoding="utf-8")
    (strange / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n", encoding="utf-8")
    with refused("captioner-unloadable", "model", says="not run"):
        captioner(strange)
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(HAS_TORCHVISION, reason="torchvision is installed")
def test_a_package_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_vl"}), encoding="utf-8")
    kind = {"processor_class": "Qwen2VLProcessor", "image_processor_type": "Qwen2VLImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(kind), encoding="utf-8")
    tiny_vlm.tokenizer(()).save_pretrained(tmp_path)
    with refused("captioner-unloadable", "model", says=r"reelworks\[caption\]"):
        captioner(tmp_path)


def test_weights_that_lack_tensors_are_refused(llava: Path, tmp_path: Path) -> None:
    shutil.copytree(llava, tmp_path, dirs_exist_ok=True)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    del tensors["language_model.lm_head.weight"]
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with refused("captioner-unloadable", "model", says=r"lack 1 tensor of LlavaFor.*lm_head"):
        captioner(tmp_path)


def _missing(cause: str) -> ImportError:
    error = ImportError("Could not import module 'AutoProcessor'")
    error.__cause__ = RuntimeError(cause)
    return error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (_missing("operator torchvision::nms does not exist"), "torchvision.* does not fit torch"),
        (ImportError("Package `num2words` is required to run SmolVLM processor."), "`num2words`.*reelworks"),
    ],
)
def test_a_package_of_a_processor_is_named(
    llava: Path, error: ImportError, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(optional_imports.transformers().AutoProcessor, "from_pretrained", fail)
    with refused("captioner-unloadable", "model", says=says):
        captioner(llava)
