"""Text encoders: captions to embeddings with a mask of the valid tokens; see `models.api.TextEncoder`."""
