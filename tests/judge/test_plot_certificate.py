"""The chart of a certificate, read back from the figure; and its words in notebooks."""

import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

from cobilevel.judge import Certificate, Estimate
from cobilevel.judge.certificate import Regret, plot_estimates


def test_points_and_intervals_are_where_they_should_be():
    with matplotlib.rc_context({"backend": "agg"}):
        rows = {"whole": Estimate(2.0, 1.0, (1.0, 4.0)), "open": Estimate(3.0, np.nan, (0.0, np.inf))}
        rows["unknown"] = Estimate(np.nan, np.nan, (0.0, np.inf))
        figure = plot_estimates("title", {"some": rows, "none": {}})
        (axis,) = figure.axes
        assert [tick.get_text() for tick in axis.get_yticklabels()] == ["whole", "open", "unknown"]
        bar, point = axis.lines[:2]
        np.testing.assert_array_equal(bar.get_xdata(), [1.0, 4.0])
        np.testing.assert_array_equal(point.get_xdata(), [2.0])
        assert axis.lines[2].get_xdata()[1] > 4.0, "an interval without an end reaches beyond all others"
        words = [text.get_text() for text in axis.texts]
        assert words[0] == "2 [1, 4]"
        assert "cannot be measured" in words[2]
        assert figure.get_suptitle() == "title"
        figure.canvas.draw()
        plt.close(figure)


@pytest.fixture(scope="module")
def certificate():
    some = lambda value: Estimate(value, value / 4, (value / 2, 2 * value))
    regret = Regret(some(0.1), some(0.08), None, np.array([0.2]), np.array([0.1]))
    return Certificate(
        gradient_norm=some(1.0), reduced_gradient_norm=some(0.9), policy_error=some(0.01), adjoint_error=some(0.02),
        sensitivity_error=None, hypergradient_gap=some(0.1), lower_loss=some(3.0), gradient=jnp.ones(1), parts={},
        mode="exact", compared="exact <lower> levels", bound=None, samples=321, blocked=0, trouble="",
        objective=some(5.0), regret=regret, names=("x",), unresolved="too few samples",
    )  # fmt: skip


def test_a_certificate_draws_all_it_measured(certificate):
    with matplotlib.rc_context({"backend": "agg"}):
        figure = certificate.plot()
        named = [tick.get_text() for axis in figure.axes for tick in axis.get_yticklabels()]
        assert named == [
            "regret", "from sampling", "gradient of F", "gradient of F_Phi", "their difference", "policy", "adjoint",
        ]  # fmt: skip
        assert "321 samples, F = 5 [2.5, 10]; unresolved" in figure.get_suptitle()
        assert [axis.get_title(loc="left") for axis in figure.axes][1:] == ["norms of gradients", "squared errors"]
        np.testing.assert_array_equal(figure.axes[2].lines[0].get_xdata(), [0.005, 0.02])
        plt.close(figure)


def test_notebooks_show_every_row(certificate):
    shown = certificate._repr_html_()
    assert shown.count("<tr>") == len(certificate.rows())
    for name, _ in certificate.rows():
        assert f">{name}</th>" in shown
        assert name in repr(certificate)
    assert "&lt;lower&gt;" in shown
    assert "<lower>" not in shown
    assert "unresolved: too few samples" in shown
