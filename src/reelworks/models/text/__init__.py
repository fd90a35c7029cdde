"""Text encoders: captions to embeddings and the mask of tokens that count.

Each is a final class that satisfies `models.api.TextEncoder`. May import core and `models.{api,config}`;
templates and dropout of captions belong elsewhere.
"""
