"""Where derivatives do not see what values do: ``stop_gradient`` between a decision and an objective.

Most of them are harmless: that in ``logsumexp`` holds a shift that cancels. So what is held is changed a little: where
the value changes with it, derivatives leave out a part of it.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jaxtyping import PyTree

from ..ground import quick
from .traced import Program, Traced


def _changed(body: Jaxpr, moving: dict[Any, set[str]], found: set[str]) -> Jaxpr:
    """A program with what it holds, of values that depend on ``x`` or ``y``, changed by a hundredth.

    `moving`: on which of them each value depends; `found`: those on which something held does. Rules stated by hand
    are left alone, and what enters a loop or a branch is taken to enter all of it.
    """
    equations, floating = [], lambda aval: jnp.issubdtype(aval.dtype, jnp.floating)
    for equation in body.eqns:
        name, made = equation.primitive.name, equation.outvars
        depends = set().union(*(moving.get(v, ()) for v in equation.invars if not isinstance(v, Literal)))
        if name == "stop_gradient" and depends and floating(made[0].aval):
            found |= depends
            more = jax.make_jaxpr(lambda a: a * np.asarray(1.01, a.dtype))(made[0].aval)
            (times,) = more.jaxpr.eqns
            own = [v if isinstance(v, Literal) else equation.invars[0] for v in times.invars]
            equation = times.replace(invars=own, outvars=made)
        elif depends and not name.startswith("custom_"):
            params = {key: _within(part, equation, moving, depends, found) for key, part in equation.params.items()}
            equation = equation.replace(params=params)
        moving.update(dict.fromkeys(made, depends))
        equations.append(equation)
    return body.replace(eqns=equations)


def _within(part: Any, equation: Any, moving: dict[Any, set[str]], depends: set[str], found: set[str]) -> Any:
    """The same of a parameter of an operation, where it holds programs."""
    if isinstance(part, ClosedJaxpr) and part.jaxpr is not part:  # newer versions of JAX have one class for both
        return ClosedJaxpr(_within(part.jaxpr, equation, moving, depends, found), part.consts)
    if isinstance(part, tuple | list) and any(isinstance(one, ClosedJaxpr | Jaxpr) for one in part):
        return type(part)(_within(one, equation, moving, depends, found) for one in part)
    if not isinstance(part, Jaxpr):
        return part
    called = equation.primitive.name in ("jit", "pjit")
    own = [set() if isinstance(v, Literal) else moving.get(v, set()) for v in equation.invars]
    return _changed(part, dict(zip(part.invars, own if called else [depends] * len(part.invars), strict=True)), found)


@lru_cache
def _with_a_change(program: Program) -> tuple[Callable[..., Any] | None, list[str]]:
    """A compiled function, values of a program at some points with what it holds as it is and changed; and on what that
    depends. ``None`` where it holds nothing."""
    sizes, names = [part.num_leaves for part in program.structure.children()], []
    for name, size in zip(("x", "y", "", ""), sizes, strict=True):
        names += [{name} if name else set()] * size
    found: set[str] = set()
    body = _changed(program.body, dict(zip(program.body.invars[-len(names) :], names, strict=True)), found)
    if not found:
        return None, []
    other = Program(body, program.shapes, program.structure, program.out)

    @quick
    def values(held, *points):
        return [jax.vmap(lambda *args, one=one: one.in_place(held, *args))(*points) for one in (program, other)]

    return values, sorted(found)


def stopped(objective: Traced, x: PyTree, y: PyTree, rows: Callable[[int], Any], points: int = 8) -> list[str]:
    """On which of ``x`` and ``y`` something depends that an objective holds, and with which its value changes.

    At a few `points` around ``x`` and ``y``, with samples that `rows` gives; beyond 32 units of the precision, to which
    values, long sums, are trusted.
    """
    values, names = _with_a_change(objective.program)
    if values is None:
        return []
    draw = np.random.default_rng(points)

    def around(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        away = draw.uniform(-0.3, 0.3, (points, *leaf.shape)).astype(leaf.dtype)
        return leaf + np.where(leaf != 0, np.abs(leaf), 1).astype(leaf.dtype) * away

    some, places = rows(points), [jax.tree.map(around, tree) for tree in (x, y)]
    first, second = (np.asarray(a, float) for a in values(objective.constants, *places, some.xi, some.eta))
    known, eps = np.isfinite(first) & np.isfinite(second), float(np.finfo(objective.program.out.dtype).eps)
    return names if np.any(np.abs(first - second)[known] > 32 * eps * np.abs(first).max()) else []
