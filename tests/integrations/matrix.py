"""The matrix of docs/frameworks/README.md: a test says what it shows, and fills a cell by passing.

    pytestmark = pytest.mark.nightly("frameworks")

    @pytest.mark.shows("Lightning", "sharded", "FSDP2")  # framework, column, text of the cell
    def test_fsdp2_trains_as_one_process_does(): ...

A new framework is a line of FRAMEWORKS, an extra in pyproject.toml, and that extra's name in
ENVIRONMENTS of tests/harness/tiers.py. `conftest.py` records the tests that have this mark, and
skips them where the framework is not installed. `python3 tests/integrations/matrix.py` writes the
page from the records.
"""

from __future__ import annotations

import fcntl
import json
import sys
from importlib.metadata import version
from pathlib import Path

FRAMEWORKS = {
    "Lightning": "lightning",
    "Accelerate": "accelerate",
    "transformers": "transformers",
    "ignite": "pytorch-ignite",
    "DeepSpeed": "deepspeed",
    "torchft": "torchft",
    "Ray Train": "ray",
}
"""The rows, and the distribution that names the version."""

COLUMNS = ("data parallel", "sharded", "--replace-gloo", "guard", "adapter")

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "build" / "nightly" / "frameworks.json"
PAGE = ROOT / "docs" / "frameworks" / "README.md"
BEGIN, END = "<!-- written by .ci/nightly frameworks -->", "<!-- end -->"


def record(framework: str, column: str, test: str, text: str | None) -> None:
    """Keep what this test puts into a cell; None is a test that failed."""
    RECORDS.parent.mkdir(parents=True, exist_ok=True)
    with RECORDS.open("a+") as file:  # closed, it is unlocked: xdist has several writers
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        records = json.loads(file.read() or "{}")
        row = records.setdefault(framework, {"cells": {}})
        row["version"] = version(FRAMEWORKS[framework])
        row["cells"].setdefault(column, {})[test] = text
        file.truncate(0)
        json.dump(records, file, indent=1)


def cell(texts: dict[str, str | None]) -> str:
    """Return the text of a cell; empty if no test filled it or one of its tests failed."""
    if None in texts.values():
        return ""
    return ", ".join(dict.fromkeys(text for text in texts.values() if text))


def table() -> str:
    """Return the matrix of what is recorded, one row for each framework that was tested."""
    lines = [
        ["framework, tested version", *(f"`{each}`" if "-" in each else each for each in COLUMNS)]
    ]
    lines.append(["---"] * len(lines[0]))
    records = json.loads(RECORDS.read_text())
    for framework in [name for name in FRAMEWORKS if name in records]:
        row = records[framework]
        cells = [cell(row["cells"].get(column, {})) for column in COLUMNS]
        lines.append([f"{framework} {row['version']}", *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(words: list[str]) -> None:
    """Write the page, or forget what was recorded."""
    if words == ["--forget"]:
        RECORDS.unlink(missing_ok=True)
        return
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END, maxsplit=1)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n{END}{after}")


if __name__ == "__main__":
    main(sys.argv[1:])
