"""Every optimizer that a recipe may name: its state is there before the first step, and is all that a resume needs."""

from __future__ import annotations

import copy
import importlib.util
import tomllib

import pytest
import tiny_recipe
import torch
from refused import refused
from torch import Tensor, nn

from reelworks.core.errors import UserError
from reelworks.data.distributed.layout import Layout
from reelworks.models import factory
from reelworks.models.expert_pair.denoiser import ExpertPair
from reelworks.testing import contract
from reelworks.training.loop.config import TrainConfig
from reelworks.training.memory import estimate
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import optimizer_names
from reelworks.training.step.optimizer_names import OPTIMIZERS
from reelworks.training.step.optimizers import ShardedOptimizer, experts, matrices
from reelworks.training.step.state import TrainState

WHOLE = sorted(name for name, one in OPTIMIZERS.items() if one.whole)


def config(name: str, **keys: object) -> TrainConfig:
    return TrainConfig.model_validate({"max_steps": 9, "optimizer": name, "weight_decay": 0.01, **keys})


def network() -> nn.Sequential:
    """Weights of all kinds: matrices large enough for 8 bits, a vector, a kernel, and one that begins as zeros."""
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(64, 80), nn.GELU(), nn.Linear(80, 64), nn.Unflatten(1, (1, 8, 8)))
    made.append(nn.Conv2d(1, 2, 3))
    nn.init.zeros_(made[2].weight)
    return made


def updater(module: nn.Module, name: str, **keys: object) -> ShardedOptimizer:
    return ShardedOptimizer(config(name, **keys), dict(module.named_parameters()), matrices(module, [module[:3]]))


def gradients(module: nn.Module, step: int) -> None:
    torch.manual_seed(step % 2)
    loss = (module(torch.randn(16, 64)) - torch.randn(16, 2, 6, 6)).square().mean()
    module.zero_grad(set_to_none=True)
    loss.backward()


def steps(module: nn.Module, made: ShardedOptimizer, first: int, last: int) -> list[Tensor]:
    for step in range(first, last):
        gradients(module, step)
        made.step()
    return [parameter.detach().clone() for parameter in module.parameters()]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_that_is_there_before_the_first_step_changes_no_step(name: str) -> None:
    """As the library would begin by itself, to the last bit: nothing counts as a step."""
    ours, theirs = network(), network()
    made, bare = updater(ours, name), updater(theirs, name)
    for part in bare._parts:
        part.optimizer.state.clear()
    begun = {key: value.shape for key, value in made.tensors().items()}
    assert {key[0] for key in begun} == dict(ours.named_parameters()).keys()
    for one, other in zip(steps(ours, made, 0, 4), steps(theirs, bare, 0, 4), strict=True):
        assert torch.equal(one, other)
    assert {key: value.shape for key, value in made.tensors().items()} == begun, "steps take no more memory"
    assert all(not torch.equal(p, q) for p, q in zip(ours.parameters(), network().parameters(), strict=True))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_saved_is_all_that_going_on_needs(name: str) -> None:
    """Weights and state in another optimizer, whose weights were other ones when it began."""
    calm = network()
    expected = steps(calm, updater(calm, name), 0, 11)
    first = network()
    stopped = updater(first, name)
    steps(first, stopped, 0, 9)
    resumed = network()
    nn.init.ones_(resumed[2].weight)
    goes_on = updater(resumed, name)
    goes_on.load_state_dict(copy.deepcopy(stopped.state_dict()))
    resumed.load_state_dict(first.state_dict())
    for one, other in zip(steps(resumed, goes_on, 9, 11), expected, strict=True):
        assert torch.equal(one, other)


