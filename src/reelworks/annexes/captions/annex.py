"""The entrance of this annex."""

from reelworks.core.annexes import Annex, AnnexCommand

ANNEX = Annex(commands=(AnnexCommand("caption", "reelworks.annexes.captions.cli:caption", "captioning"),))
