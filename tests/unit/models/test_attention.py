"""A kernel of attention is used, or refused with the reason, before training begins."""

from __future__ import annotations

import pytest
import tiny_recipe
import torch
from refused import refused

from reelworks.core.errors import UserError
from reelworks.models.attention import attention
from reelworks.models.config import Attention
from reelworks.testing import contract

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("family", ["stdit3-tiny", "wan-tiny"])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cudnn", "needs a CUDA GPU, and the network is on cpu"),
        ("flash", "needs a CUDA GPU"),
        ("flash-3", "needs a CUDA GPU"),
        ("flash-4", "needs a CUDA GPU"),
    ],
)
def test_what_cannot_serve_is_refused_with_the_reason(family: str, name: Attention, reason: str) -> None:
    denoiser = contract.build(family, compute=torch.bfloat16)
    with refused("attention-cannot-serve", "model.attention", says=reason):
        attention.use(denoiser, name, CPU)


def test_a_gpu_needs_low_precision_and_the_package() -> None:
    exact, lowered = (contract.build("stdit3-tiny", compute=dtype) for dtype in (torch.float32, torch.bfloat16))
    assert "bfloat16 only" in attention._reason_against("flash", exact, CUDA, in_diffusers=False)
    assert attention._reason_against("flash", lowered, CUDA, in_diffusers=False) == ""
    if not attention._is_installed("flash_attn.flash_attn_interface"):
        told = attention._reason_against("flash", lowered, CUDA, in_diffusers=True)
        assert told.startswith("the package flash-attn is not installed")
    for name, version in attention._VERSIONS.items():
        if not attention._is_installed(version.module):
            told = f"the package {version.package} is not installed"
            assert attention._reason_against(name, lowered, CUDA, in_diffusers=True).startswith(told)  # type: ignore[arg-type]
            with refused("attention-cannot-serve", "model.attention", says=told), attention._active(name):  # type: ignore[arg-type]
                pass


def test_torch_knows_the_versions_of_flash_attention() -> None:
    known = torch.nn.attention.list_flash_attention_impls()
    assert {version.torch_name for version in attention._VERSIONS.values()} <= set(known)


class _Kernels:
    """What torch keeps of kernels that it may call in place of its own."""

    are_active = False

    def register(self) -> _Kernels:
        self.are_active = True
        return self

    def remove(self) -> None:
        self.are_active = False


def test_a_version_is_active_while_training_and_gives_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own registry, with kernels that nobody calls, as of a package on a machine with a GPU that fits."""
    kernels = _Kernels()
    monkeypatch.setattr(torch.nn.attention._registry, "_FLASH_ATTENTION_IMPLS", {"FA4": kernels.register})
    monkeypatch.setattr(attention, "_reason_against_version", lambda version: "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with attention.prefer("flash-4"):
        assert kernels.are_active
    assert not kernels.are_active
    query = torch.zeros(1, 2, 4, 8, dtype=torch.bfloat16)  # on the CPU, which torch's call of the kernel refuses
    with (
        refused("attention-cannot-serve", "model.attention", says="inputs must be CUDA tensors"),
        attention.prefer("flash-4"),
    ):
        torch.nn.attention._fa3._fa3_scaled_dot_product_flash_attention_forward_impl_default(query, query, query)
    assert not kernels.are_active
    with pytest.raises(RuntimeError, match="elsewhere"), attention.prefer("flash-4"):
        raise RuntimeError("not supported elsewhere")


def test_native_attention_is_left_as_it_is() -> None:
    denoiser, inputs = (
        contract.build("stdit3-tiny"),
        contract.example(contract.shapes("stdit3-tiny")[0], "stdit3-tiny", batch=1),
    )
    before = contract.answer(denoiser, inputs)
    denoiser.module.zero_grad()
    attention.use(denoiser, "native", CPU)
    with attention.prefer("native"):
        after = contract.answer(denoiser, inputs)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_mask_that_a_kernel_does_not_take_is_told_as_such() -> None:
    """In the words of diffusers, which shows it at the first call."""
    with refused("attention-cannot-serve", "model.attention", says="takes no masks"), attention.prefer("flash"):
        raise ValueError("`attn_mask` is not supported for flash-attn 2.")
    with pytest.raises(ValueError, match="another"), attention.prefer("flash"):
        raise ValueError("another")


def test_names_in_diffusers_exist() -> None:
    from diffusers.models.attention_dispatch import AttentionBackendName

    known = {one.value for one in AttentionBackendName}
    assert set(attention._IN_DIFFUSERS.values()) <= known


def test_an_unknown_name_is_refused() -> None:
    from reelworks.training.recipe import recipe_file

    recipe = tiny_recipe.least(
        bucket=[{"resolution": "48px", "num_frames": 1}],
        model={"name": "stdit3-tiny", "attention": "flahs"},
        train={"max_steps": 9},
    )
    for table, key, value in (
        ("model", "attention", "flahs"),
        ("train", "optimizer", "adanw"),
        ("train", "learning_rate", 0),
    ):
        wrong = {**recipe, "model": {"name": "stdit3-tiny"}}
        wrong[table] = {**wrong[table], key: value}  # type: ignore[dict-item]
        with pytest.raises(UserError) as caught:
            recipe_file.parse(wrong)
        assert caught.value.field == f"{table}.{key}"
        assert caught.value.remedy
