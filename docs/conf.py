"""The documentation site, by Sphinx: `.ci/docs` builds it into build/site.

The pages are plain Markdown for readers of the repository. What the site needs beside them is made
here: its tables of contents, pages from the root of the repository, and links that leave docs/.
"""

import posixpath
import re
from importlib import metadata
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/hccl-py/hccl-py"
FROM_ROOT = {"contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}
"""Pages of the site whose text stands in the root."""

SECTIONS = {
    "tutorial": "Tutorial",
    "how-to": "How-to guides",
    "explanation": "Explanation",
    "reference": "Reference",
}
"""The tabs of the site. The last three list their pages as `- [name](page.md)`, below headings."""

WIDE = ["comparison", *(f"tables/{page.stem}" for page in (ROOT / "docs/tables").glob("*.md"))]
"""Pages whose tables have many columns."""

LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)((?:#[^)\s]*)?)(?=\))")

project = "hccl-py"
author = copyright = "The hccl-py contributors"  # noqa: A001  (Sphinx reads this name)
release = version = metadata.version("hccl-py")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["conf.py"]
smartquotes = False  # they would make one dash of the two of an option

# The anchors of headings are those of the same file on GitHub.
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # a changelog goes from the title to its versions as it likes

autodoc_member_order = "bysource"
autoclass_content = "both"
autodoc_default_options = {"members": True, "inherited-members": "Exception,RuntimeError"}
napoleon_use_ivar = True
python_maximum_signature_line_length = 80
add_module_names = False
default_role = "code"  # docstrings quote names in single backticks

html_theme = "pydata_sphinx_theme"
html_title = "hccl-py"
html_static_path = ["site"]
html_css_files = ["site.css"]
html_show_sourcelink = html_show_copyright = html_show_sphinx = False
html_theme_options = {
    "github_url": REPOSITORY,
    "navbar_align": "left",
    "navigation_with_keys": False,
    "show_prev_next": True,
    "show_toc_level": 2,
    "use_edit_page_button": False,
    "header_links_before_dropdown": len(SECTIONS),
    "secondary_sidebar_items": {"**": ["page-toc"], **dict.fromkeys(WIDE, [])},
    "footer_start": [],
    "footer_end": [],
}
html_sidebars = {"index": [], "tutorial": []}
linkcheck_anchors = False
linkcheck_ignore = [rf"{REPOSITORY}.*"]  # checked in the tree, by tests/test_docs.py
linkcheck_retries = 3


def read_page(app: Sphinx, name: str, source: list[str]) -> None:
    """Complete the text of a page before it is parsed."""
    here = f"docs/{name}.md"
    if name in FROM_ROOT:
        here = FROM_ROOT[name]
        source[0] = (ROOT / here).read_text(encoding="utf-8")
        app.env.note_dependency(str(ROOT / here))
    contents = tables_of_contents(name, source[0])
    source[0] = LINK.sub(lambda link: moved(link[1], link[2], here, name), source[0]) + contents


def moved(target: str, anchor: str, here: str, name: str) -> str:
    """Return a link of the file `here` as one of the page `name`, or into the repository."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
    pages = {file: f"docs/{page}.md" for page, file in FROM_ROOT.items()}
    target = pages.get(target, target)
    if not target.startswith("docs/"):
        return f"{REPOSITORY}/blob/main/{target}{anchor}"
    return posixpath.relpath(target, posixpath.dirname(f"docs/{name}")) + anchor


def tables_of_contents(name: str, text: str) -> str:
    """Return one table for each heading of a section whose pages are listed below it."""
    if name == "index":
        return contents("", [f"{title} <{page}>" for page, title in SECTIONS.items()])
    if name not in SECTIONS:
        return ""
    made = ""
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        caption, _, listed = part.partition("\n")
        pages = re.findall(r"^- \[([^]]*)\]\(([\w/-]+)\.md\)", listed, re.M)
        made += contents(caption, [f"{title} <{page}>" for title, page in pages])
    return made


def contents(caption: str, pages: list[str]) -> str:
    """Return a table of contents that only the navigation shows; "" for no pages."""
    if not pages:
        return ""
    option = f":caption: {caption}\n" if caption else ""
    return "\n".join(["\n\n```{toctree}", f":hidden:\n{option}", *pages, "```\n"])


def draw_dashes(app: Sphinx, page: nodes.document) -> None:
    """Write the dashes that Sphinx puts behind the names of parameters as one."""
    for text in list(page.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" – "))


def setup(app: Sphinx) -> None:
    """Register what completes the pages."""
    app.connect("source-read", read_page)
    app.connect("doctree-read", draw_dashes)
