"""The protocol of captioners, and the frames and prompts that they are given."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from reelworks.annexes.captions.answers import CaptionFailed
from reelworks.core.arrays import Frames


@dataclass(frozen=True)
class CaptionQuestion:
    """A clip that a captioner is asked about.

    Attributes:
        path: Path or address of the file, for commands that read it themselves.
        kind: "picture" or "video".
        prompt: What is asked.
        frames: `[T, H, W, 3]` uint8 RGB, evenly spaced over the clip; a picture has one.
        fps: Of `frames` in a second of the video; 0 for a picture, or where it is unknown.
    """

    path: str
    kind: str
    prompt: str
    frames: Frames
    fps: float = 0.0


class Answer(NamedTuple):
    """A captioner's answer, and whether it ended at the limit of tokens rather than by itself."""

    text: str
    is_cut: bool = False


class Captioner(Protocol):
    """Answers questions about clips; used by several threads at once."""

    batch_size: int  # questions that are best asked together

    @property
    def about(self) -> dict[str, Any]:
        """Name, version and settings for the record: values of JSON, without secrets."""

    def answer(self, questions: Sequence[CaptionQuestion]) -> list[Answer | CaptionFailed]:
        """Return the answer to each question, or why there is none.

        Raises:
            UserError: No question will be answered, as with a wrong key.
        """

    def stop(self) -> None:
        """Let answers that are being made fail soon; called from another thread."""


class OneByOne(ABC):
    """A captioner that is asked one question after the other."""

    batch_size = 1

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def answer(self, questions: Sequence[CaptionQuestion]) -> list[Answer | CaptionFailed]:
        """Ask each question by itself."""
        found: list[Answer | CaptionFailed] = []
        for question in questions:
            try:
                found.append(self.ask(question))
            except CaptionFailed as error:
                found.append(error)
        return found

    @abstractmethod
    def ask(self, question: CaptionQuestion) -> Answer:
        """Return the answer to a question; raises `CaptionFailed` if there is none."""

    def stop(self) -> None:
        """Let answers that are being made fail soon."""
        self._stopped.set()
