"""The entrance of this annex."""

from reelworks.core.annexes import Annex, AnnexCommand

ANNEX = Annex(commands=(AnnexCommand("lora", "reelworks.annexes.lora.cli:app"),))
