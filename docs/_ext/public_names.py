"""The public names, and the topics of the reference they are listed under.

The site's reference and its tests read this file. A name that no topic lists is put under the room it comes from, so
that nothing public can be left out.
"""

import inspect
import re
from types import ModuleType
from typing import Any

import cobilevel as cb

# topic -> (its first sentence, the rooms and files whose names belong to it, in this order)
TOPICS = {
    "Problems and domains": (
        "What you state: the two objectives, where contexts live, constraints.",
        "cobilevel.problem.problem cobilevel.problem.domain cobilevel.problem.mixed cobilevel.problem.proposals",
    ),
    "Data": ("Samples, and distributions of contexts.", "cobilevel.problem"),
    "Solving": (
        "The front door, what it returns, and how runs are kept.",
        "cobilevel.front_door cobilevel.answer cobilevel.iteration.result cobilevel.ground",
    ),
    "Judging": ("Before and after solving: how good is it?", "cobilevel.diagnosis cobilevel.judge"),
    "Bases": ("Functions of the context, in which policies are written.", "cobilevel.basis"),
    "Solvers": ("The algorithms, and step sizes for them.", "cobilevel.solvers cobilevel.iteration"),
    "Direct methods": ("What one would use in place of the reduction.", "cobilevel.direct"),
    "Gallery": ("Ready problems with known answers.", "cobilevel.gallery"),
    "Many solves": ("Grids of solves, on many processes, kept on disk.", "cobilevel.sweep"),
}


def _listed(prefix: str, module: ModuleType) -> dict[str, Any]:
    """What a module names: its ``__all__``, or all that has no underscore; no modules."""
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    values = {f"{prefix}.{name}": getattr(module, name) for name in names}
    return {name: value for name, value in values.items() if not isinstance(value, ModuleType)}


def public_names() -> dict[str, Any]:
    """Every public name as a user writes it, ``cb.solve`` or ``cb.gallery.dro``, with what it stands for."""
    import cobilevel.sweep

    names = _listed("cb", cb)
    named = (cb.gallery.images, cb.gallery.tntp)  # modules that users name, and where what they define is listed
    for room in (cb.direct, cb.gallery, cobilevel.sweep, *named):
        listed = _listed("cb" + room.__name__.removeprefix("cobilevel"), room)
        elsewhere = {module.__name__ for module in named} - {room.__name__}
        for name, value in listed.items():
            if callable(value) and home(value) not in elsewhere and (room not in named or home(value) == room.__name__):
                names[name] = value
    return names


def home(value: Any) -> str:
    """The module in which something is defined."""
    return getattr(value, "__module__", None) or ""


def by_topic() -> dict[str, list[str]]:
    """Names by topic, in the order of TOPICS; those that no topic claims are under the name of their room."""
    topics: dict[str, list[str]] = {topic: [] for topic in TOPICS}
    for name, value in public_names().items():
        path = home(value)
        claims = [
            (len(part), topic) for topic, (_, parts) in TOPICS.items() for part in parts.split() if _in(path, part)
        ]
        topic = max(claims)[1] if claims else path.split(".")[1].replace("_", " ").capitalize()
        topics.setdefault(topic, []).append(name)
    return {topic: sorted(names, key=str.lower) for topic, names in topics.items() if names}


def _in(module: str, part: str) -> bool:
    return module == part or module.startswith(f"{part}.")


def docstring(value: Any) -> str:
    """The docstring of something itself, not of a class it derives from."""
    own = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
    return inspect.cleandoc(own or "")


def undescribed(value: Any) -> list[str]:
    """Arguments in the signature of something that its docstring, or that of a class it derives from, does not name."""
    words = docstring(value)
    if inspect.isclass(value):
        words += "".join(inspect.cleandoc(kind.__dict__.get("__doc__") or "") for kind in value.__mro__[1:-1])
    named = set(re.findall(r"(?<!`)`(\w+)`(?!`)", words))
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:
        return []
    return [p.name for p in parameters if p.name not in named and not p.name.startswith("_")]
