"""Start the processes of a training."""
