"""Archives: named arrays and one JSON document in a single file, written atomically, read without running code.

A file is an uncompressed zip of ``.npy`` members, which NumPy opens too. Its manifest lists the arrays with shapes,
dtypes and SHA-256, and it ends in the SHA-256 of all its other bytes: no byte can change unnoticed. Nothing is read
into memory beyond the size that the file has on disk, save for the document, which takes some forty times its own at
the most.
"""

import hashlib
import json
import os
import re
import secrets
import struct
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from .keys import is_key

_DOCUMENT, _MANIFEST = "__document__", "__manifest__"
_SEAL = b"cobilevel archive, sha-256 of what is before: "  # ends the file, with the digest after it
_DIGITS = 64  # of a SHA-256, hexadecimal
_PLAIN_KINDS = "biufcU"  # of dtypes that are plain numbers or text
_MOST_WORDS = 2**28  # characters of a document
_SUFFIX = ".npy"
_LOCAL = struct.Struct("<4s5H3I2H")  # what stands before each member of a zip
_HEADER = re.compile(  # as NumPy writes it
    rb"\{'descr': '([<>|][biufcU]\d{1,10})', 'fortran_order': (True|False), 'shape': \(([\d, ]{0,400})\), \} *\n"
)
_BLOCK = 2**20  # bytes that are read at once to be summed
_STALE = 600.0  # seconds after which the draft of a process that is no more is removed


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
    if len(leaves) != len(targets) or any(found != wanted for found, wanted in shapes):
        raise ValueError(f"saved arrays of other shapes than wanted: {len(leaves)} for {len(targets)}, {shapes[:5]}.")
    rebuilt = [
        jax.random.wrap_key_data(jax.numpy.asarray(leaf)) if is_key(target) else jax.numpy.asarray(leaf, target.dtype)
        for leaf, target in zip(leaves, targets, strict=True)
    ]
    return jax.tree.unflatten(structure, rebuilt)


