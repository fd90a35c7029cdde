"""The entrance of this annex."""

from reelworks.core.annexes import Annex, AnnexCommand

ANNEX = Annex(
    commands=(AnnexCommand("ui", "reelworks.annexes.page.cli:ui"),),
    extra="page",
    packages=("cachetools", "fastapi", "uvicorn"),
)
