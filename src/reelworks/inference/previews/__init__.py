"""Previews of a training: clips that its averaged weights generate now and then, and their metrics."""
