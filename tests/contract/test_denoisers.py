"""Every family keeps the contract of denoisers: the same checks on tiny random networks of all of them."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import models_page
import numpy as np
import plain
import pytest
import torch
from refused import refused

from reelworks.core.shape import Shape
from reelworks.inference.generate import pipeline
from reelworks.inference.generate.conditions import Conditions
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.models import components, factory, registry, vision
from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig
from reelworks.models.family import IMAGE_ENCODERS
from reelworks.models.objectives import objectives
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.testing import contract
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.memory import published_sizes

HERE = Path(__file__).parent
# Of a family that brings nothing of its own, the loss beside that of a plain script is enough among quick tests.
_FURTHER = (
    *("hunyuan-image-2.1-tiny", "ideogram-4-tiny", "kandinsky5-tiny", "kandinsky5-image-tiny", "longcat-image-tiny"),
    *("hidream-i1-tiny", "lumina-image-2.0-tiny", "sana-video-tiny"),
)
every_family = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in _FURTHER else []) for n in contract.FAMILIES]
)
_CLASSES = [n for n in contract.CLASSES if n not in _FURTHER]
# What is done to layers is the same in all networks of a class; what each is shown goes through the checks of all.
every_class = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in _CLASSES else pytest.mark.slow) for n in contract.FAMILIES]
)
# Parameters of the released networks, as their files hold them or as other trainers print them; of Open-Sora, by the
# sizes that its release was built with. The cards of SD3 count its table of positions too, a buffer here: 2,085 M,
# 2,470 M and 8,146 M.
SIZES = {
    "anima": 1_956_405_248,
    "anima-2.9b": 2_786_883_584,  # with the 134,663,680 of the conditioner of its texts, 2 bytes each, its file of 5.84 GB
    "stdit3-xl": 1_207_643_936,
    "opensora2": 11_891_390_528,
    "opensora2-dc-ae": 11_891_971_200,
    "wan-2.1-1.3b": 1_418_996_800,
    "wan-2.1-14b": 14_288_491_584,
    "wan-2.2-14b": 14_288_491_584,  # each of two experts
    "wan-2.2-5b": 4_999_787_712,
    "lucy-edit-5b": 5_000_377_536,
    "chroma1-hd": 8_899_983_424,
    "wan-2.1-i2v-14b": 16_394_878_784,
    "wan-2.1-flf2v-14b": 16_395_536_704,
    "wan-2.1-vace-1.3b": 2_153_972_032,
    "wan-2.1-vace-14b": 17_337_592_896,
    "ernie-image": 8_033_490_048,
    "flux-dev": 11_901_408_320,
    "flux-schnell": 11_891_178_560,
    "flux2-dev": 32_223_281_152,
    "flux2-klein-base-4b": 3_875_544_576,
    "flux2-klein-base-9b": 9_078_581_248,
    "flux3-klein-base": 5_538_458_368,
    "hidream-i1-full": 17_105_733_184,
    "ideogram-4": 9_279_288_448,
    "kandinsky5-lite": 2_007_702_848,
    "kandinsky5-pro": 19_311_325_248,
    "kandinsky5-image": 6_022_080_576,
    "krea2-raw": 12_820_073_036,
    "longcat-image": 6_270_668_864,
    "lumina-image-2.0": 2_609_769_152,
    "qwen-image": 20_430_401_088,
    "qwen-image-2.1": 7_115_124_736,
    "sana-video-2b": 2_056_862_144,
    "z-image": 6_154_908_736,
    "ltx-video-2b": 1_923_385_472,
    "ltx-video-13b": 13_042_569_344,
    "ltx-2": 18_876_174_592,  # both branches; "19B" in its name
    "ltx-2.5": 18_987_859_200,  # with the 3.17 B that embed its texts, the "22B" in its name
    "minimax-h3": 33_122_992_896,
    "sd1.5": 859_520_964,
    "sdxl": 2_567_463_684,
    "sd3-medium": 2_028_328_000,
    "sd3.5-medium": 2_243_171_520,
    "sd3.5-large": 8_056_627_520,
    "hunyuan-image-2.1": 17_425_795_520,
    "hunyuan-video-1.5": 8_326_608_160,
}


# Sizes that were measured of presets as they are; but for STDiT's, whose releases learnt a variance too.
MEASURED = {
    name: known.parameters
    for name in SIZES
    if not name.startswith("stdit") and (known := published_sizes.of_preset(name)) is not None
}


def objective_of(name):
    return ObjectiveConfig(name="epsilon" if name.startswith(("sd1", "sdxl")) else "rectified-flow")


@every_class
def test_shapes_and_gradients(name):
    """Pictures and clips of several shapes go forward and backward, and every trained parameter is reached."""
    contract.check_shapes_and_gradients(name)


@pytest.mark.parametrize("is_cut_off", [True, False])
def test_a_weight_that_nothing_reaches_is_told(monkeypatch, is_cut_off):
    """Whether it has no gradient, or one of zeros."""
    real = contract._output
    denoiser = contract.build("stdit3-tiny")
    weight = torch.nn.Parameter(torch.ones(()))
    denoiser.module.register_parameter("idle", weight)
    monkeypatch.setattr(contract, "build", lambda name: denoiser)
    monkeypatch.setattr(contract, "_output", lambda *given: real(*given) + (0 if is_cut_off else 0 * weight))
    with pytest.raises(AssertionError, match=r"no gradient reaches \['idle'\]"):
        contract.check_shapes_and_gradients("stdit3-tiny")


@every_class
def test_dtypes(name):
    """bfloat16 answers as float32 does, in float32, from exact times; the audit finds nothing."""
    contract.check_dtypes(name)


@every_class
def test_state(name):
    """A state dict brings all of a network back."""
    contract.check_state(name)


# Of the others the loss and its gradients are compared with those of plain scripts below, but for STDiT: the integration
# tests train STDiT3, and STDiT2 has the same blocks.
_QUICK = ("flux-tiny", "opensora2-tiny", "sdxl-tiny", "wan-tiny", "wan-2.2-tiny")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in _QUICK else pytest.mark.slow) for n in contract.FAMILIES]
)
def test_overfits(name):
    """One clip at a fixed time and noise is learnt to a tenth of the loss."""
    contract.check_overfits(name)


# The layers of "default" are among those of "blocks", and have adapters in the tests of checkpointing and bases.
_TARGETS = [
    pytest.param(targets, n, marks=() if n in _CLASSES and quick in (n, "") else pytest.mark.slow)
    for targets, quick in (("default", "wan-tiny"), ("blocks", ""))
    for n in contract.FAMILIES
]


@pytest.mark.parametrize(("targets", "name"), _TARGETS)
def test_lora(name, targets):
    """A LoRA begins as no change, trains alone, and is reached by gradients in every layer that it adapts."""
    contract.check_lora(name, targets)


# The others take as long as all that is above.
_TYPES = [
    pytest.param(n, kind, marks=() if n == "wan-tiny" else pytest.mark.slow)
    for n in contract.FAMILIES
    for kind in ("lokr", "loha", "oft")
]


@pytest.mark.parametrize(("name", "kind"), _TYPES)
def test_adapters_of_other_types(name, kind):
    """A LoKr, LoHa or OFT does what a LoRA does, with gradient checkpointing and over bases of every storage."""
    contract.check_lora(name, "default", kind)
    if (name, kind) != ("z-image-tiny", "oft"):  # 85 inputs, which no block divides
        contract.check_lora(name, "blocks", kind)
    contract.check_gradient_checkpointing(name, kind)
    contract.check_bases(name, kind)


@every_class
@pytest.mark.quick_cases(2)
def test_gradient_checkpointing(name):
    """With a LoRA over a frozen base, gradients are the same to the last bit with and without."""
    contract.check_gradient_checkpointing(name)


# Which layers of the others are quantized is among the quick tests of bases.
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in _QUICK else pytest.mark.slow) for n in contract.CLASSES]
)
def test_bases(name):
    """A frozen base in bfloat16 changes no bit of answer or gradient; in nf4 it answers nearly alike."""
    contract.check_bases(name)


@pytest.mark.parametrize("name", plain.LOSSES)
def test_the_loss_is_that_of_a_plain_training_script(name):
    """Our loss and its gradient equal those of diffusers' network called as diffusers' scripts call it."""
    denoiser, objective = contract.build(name), objectives.from_config(objective_of(name))
    i = contract.example(contract.shapes(name)[-1], name)
    noise = torch.randn(i.latent.shape, generator=torch.Generator().manual_seed(3))
    ours = contract.loss(denoiser, objective, i, noise)
    theirs = as_built_by_diffusers(denoiser.module)
    plainly = plain.LOSSES[name](theirs, i.latent, noise, i)
    torch.testing.assert_close(ours, plainly, rtol=1e-4, atol=1e-6)
    trained = [key for key, p in denoiser.module.named_parameters() if p.requires_grad]
    found, wanted = (
        torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*map(module.get_parameter, trained)])])
        for loss, module in ((ours, denoiser.module), (plainly, theirs))
    )
    assert (found - wanted).norm() < 1e-4 * wanted.norm()


def as_built_by_diffusers(module):
    """The same weights without the parts of our own that networks of some families have."""
    if not type(module).__module__.startswith("diffusers."):
        return module
    theirs = type(module).from_config(module.config)
    theirs.load_state_dict(module.state_dict())
    return theirs


def encoder_of(name):
    wants = components.conditioning(ModelConfig(name=name))
    return FrozenEncoders(
        factory.build_autoencoder(contract.AUTOENCODER),
        factory.build_text_encoder(contract.TEXT),
        torch.device("cpu"),
        wants,
        Shades() if wants.shown.encoder else None,
    )


class Shades:
    """An image encoder that says how bright a picture is."""

    contract, tokens, dim = vision.CONTRACT, IMAGE_ENCODERS["clip"].tokens, contract.IMAGE_DIM

    def encode(self, pictures_BHWC):
        return pictures_BHWC.float().mean(dim=(1, 2, 3))[:, None, None].expand(-1, self.tokens, self.dim) / 255

    def to(self, device):
        return self


@every_family
def test_generates(name):
    """A few steps make a picture or a clip of the shape asked for, from what is shown, the same from the same seed."""
    shape, wants = contract.shapes(name)[-1], components.conditioning(ModelConfig(name=name))
    boundary, encoder = DtypeBoundary(contract.build(name)), encoder_of(name)

    def make(shade):
        frames = np.full((shape.num_frames, shape.height, shape.width, 3), shade, np.uint8)
        given = Conditions(
            frames[:1] if wants.shown.first else None,
            last_frame=frames[:1] if wants.shown.last else None,
            inpaint=frames if wants.companions.control_parts else None,
        )
        shown = dict.fromkeys(wants.companions.takes, frames) | (
            {"source": frames[:1]} if wants.companions.sources_as_frames else {}
        )
        options = GenerateOptions(shape, 24.0, 2, 3.0, 5, given, shown)
        return pipeline.generate(boundary, encoder, objective_of(name), ["waves"], options)[0][0]

    made = [make(40), make(40)]
    if wants.companions.takes or wants.shown.first:
        assert not np.array_equal(made[0], make(200))
    assert made[0].shape == (shape.num_frames, shape.height, shape.width, 3)
    assert made[0].dtype == np.uint8
    assert made[0].std() > 0
    assert np.array_equal(*made)


# Where a size was measured, the test below compares it without building the network.
@pytest.mark.parametrize(
    ("name", "count"),
    [pytest.param(*one, marks=pytest.mark.slow if one[0] in MEASURED else ()) for one in SIZES.items()],
)
@pytest.mark.quick_cases(4)
def test_full_sizes_are_those_published(name, count):
    """A preset beside the parts that it was published with has as many parameters as the release, to the last one."""
    parts = registry.PRESETS[name].parts
    module = factory.build_denoiser(
        ModelConfig(name=name),
        autoencoder=AutoencoderConfig(name=parts.autoencoder, weights="-"),
        text=TextEncoderConfig(name=parts.text, weights="-"),
        device="meta",
        seed=0,
        learns_variance=name.startswith("stdit"),
    ).module
    assert sum(parameter.numel() for parameter in module.parameters()) == models_page.parameters(name) == count


def test_measured_sizes_are_those_published():
    """What estimates and the page of models tell of a preset has as many parameters as the release."""
    assert len(MEASURED) > 10
    assert {name: SIZES[name] for name in MEASURED} == MEASURED


@pytest.mark.slow
def test_two_ranks_compute_what_one_does():
    """Under FSDP2 they give the gradients of one process, summed over both halves of a batch."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, HERE / "two_ranks.py", *contract.FAMILIES],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        for rank in range(2)
    ]
    try:
        done = [rank.communicate(timeout=400) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], done[0][1][-3000:] + done[1][1][-3000:]
    assert done[0][0].split() == list(contract.FAMILIES)


def test_clips_and_broken_patches_are_refused_by_name():
    """What a family does not take is told, not run into."""
    flux = contract.build("flux-tiny")
    with refused("model-takes-images-only", "num_frames"):
        flux.predict(contract.example(Shape(5, 8, 8), "flux-tiny"))
    with refused("size-not-a-multiple", "height", says="7 latent elements.*multiples of 2"):
        flux.predict(contract.example(Shape(1, 7, 8), "flux-tiny"))


@pytest.mark.slow
def test_the_table_in_the_docs_is_the_suites():
    """docs/reference/models.md says what the networks here can do."""
    page = HERE.parents[1] / "docs" / "reference" / "models.md"
    assert page.read_text(encoding="utf-8") == models_page.page()
