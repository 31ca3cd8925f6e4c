"""The folder of one run: written whole, with a manifest of its files and arrays that is checked before they are read.

``manifest.json`` holds the size and SHA-256 of each file, the shape, dtype and SHA-256 of each array, and what the run
cost: together with the files all that its row in ``runs.sqlite`` says, which can so be written again.
"""

import hashlib
import io
import json
import os
import platform
import re
import secrets
import shutil
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

SPECIFICATION, RESULT, CURVES, MANIFEST = "specification.json", "result.json", "curves.npz", "manifest.json"
MOST_CURVE_BYTES = 2**30  # of the curves of one run, inflated: the memory that reading them back may take
MOST_TEXT_BYTES = 2**26  # of a JSON document
_DRAFT_SECONDS = 86400.0  # seconds after which a draft is nobody's, whatever process has its number now
_DRAFT = re.compile(r"\.[0-9a-f]{20}-(?:([0-9a-f]{8})-)?([0-9]{1,9})-[0-9a-f]{8}(?:-old)?")


class DamageError(ValueError):
    """Something in a store is not what was written."""


@dataclass(frozen=True)
class Run:
    """One run: `spec` says what it was, `result` what came out, `curves` how it went, `cost` what it took.

    The first three are the same whenever it is run; the last is not.
    """

    spec: Mapping[str, Any]
    result: Mapping[str, Any]
    curves: Mapping[str, np.ndarray] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)


