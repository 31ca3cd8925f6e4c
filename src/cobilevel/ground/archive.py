"""Files that are written in one piece; and archives, which hold named arrays and a JSON document in one such file.

An archive is an uncompressed zip of ``.npy`` members, which NumPy opens too. It ends in the SHA-256 of all its other
bytes: no byte can change unnoticed. It is read without running code, and in no more memory than its size on disk, save
for the document, which takes some forty times its own at the most.
"""

import hashlib
import json
import math
import os
import re
import secrets
import time
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from .keys import is_key

_DOCUMENT, _SUFFIX = "__document__", ".npy"
_SEAL = b"cobilevel archive, sha-256 of what is before: "  # ends the file, with the digest after it
_DIGITS = 2 * hashlib.sha256().digest_size
_PLAIN_KINDS = "biufcU"  # of dtypes that are plain numbers or text
_STALE = 3600.0  # seconds after which a draft is of a process that was killed


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
    shapes = [(leaf.shape[: leaf.ndim - is_key(target)], target.shape) for leaf, target in zip(leaves, targets)]  # noqa: B905
    if len(leaves) != len(targets) or any(own != wanted for own, wanted in shapes):
        raise ValueError(f"saved arrays of other shapes than wanted: {len(leaves)} for {len(targets)}, {shapes[:5]}.")
    rebuilt = [
        jax.random.wrap_key_data(jax.numpy.asarray(leaf)) if is_key(target) else jax.numpy.asarray(leaf, target.dtype)
        for leaf, target in zip(leaves, targets, strict=True)
    ]
    return jax.tree.unflatten(structure, rebuilt)


def group(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): part for name, part in arrays.items() if name.startswith(prefix)}


def numbered(prefix: str, leaves: list[Any]) -> dict[str, np.ndarray]:
    """Arrays by their numbers; ``in_order`` gives the list back."""
    return {f"{prefix}/{k}": np.asarray(leaf) for k, leaf in enumerate(leaves)}


def in_order(arrays: Mapping[str, np.ndarray], prefix: str) -> list[np.ndarray]:
    """The inverse of ``numbered``."""
    parts = group(arrays, f"{prefix}/")
    return [parts[str(k)] for k in range(len(parts))]


# -- writing


def write_file(path: str | Path, content: str | bytes | Callable[[BinaryIO], object]) -> Path:
    """Writes a file next to its final place, then moves it there, so that no reader ever sees half of it.

    `content` may be a function that writes to an open file. Raises ``OSError`` if that is not possible; a file that was
    there before is then unchanged.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is a folder or a device, and not a file to write to. Give another path.")
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path.parent)
        with draft.open("x+b") as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        with suppress(OSError):  # the new name too is on disk then, where folders can be flushed
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        cause = error
        while isinstance(cause, ValueError) and cause.__context__ is not None:  # a zip that could not be closed
            cause = cause.__context__
        if isinstance(cause, OSError):
            raise OSError(
                cause.errno,
                f"{path} could not be written: {cause.strerror or cause}. The file that was there is unchanged. Free "
                "some space, or give a path in a folder that can be written to",
            ) from error
        raise
    return path


@cache
def _remove_stale(folder: Path) -> None:
    """Removes the drafts that killed writers left in a folder; once in each process."""
    for draft in folder.iterdir():
        with suppress(OSError):
            if re.fullmatch(r".+\.[0-9a-f]{16}\.part", draft.name) and time.time() - draft.stat().st_mtime > _STALE:
                draft.unlink()


def as_json(content: Any, **options: Any) -> str:
    """JSON in which NumPy's numbers and arrays are plain ones."""
    return json.dumps(content, default=_plain_value, **options)


