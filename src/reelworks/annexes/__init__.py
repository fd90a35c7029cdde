"""Tools that stand beside a training or come after it. Only the commands import an annex."""
