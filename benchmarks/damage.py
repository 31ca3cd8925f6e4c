"""Damaged and crafted files: how many are refused, how many load with the same contents, and the memory that takes.

A saved solution and an archive as checkpoints are written, with flipped bits and bytes, cut, lengthened and overwritten
at random; and files with a proper seal whose document or arrays were replaced by something else. Every one must either
be refused with a ``ValueError`` in words or, where its bytes still say the same, load with the same contents. What was
replaced under a new seal may load as what it now says; then it must print and give a policy.

``python benchmarks/damage.py [count] [seed]``
"""

import jax

jax.config.update("jax_enable_x64", True)

import io
import json
import sys
import tempfile
import tracemalloc
import warnings
import zipfile
from collections import Counter
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import cobilevel as cb
from cobilevel.ground import archive

COUNT = 5000
AT_MOST = 2**24, 60  # bytes of memory for any file, and for each byte of it
JUNK = (
    None, True, -1, 10**9, 10**30, 1e308, float("nan"), "", "nan", "x" * 1000, [], [[]], [None] * 50, {},
    {"name": "os.system"}, {"name": "Chebyshev", "n": 10**9}, {"name": "Chebyshev", "n": -3},
    {"name": "Neural", "n": 5}, {"array": [1], "dtype": "O"},
)  # fmt: skip


def problem() -> cb.Problem:
    """A small problem with noise in its lower level."""
    return cb.Problem(
        lambda x, y, xi, eta: (y["rate"] - xi) ** 2 + 0.1 * x**2,
        lambda x, y, xi, eta: (y["rate"] - x * xi - eta["noise"]) ** 2,
        1.0,
        {"rate": 0.0},
        cb.Interval(0.0, 1.0),
    )


def samples(rows: int = 200) -> cb.Samples:
    rng = np.random.default_rng(0)
    return cb.Samples(rng.uniform(size=rows), {"noise": rng.normal(size=rows)})


def archives(folder: Path, solution: cb.Solution | None = None) -> dict[str, Path]:
    """The files that are damaged: a saved solution, and arrays with a document as a checkpoint has them."""
    found = cb.solve(problem(), samples(), basis=cb.Orthonormal(cb.Chebyshev(4))) if solution is None else solution
    rng = np.random.default_rng(1)
    state = {f"state/{k}": rng.normal(size=(5, k)) for k in range(5)} | {"key": np.arange(2, dtype=np.uint32)}
    words = {"format": 1, "run": "0" * 64, "step": 17, "history": ["upper", "gradient"]}
    return {
        "solution": found.save(folder / "solution.npz"),
        "archive": archive.write(folder / "archive.npz", words, state),
    }