def _plainly(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__jax_array__") or hasattr(value, "tolist"):
        return np.asarray(value).tolist()
    raise TypeError(
        f"a run is kept as JSON, and {value!r} of type {type(value).__name__} has no place in it: give numbers, "
        "strings, lists and dicts, and arrays as curves."
    )


def as_json(content: Any, indent: int | None = None) -> str:
    """JSON with sorted keys; NumPy's numbers and arrays become plain ones."""
    return json.dumps(content, sort_keys=True, default=_plainly, indent=indent)


def sha256(content: bytes) -> str:
    """The SHA-256 of some bytes, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def name_of(spec: Mapping[str, Any]) -> str:
    """The name of a run: a digest of its specification, whatever the order of its entries."""
    return sha256(as_json(dict(spec)).encode())[:20]


# -- drafts


def _host() -> str:
    return sha256(platform.node().encode())[:8]


def new_draft(folder: Path, name: str) -> Path:
    """A folder that becomes the folder of a run once it is whole; its name says whose it is."""
    draft = folder / f".{name}-{_host()}-{os.getpid()}-{secrets.token_hex(4)}"
    draft.mkdir()
    return draft


def place_draft(draft: Path, final: Path) -> None:
    """Moves a draft to its place. What is there is moved aside first, so that no half of it ever stays."""
    aside = draft.with_name(f"{draft.name}-old")
    if final.exists():
        final.rename(aside)
    draft.rename(final)
    shutil.rmtree(aside, ignore_errors=True)


def sweep_out_drafts(folder: Path) -> None:
    """Removes what killed writers left behind: of processes of this machine that are no more, or older than a day."""
    for path in folder.glob(".*"):
        match = _DRAFT.fullmatch(path.name)
        if match and _abandoned(path, match[1], int(match[2])):
            shutil.rmtree(path, ignore_errors=True)


def _abandoned(draft: Path, host: str | None, process: int) -> bool:
    try:
        if time.time() - draft.stat().st_mtime > _DRAFT_SECONDS:
            return True
    except OSError:  # its writer has just moved it to its place
        return False
    if host != _host() or os.name != "posix":  # of another machine, or there is no way to ask
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it lives, and belongs to someone else
        return False
    return False


# -- writing


def write_folder(draft: Path, run: Run, used: Mapping[str, str]) -> str:
    """Writes all files of a run, and returns the text of its manifest."""
    arrays = {name: np.asarray(values) for name, values in run.curves.items()}
    for name, array in arrays.items():
        if array.dtype.hasobject or array.dtype.names:
            raise TypeError(f"the curve {name!r} has dtype {array.dtype}: curves are arrays of plain numbers.")
    total = sum(array.nbytes for array in arrays.values())
    if total > MOST_CURVE_BYTES:
        raise ValueError(
            f"the curves of a run take {total / 2**20:.0f} MiB, more than the {MOST_CURVE_BYTES / 2**20:.0f} that are "
            "read back: keep fewer points of them."
        )
    contents = {
        SPECIFICATION: as_json({"specification": dict(run.spec), "versions": dict(used)}, 1).encode(),
        RESULT: as_json(dict(run.result), 1).encode(),
        CURVES: _packed(arrays),
    }
    manifest = as_json(
        {
            "cost": dict(run.cost),
            "files": {name: {"bytes": len(part), "sha256": sha256(part)} for name, part in contents.items()},
            "arrays": {name: _array_facts(array) for name, array in arrays.items()},
        }
    )
    contents[MANIFEST] = as_json({"manifest": json.loads(manifest), "sha256": sha256(manifest.encode())}).encode()
    for name, part in contents.items():
        (draft / name).write_bytes(part)
    return manifest


def _array_facts(array: np.ndarray) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": array.dtype.str, "sha256": sha256(array.tobytes())}


def _packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    """What ``np.savez_compressed`` writes, for arrays of any names."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)  # pyright: ignore
    return buffer.getvalue()


# -- reading


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a file that is there, and no larger than it may be."""
    try:
        size = path.stat().st_size
        if size > most:
            raise DamageError(f"{path.name} has {size} bytes, more than {most}")
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise DamageError(f"{path.name} is missing") from error


def read_document(path: Path, entry: Mapping[str, Any] | None = None) -> Any:
    """A JSON document, held against its entry in a manifest where there is one."""
    content = read_bytes(path, MOST_TEXT_BYTES)
    if entry is not None:
        _as_written(path, content, entry)
    return parsed(content, path.name)


def parsed(content: bytes, what: str) -> Any:
    """JSON from bytes."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamageError(f"{what} is not JSON: {error}") from error


def _as_written(path: Path, content: bytes, entry: Mapping[str, Any]) -> None:
    if len(content) != entry["bytes"] or sha256(content) != entry["sha256"]:
        raise DamageError(f"{path.name} is not what was written")


def entry_of(manifest: Any, name: str) -> dict[str, Any]:
    """What a manifest says of a file."""
    try:
        size, digest = manifest["files"][name]["bytes"], manifest["files"][name]["sha256"]
    except (KeyError, TypeError) as error:
        raise DamageError(f"its manifest does not name {name}") from error
    if not isinstance(size, int) or not 0 <= size <= MOST_CURVE_BYTES + MOST_TEXT_BYTES:
        raise DamageError(f"its manifest gives {name} the size {size}")
    return {"bytes": size, "sha256": digest}


def check_files(folder: Path, manifest: Any) -> None:
    """Raises where a file of a run is not what its manifest says."""
    for name in (SPECIFICATION, RESULT, CURVES):
        entry = entry_of(manifest, name)
        _as_written(folder / name, read_bytes(folder / name, entry["bytes"]), entry)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest in a folder, for a run that has no row."""
    document = read_document(folder / MANIFEST)
    try:
        if sha256(as_json(document["manifest"]).encode()) != document["sha256"]:
            raise DamageError(f"{MANIFEST} is not what was written")
    except (KeyError, TypeError) as error:
        raise DamageError(f"{MANIFEST} is not what was written") from error
    return document["manifest"]


def read_curves(path: Path, manifest: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
    """The arrays of a run, held against its manifest; runs of before there were manifests have none."""
    entry = None if manifest is None else entry_of(manifest, CURVES)
    content = read_bytes(path, MOST_CURVE_BYTES if entry is None else entry["bytes"])
    if entry is not None:
        _as_written(path, content, entry)
    try:
        arrays = _unpacked(content)
    except Exception as error:  # whatever zipfile, zlib and NumPy's parser of headers make of damaged bytes
        raise DamageError(f"{path.name} cannot be read: {error}") from error
    if manifest is not None and {name: _array_facts(array) for name, array in arrays.items()} != manifest.get("arrays"):
        raise DamageError(f"{path.name} does not hold the arrays of its manifest")
    return arrays


def _unpacked(content: bytes) -> dict[str, np.ndarray]:
    """All arrays of an archive; nothing is inflated before its size is known."""
    arrays = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        total = sum(member.file_size for member in members)
        if total > MOST_CURVE_BYTES + 4096 * len(members):  # each has a header too
            raise DamageError(f"it would inflate to {total} bytes, more than {MOST_CURVE_BYTES}")
        for member in members:
            arrays[member.filename.removesuffix(".npy")] = _array_of(archive.read(member))
    return arrays


def _array_of(content: bytes) -> np.ndarray:
    """An array from the bytes of an ``.npy`` file, whose header must state as many numbers as follow."""
    file = io.BytesIO(content)
    major, _ = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)
    count = 1
    for length in shape:
        count *= length
    if dtype.hasobject or min(shape, default=0) < 0 or count * dtype.itemsize != len(content) - file.tell():
        raise DamageError("a header states another size than follows")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)
