"""The site: `make docs` builds it into site/, which needs no network and works from any folder or static host."""

import ast
import hashlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

import cobilevel


def code_alone(path):
    """A module without its docstrings and comments, which change nothing that it computes."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body[0].value = ast.Constant("")
    return ast.unparse(tree)


project = "cobilevel"
author = copyright = "the cobilevel developers"
version = release = cobilevel.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "docstrings",
    "reference",
    "executed",
]
exclude_patterns = ["_ext", "_build", "_pictures", "results"]
needs_sphinx = "8.0"
nitpicky = False
suppress_warnings = ["config.cache", "mystnb.unknown_mime_type", "myst-nb.lexer"]

# --- look: a theme that is whole by itself
html_theme = "furo"
html_title = f"cobilevel {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5cad", "color-brand-content": "#0b5cad"},
    "dark_css_variables": {"color-brand-primary": "#7fb8f0", "color-brand-content": "#7fb8f0"},
}
templates_path = []
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

# --- Markdown
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3
myst_links_external_new_tab = False

# --- mathematics: MathJax as one file, its glyphs as SVG, so that no font is loaded
mathjax_path = "mathjax/tex-svg.js"
mathjax3_config = {"svg": {"fontCache": "local"}, "options": {"enableMenu": False}}

# --- pages that are run: kept until the package or the page changes
SOURCES = sorted((HERE.parent / "src").rglob("*.py"))
DIGEST = hashlib.sha256("".join(map(code_alone, SOURCES)).encode()).hexdigest()[:16]
KEPT = HERE / "_build" / "kept" / DIGEST
nb_execution_mode = "cache"
nb_execution_cache_path = str(KEPT / "notebooks")
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_merge_streams = True
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# compiled programs outlive changes of the code around them
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(HERE / "_build" / "programs"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
executed_kept = str(KEPT)

# --- reference
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 88
python_display_short_literal_types = True
viewcode_follow_imported_members = True
toc_object_entries = False
add_module_names = False


def _copy_mathjax(app, exception):
    """The one file that mathematics needs, from the package that carries MathJax."""
    if exception is None and app.builder.format == "html":
        package = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent
        target = Path(app.outdir) / "_static" / "mathjax"
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(package / "static" / "mathjax" / "tex-svg.js", target)
        shutil.copytree(HERE / "results", Path(app.outdir) / "results", dirs_exist_ok=True)


def setup(app):
    app.connect("build-finished", _copy_mathjax)
