"""Engine costs from what a run has stored."""

import pytest

from psrl.workers.simulate.fitted import Piece, fitted


def piece(begin: float, end: float, tokens: int, instance: str = "rollout-0") -> Piece:
    return Piece(instance, 0, tokens, begin, end)


def test_the_line_goes_through_what_was_measured() -> None:
    """Alone 10 ms a token; three together 30 ms."""
    together = [piece(10, 13, 100)] * 3
    costs = fitted([piece(0, 1, 100), *together])
    assert (costs["other_latency_b"], costs["other_latency_k"]) == (pytest.approx(0.0), pytest.approx(0.01))


def test_only_pieces_of_the_same_instance_are_company() -> None:
    costs = fitted([piece(0, 1, 100), piece(0, 1, 100, "rollout-1")])
    assert (costs["other_latency_b"], costs["other_latency_k"]) == (pytest.approx(0.01), 0.0)


def test_company_counts_for_as_long_as_it_lasts() -> None:
    """Half of the long piece had company: 1.5 on the mean."""
    costs = fitted([piece(0, 3, 200), piece(1.5, 3, 75)])
    assert (costs["other_latency_b"], costs["other_latency_k"]) == (pytest.approx(0.0), pytest.approx(0.01))


def test_more_company_never_makes_a_token_cheaper() -> None:
    costs = fitted([piece(0, 2, 100), piece(10, 11, 100), piece(10, 11, 100)])
    assert costs["other_latency_k"] == 0