def test_settings_are_those_of_the_recipe() -> None:
    """What is saved is no setting, so that another weight decay takes effect where a run goes on."""
    module = network()
    stopped = updater(module, "adamw")
    steps(module, stopped, 0, 3)
    frozen = copy.deepcopy(module)
    same, other = updater(module, "adamw"), updater(frozen, "adamw", weight_decay=0.5)
    for one in (same, other):
        one.load_state_dict(copy.deepcopy(stopped.state_dict()))
    before = module[0].weight.detach().clone()
    expected = steps(module, same, 3, 4)[0] - 1e-4 * (0.5 - 0.01) * before
    torch.testing.assert_close(steps(frozen, other, 3, 4)[0], expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_to_begin_again_is_to_know_nothing(name: str) -> None:
    """Whatever steps were taken, as one that was made of the weights as they are."""
    module = network()
    made = updater(module, name)
    steps(module, made, 0, 9)
    other = copy.deepcopy(module)
    made.begin()
    fresh = updater(other, name)
    for one, two in zip(steps(module, made, 9, 11), steps(other, fresh, 9, 11), strict=True):
        assert torch.equal(one, two)


def test_muon_updates_the_matrices_of_blocks_alone() -> None:
    """Its updates are about orthogonal, and as large as those of AdamW; all else is AdamW's."""
    module = network()
    made = updater(module, "muon", weight_decay=0.0, learning_rate=1e-3)
    keys = {name: {key for of, key in made.tensors() if of == name} for name, _ in module.named_parameters()}
    inner = {"0.weight", "2.weight"}
    assert all(kept == {"momentum_buffer"} for name, kept in keys.items() if name in inner)
    assert all(kept == {"exp_avg", "exp_avg_sq"} for name, kept in keys.items() if name not in inner)
    before = module[0].weight.detach().clone()
    gradients(module, 0)
    nn.init.normal_(module[0].weight.grad)
    made.step()
    update = (module[0].weight.detach() - before) / 1e-3
    values = torch.linalg.svdvals(update)
    assert float(values.max() / values.min()) < 3, "those of a random matrix of this shape differ by 20"
    assert 0.1 < float(update.square().mean().sqrt()) < 0.4


def test_muon_is_exact_on_a_cpu() -> None:
    """The direction of an update is that of the iteration in float64, to float32's rounding and not to bfloat16's."""
    module = network()
    made = updater(module, "muon", weight_decay=0.0, learning_rate=1e-3)
    before = module[0].weight.detach().clone()
    gradients(module, 0)
    nn.init.normal_(module[0].weight.grad)
    wanted = module[0].weight.grad.double()
    wanted /= wanted.norm()
    for _ in range(5):
        gram = wanted @ wanted.T
        wanted = 3.4445 * wanted + (-4.775 * gram + 2.0315 * gram @ gram) @ wanted
    made.step()
    update = (before - module[0].weight.detach()).double()
    torch.testing.assert_close(update / update.norm(), wanted / wanted.norm(), rtol=1e-3, atol=1e-5)


def test_muon_is_refused_where_adamw_would_update_everything() -> None:
    """As with a LoRA of layers that are in no block."""
    module = network()
    with refused("no-matrix-to-train", "train.optimizer") as caught:
        ShardedOptimizer(config("muon"), dict(module.named_parameters()), matrices(module, []))
    assert (caught.value.field, caught.value.remedy) == ("train.optimizer", 'set it to "adamw"')


def test_the_rate_that_prodigy_finds_is_told_and_looked_at() -> None:
    """It is no setting, so it is saved, and a state with one that is not finite is none."""
    module = network()
    made = updater(module, "prodigy")
    (group,) = made._parts[0].optimizer.param_groups
    assert group["use_bias_correction"]  # both as its authors recommend
    assert group["safeguard_warmup"]
    assert made.set_rate(0.5) == pytest.approx(0.5e-6)
    made.set_rate(1.0)
    steps(module, made, 0, 9)
    found = made.state_dict()["found"]
    assert made.set_rate(1.0) == found["d"] > 1e-6
    assert made.not_finite() == []
    made._parts[0].optimizer.param_groups[0]["d"] = float("nan")
    assert made.not_finite() == ["the optimizer's d"]


def test_the_rate_that_adafactor_takes_is_told() -> None:
    """It moves weights of size 1, whose gradients are ±1, by the rate alone, and lowers this by itself."""
    weight = nn.Parameter(torch.randn(8, 8))
    made = ShardedOptimizer(config("adafactor", weight_decay=0.0), {"w": weight}, set())
    towards, told, acts = torch.randn(8, 8).sign(), [], []
    for _ in range(9):
        told.append(made.set_rate(0.5))
        weight.data /= weight.detach().square().mean().sqrt()
        before, weight.grad = weight.detach().clone(), towards.clone()
        made.step()
        acts.append(float((weight.detach() - before).square().mean().sqrt()))
    assert told == pytest.approx(acts, rel=1e-4)
    assert told[3] == 0.5 > told[4]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_takes_the_weight_decay(name: str) -> None:
    without, decayed = (
        steps(module, updater(module, name, learning_rate=0.1, weight_decay=decay), 0, 3)
        for module, decay in ((network(), 0.0), (network(), 0.9))
    )
    assert not any(map(torch.equal, without, decayed))


@pytest.mark.parametrize("name", WHOLE)
def test_what_needs_whole_weights_is_refused_where_there_are_shards(name: str) -> None:
    """And nowhere else; the error tells why and what to do."""
    for strategy, world in (("fsdp", 1), ("replicated", 1), ("replicated", 8)):
        optimizer_names.require(name, Layout.from_strategy(strategy, world))
    with refused("optimizer-not-shardable", "train.optimizer", says="each of 2 ranks has a shard") as caught:
        optimizer_names.require(name, Layout.from_strategy("fsdp", 2))
    assert (caught.value.field, caught.value.value) == ("train.optimizer", name)
    assert "replicated" in caught.value.remedy
    optimizer_names.require("adamw", Layout.from_strategy("fsdp", 8))


@pytest.mark.parametrize("name", ["adamw8bit", "prodigy"])
def test_a_missing_package_is_told_with_how_to_install_it(name: str, monkeypatch) -> None:
    """A recipe can be read without it, not trained."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    config(name)
    with pytest.raises(UserError) as caught:
        updater(network(), name)
    assert caught.value.remedy == f"pip install {OPTIMIZERS[name].package}"


def test_each_has_its_own_defaults_and_refuses_what_it_lacks() -> None:
    """What a recipe leaves out is complete when it is written out, and is read back as it was."""
    assert (config("prodigy").learning_rate, config("adamw").learning_rate) == (1.0, 1e-4)
    assert (config("adafactor").betas, config("adafactor").eps) == (None, None)
    for name in OPTIMIZERS:
        made = recipe(name)
        assert recipe_file.parse(tomllib.loads(recipe_file.dump(made))) == made
    for key, value in (("betas", [0.9, 0.95]), ("eps", 1e-8)):
        with refused("unknown-optimizer-setting", says="adafactor does not have this setting") as caught:
            recipe("adafactor", **{key: value})
        assert caught.value.field == f"train.{key}"
    with refused("learning-rate-too-low", "train.learning_rate"):
        recipe("prodigy", learning_rate=1e-4)


def recipe(name: str, **keys: object) -> Recipe:
    return recipe_file.parse(
        tiny_recipe.least(
            bucket=[{"resolution": "32px", "num_frames": 1}], train={"max_steps": 9, "optimizer": name, **keys}
        )
    )


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("adamw", 8, 8),
        ("adamw8bit", 2, 2.6),
        ("muon", 4, 5),
        ("prodigy", 16, 16),
        ("adafactor", 0, 0.5),
        ("came", 4, 4.5),
    ],
)
def test_memory_is_told_before_it_is_taken(name: str, least: float, most: float) -> None:
    """To the last byte, from a network without numbers; per weight what is known of each optimizer."""
    made = recipe(name)

    def build(device: str):
        return factory.build_denoiser(
            made.model, autoencoder=made.autoencoder, text=made.text_encoder, device=device, seed=0
        )

    told = estimate.sizes(made, build("meta")).optimizer_bytes
    state = TrainState.start(build("cpu"), made.train)
    assert told == estimate.size(list(state.optimizer.tensors().values()))
    weights = sum(parameter.numel() for parameter in state.module.parameters())
    assert least <= told / weights <= most


def test_the_average_of_schedule_free_weights_is_that_of_the_library() -> None:
    """As the library's own `eval` would put it into the weights, which this leaves alone."""
    module = network()
    made = updater(module, "schedulefree")
    trained = steps(module, made, 0, 5)
    averages = made.own_averages()
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), trained, strict=True))
    made._parts[0].optimizer.eval()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(averages[name], parameter.detach(), rtol=0, atol=0)
        assert not torch.equal(averages[name], dict(zip(averages, trained, strict=True))[name])


