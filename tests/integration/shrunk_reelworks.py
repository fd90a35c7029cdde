"""The command line with a published Wan that is as small as the pipeline that a hub on this machine serves in its place."""

from __future__ import annotations

import sys
from dataclasses import replace

from reelworks.commands.main import main
from reelworks.models import registry


def shrink(name: str, text: str, **sizes: int) -> None:
    """Give a published preset and its text encoder the sizes of tiny ones."""
    registry.PRESETS[name] = replace(registry.PRESETS[name], config=registry.PRESETS["wan-tiny"].config)
    known = registry.TEXT_ENCODERS[text]
    networks = tuple(network._replace(vocabulary=80) for network in known.networks)
    registry.TEXT_ENCODERS[text] = replace(known, networks=networks, **sizes)


def shrink_wan() -> None:
    """Shrink the model that the page on LoRAs trains."""
    shrink("wan-2.1-1.3b", "wan", dim=32, max_length=12)


if __name__ == "__main__":
    shrink_wan()
    sys.exit(main())
