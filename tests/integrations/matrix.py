"""The matrix of docs/frameworks/README.md: a test says what it shows, and fills a cell by passing.

    pytestmark = pytest.mark.nightly("frameworks")

    @pytest.mark.shows("Lightning", "sharded", "FSDP2")  # framework, column, text of the cell
    def test_fsdp2_trains_as_one_process_does(): ...

A new framework is a line of FRAMEWORKS, an extra in pyproject.toml, and that extra's name in
ENVIRONMENTS of tests/harness/tiers.py. `conftest.py` records the tests that have this mark, and
skips them where the framework is not installed. `python3 tests/integrations/matrix.py SECTION`
writes the rows of a section of `.ci/nightly` from its records, and leaves the others as they are.
"""

import fcntl
import json
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

FRAMEWORKS = {
    "Lightning": ("frameworks", "lightning"),
    "Accelerate": ("frameworks", "accelerate"),
    "transformers": ("frameworks", "transformers"),
    "ignite": ("frameworks", "pytorch-ignite"),
    "MONAI": ("frameworks", "monai"),
    "DeepSpeed": ("frameworks", "deepspeed"),
    "torchft": ("frameworks", "torchft"),
    "Ray Train": ("frameworks", "ray"),
    "Horovod's programs, torch": ("frameworks", "torch"),
    "Gaudi's programs, torch": ("frameworks", "torch"),
    "Gaudi's programs, TensorFlow": ("jax_tensorflow", "tensorflow-cpu"),
    "TensorFlow": ("jax_tensorflow", "tensorflow-cpu"),
    "Keras": ("jax_tensorflow", "keras"),
    "JAX": ("jax_tensorflow", "jax"),
}
"""The rows: the section whose tests fill it, and the distribution that names the version."""

COLUMNS = ("data parallel", "sharded", "--replace-gloo", "guard", "adapter")

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "build" / "nightly" / "matrix"
PAGE = ROOT / "docs" / "frameworks" / "README.md"
BEGIN, END = "<!-- written by .ci/nightly frameworks jax_tensorflow -->", "<!-- end -->"


def shown(words: str, framework: str, **cells: str) -> ParameterSet:
    """Return a parameter, and the cells that a test with it fills, by column."""
    columns = {column.replace(" ", "_").replace("-", "_").strip("_"): column for column in COLUMNS}
    marks = [pytest.mark.shows(framework, columns[name], text) for name, text in cells.items()]
    return pytest.param(words, marks=marks, id=words)


def _records(section: str) -> Path:
    return RECORDS / f"{section}.json"


def record(framework: str, column: str, test: str, text: str | None) -> None:
    """Keep what this test puts into a cell; None is a test that failed."""
    section, distribution = FRAMEWORKS[framework]
    RECORDS.mkdir(parents=True, exist_ok=True)
    with _records(section).open("a+") as file:  # closed, it is unlocked: xdist has several writers
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        records = json.loads(file.read() or "{}")
        row = records.setdefault(framework, {"cells": {}})
        row["version"] = version(distribution).partition("+")[0]
        row["cells"].setdefault(column, {})[test] = text
        file.truncate(0)
        json.dump(records, file, indent=1)


def cell(texts: dict[str, str | None]) -> str:
    """Return the text of a cell; empty if no test filled it or one of its tests failed."""
    if None in texts.values():
        return ""
    return ", ".join(dict.fromkeys(text for text in texts.values() if text))


def table(section: str, before: str) -> str:
    """Return the matrix with the rows of this section as recorded, the others as they were."""
    head = [
        "framework, tested version",
        *(f"`{each}`" if "-" in each else each for each in COLUMNS),
    ]
    lines = [_line(head), _line(["---"] * len(head))]
    records = json.loads(_records(section).read_text())
    for framework, (filled_by, _) in FRAMEWORKS.items():
        if filled_by != section:
            row = rf"\| {re.escape(framework)} \S+ \|.*\n"  # with its version
            lines += re.findall(row, before)
        elif framework in records:
            cells = records[framework]["cells"]
            named = f"{framework} {records[framework]['version']}"
            lines.append(_line([named, *(cell(cells.get(it, {})) for it in COLUMNS)]))
    return "".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def main(section: str, *words: str) -> None:
    """Write the rows of a section, or forget what was recorded for them."""
    if words == ("--forget",):
        _records(section).unlink(missing_ok=True)
        return
    start, rest = PAGE.read_text().split(BEGIN)
    before, end = rest.split(END, maxsplit=1)
    PAGE.write_text(f"{start}{BEGIN}\n\n{table(section, before)}\n{END}{end}")


if __name__ == "__main__":
    main(*sys.argv[1:])
