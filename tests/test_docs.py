"""What README and docs point to exists, and the summaries are those of the measured tables."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from launching import launch
from tiers import by_night

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = [*(ROOT / "hccl_py").rglob("*.py"), *(ROOT / "transport").rglob("*.py")]
TESTS = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
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
    tests = re.findall(r"`(?:tests/[\w/]*\.py::)?(test_\w+)`", text)
    assert [name for name in tests if f"def {name}(" not in TESTS] == []


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
        for page in re.findall(r"(?<!/)\bdocs/[\w/]+\.\w+", path.read_text(errors="ignore"))
    }
    assert [(path, page) for path, page in sorted(named) if not (ROOT / page).exists()] == []


def test_settings_page_names_exactly_the_variables_that_are_read() -> None:
    code = "".join(path.read_text() for path in SOURCES)
    read = set(re.findall(r"""["'](HCCL_[A-Z_]*[A-Z])["']""", code))
    named = re.findall(r"HCCL_[A-Z_]*[A-Z]", (ROOT / "docs" / "settings.md").read_text())
    assert set(named) == read


PROGRAMS = [
    block
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    if "import" in block
]
PRINTED = ["mean loss of 2 ranks: ", "sum over 2 ranks: 3\n"]
DDP, SUM = zip(PROGRAMS, PRINTED, strict=True)


@pytest.mark.parametrize(("block", "printed"), [SUM, *by_night("training", DDP)])
def test_program_of_the_readme_runs(block: str, printed: str, tmp_path: Path) -> None:
    program = tmp_path / "first.py"
    program.write_text(block)
    done = launch("--nproc-per-node", 2, program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(printed)


@pytest.mark.parametrize(
    ("page", "summary"),
    [("README.md", "readme_summary"), ("docs/speed/performance.md", "page_summary")],
)
def test_summary_of_the_measurements_is_up_to_date(page: str, summary: str) -> None:
    command: dict[str, Any] = runpy.run_path(str(ROOT / ".ci" / "performance"))
    assert command[summary](list(command["comparisons"]())) in (ROOT / page).read_text()
