"""What is behind ``cobilevel gallery``: ready problems listed, or one solved with nothing set, judged and drawn."""

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ..answer import DPI
from ..gallery import ENTRIES


def list_gallery(console: Console) -> None:
    """A line for each entry: its name, and the first sentence of the file that makes it."""
    width = max(map(len, ENTRIES))
    for name, entry in ENTRIES.items():
        words = inspect.getdoc(sys.modules[entry.make.__module__]) or ""
        sentence = re.split(r"(?<=\.)\s", " ".join(words.split()))[0]
        console.print(f"{name:<{width}}  {sentence}", markup=False, highlight=False, soft_wrap=True)


def solve_entry(name: str, out: Path, console: Console) -> Path:
    """Solves an entry with nothing set; prints the solution, the truth, the certificate; draws."""
    if name not in ENTRIES:
        raise ValueError(f"there is no {name!r} in the gallery; there are {', '.join(ENTRIES)}.")
    if out.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"{out}: pictures must be .png, .pdf or .svg.")

    from ..front_door import solve
    from ..judge import certify

    entry = ENTRIES[name]
    instance = entry.make(0, **entry.sizes())
    solution = solve(instance.problem, instance.train)
    words = [str(solution), _truth_words(instance.truth, solution.x)]
    words.append(str(certify(instance.problem, solution, instance.fresh)))
    out.parent.mkdir(parents=True, exist_ok=True)
    entry.draw(instance, solution).savefig(out, dpi=DPI)
    console.print("\n\n".join([*words, f"Drawn: {out}"]), markup=False, highlight=False, soft_wrap=True)
    return out


def _truth_words(truth: Any, x: Any) -> str:
    """What is known of the truth, next to what was found."""
    import jax

    if hasattr(truth, "words"):
        return f"Truth\n  {truth.words(x)}"
    lines, found = ["Truth"], dict(jax.tree_util.tree_leaves_with_path(x))
    if hasattr(truth, "objective"):
        best, reached = (float(truth.objective(each)) for each in (truth.x, x))
        lines.append(f"  objective: {'best' if best <= reached else 'true x'} {best:.6g}, at the x found {reached:.6g}")
    for path, known in jax.tree_util.tree_leaves_with_path(truth.x):
        numbers = np.array2string(np.asarray(known), precision=5, threshold=12)
        far = float(np.sqrt(np.mean((np.asarray(found[path]) - np.asarray(known)) ** 2)))
        lines.append(f"  x{jax.tree_util.keystr(path)}: {numbers}, found to {far:.2g} (root mean square)")
    return "\n".join(lines)
