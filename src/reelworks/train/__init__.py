"""The trainer: state, step, loop, validation. The only place where data, model and checkpoints meet.

One loop for one process and for many. Nobody subclasses it: the model and the objective are arguments. Calling the
package trains a recipe: `rw.train("recipe.toml")` is `reelworks.train.trainer.train`.
"""

from reelworks.core.callable_package import make_callable

make_callable(__name__, "reelworks.train.trainer", "train")
