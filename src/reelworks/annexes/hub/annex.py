"""The entrance of this annex."""

from reelworks.core.annexes import Annex, AnnexCommand

ANNEX = Annex(commands=(AnnexCommand("publish", "reelworks.annexes.hub.cli:publish", "publishing"),))
