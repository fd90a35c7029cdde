"""Ask a captioner about many clips: frames of the next ones are read while it answers."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import PurePosixPath

from reelworks.annexes.captions import answers, frames, prompts
from reelworks.annexes.captions.answers import CaptionFailed
from reelworks.annexes.captions.captioner import Answer, Captioner, CaptionQuestion
from reelworks.annexes.captions.clips import CaptionClip
from reelworks.annexes.captions.request import CaptionRequest
from reelworks.core import log, optional_imports
from reelworks.core.worker_pool import ThreadCalls, WorkerHung

_MOST_SECONDS = 600.0  # for the frames of one clip


def captioner_of(request: CaptionRequest) -> Captioner:
    """Return the captioner that a request names, ready to answer."""
    if request.server is not None:
        from reelworks.annexes.captions.server import ServerCaptioner

        return ServerCaptioner(request)
    if request.command is not None:
        from reelworks.annexes.captions.command import CommandCaptioner

        return CommandCaptioner(request)
    with log.stage("loading the libraries", at_once=True), optional_imports.importing():
        from reelworks.annexes.captions.vision_language import ModelCaptioner
    return ModelCaptioner(request)


def ask(
    request: CaptionRequest, captioner: Captioner, todo: Sequence[tuple[int, CaptionClip]]
) -> Generator[tuple[int, list[str] | CaptionFailed], None, None]:
    """Yield the captions of clips by number as they come; the order depends on how long each takes."""
    batches = iter([todo[k : k + captioner.batch_size] for k in range(0, len(todo), captioner.batch_size)])
    threads = ThreadPoolExecutor(request.workers, thread_name_prefix="caption")
    waiting: set[Future[list[tuple[int, list[str] | CaptionFailed]]]] = set()
    try:
        while True:
            for batch in itertools.islice(batches, request.workers + 1 - len(waiting)):
                waiting.add(threads.submit(_answer_batch, request, captioner, batch))
            if not waiting:
                return
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda one: one.exception() is not None):
                yield from future.result()
    finally:
        captioner.stop()
        threads.shutdown(cancel_futures=True)


def _answer_batch(
    request: CaptionRequest, captioner: Captioner, batch: Sequence[tuple[int, CaptionClip]]
) -> list[tuple[int, list[str] | CaptionFailed]]:
    results: dict[int, list[str] | CaptionFailed] = {}
    questions: list[tuple[int, CaptionQuestion]] = []
    for i, clip in batch:
        try:
            shown = _read(request, clip)
            name = PurePosixPath(clip.path).stem
            prompt = request.prompt_for(kind=shown.kind, name=name, caption=clip.caption or "")
            questions += [
                (i, CaptionQuestion(str(clip.file), shown.kind, variant, shown.frames, shown.fps))
                for variant in prompts.variants(prompt, request.captions)
            ]
            results[i] = []
        except CaptionFailed as error:
            results[i] = error
    for start in range(0, len(questions), captioner.batch_size):
        asked = questions[start : start + captioner.batch_size]
        for (i, _), answer in zip(asked, captioner.answer([question for _, question in asked]), strict=True):
            if isinstance(found := results[i], list):
                try:
                    found.append(_caption_of(request, answer))
                except CaptionFailed as error:
                    results[i] = error
    return [(i, r if isinstance(r, CaptionFailed) else list(dict.fromkeys(r))) for i, r in results.items()]


def _read(request: CaptionRequest, clip: CaptionClip) -> frames.Shown:
    """Read the frames of a clip in a thread of its own, since a decoder may never return."""
    try:
        read = partial(frames.read, count=request.frames, most_px=request.frame_size)
        return ThreadCalls().call(read, clip, _MOST_SECONDS)
    except WorkerHung:
        problem = f"reading it took more than {_MOST_SECONDS:g} s and was stopped"
        raise CaptionFailed(problem, of_clip=True) from None


def _caption_of(request: CaptionRequest, answer: Answer | CaptionFailed) -> str:
    if isinstance(answer, CaptionFailed):
        raise answer
    of_tags = request.prompt is None and request.style == "tags"
    text = answers.caption_of(answer.text, max_words=request.max_words, is_cut=answer.is_cut, of_tags=of_tags)
    return answers.with_trigger(text, request.trigger, is_in=request.trigger_in)
