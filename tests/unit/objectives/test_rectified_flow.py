from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from reelworks.models.objectives import objectives, rectified_flow

GOLDEN = Path(__file__).parents[2] / "golden" / "rflow.safetensors"


@pytest.fixture(scope="module")
def golden() -> dict[str, torch.Tensor]:
    return {k.removeprefix("train/"): v for k, v in load_file(GOLDEN).items() if k.startswith("train/")}


@pytest.mark.parametrize("masked", [False, True])
def test_noised_latents_and_losses_equal_the_reference(golden, masked):
    mask = golden["mask"] if masked else None
    suffix = "mask" if masked else "nomask"
    x_t = rectified_flow.noised(golden["x0"], golden["noise"], golden["t"], mask)
    torch.testing.assert_close(x_t, golden[f"x_t_{suffix}"], rtol=0, atol=1e-5)
    prediction = golden["model_out"][:, :4]
    loss = rectified_flow.mean_distance(prediction - (golden["x0"] - golden["noise"]), mask)
    torch.testing.assert_close(loss, golden[f"loss_{suffix}"], rtol=1e-5, atol=0)


def test_conditioning_frames_are_bit_equal_to_the_clean_latent(golden):
    x_t = rectified_flow.noised(golden["x0"], golden["noise"], golden["t"], golden["mask"])
    given = ~golden["mask"]
    assert given.any()
    assert torch.equal(x_t.movedim(2, 1)[given], golden["x0"].movedim(2, 1)[given])


def test_a_clip_without_generated_frames_has_loss_and_gradient_zero(golden):
    mask = golden["mask"].clone()
    mask[0] = False
    prediction = golden["model_out"][:, :4].clone()
    prediction[0] = float("nan")
    prediction.requires_grad_()
    loss = rectified_flow.mean_distance(prediction - (golden["x0"] - golden["noise"]), mask)
    loss.sum().backward()
    assert loss[0] == 0
    assert (loss[1:] > 0).all()
    assert (prediction.grad[0] == 0).all()
    assert (prediction.grad[1:] != 0).any()


def test_bfloat16_latents_are_blended_and_compared_in_float32():
    x0, noise = torch.randn(2, 1, 4, 3, 2, 2, generator=torch.Generator().manual_seed(0)).bfloat16()
    x_t = rectified_flow.noised(x0, noise, torch.tensor([999.0]), torch.ones(1, 3, dtype=torch.bool))
    assert x_t.dtype == torch.float32
    torch.testing.assert_close(x_t, 0.001 * x0.float() + 0.999 * noise.float())
    t = torch.tensor([999.0])
    loss = objectives.RectifiedFlow().losses(torch.zeros_like(x0), x_t, x0, noise, t, None)
    torch.testing.assert_close(loss, (x0.float() - noise.float()).square().mean()[None])


def test_the_target_leads_from_noise_back_to_the_data(golden):
    x_t = rectified_flow.noised(golden["x0"], golden["noise"], golden["t"], None)
    velocity = golden["x0"] - golden["noise"]
    share = (golden["t"] / 1000)[:, None, None, None, None]
    torch.testing.assert_close(x_t + share * velocity, golden["x0"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("frames", [None, torch.ones(2, 3, dtype=torch.bool)])
def test_a_clip_of_which_nothing_counts_has_no_loss(frames):
    """Where a loss mask is black all over; a loss of NaN would end the training."""
    weight = torch.stack([torch.zeros(3, 4, 4), torch.ones(3, 4, 4)])
    mean = rectified_flow.mean_over_generated(torch.full((2, 1, 3, 4, 4), 5.0), frames, weight)
    assert mean.tolist() == [0.0, 5.0]
