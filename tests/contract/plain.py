"""Each family's loss as diffusers' own training scripts put it: the network called directly, packed by the pipeline.

`plain.LOSSES[family](module, x0, noise, inputs)` is the mean squared error of one batch. Pipelines are imported by the losses that
need them: it takes seconds, and each process of a test run imports this module.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch
from diffusers.models.transformers import transformer_lumina2
from unrounded import Unrounded

from reelworks.core.optional_imports import from_diffusers
from reelworks.testing import contract


def _blend(x0, noise, time):
    share = (time / 1000).view(-1, 1, 1, 1, 1)
    return (1 - share) * x0 + share * noise


def _mse(found, wanted):
    return (found - wanted).square().mean()


def wan(module, x0, noise, i):
    text = i.text * i.text_mask[..., None]
    out = module(_blend(x0, noise, i.time), i.time, text).sample
    return _mse(out, noise - x0)


def wan_edit(module, x0, noise, i):
    """The source of the edit is channels behind those of the noise; each token has the clip's time."""
    text = i.text * i.text_mask[..., None]
    seen = torch.cat([_blend(x0, noise, i.time), i.sources[0]], dim=1)
    tokens = x0[0, 0, :, ::2, ::2].numel()
    out = module(seen, i.time[:, None].expand(-1, tokens), text).sample
    return _mse(out, noise - x0)


def wan_vace(module, x0, noise, i):
    """What is kept, what is remade and the mask are channels of the control."""
    text = i.text * i.text_mask[..., None]
    out = module(_blend(x0, noise, i.time), i.time, text, control_hidden_states=i.control).sample
    return _mse(out, noise - x0)


def wan_i2v(module, x0, noise, i, last=False):
    """Text has 512 tokens, behind which the network looks for the picture's."""
    B, _, T, H, W = x0.shape
    text = torch.zeros(B, 512, i.text.shape[2])
    text[:, : i.text.shape[1]] = i.text * i.text_mask[..., None]
    mask = torch.zeros(B, 4, T, H, W)
    mask[:, :, 0] = 1
    if last:
        mask[:, 3, -1] = 1
    seen = torch.cat([_blend(x0, noise, i.time), mask, i.first_frame], dim=1)
    image = torch.stack(i.image.chunk(2, dim=1), dim=1).flatten(0, 1) if last else i.image
    out = module(seen, i.time, text, encoder_hidden_states_image=image).sample
    return _mse(out, noise - x0)


def wan_flf2v(module, x0, noise, i):
    """The last frame is given too, and the pictures of both are embedded as a batch of two."""
    return wan_i2v(module, x0, noise, i, last=True)


def _picture(x0, noise, i):
    return _blend(x0, noise, i.time)[:, :, 0], (noise - x0)[:, :, 0]


