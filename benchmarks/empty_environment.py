"""A wheel in an empty environment: what it installs and how fast it starts, alone and with the extra `cli`.

`python benchmarks/empty_environment.py dist/NAME.whl [--python python3.13]`. Alone it must run
the README's example, with the extra `cobilevel demo` too. The checkout is not on the path.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def seconds(call, times=3):
    """The shortest of a few calls."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)


def install(home, wheel, extra):
    """The wheel with an extra, and what is installed then."""
    python = home / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel.resolve()}{extra}")
    listed = run(python, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check").split()
    packages = sorted(name for name in listed if not name.startswith(("pip==", "setuptools==")))
    site = next((home / "env" / "lib").glob("python*/site-packages"))
    files = [path for path in site.rglob("*") if path.is_file()]
    own = {"pip", "setuptools", "pkg_resources", "_distutils_hack"}  # of the empty environment
    sizes = [path.stat().st_size for path in files if path.relative_to(site).parts[0].split("-")[0] not in own]
    print(f"cobilevel{extra}: {len(packages)} packages, {sum(sizes) / 1e6:.0f} MB: {' '.join(packages)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home, start = Path(folder), time.perf_counter()
        run(given.python, "-m", "venv", home / "env")
        python = home / "env" / "bin" / "python"
        print(run(python, "--version").strip())
        install(home, given.wheel, "")
        print(f"installed in {time.perf_counter() - start:.0f} s")
        (code, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
        (home / "example.py").write_text(code)
        loads = seconds(lambda: run(python, "-c", "import cobilevel", cwd=home))
        answers = seconds(lambda: run(python, home / "example.py", cwd=home))
        print(f"import cobilevel: {loads:.2f} s; the README's example: {answers:.1f} s (each the best of three)")
        printed = run(python, home / "example.py", cwd=home)
        assert "converged=True" in printed, printed
        print(printed)
        install(home, given.wheel, "[cli]")
        print(run(home / "env" / "bin" / "cobilevel", "demo", "--out", home / "demo", cwd=home))
        where = run(python, "-c", "import cobilevel; print(cobilevel.__file__)", cwd=home).strip()
        assert str(home) in where, where
        typed = (Path(where).parent / "py.typed").exists()
        print(f"py.typed: {typed}")
        assert typed


if __name__ == "__main__":
    main()
