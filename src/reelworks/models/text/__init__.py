"""Text encoders: captions to embeddings with a mask of the valid tokens.

Each is a final class that satisfies `models.api.TextEncoder`. The package may import core and
`models.{api,config}`; caption templates and caption dropout belong elsewhere.
"""
