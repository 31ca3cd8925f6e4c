"""Archives: named arrays and one JSON document in a single file, written atomically, read without running code."""

import json
import os
import secrets
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .keys import is_key

_DOCUMENT = "__document__"


def fingerprint(tree: Any) -> str:
    """The structure, shapes and dtypes of a pytree in words: equal exactly when one can stand in for the other."""
    leaves, structure = jax.tree.flatten(tree)
    return f"{structure} {[f'{leaf.dtype}{list(leaf.shape)}' for leaf in leaves]}"


def to_plain(tree: Any) -> list[np.ndarray]:
    """The leaves of a pytree as NumPy arrays, random keys as their data."""
    return [np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf) for leaf in jax.tree.leaves(tree)]


def from_plain(leaves: list[np.ndarray], like: Any) -> Any:
    """The inverse of ``to_plain``, given a pytree of the same structure (arrays or their shapes)."""
    targets, structure = jax.tree.flatten(like)
    rebuilt = [
        jax.random.wrap_key_data(jax.numpy.asarray(leaf)) if is_key(target) else jax.numpy.asarray(leaf, target.dtype)
        for leaf, target in zip(leaves, targets, strict=True)
    ]
    return jax.tree.unflatten(structure, rebuilt)


def write(path: str | Path, document: dict[str, Any], arrays: dict[str, np.ndarray]) -> Path:
    """Writes an archive next to its final place, then moves it there, so that no reader ever sees half of it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with draft.open("xb") as file:
            np.savez(file, **{_DOCUMENT: np.asarray(json.dumps(document))}, **arrays)  # pyright: ignore
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return path


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Reads an archive back: the document and the arrays. Nothing in it can run code."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no saved solution at {path}.")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        document = json.loads(str(arrays.pop(_DOCUMENT)))
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a saved solution of cobilevel, or is damaged: {error}") from error
    return document, arrays
