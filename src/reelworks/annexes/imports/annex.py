"""The entrance of this annex."""

from reelworks.core.annexes import Annex, AnnexCommand

ANNEX = Annex(
    commands=(AnnexCommand("import", "reelworks.annexes.imports.cli:import_config", "importing"),),
    extra="import",
    packages=("yaml", "tree_sitter", "tree_sitter_bash"),
)
