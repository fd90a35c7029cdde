"""Exit codes of all commands, also used by the reference."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """Exit codes of the command line.

    With `--nproc-per-node`, if signal N kills a process, the whole command ends with 128 + N, such as 137 if the
    system ran out of memory. torchrun turns every code but 0 into 1.

    Attributes:
        DONE: The command succeeded.
        FAILED: `check` found a violation, `checkpoints verify` a bad checkpoint, `caption` left clips without a caption,
            or `demo` a model that did not learn; or an unexpected error occurred, which prints a traceback.
        BAD_INPUT: An error that you can fix: a mistake on the command line, in the recipe or in the data, or a full
            disk. The message tells what is wrong and how to fix it.
        REQUEUE: `train` saved and ended early, since a signal or Ctrl-C asked for it, or a storage gave no clip any more. The
            same command resumes.
        INTERRUPTED: Ctrl-C ended the command without a save: another command than `train`, `train` before its first
            step, or pressed twice.
        UNREAD: What reads the standard output has ended before the answer did, as `| head` does; the work is done.
    """

    DONE = 0
    FAILED = 1
    BAD_INPUT = 2
    REQUEUE = 75
    INTERRUPTED = 130
    UNREAD = 141
