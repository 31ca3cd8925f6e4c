"""A wheel in an empty environment: what it installs, and whether the README's example and `cobilevel demo` run from it.

`python benchmarks/empty_environment.py dist/NAME.whl [--python python3.13]`. The checkout is not on the path.
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home, start = Path(folder), time.perf_counter()
        run(given.python, "-m", "venv", home / "env")
        python = home / "env" / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", given.wheel.resolve())
        listed = run(python, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check").split()
        packages = sorted(name for name in listed if not name.startswith(("pip==", "setuptools==")))
        site = next((home / "env" / "lib").glob("python*/site-packages"))
        sizes = [path.stat().st_size for path in site.rglob("*") if path.is_file() and "pip" not in path.parts[-2:]]
        print(f"{run(python, '--version').strip()}: {len(packages)} packages, {sum(sizes) / 1e6:.0f} MB,", end=" ")
        print(f"installed in {time.perf_counter() - start:.0f} s")
        print(" ".join(packages))
        (code, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
        (home / "example.py").write_text(code)
        printed = run(python, home / "example.py", cwd=home)
        assert "converged=True" in printed, printed
        print(printed)
        print(run(home / "env" / "bin" / "cobilevel", "demo", "--out", home / "demo", cwd=home))
        where = run(python, "-c", "import cobilevel; print(cobilevel.__file__)", cwd=home).strip()
        assert str(home) in where, where
        typed = (Path(where).parent / "py.typed").exists()
        print(f"py.typed: {typed}")
        assert typed


if __name__ == "__main__":
    main()
