"""Names become models; weights follow from a seed or a file; mistakes name their way out."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from refused import refused

from reelworks.core.errors import UserError
from reelworks.core.shape import Geometry, Shape
from reelworks.models import components, factory
from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig
from reelworks.models.registry import PRESETS

SMALL = ModelConfig(name="stdit3-tiny", hidden_size=32, depth=1, num_heads=2)
PIXEL = AutoencoderConfig(stride=2)
TEXT = TextEncoderConfig(dim=8, max_length=4)


def build(model=SMALL, seed=0, device="cpu", **kwargs):
    return factory.build_denoiser(model, autoencoder=PIXEL, text=TEXT, device=device, seed=seed, **kwargs)


def test_sizes_come_from_the_preset_the_overrides_and_the_neighbours():
    sizes = build().module.config
    assert (sizes.hidden_size, sizes.depth, sizes.num_heads) == (32, 1, 2)
    assert (sizes.in_channels, sizes.caption_channels, sizes.model_max_length) == (12, 8, 4)
    assert not sizes.pred_sigma
    assert PRESETS["stdit3-tiny"].config.hidden_size == 128


def test_weights_are_a_function_of_the_seed_and_leave_the_global_generator_alone():
    torch.manual_seed(11)
    before = torch.get_rng_state()
    one, same, other = build(seed=5).module, build(seed=5).module, build(seed=6).module
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.x_embedder.proj.weight, other.x_embedder.proj.weight)


def test_fresh_temporal_blocks_add_nothing_and_all_weights_are_finite():
    module = build().module
    block = module.temporal_blocks[0]
    assert not any(m.weight.any() for m in (block.attn.proj, block.cross_attn.proj, block.mlp.fc2))
    assert module.spatial_blocks[0].mlp.fc2.weight.any()
    assert all(torch.isfinite(value).all() for value in module.state_dict().values())


def test_meta_has_shapes_alone_and_storage_is_what_was_asked():
    assert all(p.is_meta for p in build(device="meta").module.parameters())
    denoiser = build(storage=torch.bfloat16, compute=torch.bfloat16)
    assert {p.dtype for p in denoiser.module.parameters()} == {torch.bfloat16}
    assert denoiser.contract.storage == torch.bfloat16


def test_gradient_checkpointing_reaches_the_module():
    assert build(SMALL.model_copy(update={"gradient_checkpointing": True})).module.gradient_checkpointing


def test_geometry():
    found = components.geometry(ModelConfig(name="stdit3-tiny"), AutoencoderConfig())
    assert found == Geometry(stride=(1, 8, 8), patch=(1, 2, 2), frame_rule=(1, 0))
    assert found.tokens(Shape(5, 64, 32)) == 5 * 4 * 2


@pytest.mark.parametrize(
    ("name", "multiple"),
    [("flux2-tiny", (8, 8)), ("flux-kontext-tiny", None), ("wan-vace-tiny", None), ("stdit3-tiny", None)],
)
def test_sources_have_sizes_of_their_own_only_beside_others(name, multiple):
    """The only source of an edit is as large as the clip, and so are sources that are frames of it."""
    assert components.source_multiple(ModelConfig(name=name), AutoencoderConfig()) == multiple


@pytest.mark.parametrize(
    ("model", "autoencoder", "text", "message"),
    [
        (ModelConfig(name="stdit3-xs"), PIXEL, TEXT, r"(?s)model.name = 'stdit3-xs'.*did you mean \"stdit3"),
        (SMALL, AutoencoderConfig(name="pixels"), TEXT, r"autoencoder.name = 'pixels'.*known: pixel"),
        (SMALL, PIXEL, TextEncoderConfig(name="t6"), r"text_encoder.name = 't6'.*known: hashed"),
        (SMALL.model_copy(update={"num_heads": 3}), PIXEL, TEXT, r"3 heads do not divide"),
        (SMALL.model_copy(update={"hidden_size": 6, "num_heads": 3}), PIXEL, TEXT, r"multiple of 4"),
        (ModelConfig(name="krea2-tiny"), PIXEL, TextEncoderConfig(dim=7), r"text_encoder.dim = 7: .* 2 layers"),
    ],
)
def test_what_does_not_exist_or_fit_is_refused(model, autoencoder, text, message):
    with pytest.raises(UserError, match=message):
        factory.build_denoiser(model, autoencoder=autoencoder, text=text, device="cpu", seed=0)


def test_unknown_autoencoders_and_text_encoders_are_refused():
    with refused("unknown-name", "autoencoder.name", says="known: pixel"):
        factory.build_autoencoder(AutoencoderConfig(name="vae"))
    with refused("unknown-name", "text_encoder.name", says="known: hashed"):
        factory.build_text_encoder(TextEncoderConfig(name="clip"))


def test_configs_do_not_import_torch():
    code = "import sys, reelworks.models.config; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_published_model_is_named_on_a_page():
    """docs/models/ says of each model what to write for a LoRA."""
    pages = (Path(__file__).parents[3] / "docs" / "models").glob("*.md")
    told = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert [name for name, preset in PRESETS.items() if preset.release and f"`{name}`" not in told] == []
