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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_of_a_page_exist(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
    folders = "tests|examples|docs|hccl_py|transport|launcher"
    paths = re.findall(rf"(?<![\w/.-])((?:{folders})/[\w./-]*[\w/])", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_readme_is_short_and_names_only_settings_that_are_read() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    code = "".join(path.read_text() for path in SOURCES)
    assert [name for name in set(re.findall(r"HCCL_[A-Z_]+", text)) if name not in code] == []


@pytest.mark.parametrize(
    ("page", "summary"), [("README.md", "readme_summary"), ("docs/performance.md", "page_summary")]
)
def test_summary_of_the_measurements_is_up_to_date(page: str, summary: str) -> None:
    command: dict[str, Any] = runpy.run_path(str(ROOT / ".ci" / "performance"))
    assert command[summary](list(command["comparisons"]())) in (ROOT / page).read_text()
