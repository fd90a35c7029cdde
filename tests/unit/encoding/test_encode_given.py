"""What a network is shown beside its noise is what the pipelines of diffusers show it, from the same files."""

from __future__ import annotations

import dataclasses

import diffusers
import numpy as np
import pytest
import tiny_recipe
import torch
import transformers
from PIL import Image
from presets import config_of
from refused import refused

from reelworks.core.shape import Shape
from reelworks.data.loader.part_masks import PartMask
from reelworks.models import components, factory
from reelworks.models.api import given
from reelworks.models.config import AutoencoderConfig, ModelConfig
from reelworks.models.families.flux import network as flux
from reelworks.models.families.wan import network as wan
from reelworks.models.vision import VisionEncoder
from reelworks.testing import contract
from reelworks.training.assembly import build
from reelworks.training.encoding import conditioning
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.recipe import recipe_file

VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
VISION |= {"image_size": 8, "patch_size": 4}
WAN = {"base_dim": 8, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1}
FLUX = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (8, 8, 8, 16),
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "latent_channels": 16,
    "shift_factor": 0.1159,
    "scaling_factor": 0.3611,
}
HUNYUAN = {"block_out_channels": (32, 32, 32, 32, 64), "layers_per_block": 1}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Tiny random autoencoders and image encoders in diffusers' layout."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("parts")
    vae = {
        "wan": diffusers.AutoencoderKLWan(**WAN),
        "flux": diffusers.AutoencoderKL(**FLUX),
        "hunyuan": diffusers.AutoencoderKLHunyuanVideo15(**HUNYUAN),
    }
    for name, module in vae.items():
        module.eval().save_pretrained(root / name / "vae")
    clip = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**VISION)).eval()
    siglip = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**VISION)).eval()
    sizes = {"size": {"height": 8, "width": 8}}
    processors = {
        "wan": transformers.CLIPImageProcessor(**sizes, crop_size=sizes["size"]),
        "hunyuan": transformers.SiglipImageProcessor(**sizes),
    }
    clip.save_pretrained(root / "wan/image_encoder")
    processors["wan"].save_pretrained(root / "wan/image_processor")
    siglip.save_pretrained(root / "hunyuan/image_encoder")
    processors["hunyuan"].save_pretrained(root / "hunyuan/feature_extractor")
    return root, vae, {"wan": clip, "hunyuan": siglip}, processors


def encoder_of(model, autoencoder, place, image=None, companions=()):
    wants = components.conditioning(ModelConfig(name=model))
    return FrozenEncoders(
        factory.build_autoencoder(AutoencoderConfig(name=autoencoder, weights=str(place))),
        factory.build_text_encoder(contract.TEXT),
        torch.device("cpu"),
        wants,
        None if image is None else VisionEncoder(wants.shown.encoder, str(image)),
        companions,
    )


def frames_of(shape, seed=0):
    size = (1, shape.num_frames, shape.height, shape.width, 3)
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8))


class Watch(torch.nn.Module):
    """Stands for a network and keeps what it was called with."""

    time_text_embed = torch.nn.Module()
    time_text_embed.time_proj = torch.nn.Identity()

    def __init__(self, called):
        super().__init__()
        self.called, self.channels = called, 64

    def forward(self, hidden_states, *args, **kwargs):
        self.called |= {"hidden_states": hidden_states, **kwargs}
        for t in (kwargs.get("timestep"), kwargs.get("guidance")):
            if t is not None:
                self.time_text_embed.time_proj(t)
        out = hidden_states[..., :64] if hidden_states.ndim == 3 else hidden_states[:, :16]
        return (out,)


