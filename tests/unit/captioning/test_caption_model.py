"""Vision-language models of transformers caption pictures and clips: real ones, tiny, with random weights."""

from __future__ import annotations

import importlib.util
import json
import threading
from pathlib import Path

import media_makers as media
import pytest
import tiny_vlm
from captioned import clips, run, texts
from refused import refused

from reelworks.captioning import record
from reelworks.captioning.answers import CaptionFailed
from reelworks.captioning.captioner import Answer, CaptionQuestion
from reelworks.captioning.request import CaptionRequest
from reelworks.captioning.vision_language import ModelCaptioner

LENGTHS = (1, 3, 2)
QUESTIONS = [
    CaptionQuestion("a", "video", f"{word} worda", media.numbered(n, (20 + 9 * n, 48)))
    for n, word in zip(LENGTHS, tiny_vlm.WORDS, strict=False)
]


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vlm.llava(tmp_path_factory.mktemp("llava"))


def captioner(model: Path, **options: object) -> ModelCaptioner:
    asked = ModelCaptioner(CaptionRequest(data=("x",), model=str(model), **options))
    asked._tokens = 8
    return asked


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
    about = json.loads((data / record.NAME).read_text().splitlines()[0])["captioner"]
    assert (about["class"], about["dtype"]) == ("LlavaForConditionalGeneration", "float32")


def check_batches(model: Path) -> None:
    asked = captioner(model)
    asked._tokens = 16
    together = asked.answer(QUESTIONS)
    assert together == [found for question in QUESTIONS for found in asked.answer([question])]
    assert all(isinstance(found, Answer) for found in together)
    assert len({found.text for found in together if isinstance(found, Answer)}) > 1


def test_a_batch_answers_as_each_clip_alone(llava: Path) -> None:
    check_batches(llava)


@pytest.mark.slow
def test_another_family_does_too(tmp_path: Path) -> None:
    check_batches(tiny_vlm.idefics3(tmp_path))


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
    (of_text / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with refused("captioner-unloadable", "model"):
        captioner(of_text)
    strange = tmp_path / "strange"
    strange.mkdir()
    code = {"AutoConfig": "evil.Config", "AutoProcessor": "evil.Processor", "AutoModelForImageTextToText": "evil.Model"}
    (strange / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": code}))
    (strange / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with refused("captioner-unloadable", "model", says="not run"):
        captioner(strange)
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="torchvision is installed")
def test_a_package_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_vl"}))
    kind = {"processor_class": "Qwen2VLProcessor", "image_processor_type": "Qwen2VLImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(kind))
    tiny_vlm.tokenizer(()).save_pretrained(tmp_path)
    with refused("captioner-unloadable", "model", says=r"reelworks\[caption\]"):
        captioner(tmp_path)
