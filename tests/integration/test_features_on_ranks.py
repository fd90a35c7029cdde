"""What is trained on several processes as on one: kinds of adapters, narrow bases, guided targets and pairs."""

from __future__ import annotations

import children
import pytest
import tiny_recipe
from test_preferences import pictures

from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder

__all__ = ["pictures"]
FEATURES = {
    "lokr": {"lora": {"type": "lokr", "rank": 2, "targets": "blocks"}},
    "loha": {"lora": {"type": "loha", "rank": 2, "targets": "blocks"}},
    "oft": {"lora": {"type": "oft", "block_size": 4, "targets": "blocks"}},
    "nf4": {"lora": {"rank": 2, "targets": "blocks", "base": "nf4"}},
    "float8": {"lora": {"rank": 2, "targets": "blocks", "base": "float8"}},
    "guided targets": {"objective": {"target_guidance_scale": 3.0}},
    "pairs": {"objective": {"dpo_beta": 100.0}},
}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["replicated", "fsdp"])
@pytest.mark.parametrize("feature", FEATURES)
def test_two_ranks_train_as_one_process_does(pictures, tmp_path, feature, strategy):
    """The same losses and norms of gradients from the same global batches, within rounding."""

    def told(name, world, **changes):
        train = {"max_epochs": "none", "max_steps": 3, "learning_rate": 1e-3}
        tables = {"bucket": [{"resolution": "32x48", "num_frames": 1, "batch_size": 1}]}
        tables |= {"train": train | {"micro_batches_per_step": 2, "same_bucket_run": 1}}
        tables |= {"lora": {"rank": 2, "targets": "blocks"}, "text_encoder": {"pooled_dim": 8}}
        clips = {"path": str(pictures / "clips")}
        recipe = tiny_recipe.of_family("wan-tiny", tmp_path / name, clips, **tables) | FEATURES[feature] | changes
        if feature == "pairs":
            recipe["dataset"] = [{"path": str(pictures / "clips"), "rejected": str(pictures / "worse")}]
        assert children.train(recipe, world=world) == [0] * world, children.output(recipe)
        steps = list(events.read(RunFolder(tmp_path / name).events_file, "step"))
        return [event[field] for field in ("clips", "loss", "grad_norm") for event in steps]

    one, two = told("one", 1), told("two", 2, parallel={"strategy": strategy})
    # Of five pairs, the last trains alone: its step leaves a rank without work.
    assert one[:3] == ([2, 1, 2] if feature == "pairs" else [2, 2, 2])
    assert all(value > 0 for value in one)
    assert two == pytest.approx(one, rel=5e-4)