def _plain_value(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(
        f"files hold JSON and arrays; {value!r} of type {type(value).__name__} cannot be saved. Use numbers, strings, "
        "lists and dicts."
    )


def write(path: str | Path, document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Path:
    """Writes an archive, in one piece, as ``write_file`` does."""
    members = {_DOCUMENT: np.asarray(as_json(document))} | {name: np.asarray(part) for name, part in arrays.items()}
    for name, array in members.items():
        if array.dtype.kind not in _PLAIN_KINDS:
            raise TypeError(f"{name!r} cannot be saved: its dtype is {array.dtype}, not plain numbers or text.")

    def sealed(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.comment = _SEAL + b"0" * _DIGITS
            for name, array in members.items():
                with archive.open(zipfile.ZipInfo(name + _SUFFIX), "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        file.seek(-_DIGITS, os.SEEK_END)
        file.write(_digest(file, file.tell()))

    return write_file(path, sealed)


def _digest(file: BinaryIO, length: int) -> bytes:
    """The SHA-256 of the first bytes of a file, in hexadecimal digits; leaves it after them."""
    digest = hashlib.sha256()
    file.seek(0)
    while length and (block := file.read(min(2**20, length))):
        digest.update(block)
        length -= len(block)
    return digest.hexdigest().encode()


# -- reading


def read(
    path: str | Path, what: str = "saved solution", unsealed: tuple[int, ...] = ()
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Reads an archive back: the document and the arrays. Nothing in it can run code.

    Raises ``ValueError`` if the file is not exactly as it was written. `what`: its name in messages; `unsealed`: values
    of ``document["format"]`` for which there may be no digest at its end, as in files of earlier versions.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no {what} at {path}.")
    with path.open("rb") as file:
        try:
            return _contents(file, unsealed)
        except Exception as error:  # whatever a damaged file brings about in NumPy, zip and JSON
            reason = "it takes more memory than is available" if isinstance(error, MemoryError) else str(error)
            reason = reason.rstrip(".") or type(error).__name__
            raise ValueError(f"{path} is not a {what} of cobilevel, or is damaged: {reason}.") from error


def _contents(file: BinaryIO, unsealed: tuple[int, ...]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    size = file.seek(0, os.SEEK_END)
    file.seek(-min(size, len(_SEAL) + _DIGITS), os.SEEK_END)
    sealed, digest = file.read(len(_SEAL)) == _SEAL, file.read(_DIGITS)
    if sealed and _digest(file, size - _DIGITS) != digest:
        raise ValueError("its content has changed since it was written (the SHA-256 at its end differs)")
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        stored = all(member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1 for member in members)
        if not stored or sum(member.file_size for member in members) > size:
            raise ValueError("it is compressed or encrypted; files of this library never are")
        arrays = {member.filename.removesuffix(_SUFFIX): _array(archive, member) for member in members}
        ends = sealed or not archive.comment
    if _DOCUMENT not in arrays:
        raise ValueError("it holds no document")
    document = json.loads(str(arrays.pop(_DOCUMENT)))
    if not isinstance(document, dict):
        raise ValueError("its document has no entries")
    if not ends or not (sealed or document.get("format") in unsealed):
        raise ValueError("it does not end as such files do")
    return document, arrays


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """An array as NumPy writes it, plain numbers or text alone; no larger than what there is of it in the file."""
    with archive.open(info) as member:
        if np.lib.format.read_magic(member) != (1, 0):
            raise ValueError(f"{info.filename!r} does not begin as NumPy's arrays do")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(member)
        size = info.file_size - member.tell()
        if dtype.kind not in _PLAIN_KINDS or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size:
            raise ValueError(f"{info.filename!r} is not an array of plain numbers or text, or its size is wrong")
        return np.ndarray(shape, dtype, bytearray(member.read()), order="F" if fortran else "C")


# -- locks


def lock(path: Path, seconds: float = 0.0) -> Any:
    """An open file whose lock this process holds until it closes it or ends; ``None`` if another process holds it for
    `seconds`. On systems without locks it always succeeds.
    """
    file, until = path.open("a"), time.monotonic() + seconds
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return file
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                file.close()
                return None
            time.sleep(0.01)
        except OSError:  # a file system without locks
            return file
        else:
            return file
