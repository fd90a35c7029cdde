"""Find the cgroups that limit this process, as containers and schedulers set them."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def limiting(controller: str) -> list[Path]:
    """Return the folders of the cgroups whose limits of a kind bind this process: its own and all above, of both versions.

    Within a container the path may be that of the host; then the limit is at the root that the container sees.
    """
    try:
        lines = _OWN.read_text().splitlines()
    except OSError:  # not Linux
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        for root in (_ROOT / controllers, _ROOT / controller) if controllers else (_ROOT,):
            own = root / path.lstrip("/")
            folders += [own, *(above for above in own.parents if above.is_relative_to(root))]
    return folders


def number(file: Path) -> int | None:
    """Return the number in a file of a cgroup; None if it is not there, or says that there is no limit."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # "max"
        return None
