"""Translations of the autoencoder and text encoder (`vae`, `text_encoder`) of Open-Sora's configs."""

from __future__ import annotations

from typing import Any

from reelworks.compat.opensora import rules
from reelworks.compat.opensora.rules import Draft, Fate, Rule, Told

NO_AUTOENCODER = "this autoencoder is not supported; pixel, at a stride that divides every size, replaces it"
NO_TEXT_ENCODER = "this text encoder is not supported; hashed replaces it"

# Upstream's name to our name and the weights that upstream loads by default.
_AUTOENCODERS = {
    "OpenSoraVAE_V1_2": ("opensora-1.2", "hpcai-tech/OpenSora-VAE-v1.2"),
    "VideoAutoencoderKL": ("opensora-1.1", "stabilityai/sd-vae-ft-ema"),
}
_TEXT_ENCODERS = {"t5": ("t5", "DeepFloyd/t5-v1_1-xxl")}
_FRAMES_OF_A_CHUNK = 17


def type_of(draft: Draft, section: str) -> str:
    """Return the type of a section of the config, or "" if it has none."""
    part = draft.values.get(section)
    return str(part.get("type", "")) if isinstance(part, dict) else ""


def _type(section: str, table: str, known: dict[str, tuple[str, str]], missing: str) -> Rule:
    """Translate the type to our name, with the default weights unless the config names others."""

    def handle(value: Any, draft: Draft) -> Told:
        if value not in known:
            return Fate.NOT_THERE_YET, missing
        name, weights = known[value]
        if not draft.values[section].get("from_pretrained"):
            draft.set(f"{table}.weights", weights)
        return Fate.CONVERTED, draft.set(f"{table}.name", name)

    return handle


def _of_known(section: str, known: dict[str, tuple[str, str]], missing: str, rule: Rule) -> Rule:
    """Apply a rule only if the section's type is known; else the key is left out with its section."""

    def handle(value: Any, draft: Draft) -> Told:
        if type_of(draft, section) not in known:
            return Fate.NOT_THERE_YET, missing
        return rule(value, draft)

    return handle


def _weights(target: str) -> Rule:
    def handle(value: Any, draft: Draft) -> Told:
        if not value:
            return Fate.CONVERTED, "the published weights are used"
        return Fate.CONVERTED, draft.set(target, str(value))

    return handle


def _chunk(value: Any, draft: Draft) -> Told:
    if type_of(draft, "vae") == "VideoAutoencoderKL" or value == _FRAMES_OF_A_CHUNK:
        return Fate.NOT_NEEDED, "frames are encoded together as published"
    return Fate.NOT_THERE_YET, f"{_FRAMES_OF_A_CHUNK} frames are encoded together"


def _vae(rule: Rule) -> Rule:
    return _of_known("vae", _AUTOENCODERS, NO_AUTOENCODER, rule)


def _text(rule: Rule) -> Rule:
    return _of_known("text_encoder", _TEXT_ENCODERS, NO_TEXT_ENCODER, rule)


KEYS: dict[str, Rule] = {
    "vae.type": _type("vae", "autoencoder", _AUTOENCODERS, NO_AUTOENCODER),
    "vae.from_pretrained": _vae(_weights("autoencoder.weights")),
    "vae.micro_frame_size": _vae(_chunk),
    "vae.micro_batch_size": _vae(rules.not_needed("it only affects memory")),
    "text_encoder.type": _type("text_encoder", "text_encoder", _TEXT_ENCODERS, NO_TEXT_ENCODER),
    "text_encoder.from_pretrained": _text(_weights("text_encoder.weights")),
    "text_encoder.model_max_length": _text(rules.to("text_encoder.max_length")),
    "text_encoder.shardformer": _text(rules.not_needed("it only affects speed")),
}
