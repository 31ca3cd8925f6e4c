"""How a run ended: sentences with codes, read back from either."""

import pytest

import cobilevel as cb
from cobilevel.iteration.result import outlook


def test_results_are_sentences_with_codes():
    for code, result in enumerate(cb.Result):
        assert result.code == code
        assert cb.Result.of(code) is result
        assert isinstance(result, str)
        assert result.endswith(".")
        assert result[0].isupper()
    assert len({result[:30] for result in cb.Result}) == len(cb.Result)


def test_what_is_good_and_what_can_go_on():
    good = {result.name for result in cb.Result if result.good}
    assert good == {"CONVERGED", "KINK", "SETTLED", "STATIONARY"}
    on = {result.name for result in cb.Result if result.resumable}
    assert on == {"BUDGET", "NOISE", "BOUNCING", "SETTLED", "BEYOND"}
    assert not cb.Result.LIFTED.good


@pytest.mark.parametrize("result", cb.Result)
def test_sentences_of_the_first_format_are_recognised(result):
    assert cb.Result.from_words(str(result)) is result
    if result is not cb.Result.RUNNING:  # which no saved solution is
        assert cb.Result.from_words(f"{result} It happened at step 3.") is result
    assert cb.Result.from_words("Something else altogether.") is cb.Result.LIFTED


def test_what_is_left_when_steps_are_used_up():
    assert outlook(0.05, 0.0) == "(The hypergradient is at 0.05 of its initial size.)"
    assert "0.1 takes about 23 more steps" in outlook(1.0, 0.1)
    still = outlook(1e-4, 0.0, goal=1e-6)
    assert still.endswith("did not decrease in the last quarter of the run.)")
    assert 'precision="double" does.)' in outlook(1e-4, 0.0, goal=1e-6, rounded=True)
