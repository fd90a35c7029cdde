"""The request of `reelworks caption` and of `caption.caption`; torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from reelworks.annexes.captions import prompts
from reelworks.annexes.captions.prompts import VARIANTS, Style
from reelworks.core import requests, system
from reelworks.core.errors import UserError
from reelworks.core.requests import arg

LIST_SUFFIXES = (".csv", ".parquet", ".jsonl")
DEFAULT_KEY = "OPENAI_API_KEY"


@dataclass(frozen=True, kw_only=True)
class CaptionRequest:
    """Clips to caption, what captions them, and where captions are written.

    Attributes:
        data: Folders of clips and pictures, lists of them (.csv, .parquet, .jsonl), addresses, or catalogs.
        model: A vision-language model of transformers: a folder, or a hub id; with --server, the name of the model
            there.
        server: A server that speaks the OpenAI chat API, such as http://localhost:8000/v1.
        command: A program, with its arguments, that reads a line of JSON with path, kind, prompt and frames (files) and
            prints a caption.
        style: What captions describe, for which there is a prompt.
        prompt: What to ask instead, with {kind} (picture or video), {name} (of the file), {caption} (so far) and
            {trigger}.
        trigger: The trigger word.
        trigger_in: Put the trigger word before each caption, or keep it out of them.
        max_words: Most words of a caption.
        captions: Captions of each clip, which differ in length and emphasis; for captions = "lines" of a recipe.
        frames: Frames of a video that are shown, evenly spaced.
        frame_size: Longest side of a frame in pixels.
        batch_size: Clips that a model captions together (--model).
        workers: Threads that read frames, and questions that a server or a command is asked at once.
        device: Device of the model: auto, cpu, cuda, cuda:1, ... (--model).
        dtype: Dtype of the model; auto: that of its weights, and float32 on a CPU (--model).
        timeout: Seconds that an answer of a server or a command may take.
        list: Write a new list with the captions, in place of .txt files beside the clips.
        root: Folder or address that paths of lists are relative to; default: the list's.
        overwrite: Caption clips again that have a caption, and replace the list; former texts stay in the record.
        undo: Put back the texts that were there before the last run on this data.
        dry_run: Caption the first three clips, and tell which files would be written.
    """

    data: tuple[str, ...] = arg(..., metavar="DATA", is_option=False)
    model: str | None = arg(None, metavar="PATH|ID")
    server: str | None = arg(None, metavar="URL")
    command: str | None = arg(None, metavar="'PROG ARGS'")
    style: Style = arg("subject")
    prompt: str | None = arg(None, metavar="TEXT")
    trigger: str | None = arg(None, metavar="WORD")
    trigger_in: bool = arg(True, names=("--trigger-in/--trigger-out",))
    max_words: int | None = arg(None, least=3, metavar="N")
    captions: int = arg(1, least=1, most=len(VARIANTS), metavar="N")
    frames: int = arg(8, least=1, most=64, metavar="N")
    frame_size: int = arg(768, least=64, most=4096, metavar="PX")
    batch_size: int = arg(4, least=1, metavar="N")
    workers: int = arg(2, least=1, most=256)
    device: str = arg("auto", metavar="NAME")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = arg("auto")
    key_env: str | None = arg(
        None, f"Environment variable with the key of the server; default: {DEFAULT_KEY}, if it is set.", metavar="NAME"
    )
    timeout: float = arg(120.0, least=1, metavar="S")
    list: Path | None = arg(None, metavar="OUT")
    root: str | None = arg(None)
    overwrite: bool = arg(False)
    undo: bool = arg(False)
    dry_run: bool = arg(False)

    def __post_init__(self) -> None:
        with requests.checked(self):
            self._check_captioner()
            if self.prompt is not None:
                prompts.check(self.prompt)
            if (self.trigger is not None and self.trigger != self.trigger.strip()) or self.trigger == "":
                raise UserError(
                    "it is empty, or has spaces at its ends",
                    code="trigger-invalid",
                    field="trigger",
                    value=self.trigger,
                    remedy="give the word alone",
                )
            if self.list is not None and self.list.suffix not in LIST_SUFFIXES:
                raise UserError(
                    f"a list ends in {', '.join(LIST_SUFFIXES)}",
                    code="list-suffix",
                    field="list",
                    value=str(self.list),
                    remedy="give one of these suffixes",
                )

    def _check_captioner(self) -> None:
        """Require one captioner, or none to undo, and refuse options that have no effect on it."""
        ways = [name for name in ("server", "command") if getattr(self, name) is not None]
        ways += ["model"] if self.model is not None and self.server is None else []
        if self.undo:
            if ways or self.dry_run or self.list is not None:
                raise UserError(
                    "nothing is captioned, and no list is changed, when a run is undone",
                    code="key-without-effect",
                    field="undo",
                    remedy="leave out the other options",
                )
            return
        if len(ways) != 1:
            raise UserError(
                "captions come from one of --model, --server and --command",
                code="which-captioner",
                field=ways[1] if ways else "model",
                value=None if not ways else getattr(self, ways[1]),
                remedy="give a model's folder or hub id, a server's address, or a command",
            )
        if self.key_env is not None and self.server is None:
            raise UserError(
                "only a server has a key",
                code="key-without-effect",
                field="key_env",
                value=self.key_env,
                remedy="leave it out, or give --server",
            )
        if self.command is not None:
            _ = self.command_words

    @property
    def command_words(self) -> tuple[str, ...]:
        """The program and its arguments."""
        assert self.command is not None
        try:
            words, problem = system.words_of(self.command), "it names no program"
        except ValueError as error:
            words, problem = (), f"it cannot be taken apart into words ({error})"
        if not words:
            raise UserError(
                problem,
                code="command-invalid",
                field="command",
                value=self.command,
                remedy="quote it as a shell would: --command 'python caption.py --long'",
            )
        return words

    def prompt_for(self, *, kind: str, name: str, caption: str) -> str:
        """Return the prompt for one clip, by the template that was given or that of the style.

        Args:
            kind: "picture" or "video".
            name: File name without its suffix.
            caption: The caption that the clip has so far; "" for none.
        """
        if self.prompt is None:
            sort = "tags" if self.style == "tags" else "caption"
            text = prompts.STYLES[self.style].format(kind=kind, sort=sort)
        else:
            text = self.prompt.format(kind=kind, name=name, caption=caption, trigger=self.trigger or "")
        return text if self.max_words is None else f"{text} Use at most {self.max_words} words."