@torch.no_grad()
def test_wan_is_shown_the_first_frame_as_its_pipeline_does(parts):
    """Channels of noise, mask and frame are the pipeline's tensors, and so are CLIP's tokens."""
    root, vae, seers, processors = parts
    shape = Shape(9, 32, 48)
    frames = frames_of(shape)
    encoder = encoder_of("wan-i2v-tiny", "wan-2.1", root / "wan", root / "wan")
    latent = encoder.latents(frames)
    made = conditioning.encode_conditioning(encoder, latent, {}, frames, shape.num_frames)
    pipeline = diffusers.WanImageToVideoPipeline(
        None, None, vae["wan"], diffusers.UniPCMultistepScheduler(), processors["wan"], seers["wan"]
    )
    picture = Image.fromarray(frames[0, 0].numpy())
    pixels = pipeline.video_processor.preprocess(picture, height=32, width=48)
    noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(0))
    _, condition = pipeline.prepare_latents(pixels, 1, 16, 32, 48, 9, torch.float32, torch.device("cpu"), latents=noise)
    inputs = contract.example(Shape(9, 4, 6), "wan-i2v-tiny", batch=1)
    inputs = dataclasses.replace(inputs, latent=noise, **given(made, 1))
    called = {}
    wan.predict(Watch(called), inputs, config_of("wan-i2v-tiny"))
    torch.testing.assert_close(called["hidden_states"], torch.cat([noise, condition], dim=1))
    tokens = pipeline.encode_image(picture, torch.device("cpu"))
    torch.testing.assert_close(called["encoder_hidden_states_image"], tokens)


@torch.no_grad()
def test_wan_is_shown_both_ends_as_its_pipeline_does(parts):
    """The last frame stands behind the grey ones, in the mask's last channel; CLIP's tokens are those of two pictures."""
    root, vae, seers, processors = parts
    shape = Shape(9, 32, 48)
    frames = frames_of(shape)
    encoder = encoder_of("wan-flf2v-tiny", "wan-2.1", root / "wan", root / "wan")
    latent = encoder.latents(frames)
    made = conditioning.encode_conditioning(encoder, latent, {}, frames, shape.num_frames)
    blank = conditioning.blank(encoder, latent)
    assert {k: v.shape for k, v in blank.items()} == {k: v.shape for k, v in made.items()}
    pipeline = diffusers.WanImageToVideoPipeline(
        None, None, vae["wan"], diffusers.UniPCMultistepScheduler(), processors["wan"], seers["wan"]
    )
    pictures = [Image.fromarray(frames[0, i].numpy()) for i in (0, -1)]
    first, last = (pipeline.video_processor.preprocess(picture, height=32, width=48) for picture in pictures)
    _, condition = pipeline.prepare_latents(
        first, 1, 16, 32, 48, 9, torch.float32, torch.device("cpu"), latents=latent, last_image=last
    )
    inputs = contract.example(Shape(9, 4, 6), "wan-flf2v-tiny", batch=1)
    inputs = dataclasses.replace(inputs, latent=latent, **made)
    called = {}
    wan.predict(Watch(called), inputs, config_of("wan-flf2v-tiny"))
    torch.testing.assert_close(called["hidden_states"], torch.cat([latent, condition], dim=1))
    tokens = pipeline.encode_image(pictures, torch.device("cpu"))
    torch.testing.assert_close(called["encoder_hidden_states_image"], tokens)