def test_the_average_of_schedule_free_weights_is_that_of_a_run_whose_betas_change() -> None:
    """The weights move to the points that are as far from it as the new β1 says, by the paper's formula in float64."""
    first = network()
    stopped = updater(first, "schedulefree", learning_rate=0.01)
    steps(first, stopped, 0, 5)
    points = {name: parameter.detach().double() for name, parameter in first.named_parameters()}
    kept = copy.deepcopy(stopped.state_dict())
    for beta in (0.5, 0.97):
        goes_on = updater(first, "schedulefree", betas=[beta, 0.99])
        goes_on.load_state_dict(kept)
        averages, kept = goes_on.own_averages(), copy.deepcopy(goes_on.state_dict())
        for name, parameter in first.named_parameters():
            fast = kept["state"][name]["z"].double()
            average = (points[name] - (1 - 0.9) * fast) / 0.9
            torch.testing.assert_close(averages[name].double(), average, rtol=1e-5, atol=1e-7)
            wanted = beta * average + (1 - beta) * fast
            torch.testing.assert_close(parameter.detach().double(), wanted, rtol=1e-5, atol=1e-7)
            assert not torch.allclose(points[name], wanted, rtol=1e-3, atol=1e-5), name


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"learning_rate_schedule": "cosine"}, "schedule-with-schedulefree"),
        ({"ema_decay": 0.99}, "unknown-optimizer-setting"),
    ],
)
def test_what_schedule_free_replaces_is_refused(keys: dict[str, object], code: str) -> None:
    recipe = tiny_recipe.least(
        bucket=[{"resolution": "48px", "num_frames": 1}], train={"max_steps": 9, "optimizer": "schedulefree", **keys}
    )
    with refused(code, f"train.{next(iter(keys))}"):
        recipe_file.parse(recipe)


