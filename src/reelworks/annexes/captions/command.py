"""Ask a command of the user: a line of JSON on its stdin, the caption on its stdout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, final

from reelworks.annexes.captions import frames
from reelworks.annexes.captions.answers import CaptionFailed
from reelworks.annexes.captions.captioner import Answer, CaptionQuestion, OneByOne
from reelworks.annexes.captions.request import CaptionRequest
from reelworks.core import system
from reelworks.core.errors import UserError

_LOOK_EVERY_SECONDS = 0.2
_MOST_BYTES = 1 << 20  # of a caption
_END_BYTES = 1 << 12  # of a program's errors, of which the last line is told


@final
class CommandCaptioner(OneByOne):
    """Captions by a program that is started for each question, with frames as JPEG files that are removed afterwards."""

    def __init__(self, request: CaptionRequest) -> None:
        """Find the program.

        Raises:
            UserError: There is no such program.
        """
        super().__init__()
        self._words, self._timeout = request.command_words, request.timeout
        program = self._words[0]
        if shutil.which(program) is None:
            raise UserError(
                "there is no such program, or it may not be executed",
                code="command-invalid",
                field="command",
                value=request.command,
                remedy=f"give the path of a program; for a script: 'python {program}'",
            )

    @property
    def about(self) -> dict[str, Any]:
        """The words of the command."""
        return {"command": list(self._words)}

    def ask(self, question: CaptionQuestion) -> Answer:
        """Run the program once; `stop` kills it."""
        with tempfile.TemporaryDirectory(prefix="reelworks-caption-", ignore_cleanup_errors=True) as folder:
            files = []
            for i, frame in enumerate(question.frames):
                files.append(Path(folder, f"frame-{i:03d}.jpg"))
                files[-1].write_bytes(frames.as_jpeg(frame))
            asked = {
                "path": question.path,
                "kind": question.kind,
                "prompt": question.prompt,
                "frames": [*map(str, files)],
            }
            out, errors, code = self._run((json.dumps(asked) + "\n").encode())
        if code != 0:
            ended = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            last = errors.decode(errors="replace").strip().rpartition("\n")[2][:100]
            raise CaptionFailed(f"the command {ended}{f': {last}' if last else ''}")
        try:
            text = out.decode()
        except UnicodeDecodeError:
            raise CaptionFailed("the command printed bytes that are not UTF-8") from None
        if not text.strip():
            raise CaptionFailed("the command printed nothing")
        return Answer(text)

    def _run(self, line: bytes) -> tuple[bytes, bytes, int]:
        """Return the caption that the program printed, the end of its errors and its exit code; kill it if it takes or prints too much."""
        if self._stopped.is_set():
            raise CaptionFailed("stopped")
        # Files, since the length of what a pipe holds cannot be asked for everywhere.
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            given.write(line)
            given.seek(0)
            try:
                process = subprocess.Popen(
                    self._words,
                    stdin=given,
                    stdout=out,
                    stderr=errors,
                    env={**os.environ, "PYTHONIOENCODING": "utf-8"},  # on Windows, Python would print in a code page
                    **system.OWN_GROUP,  # so that its children can be killed with it
                )
            except OSError as error:
                raise CaptionFailed(f"the command cannot be started: {error.strerror or error}") from None
            try:
                code = self._ended(process, out)
            except BaseException:
                system.kill_all(process)
                process.wait()
                raise
            out.seek(0)
            errors.seek(-min(os.fstat(errors.fileno()).st_size, _END_BYTES), os.SEEK_END)
            return out.read(), errors.read(), code

    def _ended(self, process: subprocess.Popen[bytes], out: IO[bytes]) -> int:
        until = time.monotonic() + self._timeout
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_EVERY_SECONDS)
            if os.fstat(out.fileno()).st_size > _MOST_BYTES:
                raise CaptionFailed(f"the command printed more than {_MOST_BYTES:,} bytes")
            if process.returncode is not None:
                return process.returncode
            if self._stopped.is_set():
                raise CaptionFailed("stopped")
            if time.monotonic() > until:
                raise CaptionFailed(f"the command did not end within {self._timeout:g} s")
