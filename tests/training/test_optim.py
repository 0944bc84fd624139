"""What decays, and how the learning rate moves."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from mnagt.graphs.features import Features
from mnagt.models.registry import build_model
from mnagt.runs.config import TrainConfig
from mnagt.training.optim import ClippedAdamW, adamw, decay_groups, learning_rate, optimizer_state

CONFIG = TrainConfig(lr=1.0, warmup=0.1)


def test_norms_and_biases_do_not_decay():
    model = build_model("mnagt", {}, Features(), 2)
    optimizer = adamw(model, replace(CONFIG, weight_decay=0.5))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for name, p in model.named_parameters():
        assert decay[id(p)] == (0.0 if p.ndim < 2 else 0.5), name
    assert len(decay) == len(list(model.parameters()))


@pytest.mark.parametrize("schedule", ["cosine", "inverse-sqrt", "constant"])
def test_the_rate_rises_to_its_height_over_the_warmup(schedule):
    config = replace(CONFIG, schedule=schedule)
    rates = [learning_rate(step, 100, config) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert max(rates) == pytest.approx(1.0)


def test_after_the_warmup_each_schedule_goes_its_way():
    cosine, root, constant = (
        [learning_rate(step, 100, replace(CONFIG, schedule=s)) for step in (10, 55, 99)]
        for s in ("cosine", "inverse-sqrt", "constant")
    )
    assert cosine == pytest.approx([1.0, 0.5, 0.0], abs=1e-3)
    assert root == pytest.approx([(10 / 11) ** 0.5, (10 / 56) ** 0.5, (10 / 100) ** 0.5])
    assert constant == [1.0, 1.0, 1.0]


def test_without_warmup_the_first_step_is_at_full_rate():
    assert learning_rate(0, 100, replace(CONFIG, warmup=0.0)) == 1.0


def test_the_memory_made_before_the_first_step_changes_nothing():
    def stepped(is_made: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(3, 5)
        optimizer = adamw(model, TrainConfig(lr=0.1))
        if is_made:
            assert len(optimizer_state(optimizer)) == 6
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        return [*model.parameters(), *optimizer_state(optimizer)]

    torch.testing.assert_close(stepped(True), stepped(False), rtol=0, atol=0)


@pytest.mark.parametrize("clip", [0.0, 0.1])
def test_steps_are_those_of_torch_after_clipping(clip):
    models = []
    for is_ours in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
        groups = decay_groups(model, 0.5)
        optimizer = ClippedAdamW(groups, lr=0.1, clip=clip) if is_ours else torch.optim.AdamW(groups, 0.1, fused=True)
        for step in range(5):
            x = torch.randn(11, 5, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            if clip and not is_ours:
                nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], clip)
            optimizer.step()
        models.append(model)
    for mine, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(mine, other)