@torch.no_grad()
@pytest.mark.parametrize("given", [(), ("control",), ("mask",), ("control", "mask")])
def test_vace_is_shown_control_and_mask_as_its_pipeline_does(parts, given):
    """What is kept, what is remade and the mask's pixels are the pipeline's tensors; the clip's own pixels do not leak."""
    root, vae, *_ = parts
    shape = Shape(9, 32, 48)
    frames, control = frames_of(shape), frames_of(shape, seed=1)
    mask = torch.zeros_like(frames)
    mask[:, 4:, 8:20, :24] = 255
    companions = {"control": control, "mask": mask}
    encoder = encoder_of("wan-vace-tiny", "wan-2.1", root / "wan", companions=given)
    latent = encoder.latents(frames)
    made = conditioning.encode_conditioning(encoder, latent, {k: companions[k] for k in given}, frames, 9)
    blank = conditioning.blank(encoder, latent)
    assert {k: v.shape for k, v in blank.items()} == {k: v.shape for k, v in made.items()}
    assert not blank["control"].any()
    pipeline = diffusers.WanVACEPipeline(
        None, None, vae["wan"], diffusers.UniPCMultistepScheduler(), contract.build("wan-vace-tiny").module
    )
    white = mask >= 128 if "mask" in given else torch.ones_like(mask, dtype=torch.bool)
    grey = torch.full(frames.shape, 127.5)
    video = torch.where(white, control.float() if "control" in given else grey, frames.float())
    pixels = video.permute(0, 4, 1, 2, 3) / 127.5 - 1
    masks = white.permute(0, 4, 1, 2, 3).float()
    latents = pipeline.prepare_video_latents(pixels, masks, [[]], None, torch.device("cpu"))
    theirs = torch.cat([latents, pipeline.prepare_masks(masks, [[]])], dim=1)
    torch.testing.assert_close(made["control"], theirs)
    if "mask" in given:
        changed = torch.where(white, 255 - frames, frames)
        other = conditioning.encode_conditioning(encoder, latent, {k: companions[k] for k in given}, changed, 9)
        assert torch.equal(made["control"], other["control"])


@torch.no_grad()
@pytest.mark.parametrize(
    "drawn",
    [PartMask((0, 8)), PartMask(box=(8, 20, 0, 24)), PartMask(box=(8, 20, 0, 24), keeps_box=True)],
    ids=["ends", "inpaint", "outpaint"],
)
@pytest.mark.quick_cases(1)
def test_vace_is_shown_drawn_masks_as_its_pipeline_does(parts, drawn):
    """A drawn mask is told like a file of the same pixels, and replaces the file of its clip alone."""
    root, vae, *_ = parts
    shape = Shape(9, 32, 48)
    frames = torch.cat([frames_of(shape), frames_of(shape, seed=1)])
    file = torch.zeros_like(frames)
    file[:, :, :16] = 255
    encoder = encoder_of("wan-vace-tiny", "wan-2.1", root / "wan", companions=("mask",))
    companions = conditioning.with_drawn_masks({"mask": file}, [drawn, None], shape)
    made = conditioning.encode_conditioning(encoder, encoder.latents(frames), companions, frames, 9)
    pipeline = diffusers.WanVACEPipeline(
        None, None, vae["wan"], diffusers.UniPCMultistepScheduler(), contract.build("wan-vace-tiny").module
    )
    white = torch.ones(9, 32, 48, 1, dtype=torch.bool)
    if drawn.box is not None:
        white[:] = drawn.keeps_box
        white[:, 8:20, :24] = not drawn.keeps_box
    white[list(drawn.kept_frames)] = False
    for i, mask in enumerate((white, file[1, ..., :1] > 0)):
        pixels = torch.where(mask, torch.tensor(127.5), frames[i].float())[None].permute(0, 4, 1, 2, 3) / 127.5 - 1
        masks = mask.expand(-1, -1, -1, 3)[None].permute(0, 4, 1, 2, 3).float()
        latents = pipeline.prepare_video_latents(pixels, masks, [[]], None, torch.device("cpu"))
        theirs = torch.cat([latents, pipeline.prepare_masks(masks, [[]])], dim=1)
        torch.testing.assert_close(made["control"][i : i + 1], theirs)
    assert torch.equal(file, conditioning.with_drawn_masks({"mask": file}, [None, None], shape)["mask"])
    without_file = conditioning.with_drawn_masks({}, [drawn, None], shape)["mask"]
    assert bool((without_file[1] == 255).all())


