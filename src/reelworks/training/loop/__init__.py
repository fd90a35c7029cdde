"""The trainer: start, loop and saves of a run. The only place where data, model and checkpoints meet.

One loop for one process and for many. Nobody subclasses it: the model and the objective are arguments.
"""
