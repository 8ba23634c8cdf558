from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from moontide.engine_adapters.builtin.errors import EngineError, InvalidRequest
from moontide.engine_adapters.builtin.model import Sampling, sample
from moontide.engine_adapters.builtin.model.sampling import uniform

LOGITS = torch.tensor([0.5, 2.0, -1.0, 1.5, 2.0, -30.0])


def draw(count: int, logits: torch.Tensor = LOGITS, **options: Any) -> Counter[int]:
    sampling = Sampling(**{"seed": 11, **options})
    return Counter(sample(logits, sampling, position) for position in range(count))


def test_greedy_takes_the_best_and_the_smallest_id_of_equals() -> None:
    assert draw(5, temperature=0) == {1: 5}
    assert draw(5, temperature=3.0, top_k=1) == {1: 5}


def test_the_choice_is_a_function_of_seed_and_position() -> None:
    def tokens(seed: int) -> list[int]:
        sampling = Sampling(seed=seed)
        return [sample(LOGITS, sampling, position) for position in range(50)]

    assert tokens(3) == tokens(3)
    assert tokens(3) != tokens(4)
    assert tokens(3) == tokens(3 + 2**64)
    assert tokens(-1) == tokens(2**64 - 1)


def test_uniform_is_pinned() -> None:
    """A token resumed on another machine, or by a later version, must come out the same."""
    assert uniform(0, 0) == 0.6524484863740322
    assert uniform(2**64 - 1, 8191) == 0.602225788325732


def test_uniform_fills_its_range_evenly() -> None:
    values = [uniform(seed, position) for seed in range(50) for position in range(200)]
    assert 0 <= min(values) < 0.001
    assert 0.999 < max(values) < 1
    tenths = Counter(int(value * 10) for value in values)
    assert all(abs(count - 1000) < 150 for count in tenths.values())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    count = 6000
    expected = torch.softmax(LOGITS / temperature, dim=0)
    seen = draw(count, temperature=temperature)
    for token, probability in enumerate(expected.tolist()):
        assert abs(seen[token] / count - probability) < 0.025


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"top_k": 2}, {1, 4}),
        ({"top_k": 3}, {1, 3, 4}),
        ({"top_k": 100}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.01}, {1}),
        ({"top_p": 0.5}, {1, 4}),
        ({"top_p": 0.95}, {0, 1, 3, 4}),
        ({"top_k": 3, "top_p": 0.5}, {1, 4}),
        ({"temperature": 1e-6}, {1, 4}),
    ],
)
def test_top_k_and_top_p_leave_exactly_the_heaviest(
    options: dict[str, Any], allowed: set[int]
) -> None:
    assert set(draw(3000, **options)) == allowed


def test_a_token_without_weight_is_never_drawn() -> None:
    logits = torch.full((1000,), float("-inf"))
    logits[[3, 998]] = torch.tensor([1.0, 1.0])
    assert set(draw(500, logits)) == {3, 998}


@pytest.mark.parametrize("damage", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_an_error(damage: float) -> None:
    logits = LOGITS.clone()
    logits[2] = damage
    with pytest.raises(EngineError, match="position 9 are not finite"):
        sample(logits, Sampling(), 9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, r"temperature is -0.1; it must be 0\.\.100"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"top_k": -1}, "top_k is -1"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"stop": ("a",) * 17}, "17 strings; at most 16"),
        ({"stop": ("",)}, "a stop string has 0 characters"),
        ({"stop": ("x" * 1025,)}, "1025 characters"),
    ],
)
def test_parameters_out_of_bounds_are_refused_by_name(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Sampling(**options)
