"""Fills the matrix of docs/frameworks/README.md from the mark `shows` of tests (`matrix.py`)."""

import sys
from collections.abc import Generator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import matrix  # noqa: E402

OK = "yes"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepare for ranks that train with a framework: no setting of hccl-py, and whole lines."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "extensions"))
    # Unbuffered, Python writes the end of a line by itself, and lines of two ranks may mix.
    for name in ("HCCL_REPLACE", "HCCL_GUARD", "ACCELERATE_USE_CPU", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)


def _shown(item: pytest.Item) -> list[tuple[str, str, str]]:
    found = []
    for marker in item.iter_markers("shows"):
        framework, column, text = (*marker.args, OK)[:3]
        assert framework in matrix.FRAMEWORKS, f"{item.nodeid}: no framework {framework}"
        assert column in matrix.COLUMNS, f"{item.nodeid}: no column {column}"
        found.append((framework, column, text))
    return found


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test where a framework that it shows is not installed."""
    for framework, _, _ in _shown(item):
        section, distribution = matrix.FRAMEWORKS[framework]
        try:
            version(distribution)
        except PackageNotFoundError:
            pytest.skip(f"{framework} is not installed: .ci/nightly {section} has it")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record what a test shows that has passed, and that it shows nothing if it has failed."""
    report = yield
    if report.failed or (report.when == "call" and report.passed):
        for framework, column, text in _shown(item):
            matrix.record(framework, column, item.nodeid, None if report.failed else text)
    return report