def chroma(module, x0, noise, i):
    x_t, target = _picture(x0, noise, i)
    B, C, H, W = x_t.shape
    pipeline = from_diffusers("ChromaPipeline")
    mask = pipeline._prepare_attention_mask(None, B, H // 2 * (W // 2), torch.float32, i.text_mask)
    out = module(
        hidden_states=pipeline._pack_latents(x_t, B, C, H, W),
        timestep=i.time / 1000,
        encoder_hidden_states=i.text,
        txt_ids=torch.zeros(i.text.shape[1], 3),
        img_ids=pipeline._prepare_latent_image_ids(B, H // 2, W // 2, "cpu", torch.float32),
        attention_mask=mask,
    ).sample
    return _mse(pipeline._unpack_latents(out, H * 8, W * 8, 8), target)


def flux(module, x0, noise, i, beside=None, behind=()):
    x_t, target = _picture(x0, noise, i)
    B, C, H, W = x_t.shape
    pipeline = from_diffusers("FluxKontextPipeline")
    tokens = pipeline._pack_latents(x_t, B, C, H, W)
    places = pipeline._prepare_latent_image_ids(B, H // 2, W // 2, "cpu", torch.float32)
    if beside is not None:
        tokens = torch.cat([tokens, pipeline._pack_latents(beside[:, :, 0], B, C, H, W)], dim=2)
    for source in behind:
        tokens = torch.cat([tokens, pipeline._pack_latents(source[:, :, 0], B, C, H, W)], dim=1)
        second = places.clone()
        second[..., 0] = 1
        places = torch.cat([places, second])
    out = module(
        hidden_states=tokens,
        timestep=i.time / 1000,
        guidance=torch.ones(B),
        pooled_projections=i.pooled,
        encoder_hidden_states=i.text,
        txt_ids=torch.zeros(i.text.shape[1], 3),
        img_ids=places,
    ).sample[:, : H // 2 * (W // 2)]
    return _mse(pipeline._unpack_latents(out, H * 8, W * 8, 8), target)


def flux_control(module, x0, noise, i):
    return flux(module, x0, noise, i, beside=i.control)


def flux_kontext(module, x0, noise, i):
    return flux(module, x0, noise, i, behind=i.sources)


def flux2(module, x0, noise, i):
    x_t, target = _picture(x0, noise, i)
    pipeline = from_diffusers("Flux2Pipeline")
    sources = [source[:, :, 0] for source in i.sources]
    places = [pipeline._prepare_image_ids([s[:1] for s in sources]).expand(len(x_t), -1, -1)] if sources else []
    out = module(
        hidden_states=torch.cat([pipeline._pack_latents(each) for each in (x_t, *sources)], dim=1),
        timestep=i.time / 1000,
        guidance=torch.ones(len(x_t)) if module.config.guidance_embeds else None,
        encoder_hidden_states=i.text,
        txt_ids=pipeline._prepare_text_ids(i.text),
        img_ids=torch.cat([pipeline._prepare_latent_ids(x_t), *places], dim=1),
    ).sample
    target = pipeline._pack_latents(target)
    return _mse(out[:, : target.shape[1]], target)


def flux3(module, x0, noise, i):
    """One caption at a time, since each has a window of its own."""
    from diffusers.modular_pipelines.flux3 import before_denoise

    x_t, target = _picture(x0, noise, i)
    B, _, H, W = x_t.shape
    places = before_denoise._prepare_image_ids(H, W, image_rope_scale=0.5)
    source = {}
    if i.sources:
        sizes = [each.shape[3:] for each in i.sources]
        given = [before_denoise._prepare_image_ids(*size, 0.5, l_coord=-1 - k) for k, size in enumerate(sizes)]
        source["image_cond_ids"] = torch.cat(given)
    rows = []
    for row in range(B):
        text = i.text[row : row + 1, i.text_mask[row]]
        if source:
            given = [each[row : row + 1].flatten(2).transpose(1, 2) for each in i.sources]
            source["image_cond_hidden_states"] = torch.cat(given, dim=1)
        tokens = module(
            hidden_states=x_t[row : row + 1].flatten(2).transpose(1, 2),
            encoder_hidden_states=text,
            timestep=i.time[row : row + 1] / 1000,
            img_ids=places,
            txt_ids=before_denoise.Flux3TextRoPEInputsStep._prepare_text_ids(text),
            **source,
        ).sample
        rows.append(tokens.view(1, H, W, -1).permute(0, 3, 1, 2))
    return _mse(torch.cat(rows), target)


def qwen_image(module, x0, noise, i):
    x_t, target = _picture(x0, noise, i)
    B, C, H, W = x_t.shape
    pipeline = from_diffusers("QwenImageEditPipeline")
    tokens, shapes = pipeline._pack_latents(x_t, B, C, H, W), [(1, H // 2, W // 2)]
    for source in i.sources:
        *_, h, w = source.shape
        tokens = torch.cat([tokens, pipeline._pack_latents(source[:, :, 0], B, C, h, w)], dim=1)
        shapes = [*shapes, (1, h // 2, w // 2)]
    out = module(
        hidden_states=tokens,
        timestep=i.time / 1000,
        encoder_hidden_states=i.text,
        encoder_hidden_states_mask=i.text_mask.long(),
        img_shapes=[shapes] * B,
    ).sample[:, : H // 2 * (W // 2)]
    return _mse(pipeline._unpack_latents(out, H * 8, W * 8, 8)[:, :, 0], target)


def qwen_image21(module, x0, noise, i):
    """One caption at a time; places of the sources, one for four tokens, precede the text."""
    x_t, target = _picture(x0, noise, i)
    *_, C, H, W = x_t.shape
    pipeline, losses = from_diffusers("QwenImage21Pipeline"), []
    pack = pipeline._pack_latents
    for row, wanted in enumerate(target):
        pictures = [*[source[row : row + 1, :, 0].contiguous() for source in i.sources], x_t[row : row + 1]]
        slots = sum(source[0, 0].numel() // 4 for source in i.sources)
        text = i.text[row, i.text_mask[row]]
        out = module(
            hidden_states=torch.cat([pack(each, 1, C, *each.shape[2:]) for each in pictures], dim=1),
            timestep=i.time[row : row + 1] / 1000,
            encoder_hidden_states=torch.cat([text.new_zeros(slots, text.shape[1]), text])[None],
            img_shapes=[[(1, *each.shape[2:]) for each in pictures]],
            img_mask=torch.tensor([[True] * slots + [False] * len(text) + [True] * (H * W // 4)]),
        ).sample[:, -H * W :]
        losses.append(_mse(pipeline._unpack_latents(out, H * 16, W * 16, 16)[0, :, 0], wanted))
    return torch.stack(losses).mean()


def ernie_image(module, x0, noise, i):
    """As its trainers say it: times of a thousand, and texts padded to the longest by the pipeline."""
    x_t, target = _picture(x0, noise, i)
    texts = [text[mask] for text, mask in zip(i.text, i.text_mask, strict=True)]
    pad = from_diffusers("ErnieImagePipeline")._pad_text
    padded, lengths = pad(texts, x_t.device, x_t.dtype, module.config.text_in_dim)
    return _mse(module(x_t, i.time, padded, lengths).sample, target)


def hidream(module, x0, noise, i):
    """As its pipeline calls diffusers' own network, whose parameters these are; its output points towards the data."""
    kind = from_diffusers("HiDreamImageTransformer2DModel")
    own = kind(**{**module.config, "force_inference_output": False})
    states = i.text.unflatten(2, (4, -1)).unbind(2)
    x_t, target = _picture(x0, noise, i)
    out = torch.func.functional_call(
        own,
        dict(module.named_parameters()),
        (x_t,),
        {
            "timesteps": i.time,
            "encoder_hidden_states_t5": states[0],
            "encoder_hidden_states_llama3": states[1:],
            "pooled_embeds": i.pooled,
            "return_dict": False,
        },
    )[0]
    H, W = x_t.shape[2:]
    tokens = out[:, :, : H // 2 * (W // 2)].unflatten(2, (H // 2, W // 2)).unflatten(4, (2, 2))
    return _mse(-tokens.permute(0, 1, 2, 4, 3, 5).reshape(x_t.shape), target)


def longcat_image(module, x0, noise, i):
    """As the release's own script trains; its pictures lie behind the 512 words that it pads texts to."""
    from diffusers.pipelines.longcat_image import pipeline_longcat_image as release

    x_t, target = _picture(x0, noise, i)
    B, C, H, W = x_t.shape
    pipeline = release.LongCatImagePipeline
    out = module(
        hidden_states=pipeline._pack_latents(x_t, B, C, H, W),
        timestep=i.time / 1000,
        encoder_hidden_states=i.text,
        img_ids=release.prepare_pos_ids(1, "image", start=(512, 512), height=H // 2, width=W // 2),
        txt_ids=release.prepare_pos_ids(0, "text", num_token=i.text.shape[1]),
    ).sample
    return _mse(pipeline._unpack_latents(out, H * 8, W * 8, 8), target)


def hunyuan_image21(module, x0, noise, i):
    """As sd-scripts trains it: letters, a third of these short texts, are given beside the words."""
    x_t, target = _picture(x0, noise, i)
    letters = i.text.shape[1] // 3
    out = module(
        hidden_states=x_t,
        timestep=i.time,
        encoder_hidden_states=i.text[:, letters:],
        encoder_attention_mask=i.text_mask[:, letters:],
        encoder_hidden_states_2=i.text[:, :letters, : module.config.text_embed_2_dim],
        encoder_attention_mask_2=i.text_mask[:, :letters],
    ).sample
    return _mse(out, target)


def minimax_h3(module, x0, noise, i, most_ends=2):
    """One clip at a time; time 1 is clean, velocities point towards the data, and the left sound precedes the right.

    What is shown besides precedes the clip in its rows: references of one frame without sound are pictures, those with
    none are sounds, and others clips, perhaps with sound.
    """
    from diffusers.modular_pipelines.minimax_h3 import before_denoise as h3_layout

    ends = (
        [] if i.first_frame is None or x0.shape[2] == 1 else [i.first_frame[:, :, j : j + 1] for j in range(most_ends)]
    )

    x_t, of_sound, sound_time = _blend(x0, noise, i.time), torch.zeros(len(x0), 4, 0, 1, 1), i.time
    clean = heard = of_sound
    if i.sound is not None:
        clean, of_sound, sound_time = i.sound.latent, contract.sound_noise(i.sound), i.sound.time
        heard = _blend(clean, of_sound, sound_time)
    N, losses = clean.shape[2], []
    for row, (seen, target) in enumerate(zip(x_t, x0 - noise, strict=True)):
        text = i.text[row, i.text_mask[row]]
        rest, shown = (*seen.shape[1:], N, (1, 2, 2), 2, 2, 0), [s[row][None] for s in (*ends, *i.sources) if s.numel()]
        besides = [torch.cat([side.T for side in s[row, :, :, 0, 0].chunk(2)]) for s in i.source_sounds if s.numel()]
        if i.sources:
            kinds = [
                SimpleNamespace(
                    kind="audio" if not s.numel() else "video" if s.shape[2] > 1 or sound.numel() else "image",
                    has_audio=sound.numel() > 0,
                )
                for s, sound in zip(i.sources, i.source_sounds or [torch.empty(0)] * len(i.sources), strict=True)
            ]
            build = h3_layout.MiniMaxH3Ref2VAPrepareLayoutStep.build_ref2va_packed_sequence
            layout = build(torch.ones(len(text)), kinds, shown, besides, *rest)
        else:
            build = h3_layout.MiniMaxH3PrepareLayoutStep.build_packed_sequence
            layout = build(torch.ones(len(text)), *rest, ("first", "last")[: len(ends)])
        positions, tags, video, audio, words, count, sound_count = layout
        picture_time, own_sound_time = (float(1 - time[row].double() / 1000) for time in (i.time, sound_time))
        times, which = h3_layout.MiniMaxH3SetTimestepsStep.build_row_timesteps(
            video, audio, count, sound_count, len(text), picture_time, own_sound_time, max(picture_time, 0.999), 1.0
        )
        rows = [h3_layout.patchify_video_latents(each, (1, 2, 2)) for each in (*shown, seen[None])]
        sides = [s[row, :, :, 0, 0].chunk(2) for s in (heard, clean - of_sound)]
        sound, sound_target = (torch.cat([side.T for side in pair]) for pair in sides)
        out = module(
            hidden_states=torch.cat(rows)[None],
            audio_hidden_states=torch.cat([*besides, sound.reshape(-1, module.config.audio_in_channels)])[None],
            encoder_hidden_states=text[None],
            timestep=times,
            timestep_indices=which,
            token_tags=tags,
            position_ids=positions,
            video_indices=video,
            audio_indices=audio,
            text_indices=words,
        )
        losses.append(_mse(out.sample[0, count:], h3_layout.patchify_video_latents(target[None], (1, 2, 2))))
        if N:
            losses[-1] = losses[-1] + _mse(out.audio_sample[0, sound_count:], sound_target)
    return torch.stack(losses).mean()


def krea2(module, x0, noise, i):
    x_t, target = _picture(x0, noise, i)
    B, C, H, W = x_t.shape
    pipeline = from_diffusers("Krea2Pipeline")
    two = SimpleNamespace(patch_size=2, vae_scale_factor=8)
    layers = module.config.num_text_layers
    out = module(
        hidden_states=pipeline._pack_latents(two, x_t, B, C, H, W),
        encoder_hidden_states=i.text.view(B, -1, layers, i.text.shape[2] // layers),
        timestep=i.time / 1000,
        position_ids=pipeline.prepare_position_ids(i.text.shape[1], H // 2, W // 2, "cpu"),
        encoder_attention_mask=i.text_mask,
    ).sample
    return _mse(pipeline._unpack_latents(two, out, H * 8, W * 8)[:, :, 0], target)


def ideogram4(module, x0, noise, i):
    """As its pipeline lays out a sequence: padding first, then words, then the picture. Time 1 is clean."""
    H, W = x0.shape[3:]
    counts = i.text_mask.sum(dim=1).tolist()
    ids = from_diffusers("Ideogram4Pipeline")._prepare_ids(counts, H, W, i.text.shape[1], x0.device)
    position_ids, segment_ids, indicator = ids
    words = torch.zeros(*indicator.shape, i.text.shape[2])
    for row, text, mask in zip(words, i.text, i.text_mask, strict=True):
        row[len(mask) - int(mask.sum()) : len(mask)] = text[mask]
    tokens = torch.zeros(*indicator.shape, x0.shape[1])
    tokens[:, -H * W :] = _blend(x0, noise, i.time).flatten(2).transpose(1, 2)
    out = module(tokens, 1 - i.time / 1000, words, position_ids, segment_ids, indicator).sample
    return _mse(out[:, -H * W :], (x0 - noise).flatten(2).transpose(1, 2))


def lumina2(module, x0, noise, i):
    """Time 1 is clean, and the network's velocity points there; positions are those of diffusers' own module."""
    x_t, own, config = _blend(x0, noise, i.time), module.rope_embedder, module.config
    module.rope_embedder = transformer_lumina2.Lumina2RotaryPosEmbed(10000, config.axes_dim_rope, config.axes_lens)
    try:
        out = module(x_t[:, :, 0], 1 - i.time / 1000, i.text, i.text_mask.long(), return_dict=False)[0]
    finally:
        module.rope_embedder = own
    return _mse(out, (x0 - noise)[:, :, 0])


def z_image(module, x0, noise, i):
    x_t = _blend(x0, noise, i.time)
    texts = [text[mask] for text, mask in zip(i.text, i.text_mask, strict=True)]
    out = module(list(x_t.unbind(0)), (1000 - i.time) / 1000, texts, return_dict=False)[0]
    return _mse(-torch.stack(out), noise - x0)


def with_references(x_t, i, places):
    """Tokens, times and places of a clip, and behind them those of clean clips that are spread over its area."""
    pack, (*_, T, H, W) = from_diffusers("LTXPipeline")._pack_latents, x_t.shape
    tokens, times, coords = [pack(x_t)], [(i.time[:, None] * i.frame_mask).repeat_interleave(H * W, 1)], [places(x_t)]
    for source in i.sources:
        tokens.append(pack(source))
        times.append(torch.zeros(tokens[-1].shape[:2]))
        coords.append(places(source))
        coords[-1][:, 1] *= H / source.shape[3]
        coords[-1][:, 2] *= W / source.shape[4]
    joined = {"hidden_states": torch.cat(tokens, 1), "timestep": torch.cat(times, 1)}
    return joined | {"video_coords": torch.cat(coords, 2)}, T * H * W


def ltx_places(latent):
    """Places of tokens in seconds and pixels, 24 frames in a second."""
    steps = torch.cartesian_prod(*(torch.arange(n) for n in latent.shape[2:])).T
    return (steps * torch.tensor([8 / 24, 32, 32])[:, None]).repeat(len(latent), 1, 1)


def ltx(module, x0, noise, i):
    x_t = _blend(x0, noise, i.time)
    _, _, T, H, W = x_t.shape
    pipeline = from_diffusers("LTXPipeline")
    clip, count = {"hidden_states": pipeline._pack_latents(x_t), "timestep": i.time}, None
    if i.sources:
        clip, count = with_references(x_t, i, ltx_places)
    out = module(
        **clip,
        encoder_hidden_states=i.text,
        encoder_attention_mask=i.text_mask,
        num_frames=T,
        height=H,
        width=W,
        rope_interpolation_scale=(8 / 24, 32, 32),
    ).sample[:, :count]
    return _mse(out, pipeline._pack_latents(noise - x0))


def ltx2_places(module):
    """The network's own bounds of tokens, 24 frames in a second."""
    return lambda z: module.rope.prepare_video_coords(len(z), *z.shape[2:], "cpu", fps=24.0)


def ltx2(module, x0, noise, i):
    """Sound of any length is there, and apart."""
    x_t = _blend(x0, noise, i.time)
    B, _, T, H, W = x_t.shape
    pipeline = from_diffusers("LTX2Pipeline")
    clip, count = {"hidden_states": pipeline._pack_latents(x_t), "timestep": i.time}, None
    if i.sources:
        clip, count = with_references(x_t, i, ltx2_places(module))
    out = module(
        **clip,
        audio_hidden_states=torch.randn(B, 5, module.config.audio_in_channels),
        encoder_hidden_states=i.text,
        audio_encoder_hidden_states=torch.randn(B, 3, i.text.shape[2]),
        audio_timestep=i.time,
        sigma=i.time,
        encoder_attention_mask=i.text_mask,
        num_frames=T,
        height=H,
        width=W,
        fps=24.0,
        audio_num_frames=5,
        isolate_modalities=True,
    ).sample[:, :count]
    return _mse(out, pipeline._pack_latents(noise - x0))


def ltx2_sound(module, x0, noise, i):
    """Both are generated, each at a time of its own, and read their own halves of the texts."""
    x_t = _blend(x0, noise, i.time)
    _, _, T, H, W = x_t.shape
    pipeline = from_diffusers("LTX2Pipeline")
    clean, of_sound = i.sound, contract.sound_noise(i.sound)
    heard = _blend(clean.latent, of_sound, clean.time)
    text, of_sound_text = i.text.chunk(2, dim=2)
    clip, count = {"hidden_states": pipeline._pack_latents(x_t), "timestep": i.time}, None
    if i.sources:
        clip, count = with_references(x_t, i, ltx2_places(module))
    out = module(
        **clip,
        audio_hidden_states=pipeline._pack_audio_latents(heard[..., 0]),
        encoder_hidden_states=text,
        audio_encoder_hidden_states=of_sound_text,
        audio_timestep=clean.time,
        sigma=i.time,
        audio_sigma=clean.time,
        encoder_attention_mask=i.text_mask,
        audio_encoder_attention_mask=i.text_mask,
        num_frames=T,
        height=H,
        width=W,
        fps=24.0,
        audio_num_frames=clean.latent.shape[2],
        use_cross_timestep=True,
    )
    target = pipeline._pack_audio_latents((of_sound - clean.latent)[..., 0])
    return _mse(out.sample[:, :count], pipeline._pack_latents(noise - x0)) + _mse(out.audio_sample, target)


def sd3(module, x0, noise, i):
    x_t, target = _picture(x0, noise, i)
    out = module(x_t, timestep=i.time, encoder_hidden_states=i.text, pooled_projections=i.pooled).sample
    return _mse(out, target)


def hunyuan_video15(module, x0, noise, i):
    x_t = _blend(x0, noise, i.time)
    B = len(x_t)
    first, mask, image = torch.zeros_like(x_t), torch.zeros_like(x_t[:, :1]), torch.zeros(B, 3, 16)
    if i.first_frame is not None:
        first, image = i.first_frame, i.image
        mask[:, :, 0] = 1
    out = module(
        hidden_states=torch.cat([x_t, first, mask], dim=1),
        timestep=i.time,
        encoder_hidden_states=i.text,
        encoder_attention_mask=i.text_mask.float(),
        encoder_hidden_states_2=torch.zeros(B, 5, module.config.text_embed_2_dim),
        encoder_attention_mask_2=torch.zeros(B, 5),
        image_embeds=image,
    ).sample
    return _mse(out, noise - x0)


def sana_video(module, x0, noise, i):
    """As its trainers say it: times of a thousand, and a mask of texts."""
    x_t = _blend(x0, noise, i.time)
    out = module(x_t, i.text, i.time, encoder_attention_mask=i.text_mask.float()).sample
    return _mse(out, noise - x0)


def kandinsky5(module, x0, noise, i):
    """The network as diffusers builds it, clip by clip, each beside its own text; clips have channels for given frames."""
    network = type(module).from_config(module.config)
    x_t, of_clips = _blend(x0, noise, i.time).permute(0, 2, 3, 4, 1), module.config.visual_cond
    _, T, H, W, C = x_t.shape
    losses = []
    for row, count in enumerate(i.text_mask.sum(dim=1).tolist()):
        given = {
            "hidden_states": torch.cat([x_t, torch.zeros(*x_t.shape[:4], C + 1)], -1)[row, None]
            if of_clips
            else x_t[row, None],
            "encoder_hidden_states": i.text[row, None, :count],
            "timestep": i.time[row, None],
            "pooled_projections": i.pooled[row, None],
            "visual_rope_pos": [torch.arange(T), torch.arange(H // 2), torch.arange(W // 2)],
            "text_rope_pos": torch.arange(count),
            "scale_factor": (1, 3.16, 3.16) if of_clips else (1, 1, 1),
        }
        with Unrounded():
            out = torch.func.functional_call(network, dict(module.named_parameters()), kwargs=given).sample
        losses.append(_mse(out[0].permute(3, 0, 1, 2), (noise - x0)[row]))
    return torch.stack(losses).mean()


def sd15(module, x0, noise, i):
    """Noise is predicted, on the schedule of diffusers."""
    return sdxl(module, x0, noise, i, has_sizes=False)


def sdxl(module, x0, noise, i, has_sizes=True):
    """Noise is predicted, on the schedule of diffusers."""
    scheduler = from_diffusers("DDPMScheduler")(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", num_train_timesteps=1000
    )
    x_t = scheduler.add_noise(x0[:, :, 0], noise[:, :, 0], i.time.long())
    size = (x_t.shape[-2], x_t.shape[-1])
    ids = torch.tensor([[*size, 0, 0, *size]] * len(x_t))
    added = {"added_cond_kwargs": {"text_embeds": i.pooled, "time_ids": ids}} if has_sizes else {}
    out = module(x_t, i.time.long(), encoder_hidden_states=i.text, **added).sample
    return _mse(out, noise[:, :, 0])


def anima(module, x0, noise, i):
    """Texts have 512 tokens, zeros behind their ends. The mask of padding, all zeros, is a channel behind the latents'."""
    text = torch.zeros(len(x0), 512, i.text.shape[2])
    text[:, : i.text.shape[1]] = i.text * i.text_mask[..., None]
    module.register_to_config(concat_padding_mask=False)  # it scales the mask with torchvision
    out = module(_blend(x0, noise, i.time), i.time / 1000, text, condition_mask=torch.zeros_like(x0[:, :1])).sample
    return _mse(out, noise - x0)


LOSSES = {
    "anima-tiny": anima,
    "chroma-tiny": chroma,
    "ernie-image-tiny": ernie_image,
    "flux-tiny": flux,
    "flux-control-tiny": flux_control,
    "flux-kontext-tiny": flux_kontext,
    "flux2-tiny": flux2,
    "flux2-klein-tiny": flux2,
    "flux3-tiny": flux3,
    "flux3-edit-tiny": flux3,
    "hidream-i1-tiny": hidream,
    "hunyuan-image-2.1-tiny": hunyuan_image21,
    "hunyuan-video-1.5-tiny": hunyuan_video15,
    "hunyuan-video-1.5-i2v-tiny": hunyuan_video15,
    "kandinsky5-tiny": kandinsky5,
    "kandinsky5-image-tiny": kandinsky5,
    "ideogram-4-tiny": ideogram4,
    "krea2-tiny": krea2,
    "longcat-image-tiny": longcat_image,
    "lumina-image-2.0-tiny": lumina2,
    "ltx-tiny": ltx,
    "ltx-2-tiny": ltx2,
    "ltx-2-sound-tiny": ltx2_sound,
    "minimax-h3-tiny": minimax_h3,
    "minimax-h3-sound-tiny": minimax_h3,
    "minimax-h3-i2v-tiny": partial(minimax_h3, most_ends=1),
    "minimax-h3-i2v-sound-tiny": partial(minimax_h3, most_ends=1),
    "minimax-h3-flf2v-tiny": minimax_h3,
    "minimax-h3-flf2v-sound-tiny": minimax_h3,
    "minimax-h3-ref-tiny": minimax_h3,
    "minimax-h3-ref-sound-tiny": minimax_h3,
    "qwen-image-tiny": qwen_image,
    "qwen-image-edit-tiny": qwen_image,
    "qwen-image-edit-plus-tiny": qwen_image,
    "qwen-image-2.1-tiny": qwen_image21,
    "qwen-image-2.1-edit-tiny": qwen_image21,
    "sana-video-tiny": sana_video,
    "sd1.5-tiny": sd15,
    "sd3-tiny": sd3,
    "sdxl-tiny": sdxl,
    "wan-tiny": wan,
    "wan-edit-tiny": wan_edit,
    "wan-flf2v-tiny": wan_flf2v,
    "wan-i2v-tiny": wan_i2v,
    "wan-vace-tiny": wan_vace,
    "z-image-tiny": z_image,
}
