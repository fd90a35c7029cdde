"""Tools that stand beside a training or come after it. Nothing imports an annex: `core.annexes` finds it."""
