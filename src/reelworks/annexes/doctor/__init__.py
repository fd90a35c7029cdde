"""Tell what this machine has, and what of it keeps a training from running, or from running fast."""
