"""What is behind ``cobilevel gallery``: ready problems listed, or one solved with nothing set, judged and drawn."""

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ..answer import DPI
from ..gallery import ENTRIES, Instance
from ..problem import Levels


def list_gallery(console: Console) -> None:
    """A line for each entry: its name, and the first sentence of the file that makes it."""
    width = max(map(len, ENTRIES))
    for name, (maker, _) in ENTRIES.items():
        words = inspect.getdoc(sys.modules[maker.__module__]) or ""
        sentence = re.split(r"(?<=\.)\s", " ".join(words.split()))[0]
        console.print(f"{name:<{width}}  {sentence}", markup=False, highlight=False, soft_wrap=True)


def solve_entry(name: str, out: Path, console: Console) -> Path:
    """Solves an entry with nothing set, and prints the solution, the truth and the certificate; draws a picture."""
    if name not in ENTRIES:
        raise ValueError(f"there is no {name!r} in the gallery; there are {', '.join(ENTRIES)}.")
    if out.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"{out}: pictures are written as .png, .pdf or .svg.")
    from ..front_door import solve  # these take a while to import
    from ..judge import certify

    maker, draw = ENTRIES[name]
    instance = maker(0)
    solution = solve(instance.problem, instance.train)
    words = [str(solution), *_truth_words(instance, solution)]
    train, test = instance.train, instance.test
    if train.lower is not train:  # each level has data of its own, and test data are those of the upper
        test = Levels(test, train.lower)
    words.append(str(certify(instance.problem, solution, test)))
    out.parent.mkdir(parents=True, exist_ok=True)
    draw(instance, solution).savefig(out, dpi=DPI)
    console.print("\n\n".join([*words, f"Drawn: {out}"]), markup=False, highlight=False, soft_wrap=True)
    return out


def _truth_words(instance: Instance, solution: Any) -> list[str]:
    """What is known of the truth, next to what was found; empty where that is not a decision."""
    import jax

    truth, lines = instance.truth, ["Truth"]
    if getattr(truth, "x", None) is None:
        return []
    objective = getattr(truth, "objective", None)
    if objective is not None:
        lines.append(
            f"  objective: best {float(objective(truth.x)):.6g}, of the x found {float(objective(solution.x)):.6g}"
        )
    for path, known in jax.tree_util.tree_leaves_with_path(truth.x):
        found = np.asarray(dict(jax.tree_util.tree_leaves_with_path(solution.x))[path])
        numbers = np.array2string(np.asarray(known), precision=5, threshold=12)
        far = float(np.sqrt(np.mean((found - np.asarray(known)) ** 2)))
        lines.append(f"  x{jax.tree_util.keystr(path)}: {numbers}, found to {far:.2g} (root mean square)")
    return ["\n".join(lines)]