def write(path: str | Path, document: dict[str, Any], arrays: dict[str, np.ndarray]) -> Path:
    """Writes an archive next to its final place, then moves it there, so that no reader ever sees half of it.

    Raises ``OSError`` where that is not possible; a file that was there before is unchanged then.
    """
    path = Path(path)
    arrays = {_DOCUMENT: np.asarray(_as_words(document)), **{name: np.asarray(part) for name, part in arrays.items()}}
    for name, array in arrays.items():
        if array.dtype.kind not in _PLAIN_KINDS or name == _MANIFEST:
            raise TypeError(f"{name!r} cannot be saved: its dtype is {array.dtype}, which is no plain number or text.")
    manifest = {name: _entry(array) for name, array in arrays.items()}
    draft = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path)
        with draft.open("x+b") as file:
            _write_members(file, {_MANIFEST: np.asarray(_as_words(manifest)), **arrays})
            file.seek(-_DIGITS, os.SEEK_END)
            file.write(_sum_of(file, file.tell()).encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        _settle(path.parent)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(
                error.errno,
                f"{path} could not be written: {error.strerror or error}. What was there before is unchanged; make "
                "room, or give a path in a folder that can be written to",
            ) from error
        raise
    return path


def _as_words(document: Any) -> str:
    return json.dumps(document, default=_plain_value)


def _plain_value(value: Any) -> Any:
    """What JSON does not know: NumPy's numbers and arrays as Python's."""
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        return value.tolist()
    raise TypeError(f"{value!r} is no plain number, text, list or dict, and cannot be saved.")


def _entry(array: np.ndarray) -> dict[str, Any]:
    return {"dtype": array.dtype.str, "shape": list(array.shape), "sha256": _array_sum(array)}


def _array_sum(array: np.ndarray) -> str:
    """Of the bytes in order of the indices, whatever their order in memory."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def _write_members(file: BinaryIO, arrays: dict[str, np.ndarray]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as members:
        members.comment = _SEAL + b"0" * _DIGITS
        for name, array in arrays.items():
            with members.open(zipfile.ZipInfo(name + _SUFFIX), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _remove_stale(path: Path) -> None:
    """Removes drafts of the same file whose writers were killed."""
    for draft in path.parent.iterdir():
        writer = re.fullmatch(rf"{re.escape(path.name)}\.(\d+)-[0-9a-f]{{8}}\.part", draft.name)
        with suppress(OSError):
            if writer and time.time() - draft.stat().st_mtime > _STALE and not _alive(int(writer[1])):
                draft.unlink()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _settle(folder: Path) -> None:
    """Has the new name on disk too, where folders can be flushed."""
    with suppress(OSError):
        place = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(place)
        finally:
            os.close(place)


def _sum_of(file: BinaryIO, length: int) -> str:
    """The SHA-256 of the first bytes of a file; leaves it after them."""
    found, left = hashlib.sha256(), length
    file.seek(0)
    while left and (block := file.read(min(_BLOCK, left))):
        found.update(block)
        left -= len(block)
    return found.hexdigest()


def read(
    path: str | Path, what: str = "saved solution", unsealed: tuple[int, ...] = ()
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Reads an archive back: the document and the arrays. Nothing in it can run code.

    Raises ``ValueError`` where the file is not exactly as it was written. `what` it is called in messages; `unsealed`:
    values of ``document["format"]`` for which there may be no manifest, as of files of earlier versions.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no {what} at {path}.")
    with path.open("rb") as file:
        try:
            return _contents(file, unsealed)
        except Exception as error:  # whatever a damaged file brings about in NumPy, zip and JSON
            reason = str(error) or type(error).__name__
            if isinstance(error, MemoryError):
                reason = "it takes more memory than there is"
            raise ValueError(f"{path} is not a {what} of cobilevel, or is damaged: {reason}") from error


def _contents(file: BinaryIO, unsealed: tuple[int, ...]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    sealed = _check_seal(file)
    if not sealed and not unsealed:
        raise ValueError("it does not end as such files do.")
    places = dict(_listed_members(file))
    manifest = None
    if _MANIFEST in places:
        manifest = _from_words(_member(file, *places.pop(_MANIFEST)))
    if sealed != (manifest is not None):
        raise ValueError("its end is missing, or belongs to another file.")
    if _DOCUMENT not in places:
        raise ValueError("it holds no document.")
    if manifest is not None and manifest.keys() != places.keys():
        missing = sorted(manifest.keys() ^ places.keys())
        raise ValueError(f"it does not hold what its manifest lists: {', '.join(map(repr, missing[:5]))}.")
    arrays = {name: _member(file, *place) for name, place in places.items()}
    for name, array in arrays.items():
        if manifest is not None and _entry(array) != manifest[name]:
            raise ValueError(f"{name!r} is not as its manifest says.")
    document = _from_words(arrays.pop(_DOCUMENT))
    if manifest is None and document.get("format") not in unsealed:
        raise ValueError("its manifest is missing.")
    return document, arrays


def _check_seal(file: BinaryIO) -> bool:
    """Whether the file ends in a digest of itself; raises where that is of something else."""
    size = file.seek(0, os.SEEK_END)
    if size < len(_SEAL) + _DIGITS:
        return False
    file.seek(-len(_SEAL) - _DIGITS, os.SEEK_END)
    seal, digest = file.read(len(_SEAL)), file.read(_DIGITS)
    if seal != _SEAL:
        return False
    if _sum_of(file, size - _DIGITS).encode() != digest:
        raise ValueError("its bytes are not those that were written (the SHA-256 at its end differs).")
    return True


def _listed_members(file: BinaryIO) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Name, place, size and check sum of each member; raises unless they fill the file, one after another."""
    with zipfile.ZipFile(file) as archive:
        entries, end = sorted(archive.infolist(), key=lambda info: info.header_offset), archive.start_dir
    expected, seen = 0, set()
    for info in entries:
        file.seek(info.header_offset)
        head = file.read(_LOCAL.size)
        if info.header_offset != expected or len(head) < _LOCAL.size:
            raise ValueError(f"something is missing before {info.filename!r}.")
        signature, _, flags, method, _, _, crc, _, _, named, extra = _LOCAL.unpack(head)
        own = file.read(named)
        plain = (signature, flags & ~0x800, method) == (b"PK\x03\x04", 0, 0)
        if not plain or info.compress_type or info.compress_size != info.file_size or info.flag_bits & ~0x800:
            raise ValueError(f"{info.filename!r} is compressed or encrypted, which no file of this library is.")
        if own != info.orig_filename.encode() or crc != info.CRC or own in seen or not info.filename.endswith(_SUFFIX):
            raise ValueError(f"its directory does not agree with its contents at {info.filename!r}.")
        seen.add(own)
        start = info.header_offset + _LOCAL.size + named + extra
        expected = start + info.file_size
        yield info.filename.removesuffix(_SUFFIX), (start, info.file_size, info.CRC)
    if expected != end:
        raise ValueError("its directory leaves out some of its contents.")


def _member(file: BinaryIO, start: int, size: int, crc: int) -> np.ndarray:
    """An array as NumPy writes it, plain numbers or text alone; no larger than what there is of it in the file."""
    file.seek(start)
    lead = file.read(min(size, 10))
    if lead[:6] != b"\x93NUMPY" or lead[6:8] != b"\x01\x00" or len(lead) < 10:
        raise ValueError("an array does not begin as NumPy's do.")
    words = file.read(min(int.from_bytes(lead[8:], "little"), size - 10))
    header = _HEADER.fullmatch(words)
    if header is None:
        raise ValueError("an array is not of plain numbers or text.")
    dtype, shape = np.dtype(header[1].decode()), tuple(int(n) for n in header[3].split(b",") if n.strip())
    count = 1
    for length in shape:
        count *= length
    if count * dtype.itemsize != size - 10 - len(words):
        raise ValueError(f"an array of shape {shape} should take {count * dtype.itemsize} bytes, and does not.")
    array = np.empty(shape, dtype, "F" if header[2] == b"True" else "C")
    flat = array.ravel("K").view(np.uint8) if count else np.empty(0, np.uint8)  # shares memory
    if file.readinto(flat.data) != flat.size:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError("it ends too early.")
    if zlib.crc32(flat.data, zlib.crc32(words, zlib.crc32(lead))) != crc:
        raise ValueError("an array is not as it was written (its check sum differs).")
    return array


def _from_words(array: np.ndarray) -> dict[str, Any]:
    """A document from an array of one text."""
    if array.dtype.kind != "U" or array.shape or array.dtype.itemsize > 4 * _MOST_WORDS:
        raise ValueError("its document is no text, or too long.")
    codes = np.frombuffer(array.tobytes(), array.dtype.str[0] + "u4")
    if codes.size and int(codes.max()) > 127:
        raise ValueError("its document is no plain text.")
    document = json.loads(str(array))
    if not isinstance(document, dict):
        raise ValueError("its document has no entries.")
    return document