def test_an_average_in_cpu_memory_is_the_one_beside_the_weights() -> None:
    """It moves, saves and is put into the network as the other, wherever the weights are."""
    averages = []
    for device in ("auto", "cpu"):
        denoiser = contract.build("stdit3-tiny")
        state = TrainState.start(denoiser, config("adamw", ema_device=device))
        for step in range(3):
            for parameter in state.module.parameters():
                parameter.grad = torch.full_like(parameter, 0.1 * (step + 1))
            state.optimizer.step()
            state.update_ema(step, 0.9)
        with state.averaged():
            inside = {name: p.detach().clone() for name, p in state.module.named_parameters()}
        assert all(torch.equal(inside[name], average) for name, average in state.ema.items())
        averages.append(state.ema)
    assert all(torch.equal(averages[0][name], average) for name, average in averages[1].items())


def test_one_kernel_for_all_weights_updates_them_as_torch_does_one_by_one() -> None:
    one_by_one, fused = network(), network()
    settings = {"lr": 1e-4, "betas": (0.9, 0.99), "eps": 1e-15, "weight_decay": 0.01}
    plain = torch.optim.AdamW(one_by_one.parameters(), fused=False, **settings)
    for step in range(4):
        gradients(one_by_one, step)
        plain.step()
    made = updater(fused, "adamw")
    assert made._parts[0].optimizer.defaults["fused"] is True
    for one, other in zip(steps(fused, made, 0, 4), one_by_one.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradients_are_scaled_for_one_step(name: str) -> None:
    """By the optimizer or before it; a power of two rounds nothing."""
    scaled, expected = network(), network()
    made, other = updater(scaled, name), updater(expected, name)
    for step, scale in enumerate([torch.tensor(0.25), None, torch.tensor(8.0)]):
        gradients(scaled, step)
        gradients(expected, step)
        made.step(scale)
        for parameter in expected.parameters():
            parameter.grad = parameter.grad if scale is None else parameter.grad * scale
        other.step()
    for one, two in zip(scaled.parameters(), expected.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_experts_of_which_a_step_trains_one_are_trained_as_each_alone(name: str) -> None:
    """To the last bit, with the rates that are told and what is averaged, also where a run goes on."""
    pair = ExpertPair(network(), network())
    alone = (network(), network())

    def of_both() -> ShardedOptimizer:
        module, blocks = pair, [pair.transformer[:3], pair.transformer_2[:3]]
        return ShardedOptimizer(
            config(name), dict(module.named_parameters()), matrices(module, blocks), experts(module)
        )

    both, single = of_both(), [updater(module, name) for module in alone]
    for step, side in enumerate([1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1]):
        if step == 8:
            stopped, both = both, of_both()
            both.load_state_dict(copy.deepcopy(stopped.state_dict()))
        pair.zero_grad(set_to_none=True)
        gradients(list(pair.children())[side], step)
        gradients(alone[side], step)
        assert both.set_rate(0.5) == single[side].set_rate(0.5)
        both.step()
        single[side].step()
    averages = both.own_averages()
    for expert, module, own in zip(("transformer.", "transformer_2."), alone, single, strict=True):
        for key, parameter in module.named_parameters():
            assert torch.equal(pair.get_parameter(expert + key), parameter), key
        for key, average in own.own_averages().items():
            assert torch.equal(averages[expert + key], average), key


def test_the_average_of_an_expert_is_the_mean_of_its_own_steps() -> None:
    """Of schedule-free AdamW with a constant rate: the mean of its fast sequence, in float64."""
    pair = ExpertPair(network(), network())
    made = ShardedOptimizer(config("schedulefree"), dict(pair.named_parameters()), set(), experts(pair))
    rare = []
    for step in range(20):
        side = int(step % 5 == 4)
        pair.zero_grad(set_to_none=True)
        gradients(list(pair.children())[side], step)
        made.step()
        if side:
            rare.append(made.state_dict()["state"]["transformer_2.0.weight"]["z"].double().clone())
    average = made.own_averages()["transformer_2.0.weight"].double()
    start = network()[0].weight.detach().double()
    wanted = torch.stack(rare).mean(0)
    assert (average - wanted).norm() < 1e-3 * (wanted - start).norm()


def test_the_averages_of_experts_stay_where_betas_change() -> None:
    """Each by the β1 of its own; the weights move instead, as those of one network do."""
    pair = ExpertPair(network(), network())

    def made(**keys: object) -> ShardedOptimizer:
        settings = config("schedulefree", learning_rate=0.01, **keys)
        return ShardedOptimizer(settings, dict(pair.named_parameters()), set(), experts(pair))

    stopped = made()
    for step in range(6):
        pair.zero_grad(set_to_none=True)
        gradients(list(pair.children())[step % 2], step)
        stopped.step()
    averages, kept = stopped.own_averages(), copy.deepcopy(stopped.state_dict())
    goes_on = made(betas=[0.5, 0.99])
    goes_on.load_state_dict(kept)
    for name, average in goes_on.own_averages().items():
        torch.testing.assert_close(average, averages[name], rtol=1e-5, atol=1e-6)
