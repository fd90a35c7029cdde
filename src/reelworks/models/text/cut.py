"""What a tokenizer's largest length leaves of a caption."""

from __future__ import annotations

from typing import Any


def words_cut_off(tokenizer: Any, caption: str, max_length: int) -> int:
    """Count the words at a caption's end that are not kept, a word cut in two included."""
    kept = tokenizer(caption, max_length=max_length, truncation=True, return_offsets_mapping=True)
    end = max(stop for _, stop in kept["offset_mapping"])
    return len(caption[end:].split())
