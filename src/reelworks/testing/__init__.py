"""Helpers for tests and experiments: exact resume, small samples, the contract of denoisers.

No training code imports it.
"""

from reelworks.testing.exact_resume import assert_exact_resume as assert_exact_resume
from reelworks.testing.samples import sample_catalog as sample_catalog
from reelworks.testing.samples import sample_dataset as sample_dataset
from reelworks.testing.samples import sample_folder as sample_folder
