"""An optimizer step: examples of encoded micro-batches, losses, gradients, the optimizer and its state."""
