"""Figures as files; drawing them leaves the user's Matplotlib as it was."""

import subprocess
import sys

import pytest

from cobilevel.report import label_styles, panel_figures
from summaries import cleaning, inverse

BACKEND = """
import sys, numpy as np, pathlib
import matplotlib
matplotlib.use("svg")
before = dict(matplotlib.rcParams)
from summaries import cleaning, inverse
from cobilevel.report import panel_figures, policy_figure
from cobilevel.diagnosis.decay import from_values
from cobilevel.diagnosis.diagnosis import plot_decay
folder = pathlib.Path(sys.argv[1])
panel_figures(inverse(), folder / "a")
panel_figures(cleaning(), folder / "b")
decay, _, _ = from_values(lambda u: np.exp(u)[:, None], np.finfo(float).eps)
plot_decay(decay, 5, folder / "decay.png")
assert "matplotlib.pyplot" not in sys.modules, "only what is shown needs pyplot"
plot_decay(decay, 5, None)
assert matplotlib.get_backend() == "svg", matplotlib.get_backend()
assert dict(matplotlib.rcParams) == before, "settings were changed"
"""


@pytest.mark.parametrize(("summary", "figures"), [(inverse(), 1), (cleaning(), 2), ({"panels": []}, 0)])
def test_figures_are_written(summary, figures, tmp_path):
    paths = panel_figures(summary, tmp_path / "figures")
    assert len(paths) == len(set(paths)) == 2 * figures
    assert sorted(tmp_path.rglob("*.*")) == sorted(paths)
    for path in paths:
        assert path.read_bytes().startswith({".png": b"\x89PNG", ".pdf": b"%PDF"}[path.suffix])


def test_labels_of_one_family_are_distinguished():
    """By colour, and in print by dashes and markers."""
    styles = label_styles(cleaning())
    assert (
        styles["R_Chebyshev[5]"]["dash"]
        == styles["R_Chebyshev[20]"]["dash"]
        == label_styles(inverse())["R_Chebyshev"]["dash"]
    )
    assert len({style["colour"] for style in styles.values()}) == len(styles)
    assert len({(tuple(style["dash"]), style["marker"]) for style in styles.values()}) == len(styles)


def test_the_backend_stays_the_users(tmp_path, request):
    folder = str(request.config.rootpath / "tests")
    code = f"import sys; sys.path.insert(0, {folder!r})\n{BACKEND}"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
