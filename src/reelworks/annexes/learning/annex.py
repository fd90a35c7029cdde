"""The entrance of this annex."""

from reelworks.core.annexes import Annex, AnnexCommand

ANNEX = Annex(
    commands=(AnnexCommand("learning", "reelworks.annexes.learning.cli:learning", "reading the losses"),),
    observers=("reelworks.annexes.learning.rounds:KIND",),
    routes=("reelworks.annexes.learning.routes:routes",),
    sections=("reelworks.annexes.learning.wall:of_run",),
)
