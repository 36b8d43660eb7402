"""What README and docs point to exists, and the summaries are those of the measured tables."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = [*(ROOT / "hccl_py").rglob("*.py"), *(ROOT / "transport").rglob("*.py")]
FOLDERS = ("hccl_py", "transport", "launcher", "tests", "examples", ".ci")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_paths_of_a_page_exist(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text)
    missing = [link for link, _ in links if not (page.parent / link).exists()]
    missing += [
        f"{link}#{heading}"
        for link, heading in links
        if heading and heading not in anchors(page.parent / link if link else page)
    ]
    assert missing == []
    folders = "tests|examples|docs|hccl_py|transport|launcher"
    paths = re.findall(rf"(?<![\w/.-])((?:{folders})/[\w./-]*[\w/])", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def anchors(page: Path) -> set[str]:
    """Return what a link to a heading of this page may name, as GitHub makes it."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_pages_that_the_code_names_exist() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    named = {
        (path.relative_to(ROOT).as_posix(), page)
        for path in [ROOT / "pyproject.toml", *files]
        if path.suffix not in (".pyc", ".so")
        for page in re.findall(r"\bdocs/[\w/]+\.\w+", path.read_text(errors="ignore"))
    }
    assert [(path, page) for path, page in sorted(named) if not (ROOT / page).exists()] == []


def test_readme_is_short_and_names_only_settings_that_are_read() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    code = "".join(path.read_text() for path in SOURCES)
    assert [name for name in set(re.findall(r"HCCL_[A-Z_]+", text)) if name not in code] == []


@pytest.mark.parametrize(
    ("page", "summary"),
    [("README.md", "readme_summary"), ("docs/speed/performance.md", "page_summary")],
)
def test_summary_of_the_measurements_is_up_to_date(page: str, summary: str) -> None:
    command: dict[str, Any] = runpy.run_path(str(ROOT / ".ci" / "performance"))
    assert command[summary](list(command["comparisons"]())) in (ROOT / page).read_text()
