"""How Sphinx makes the site of this folder's pages (``make docs``).

It reads ``docs/*.md`` as they are, and makes the pages of the API from the docstrings: ``api_pages.py`` says which name
is on which page.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCS = HERE.parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT / "src"), str(HERE), str(ROOT)]

import api_pages  # noqa: E402

from scripts import notebooks  # noqa: E402

project = "pillarbox"
_package = metadata("pillarbox")
author = copyright = _package["Author-email"].partition(" <")[0].strip('"')
release = version = _package["Version"]
_addresses = dict(url.split(", ", 1) for url in _package.get_all("Project-URL") or ())
repository = _addresses["Homepage"]
# The site of a release leads to the files of that release.
branch = os.environ["GITHUB_REF_NAME"] if os.environ.get("GITHUB_REF_TYPE") == "tag" else "main"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "translator",
]
source_suffix = {".md": "markdown", ".ipynb": "markdown"}  # _outside makes Markdown of notebooks
exclude_patterns = ["benchmarks/*", "images/*", "site/*"]

# The anchors that links within pages use are those that GitHub makes of headings.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "colon_fence"]
# (Signatures name a class within a class by its last name, which several have.)
suppress_warnings = ["myst.header", "ref.python"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = "pillarbox"
html_theme_options = {
    "source_repository": repository,
    "source_branch": branch,
    "source_directory": "docs/",
}
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["versions.css"]
html_js_files = [("versions.js", {"defer": "defer"})]
templates_path = ["templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}


def _as_markdown(docname: str) -> str:
    """Return a page as Markdown: with their output if they were run, that is also what notebooks are."""
    if docname == "index":
        return (ROOT / "README.md").read_text()
    notebook = DOCS / f"{docname}.ipynb"
    return notebooks.page(notebook, notebooks.BUILT) if notebook.exists() else (DOCS / f"{docname}.md").read_text()


def _outside(app: Any, docname: str, source: list[str]) -> None:
    """Files of the repository that are no page become links to where the repository is."""
    if (DOCS / f"{docname}.ipynb").exists():
        app.env.note_dependency(str(notebooks.BUILT / f"{Path(docname).name}.ipynb"))
        title, _, rest = _as_markdown(docname).partition("\n")
        source[0] = f"{title}\n\n{{download}}`Download this notebook <{Path(docname).name}.ipynb>`\n{rest}"
    folder, blob = (DOCS / docname).parent, f"{repository}/blob/{branch}"
    if docname == "index":  # the site begins with README, and adds a table of contents
        app.env.note_dependency(str(ROOT / "README.md"))
        first = api_pages.absolute_links((ROOT / "README.md").read_text(), ROOT, ROOT, blob, app.env.found_docs)
        source[0] = first.replace("](docs/", "](") + "\n" + source[0]
    source[0] = api_pages.absolute_links(source[0], folder, ROOT, blob, app.env.found_docs)


def _write_api(app: Any) -> None:
    api_pages.write(DOCS / "api")


def _forget(app: Any, env: Any, docnames: list[str]) -> None:
    """Forget all pages that are read again, so that no name is on two while it moves from one to another."""
    for docname in docnames:
        env.clear_doc(docname)


def _write_markdown(app: Any, error: Exception | None) -> None:
    """Write the Markdown of each page next to its HTML, and list the pages in ``llms.txt``, for programs that read."""
    if error is not None:
        return
    site, lines = Path(app.outdir), [f"# {project}", "", f"> {_package['Summary']}", ""]
    for docname in sorted(app.env.found_docs):
        if not docname.startswith("api/"):
            target = site / f"{docname}.md"
            target.write_text(_as_markdown(docname).replace("(../../build/notebooks/", "(../_images/"))
            lines.append(f"- [{app.env.titles[docname].astext()}]({docname}.md)")
    (site / "llms.txt").write_text("\n".join([*lines, ""]))


def setup(app: Any) -> None:
    """Have the pages of the API written before Sphinx looks for pages."""
    app.connect("builder-inited", _write_api)
    app.connect("env-before-read-docs", _forget)
    app.connect("source-read", _outside)
    app.connect("build-finished", _write_markdown)
