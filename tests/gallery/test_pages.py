"""The pages of the gallery run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[2] / "docs" / "gallery").glob("*.md"))


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_runs(page, tmp_path):
    code = "".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.S))
    script = tmp_path / "page.py"
    script.write_text("import matplotlib\nmatplotlib.use('agg')\n" + code)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_every_entry_of_the_table_has_its_page():
    """But for those that other pages explain."""
    table = next(page for page in PAGES if page.stem == "index").read_text()
    linked = set(re.findall(r"\]\((\w+)\.md\)", table))
    assert {page.stem for page in PAGES} - {"index"} <= linked
