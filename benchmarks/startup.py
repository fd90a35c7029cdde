"""How long `reelworks --help` takes, beside a bare start of the same Python in the same run.

The promise is that it answers in under half a second: a person who looks something up does not wait.
"""

import json
import platform
import subprocess
import sys
import time

RUNS = 7


def seconds(*arguments: str) -> float:
    """Fastest of several runs: the others measure what else the machine does."""
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    bare, helped = seconds("-c", "pass"), seconds("-m", "reelworks", "--help")
    print(f"on {platform.machine()}, Python {platform.python_version()}: bare {bare:.3f} s, --help {helped:.3f} s")
    print(json.dumps({"bare_s": bare, "help_s": helped, "ratio": helped / bare}))
