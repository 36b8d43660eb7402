"""`.ci/release` refuses what is not ready, and writes a version where it stands."""

import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
CHANGES = """# Changelog

## [Unreleased]

### Added

- Something.

## [1.0.0] - 2026-01-01

### Fixed

- A fault.

[Unreleased]: https://host/compare/v1.0.0...HEAD
[1.0.0]: https://host/releases/tag/v1.0.0
"""
RELEASED = """## [Unreleased]

## [1.1.0] - {date}

### Added
"""

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "somebody@example.org")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.0.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    git(tmp_path, "tag", "v1.0.1")
    return tmp_path


@pytest.fixture
def release(tree: Path) -> dict[str, Any]:
    command = runpy.run_path(str(ROOT / ".ci" / "release"))
    functions = command["problem_of"].__globals__
    functions["ROOT"] = tree
    functions["run"].__kwdefaults__ = {"cwd": tree}
    return functions


def git(tree: Path, *words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=tree, check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("1.1.0", ""),
        ("1.1.0rc1", ""),
        ("1.0.0", "after 1.0.0"),
        ("0.9", "after 1.0.0"),
        ("1.0.1", "a tag v1.0.1"),
        ("v1.1.0", "such as 0.2.0"),
        ("next", "such as 0.2.0"),
    ],
)
def test_version_has_to_be_new(release: dict[str, Any], version: str, problem: str) -> None:
    said = release["problem_of"](version)
    assert problem in said if problem else said == ""


def test_tree_has_to_be_clean_and_the_changelog_has_to_have_notes(
    release: dict[str, Any], tree: Path
) -> None:
    (tree / "new.txt").touch()
    assert "no commit has" in release["problem_of"]("1.1.0")
    (tree / "new.txt").unlink()
    (tree / "CHANGELOG.md").write_text(CHANGES.replace("### Added\n\n- Something.\n\n", ""))
    git(tree, "commit", "--quiet", "--all", "--message", "second")
    assert "Unreleased" in release["problem_of"]("1.1.0")


def test_commit_has_the_version_and_the_notes_and_leaves_the_tree_alone(
    release: dict[str, Any], tree: Path
) -> None:
    before = git(tree, "rev-parse", "HEAD")
    with release["own_tree"]() as own:
        assert release["write"](own, "1.1.0") == "### Added\n\n- Something."
        assert git(own, "show", "--format=%s", "--name-only").split("\n\n")[0] == "Release 1.1.0"
        assert 'version = "1.1.0"' in (own / "pyproject.toml").read_text()
        text = (own / "CHANGELOG.md").read_text()
        date = text.split("## [1.1.0] - ")[1][:10]
        assert RELEASED.format(date=date) in text
        assert "[Unreleased]: https://host/compare/v1.1.0...HEAD\n" in text
        assert "[1.1.0]: https://host/compare/v1.0.0...v1.1.0\n" in text
    assert not own.exists() and git(tree, "rev-parse", "HEAD") == before
    assert git(tree, "status", "--porcelain") == ""
