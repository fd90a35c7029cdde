"""The entrance of this annex."""

from reelworks.core.annexes import Annex, AnnexCommand

ANNEX = Annex(commands=(AnnexCommand("doctor", "reelworks.annexes.doctor.cli:doctor", "looking at the machine"),))
