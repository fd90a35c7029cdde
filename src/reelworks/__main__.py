"""The `reelworks` command, also as `python -m reelworks`, the form that torchrun starts."""

import os
import signal
import sys


def main() -> None:
    """Run the command line; Ctrl-C is told in a line, also in the second in which the commands are imported."""
    try:
        if sys.platform != "win32":  # who starts ranks holds it back until here
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        from reelworks.commands.main import main as command

        command()
    except (KeyboardInterrupt, RuntimeError) as error:
        # Python 3.11 makes another error of one that comes within the body of a class.
        if isinstance(error, RuntimeError) and not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        if os.environ.get("RANK", "0") == "0" and sys.stderr is not None:
            sys.stderr.write("\nstopped by Ctrl-C\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
