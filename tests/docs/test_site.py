"""The site has every page in one place and every public name, and blocks of pages are code."""

import ast
import importlib
import importlib.util
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import hccl_py
from hccl_py.observe.metrics.counters import METRICS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SECTIONS = ("how-to", "explanation", "reference")
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def test_every_page_is_listed_in_one_section() -> None:
    listed = Counter(
        page
        for section in SECTIONS
        for page in re.findall(
            r"^- \[[^]]*\]\(([\w/-]+\.md)\)", (DOCS / f"{section}.md").read_text(), re.M
        )
    )
    roots = {"index.md", "tutorial.md", *(f"{section}.md" for section in SECTIONS)}
    every = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert listed == Counter(every - roots)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_has_one_title(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    assert len(re.findall(r"^# ", prose, re.M)) == (page.stem not in ("contributing", "changelog"))


@pytest.mark.parametrize("page", ["operators.md", "jobs/metrics.md"])
def test_metrics_of_a_page_exist(page: str) -> None:
    known = {
        f"hccl_{of}{name}{'' if metric.is_gauge else '_total'}"
        for of in ("", "node_")
        for name, metric in METRICS.items()
    } | {"hccl_rank_up"}
    used = re.findall(r"\bhccl_\w+(?=\[| [<>=])", (DOCS / page).read_text())
    assert used and set(used) <= known


def test_reference_has_every_public_name_once() -> None:
    text = (DOCS / "api" / "reference.md").read_text()
    assert sorted(re.findall(r"^\.\. auto\w+:: hccl_py\.(\w+)$", text, re.M)) == sorted(
        set(hccl_py.__all__) - {"__version__"}
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_blocks_of_a_page_are_code_with_names_that_exist(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M):
        for module, name in used_names(ast.parse(block)):
            if module.startswith(("hccl_py.horovod.", "hccl_py.integrations.")):
                assert importlib.util.find_spec(module)  # these import their frameworks
            else:
                assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


def used_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Find the names of hccl_py that a block imports or looks up."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hccl_py"):
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "__name__") for alias in node.names if "hccl_py" in alias.name)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "hccl_py":
            yield "hccl_py", node.attr