def flipped(raw: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    """Bytes as a failing disk or a broken copy leaves them."""
    size, content = len(raw), bytearray(raw)
    kind = ("bit", "bit of the end", "byte", "cut", "longer", "hole", "block", "moved")[int(rng.integers(8))]
    place, length = int(rng.integers(size)), int(rng.integers(1, 200))
    if kind == "bit":
        content[place] ^= 1 << int(rng.integers(8))
    elif kind == "bit of the end":  # the directory and the seal
        content[-int(rng.integers(1, size // 5))] ^= 1 << int(rng.integers(8))
    elif kind == "byte":
        content[place] = int(rng.integers(256))
    elif kind == "cut":
        del content[place:]
    elif kind == "longer":
        content[place:place] = rng.bytes(length)
    elif kind == "hole":
        del content[place : place + length]
    elif kind == "block":
        content[place : place + length] = bytes(min(length, size - place))
    else:
        other = int(rng.integers(size))
        content[place : place + length], content[other : other + length] = (
            content[other : other + length],
            content[place : place + length],
        )
    return kind, bytes(content)


def crafted(path: Path, rng: np.random.Generator, to: Path) -> str:
    """Another file with a proper seal: an entry of its document, or an array, replaced or left out."""
    document, arrays = archive.read(path)
    names = sorted(arrays)
    name, junk = names[int(rng.integers(len(names)))], JUNK[int(rng.integers(len(JUNK)))]
    kind = ("entry", "inner entry", "no entry", "no array", "other shape", "other dtype", "not finite")[
        int(rng.integers(7))
    ]
    places = [(document, entry) for entry in document]
    if kind == "inner entry":
        places = [(inner, entry) for inner in document.values() if isinstance(inner, dict) for entry in inner] or places
    holder, entry = places[int(rng.integers(len(places)))]
    if kind in ("entry", "inner entry"):
        holder[entry] = junk
    elif kind == "no entry":
        del holder[entry]
    elif kind == "no array":
        del arrays[name]
    elif kind == "other shape":
        arrays[name] = np.zeros(tuple(rng.integers(0, 5, size=int(rng.integers(0, 4)))))
    elif kind == "other dtype":
        arrays[name] = np.full(arrays[name].shape, "a" if rng.integers(2) else 1j)
    else:
        arrays[name] = np.full(arrays[name].shape, np.nan)
    archive.write(to, document, arrays)
    return kind


def _npy(array: np.ndarray) -> bytes:
    held = io.BytesIO()
    np.lib.format.write_array(held, array, allow_pickle=True)
    return held.getvalue()


def traps(path: Path) -> dict[str, bytes]:
    """Files meant to break a reader: what inflates, nests, lies about sizes, or runs code."""
    words = np.asarray(json.dumps({"format": 1}))

    def zipped(members: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
        held = io.BytesIO()
        with zipfile.ZipFile(held, "w", how) as members_of:
            for name, content in members.items():
                members_of.writestr(name, content)
        return held.getvalue()

    header = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")
    huge = header + b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(117) + b"\n"
    strange = header + b"{'descr': '<f8', 'fortran_order': False, 'shape': (((((".ljust(117) + b"\n"
    document = {"__document__.npy": _npy(words)}
    own = zipfile.ZipFile(path)
    dropped = {name: own.read(name) for name in own.namelist() if not name.startswith(("history", "state"))}
    return {
        "inflates": zipped({**document, "a.npy": _npy(np.zeros(2**22))}, zipfile.ZIP_DEFLATED),
        "inflates its document": zipped({"__document__.npy": _npy(np.asarray(" " * 2**23))}, zipfile.ZIP_DEFLATED),
        "nests": zipped({"__document__.npy": _npy(np.asarray("[" * 100_000))}),
        "nests in a dict": zipped({"__document__.npy": _npy(np.asarray('{"a":' * 100_000))}),
        "long number": zipped({"__document__.npy": _npy(np.asarray('{"format": ' + "1" * 100_000 + "}"))}),
        "size of a terabyte": zipped({**document, "a.npy": huge}),
        "header that does not end": zipped({**document, "a.npy": strange}),
        "objects": zipped({**document, "a.npy": _npy(np.array([{"a": 1}], dtype=object))}),
        "no document": zipped({"a.npy": _npy(np.zeros(3))}),
        "document is a number": zipped({"__document__.npy": _npy(np.zeros(3))}),
        "document is a list": zipped({"__document__.npy": _npy(np.asarray("[1]"))}),
        "surrogates": zipped(
            {"__document__.npy": _npy(np.asarray("{}")).replace(b"{\0\0\0}\0\0\0", b"\0\xd8\0\0}\0\0\0")}
        ),
        "not for a zip": zipped({**document, "../../a": b"x"}),
        "history dropped": zipped(dropped),
        "empty": b"",
        "no zip": b"x" * 5000,
    }


def same(one: tuple, other: tuple) -> bool:
    """Whether two readings of an archive are the same, bit for bit."""
    documents = json.dumps(one[0], sort_keys=True) == json.dumps(other[0], sort_keys=True)
    bits = lambda arrays: {name: (a.dtype.str, a.shape, a.tobytes()) for name, a in arrays.items()}
    return documents and bits(one[1]) == bits(other[1])


class Trial:
    """Reads files, and counts how that ends; what must not be is kept in `failures`."""

    def __init__(self, folder: Path, solution: cb.Solution | None = None):
        self.folder, self.originals = folder, archives(folder, solution)
        self.contents = {name: archive.read(path) for name, path in self.originals.items()}
        self.raw = {name: path.read_bytes() for name, path in self.originals.items()}
        self.problem, self.counts, self.failures = problem(), Counter(), []
        self.most = 0.0

    def read(self, name: str, path: Path, honest: bool) -> str:
        """How one file ends: refused, the same, or (where it was not damaged but rewritten) loaded."""
        size = path.stat().st_size
        tracemalloc.start()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                got = archive.read(path, unsealed=(1,))
                if name == "solution":
                    loaded = cb.load(path, self.problem)
                    _ = (repr(loaded), loaded.policy(jnp.array([0.1, 0.5])))
            ending = "the same" if same(got, self.contents[name]) else "loaded" if not honest else "ANOTHER CONTENT"
        except ValueError as error:
            ending = "refused" if len(str(error)) > 20 else f"NO WORDS: {error!r}"
        except Exception as error:
            ending = f"RAW {type(error).__name__}: {error}"
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        self.most = max(self.most, peak)
        return f"MEMORY {peak / 2**20:.0f} MiB" if peak > AT_MOST[0] + AT_MOST[1] * size else ending

    def note(self, kind: str, ending: str, what: str) -> None:
        self.counts[kind, ending if ending in ("refused", "the same", "loaded") else "FAILED"] += 1
        if ending not in ("refused", "the same", "loaded"):
            self.failures.append(f"{kind}, {what}: {ending}")

    def run(self, count: int, seed: int = 0) -> None:
        """So many files: of ten, six damaged and four rewritten; and all traps once."""
        path = self.folder / "damaged.npz"
        for number in range(count):
            rng = np.random.default_rng([seed, number])
            name = ("solution", "archive")[number % 2]
            if number % 10 < 6:
                kind, content = flipped(self.raw[name], rng)
                path.write_bytes(content)
                self.note(kind, self.read(name, path, True), f"{name} {number}")
            else:
                kind = crafted(self.originals[name], rng, path)
                self.note(f"rewritten: {kind}", self.read(name, path, False), f"{name} {number}")
        for kind, content in traps(self.originals["solution"]).items():
            path.write_bytes(content)
            self.note("trap", self.read("solution", path, True), kind)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder))
        trial.run(count, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    endings = ("refused", "the same", "loaded", "FAILED")
    print(f"{'':26}" + "".join(f"{ending:>10}" for ending in endings))
    for kind in sorted({kind for kind, _ in trial.counts}):
        print(f"{kind:26}" + "".join(f"{trial.counts[kind, ending]:10d}" for ending in endings))
    print(
        f"most memory: {trial.most / 2**20:.1f} MiB; the files have "
        f"{' and '.join(str(len(raw)) for raw in trial.raw.values())} bytes"
    )
    for failure in trial.failures[:20]:
        print(failure)
    sys.exit(bool(trial.failures))


if __name__ == "__main__":
    main()
