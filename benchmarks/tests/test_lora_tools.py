"""`reelworks lora` takes less memory than its files: a file of 3 GB less than 2 GB."""

from __future__ import annotations

import pytest

from benchmarks import lora_tools


@pytest.mark.slow(reason="writes and reads files of 3 GB")
@pytest.mark.parametrize("verb", ["apply", "extract", "resize", "resize --keep"])
def test_a_file_of_3_gb_takes_less_than_2_gb_of_memory(verb: str) -> None:
    figures = lora_tools.run(3.0, 320, [verb])
    assert figures["verbs"][verb]["layers"] > 40
    assert figures["peak_gb"] < 2
