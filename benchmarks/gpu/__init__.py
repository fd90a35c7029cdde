"""All that a GPU must show, in one command: `python -m benchmarks.gpu`.

    machine    the device's name, its published and its measured speed, and how a step is timed
    sections   the list of what is measured, most valuable first, with time limits
    results    the file of figures, written after every row
    child      one unit of a section, in a process of its own
    __main__   the command: which units run now, within how many minutes

The other files measure: `tests`, `steps`, `tuning`, `latents`, `saves`, `training`. With `--device cpu --tiny` all of them
run on small networks, which shows that they work; those figures say nothing about speed.
"""
