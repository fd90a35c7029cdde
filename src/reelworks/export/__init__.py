"""Export a run's weights for other programs, and read checkpoints without a model.

Calling the package exports a run: `rw.export("runs/mine", "mine.safetensors")` is
`reelworks.generate.export_run.export`.
"""

from reelworks.core.callable_package import make_callable

make_callable(__name__, "reelworks.generate.export_run", "export")
