"""The entrance of this annex."""

from reelworks.core.annexes import Annex, AnnexCommand

ANNEX = Annex(
    commands=(
        AnnexCommand("measure", "reelworks.annexes.quality.cli:measure", "measuring"),
        AnnexCommand("inspect", "reelworks.annexes.quality.cli:inspect", "summarising the catalog"),
    ),
    measures="reelworks.annexes.quality.run:measure_catalog",
)
