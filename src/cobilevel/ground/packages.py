"""Packages that only some users need, imported where they are first used."""

from importlib import import_module
from typing import Any


def needed(module: str, user: str, extra: str) -> Any:
    """A module of such a package; if it is missing, the error says what to install."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        words = f'{user} {package}, which is not installed: pip install "cobilevel[{extra}]".'
        raise ModuleNotFoundError(words, name=error.name) from None