@torch.no_grad()
@pytest.mark.parametrize("kinds", [("source",), ("source", "source-3"), ("source-2", "mask")])
def test_vace_is_shown_reference_pictures_as_its_pipeline_does(parts, kinds):
    """They are frames before the clip's, clean in the control and first among the latents; the pipeline turns their order."""
    root, vae, *_ = parts
    shape = Shape(9, 32, 48)
    frames, mask = frames_of(shape), torch.zeros(1, 9, 32, 48, 3, dtype=torch.uint8)
    mask[:, 4:, 8:20, :24] = 255
    pictures = {kind: frames_of(Shape(1, 32, 48), seed=i + 5) for i, kind in enumerate(kinds) if kind != "mask"}
    companions = pictures | ({"mask": mask} if "mask" in kinds else {})
    encoder = encoder_of("wan-vace-tiny", "wan-2.1", root / "wan", companions=kinds)
    latent = encoder.latents(frames)
    made = conditioning.encode_conditioning(encoder, latent, companions, frames, 9)
    blank = conditioning.blank(encoder, latent)
    assert {k: v.shape for k, v in blank.items()} == {k: v.shape for k, v in made.items()}
    pipeline = diffusers.WanVACEPipeline(
        None, None, vae["wan"], diffusers.UniPCMultistepScheduler(), contract.build("wan-vace-tiny").module
    )
    white = mask > 0 if "mask" in kinds else torch.ones_like(mask, dtype=torch.bool)
    *_, references = pipeline.preprocess_conditions(
        reference_images=[[Image.fromarray(picture[0, 0].numpy()) for picture in reversed(pictures.values())]],
        height=32,
        width=48,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    pixels = torch.where(white, torch.tensor(127.5), frames.float()).permute(0, 4, 1, 2, 3) / 127.5 - 1
    masks = white.permute(0, 4, 1, 2, 3).float()
    latents = pipeline.prepare_video_latents(pixels, masks, references, None, torch.device("cpu"))
    theirs = torch.cat([latents, pipeline.prepare_masks(masks, references)], dim=1)
    torch.testing.assert_close(made["control"], theirs)
    ahead = torch.cat([encoder.latents(picture) for picture in pictures.values()], dim=2)
    assert torch.equal(conditioning.prepend_sources(latent, made), torch.cat([ahead, latent], dim=2))
    without = conditioning.encode_conditioning(encoder, latent, {}, frames, 9)
    assert conditioning.prepend_sources(latent, without) is latent


@torch.no_grad()
def test_hunyuan_is_shown_the_first_frame_as_its_pipeline_does(parts):
    """The frame is encoded alone and zeros stand behind it; SigLIP's tokens are the pipeline's."""
    root, vae, seers, processors = parts
    shape = Shape(5, 32, 48)
    frames = frames_of(shape)
    encoder = encoder_of("hunyuan-video-1.5-i2v-tiny", "hunyuan-video-1.5", root / "hunyuan", root / "hunyuan")
    latent = encoder.latents(frames)
    made = conditioning.encode_conditioning(encoder, latent, {}, frames, shape.num_frames)
    pipeline = diffusers.HunyuanVideo15ImageToVideoPipeline
    picture = Image.fromarray(frames[0, 0].numpy())
    pixels = frames[0, :1].permute(3, 0, 1, 2)[None].float() / 127.5 - 1
    alone = vae["hunyuan"].encode(pixels).latent_dist.mode() * vae["hunyuan"].config.scaling_factor
    torch.testing.assert_close(made["first_frame"][:, :, :1], alone)
    assert made["first_frame"].shape == latent.shape
    assert not made["first_frame"][:, :, 1:].any()
    tokens = pipeline._get_image_embeds(seers["hunyuan"], processors["hunyuan"], picture, torch.device("cpu"))
    torch.testing.assert_close(made["image"], tokens)


@torch.no_grad()
@pytest.mark.parametrize("name", ["flux-control-tiny", "flux-kontext-tiny"])
def test_flux_is_shown_companions_as_its_pipelines_do(parts, name):
    """A control stands in the channels beside the noise, a source in the tokens behind it, at places of its own."""
    root, vae, *_ = parts
    kind = name.split("-")[1].replace("kontext", "source")
    frames, beside = frames_of(Shape(1, 32, 48)), frames_of(Shape(1, 32, 48), seed=1)
    encoder = encoder_of(name, "flux", root / "flux", companions=(kind,))
    latent = encoder.latents(frames)
    made = conditioning.encode_conditioning(encoder, latent, {kind: beside, "loss_mask": beside}, frames, 1)
    inputs = contract.example(Shape(1, 4, 6), "flux-tiny", batch=1)
    called = {}
    inputs = dataclasses.replace(inputs, latent=latent, **given(made, 1))
    flux.predict(Watch(called), inputs, config_of(name))
    pixels = beside[:, 0].permute(0, 3, 1, 2).float() / 127.5 - 1
    pipeline = diffusers.FluxKontextPipeline(
        diffusers.FlowMatchEulerDiscreteScheduler(), vae["flux"], None, None, None, None, None
    )
    tokens = pipeline._pack_latents(latent[:, :, 0], 1, 16, 4, 6)
    tokens, theirs, places, behind = pipeline.prepare_latents(
        pixels, 1, 16, 32, 48, torch.float32, torch.device("cpu"), None, tokens
    )
    if kind == "control":
        wanted, ids = torch.cat([tokens, theirs], dim=2), places
    else:
        wanted, ids = torch.cat([tokens, theirs], dim=1), torch.cat([places, behind])
    torch.testing.assert_close(called["hidden_states"], wanted)
    assert torch.equal(called["img_ids"], ids)


@torch.no_grad()
@pytest.mark.parametrize("name", ["wan", "hunyuan"])
def test_of_a_picture_nothing_is_given(parts, name):
    """A picture is nothing but its first frame: whatever it shows, the network is shown the same."""
    root, *_ = parts
    model, autoencoder = {
        "wan": ("wan-i2v-tiny", "wan-2.1"), "hunyuan": ("hunyuan-video-1.5-i2v-tiny", "hunyuan-video-1.5"),
    }[name]  # fmt: skip
    encoder = encoder_of(model, autoencoder, root / name, root / name)
    made = []
    for seed in (0, 1):
        frames = frames_of(Shape(1, 32, 32), seed)
        latent = encoder.latents(frames)
        made.append(conditioning.encode_conditioning(encoder, latent, {}, frames, 1))
        blank = conditioning.blank(encoder, latent)
        assert {k: v.shape for k, v in blank.items()} == {k: v.shape for k, v in made[-1].items()}
    for key, value in made[0].items():
        assert torch.equal(value, made[1][key]), key


def test_an_encoder_that_is_not_there_is_refused(tmp_path):
    """With the recipe's key."""
    with refused("image-encoder-unloadable", "model.image_encoder", says="no CLIPVisionModel can be loaded"):
        VisionEncoder("clip", str(tmp_path))


def test_a_source_and_its_sound_are_encoded_each_by_its_own():
    """The frames as all frames, also where the network hears."""
    data = {"path": "clips", "source": ["film"], "min_sources": 1}
    sound = {"sound": {"name": "pcm", "sample_rate": 32_000}, "data": {"fps": 24}}
    bucket = [{"resolution": "32x64", "num_frames": 22}]
    values = tiny_recipe.of_family("minimax-h3-ref-sound-tiny", "run", data, bucket=bucket, **sound)
    encoder = build.encoder(recipe_file.parse(values), torch.device("cpu"))
    frames = torch.randint(0, 256, (1, 22, 32, 64, 3), dtype=torch.uint8)
    samples = torch.randint(-9_000, 9_000, (1, 28_800, 1), dtype=torch.int16)
    found = conditioning.condition_values(encoder, {"source": frames, "source-sound": samples}, frames, 22)
    assert found.keys() == {"source", "source-sound"}
    assert torch.equal(found["source"], encoder.latents(frames))
    assert torch.equal(found["source-sound"], encoder.sound.latents(samples, encoder.device))
