"""What a host counts."""

from psrl.workers.rollout.counts import Counts


def test_the_rate_is_of_the_last_second_however_often_it_is_asked_for() -> None:
    counts, rates = Counts(), []
    for tenth in range(31):
        rates.append(counts.rate(tenth / 10))
        counts.sampled(8 if tenth < 20 else 0)
    assert rates[0] == 0
    assert rates[5] == rates[20] == 80
    assert rates[25] == 40
    assert rates[30] == 0


def test_the_rate_of_an_engine_that_was_not_asked_for_long_is_of_all_that_time() -> None:
    counts = Counts()
    counts.rate(0.0)
    counts.sampled(90)
    assert counts.rate(30.0) == 3


def test_the_time_to_the_first_token_is_of_those_since_it_was_asked_for() -> None:
    counts = Counts()
    assert counts.take_first_token_s() is None
    counts.first_token(0.25)
    counts.first_token(0.75)
    assert counts.take_first_token_s() == 0.5
    assert counts.take_first_token_s() is None
