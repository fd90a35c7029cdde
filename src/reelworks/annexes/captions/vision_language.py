"""Caption with a vision-language model of transformers, in batches on this machine's GPU or CPU."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import torch
from PIL import Image

from reelworks.annexes.captions.answers import CaptionFailed
from reelworks.annexes.captions.captioner import Answer, CaptionQuestion
from reelworks.annexes.captions.request import CaptionRequest
from reelworks.core import device_memory, machine, optional_imports, torch_state
from reelworks.core.errors import UserError
from reelworks.core.units import plural
from reelworks.models import hub

# Of a repository: weights in other formats could run code.
_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.tiktoken")
_TOKENS = 320  # of a caption
_TOKENS_PER_WORD, _TOKENS_BESIDE = 2, 48  # of a caption with a limit of words


@final
class ModelCaptioner:
    """Captions by a model that transformers loads as an image-text-to-text model; code of a repository is never run."""

    @torch_state.own()
    def __init__(self, request: CaptionRequest) -> None:
        """Load the model and its processor from a local folder or the hub.

        Raises:
            UserError: There is no such model, it is of another kind, or the device is not there.
        """
        assert request.model is not None
        self.batch_size, self._source = request.batch_size, request.model
        self._device = _device(request.device)
        self._processor, self._model, folder = _load(request, self._device)
        self._has_template = _has_template(self._processor)
        self._takes_videos = self._has_template and _takes_videos(self._processor)
        self._commit = hub.commit_of(folder)
        words = request.max_words
        self._tokens = _TOKENS if words is None else min(_TOKENS_PER_WORD * words + _TOKENS_BESIDE, 4 * _TOKENS)
        self._one_at_a_time, self._stopped = threading.Lock(), threading.Event()

    @property
    def about(self) -> dict[str, Any]:
        """Name, class, commit, dtype and device of the model, and the version of transformers."""
        return {
            "model": self._source,
            "class": type(self._model).__name__,
            "commit": self._commit,
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "device": self._device.type,
            "transformers": optional_imports.transformers().__version__,
        }

    def answer(self, questions: Sequence[CaptionQuestion]) -> list[Answer | CaptionFailed]:
        """Answer what is alike in a batch together; if that fails, in halves, so that one clip does not spoil the others."""
        # Many processors take neither pictures with videos nor videos of unlike lengths.
        alike: dict[int, list[int]] = {}
        for i, question in enumerate(questions):
            alike.setdefault(len(question.frames) if self._is_video(question) else 0, []).append(i)
        found: dict[int, Answer | CaptionFailed] = {}
        with self._one_at_a_time:  # other threads read the frames of the next batch meanwhile
            for group in alike.values():
                found.update(zip(group, self._halving([questions[i] for i in group]), strict=True))
        return [found[i] for i in range(len(questions))]

    def stop(self) -> None:
        """End a generation at its next token."""
        self._stopped.set()

    def _is_video(self, question: CaptionQuestion) -> bool:
        # A lone frame is a picture for processors that join frames in pairs.
        return self._takes_videos and question.fps > 0 and len(question.frames) > 1

    def _halving(self, questions: Sequence[CaptionQuestion]) -> list[Answer | CaptionFailed]:
        if self._stopped.is_set():
            return [CaptionFailed("stopped")] * len(questions)
        try:
            return self._generate(questions)
        except Exception as error:  # processors raise nearly anything for pictures that they cannot take
            if len(questions) == 1:
                return [CaptionFailed(_reason(error))]
        device_memory.release(self._device)
        middle = len(questions) // 2
        return self._halving(questions[:middle]) + self._halving(questions[middle:])

    @torch_state.own()
    @torch.inference_mode()
    def _generate(self, questions: Sequence[CaptionQuestion]) -> list[Answer | CaptionFailed]:
        inputs = self._inputs(questions)
        transformers, length = optional_imports.transformers(), inputs["input_ids"].shape[1]
        made = self._model.generate(
            **inputs,
            max_new_tokens=self._tokens,
            do_sample=False,  # the same command gives the same captions
            stopping_criteria=transformers.StoppingCriteriaList([self._is_stopped]),
        )
        if self._stopped.is_set():
            return [CaptionFailed("stopped")] * len(questions)
        new_BL = made if _is_encoder_decoder(self._model) else made[:, length:]
        texts = self._processor.batch_decode(new_BL, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        config = self._model.generation_config  # whose tokens end or pad a text
        eos = config.eos_token_id
        ends = {config.pad_token_id, *(eos if isinstance(eos, list) else [eos])}
        is_cut = [new_BL.shape[1] >= self._tokens and int(line[-1]) not in ends for line in new_BL]
        return [Answer(text, cut) for text, cut in zip(texts, is_cut, strict=True)]

    def _inputs(self, questions: Sequence[CaptionQuestion]) -> dict[str, Any]:
        """Return the tensors of a batch, `input_ids` and pictures among them, on the device and in the model's dtype."""
        visuals: dict[str, Any]
        if not self._has_template:
            visuals = {"images": [Image.fromarray(q.frames[len(q.frames) // 2]) for q in questions]}
            texts = [q.prompt for q in questions]
        else:
            if self._is_video(questions[0]):
                visuals, shown = _videos(questions), [["video"]] * len(questions)
            else:
                visuals = {"images": [[Image.fromarray(frame) for frame in q.frames] for q in questions]}
                shown = [["image"] * len(q.frames) for q in questions]
            talks = [_talk(kinds, q.prompt) for kinds, q in zip(shown, questions, strict=True)]
            texts = self._processor.apply_chat_template(talks, add_generation_prompt=True, tokenize=False)
        # Templates write the token of the beginning themselves, which must not be there twice.
        begin = getattr(self._processor.tokenizer, "bos_token", None)
        options = {"add_special_tokens": False} if begin and texts[0].startswith(begin) else {}
        prepared = self._processor(text=texts, **visuals, padding=True, return_tensors="pt", **options)
        return {
            name: value.to(self._device, self._model.dtype if value.is_floating_point() else None)
            for name, value in prepared.items()
            if isinstance(value, torch.Tensor)
        }

    def _is_stopped(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), self._stopped.is_set(), dtype=torch.bool, device=input_ids.device)


def _talk(kinds: Sequence[str], prompt: str) -> list[dict[str, Any]]:
    """Return a conversation of one message, as chat templates take it: what is shown, and the text."""
    return [{"role": "user", "content": [*({"type": kind} for kind in kinds), {"type": "text", "text": prompt}]}]


def _videos(questions: Sequence[CaptionQuestion]) -> dict[str, Any]:
    """Return videos as processors take them: all frames of each are used, and their times are told."""
    times = [
        {
            "total_num_frames": len(q.frames),
            "frames_indices": [*range(len(q.frames))],
            "fps": q.fps,
            "duration": len(q.frames) / q.fps,
        }
        for q in questions
    ]
    return {"videos": [q.frames for q in questions], "video_metadata": times, "do_sample_frames": False}


def _is_encoder_decoder(model: Any) -> bool:
    """Return whether a model reads prompts with an encoder, and so does not repeat them before its answers."""
    return bool(model.config.get_text_config().is_encoder_decoder)


def _has_template(processor: Any) -> bool:
    return any(getattr(one, "chat_template", None) for one in (processor, processor.tokenizer))


def _takes_videos(processor: Any) -> bool:
    """Return whether processor and chat template take videos, rather than several pictures in place of one."""
    token = getattr(processor, "video_token", None)
    if token is None or getattr(processor, "video_processor", None) is None:
        return False
    return token in processor.apply_chat_template(_talk(["video"], ""), tokenize=False)


def _device(name: str) -> torch.device:
    if name == "auto":
        return machine.default_device()
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise UserError(
            f"this device cannot be used ({str(error).partition(chr(10))[0]})",
            code="device-unknown",
            field="device",
            value=name,
            remedy="give auto, cpu, cuda, or the number of a GPU as cuda:1",
        ) from error
    return device


def _folder(request: CaptionRequest) -> Path:
    """Return the folder of a model, which is downloaded if it is on the hub."""
    assert request.model is not None
    folder = Path(request.model).expanduser()
    if folder.is_dir():
        return folder
    if not hub.is_id(request.model):
        raise _unusable(
            request, "there is no such folder", "name a folder, or a hub id such as Qwen/Qwen2.5-VL-3B-Instruct"
        )
    try:
        return hub.download(request.model, _FILES)
    except UserError as error:
        error.reword(field="model")
        raise


def _load(request: CaptionRequest, device: torch.device) -> tuple[Any, Any, Path]:
    assert request.model is not None
    transformers = optional_imports.transformers()
    name = _folder(request)
    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    wanted = "float32" if request.dtype == "auto" and device.type == "cpu" else request.dtype
    dtype = wanted if wanted == "auto" else getattr(torch, wanted)
    try:
        config = transformers.AutoConfig.from_pretrained(name, **options)  # refuses code of the repository first
        processor = transformers.AutoProcessor.from_pretrained(name, **options)
        model, loaded = transformers.AutoModelForImageTextToText.from_pretrained(
            name, config=config, dtype=dtype, output_loading_info=True, **options
        )
        model = model.requires_grad_(False).eval().to(device)
    except torch.OutOfMemoryError as error:
        raise _unusable(request, "it does not fit into the memory of the device", "choose a smaller one") from error
    except Exception as error:  # missing and damaged files, other kinds of models, and no connection
        raise _unusable(request, *_problem_and_remedy(error)) from error
    if missing := sorted(loaded["missing_keys"]):  # they would be random
        raise _unusable(
            request,
            f"its weights lack {plural(len(missing), 'tensor')} of {type(model).__name__}, such as {missing[0]}",
            "download it again, or choose weights in the format of transformers",
        )
    tokenizer = getattr(processor, "tokenizer", None)
    if tokenizer is None or not hasattr(processor, "image_processor"):
        raise _unusable(request, "it has no processor of texts and pictures", "choose a vision-language model")
    if request.prompt is None and not _has_template(processor):
        raise _unusable(
            request,
            "it has no chat template, so that it does not follow the prompts of --style",
            "give --prompt as its model card writes it, such as '<MORE_DETAILED_CAPTION>' for Florence-2, or another model",
        )
    if not _is_encoder_decoder(model):
        tokenizer.padding_side = "left"  # new tokens follow the prompt, and not its padding
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if model.generation_config.pad_token_id is None:
        model.generation_config.pad_token_id = tokenizer.pad_token_id
    # Settings of sampling would only be warned of, for every batch.
    for setting in ("temperature", "top_p", "top_k", "min_p", "typical_p"):
        if getattr(model.generation_config, setting, None) is not None:
            setattr(model.generation_config, setting, None)
    return processor, model, name


def _unusable(request: CaptionRequest, problem: str, remedy: str) -> UserError:
    return UserError(problem, code="captioner-unloadable", field="model", value=request.model, remedy=remedy)


def _problem_and_remedy(error: Exception) -> tuple[str, str]:
    """Return why a model was not loaded, and what to do."""
    first_line, said = str(error).strip().partition("\n")[0][:300], _all_said(error)
    if "trust_remote_code" in said:
        return (
            "it needs code of its repository, which is not run",
            "choose one that transformers has itself, or let a server run it (--server)",
        )
    if "torchvision" in said.lower():
        return (
            f"its processor needs torchvision, which is not installed or does not fit torch {torch.__version__}",
            "pip install 'reelworks[caption]', or the torchvision of this torch, from the index that torch came from",
        )
    if isinstance(error, ImportError):
        return (
            f"it needs a package that is not installed ({first_line})",
            "install it; pip install 'reelworks[caption]' has those of most models",
        )
    return (
        f"no vision-language model can be loaded from it ({first_line})",
        "name a folder, or a hub id such as Qwen/Qwen2.5-VL-3B-Instruct",
    )


def _all_said(error: BaseException | None) -> str:
    """Return the messages of an error and of all that it came from, since libraries hide why an import failed."""
    messages = []
    while error is not None:
        messages.append(str(error))
        error = error.__cause__ or error.__context__
    return "\n".join(messages)


def _reason(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return "the clip does not fit into the memory of the device: give fewer --frames, or a smaller --frame-size"
    first_line = str(error).strip().partition("\n")[0][:160]
    return f"the model cannot take it ({type(error).__name__}: {first_line})"
