"""docs/errors.md has every error that a program can see, every cause, and every exit code."""

import ast
import re
from pathlib import Path

from hccl_py.diagnosis.errors import _ERRORS
from hccl_py.launcher import exit_codes

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "errors.md").read_text()

CAUGHT_INSIDE = {
    *("RejectedError", "ClosedError", "ResetError", "NotListeningError", "FormerError"),
    *("NotNowError", "DamagedError", "CountedTwiceError"),
}
"""Raised and caught by hccl-py; a program sees another error."""

LINES_OF_COMMANDS = {"UsageError", "TraceError", "RankFailure", "NamespaceError"}
"""Printed by commands as one line."""


def raised_classes() -> set[str]:
    """Return the names of all public exceptions in the code."""
    kinds = {"Exception", "RuntimeError", "ValueError"}
    classes = [
        (node.name, {base.id for base in node.bases if isinstance(base, ast.Name)})
        for folder in ("hccl_py", "transport", "launcher")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    while found := {name for name, bases in classes if bases & kinds} - kinds:
        kinds |= found
    return {name for name in kinds - {"Exception", "RuntimeError", "ValueError"} if name[0] != "_"}


def first_cells(heading: str) -> list[str]:
    part = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| ([^|]+) \|", part, re.M)


def test_page_has_every_error_that_a_program_can_see() -> None:
    named = {cell[1:-1] for cell in first_cells("By class") if cell.startswith("`")}
    assert named == raised_classes() - CAUGHT_INSIDE - LINES_OF_COMMANDS


def test_page_has_every_cause_with_its_class() -> None:
    rows = dict(re.findall(r"^\| `([a-z ]+)` \| `(\w+)` \|", PAGE, re.M))
    causes = {cause.name.lower().replace("_", " "): kind for cause, kind in _ERRORS.items()}
    assert rows == {cause: kind.__name__ for cause, kind in causes.items()}


def test_page_has_every_exit_code_of_the_launcher() -> None:
    codes = {code for name, code in vars(exit_codes).items() if name.isupper()}
    listed = [number for cell in first_cells("Commands") for number in re.findall(r"\d+", cell)]
    assert set(map(int, listed)) == codes
