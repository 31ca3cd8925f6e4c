"""What the benchmarks share: arguments, seconds, processes of their own, and measurements for ``cobilevel bench``.

A script states its options and what it measures; it runs on its own, ``python benchmarks/NAME.py``.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HIDDEN = argparse.SUPPRESS  # the words of an option that --help does not show

Option = tuple[Any, ...]  # a flag; its default or its type; words for --help; what else argparse is told


def parser(description: str | None, *options: Option) -> argparse.ArgumentParser:
    """Of options such as ``("--seeds", 50)``, ``("--quick", False, "two rounds")`` or ``("--out", Path)``.

    A default of ``False`` makes a switch. A type stands for an option that may be left out.
    """
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)

    def add(flag: str, given: Any, words: str | None = None, more: Mapping[str, Any] | None = None) -> None:
        kind = {"type": given} if isinstance(given, type) else {"type": type(given), "default": given}
        made.add_argument(flag, **({"action": "store_true"} if given is False else kind), help=words, **(more or {}))

    for option in options:
        add(*option)
    return made


def arguments(description: str | None, *options: Option) -> argparse.Namespace:
    """The arguments of the command line."""
    return parser(description, *options).parse_args()


def timed(call: Callable, *given: Any, **named: Any) -> tuple[Any, float]:
    """What a call returns, and the seconds until all of it is there."""
    import jax  # scripts that only start others do without

    began = time.perf_counter()
    result = jax.block_until_ready(call(*given, **named))
    return result, time.perf_counter() - began


def circumstances() -> str:
    """The processors and how busy they are."""
    return f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"


def in_own_process(script: str, *given: str) -> Any:
    """What a script prints last, as JSON, where it is run in a process of its own."""
    done = subprocess.run([sys.executable, script, *given], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def write_measurements(path: Path | None, lines: Iterable[Mapping[str, Any] | Sequence[Any]]) -> None:
    """Writes measurements where ``cobilevel bench`` reads them, if it asked: what, value, unit, goal."""
    if path is not None:
        named = [dict(zip(("what", "value", "unit", "goal"), line, strict=True)) if isinstance(line, tuple) else line
                 for line in lines]  # fmt: skip
        path.write_text(json.dumps([{"goal": None} | dict(line) for line in named]))
