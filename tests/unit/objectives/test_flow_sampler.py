import pytest
import torch
from toy_sampling import Cases, ToyModel, assert_same

from reelworks.models.objectives import timesteps
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.models.objectives.samplers import flow

case = Cases("rflow")
SHIFT = timesteps.shift_ratio(
    ObjectiveConfig(opensora_frame_quantization=True), height=360, width=640, num_frames=51, latent_frames=15
)


class LinearModel(ToyModel):
    """The reference's toy model for this sampler."""

    def __init__(self):
        super().__init__(case)

    def __call__(self, *given):
        return super().__call__(*given)[:, :4]


def run(model, **options):
    return flow.sample_flow(model, case("sample")["z"], num_steps=10, guidance_scale=7.0, **options)


@pytest.mark.parametrize(("name", "shift"), [("sample_plain", 1.0), ("sample_transformed", SHIFT)])
def test_every_step_equals_the_reference(name, shift):
    model, golden = LinearModel(), case(name)
    assert_same(run(model, shift=shift), golden["z_final"])
    for (z_2B, t_2B, mask), z, t in zip(model.fed, golden["z_fed"], golden["timesteps"], strict=True):
        assert mask is None
        assert_same(z_2B, torch.cat([z, z]))
        assert_same(t_2B, torch.cat([t, t]))


def test_every_masked_step_equals_the_reference():
    model, golden = LinearModel(), case("sample_masked")
    edit = flow.Edit(case("sample")["sample_mask"], lambda step: golden["noise_seq"][step])
    assert_same(run(model, shift=SHIFT, edit=edit), golden["z_final"])
    fed = zip(model.fed, golden["z_fed"], golden["timesteps"], golden["x_mask_fed"], strict=True)
    for (z_2B, t_2B, mask), z, t, golden_mask in fed:
        assert torch.equal(mask, golden_mask)
        assert_same(t_2B, torch.cat([t, t]))
        assert_same(z_2B[:2], z)


def test_frames_of_ratio_zero_come_back_bit_equal():
    z = case("sample")["z"]
    ratio = torch.tensor([[0.0, 1, 1, 1, 1], [1, 1, 1, 1, 0.0]])
    out = run(LinearModel(), edit=flow.Edit(ratio, lambda step: torch.zeros_like(z)))
    assert torch.equal(out[0, :, 0], z[0, :, 0])
    assert torch.equal(out[1, :, 4], z[1, :, 4])
    assert not torch.equal(out[0, :, 1], z[0, :, 1])


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_the_exact_velocity_leads_to_the_data_in_any_number_of_steps(shift):
    generator = torch.Generator().manual_seed(5)
    data, noise = torch.randn(2, 3, 2, 4, 5, 6, generator=generator)

    def velocity(z_2B, t_2B, frame_mask_2B):
        assert t_2B.dtype == torch.float32
        return torch.cat([data - noise, torch.full_like(noise, 1e3)])

    for num_steps in (1, 4, 30):
        out = flow.sample_flow(velocity, noise, num_steps=num_steps, guidance_scale=1.0, shift=shift)
        torch.testing.assert_close(out, data, rtol=0, atol=2e-3)


def test_the_dtype_of_the_noise_is_kept():
    noise = torch.zeros(1, 2, 1, 2, 2, dtype=torch.bfloat16)
    out = flow.sample_flow(lambda z, t, m: z.float() + 1, noise, num_steps=3, guidance_scale=2.0)
    assert out.dtype == torch.bfloat16
    assert not out.requires_grad
