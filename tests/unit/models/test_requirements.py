"""A recipe that asks a model for what it does not know is refused with the key and what to write."""

import pytest

from reelworks.core.errors import UserError
from reelworks.models import config, published
from reelworks.models.config import ModelConfig, TextConfig


def test_an_objective_that_the_weights_do_not_know_is_refused():
    """Published weights go with their objective; fresh ones learn any."""
    with pytest.raises(UserError, match=r'(?s)objective\.name.*write "epsilon"'):
        config.require_objective(ModelConfig(name="sdxl", weights="w"), "rectified-flow", {})
    config.require_objective(ModelConfig(name="sdxl", weights="w"), "v-prediction", {})
    config.require_objective(ModelConfig(name="sdxl"), "rectified-flow", {})
    config.require_objective(ModelConfig(name="stdit2-xl", weights="w"), "iddpm", {})


def test_masks_of_given_frames_need_a_network_that_is_told():
    """Ratios are refused where they would change nothing but the loss."""
    for name in ("wan-2.1-1.3b", "flux-dev"):
        with pytest.raises(UserError, match=r"objective\.mask_ratios"):
            config.require_objective(ModelConfig(name=name), "rectified-flow", {"image_head": 0.3})
        config.require_objective(ModelConfig(name=name), "rectified-flow", {"identity": 1.0})
    config.require_objective(ModelConfig(name="wan-2.2-5b"), "rectified-flow", {"image_head": 0.3})


def test_every_preset_has_its_parts_and_they_fit():
    """What a full-size preset was published with exists and has the widths of its defaults."""
    for name, preset in config.ADAPTED.items():
        if name.endswith("-tiny"):
            continue
        parts = published.parts(name)
        text = TextConfig(name=parts.text, weights="-")
        autoencoder = config.AutoencoderConfig(name=parts.autoencoder, weights="-")
        neighbours = config.Neighbours(config.latent_channels(autoencoder), text.dim, text.pooled_dim)
        assert preset.fit(neighbours) == preset, name
