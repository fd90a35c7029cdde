"""Exit codes, in one place for the verbs and for the reference."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """Codes that a command ends with.

    With `--nproc-per-node`, a process that signal N ended makes the whole command end with 128 + N, such as 137
    where the system ended it for want of memory. torchrun makes 1 of every code but 0.

    Attributes:
        DONE: The work is done.
        FAILED: `check` found a violation, `checkpoints verify` a bad checkpoint, `demo` a model that did not learn;
            or something unforeseen happened, which is told with a traceback.
        BAD_INPUT: Something that you can mend: a mistake on the command line, in the recipe or in the data, a full
            disk. The message says what it is and how to mend it.
        REQUEUE: `train` was asked by a signal to save and leave, and did. The same command goes on.
        INTERRUPTED: Ctrl-C ended the command, without a save.
    """

    DONE = 0
    FAILED = 1
    BAD_INPUT = 2
    REQUEUE = 75
    INTERRUPTED = 130
