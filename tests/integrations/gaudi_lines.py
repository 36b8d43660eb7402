"""Lines that programs for Gaudi begin with, and what the shim makes of them on a CPU.

`gaudi_lines.toml` has those of Habana's Model-References, of Optimum Habana, of lightning-habana
and of the documentation of Gaudi's PyTorch, by how many programs have them. `test_gaudi_lines.py`
runs each. `python3 tests/integrations/gaudi_lines.py` writes the table of
docs/frameworks/habana.md.
"""

import sys
from enum import Enum
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = Path(__file__).parents[2] / "docs/frameworks/habana.md"
BEGIN, END = "<!-- written by tests/integrations/gaudi_lines.py -->", "<!-- end -->"


class Kind(Enum):
    """What a line does on the CPU."""

    SAME = "the same"
    NOTHING = "no effect, which rank 0 prints once"
    ERROR = "an error with what to write instead"


class Lines(NamedTuple):
    """Lines of one kind, run in the namespace of those before.

    Attributes:
        kind: what they do.
        means: for the page; of an error a part of its text.
        lines: Python.
        holds: an expression that is true afterwards.
    """

    kind: Kind
    means: str
    lines: list[str]
    holds: str = "True"


_EVERY = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
# Those of TENSORFLOW run without it, too.
TORCH, TENSORFLOW, WITH_TENSORFLOW = (
    [Lines(**{**row, "kind": Kind[row["kind"].upper()]}) for row in _EVERY[name]]
    for name in ("torch", "tensorflow", "with_tensorflow")
)


def table() -> str:
    """Return the page's table: a row for what several lines mean."""
    rows = {Kind.SAME: [], Kind.NOTHING: [], Kind.ERROR: []}  # type: dict[Kind, list[str]]
    for each in (*TORCH, *TENSORFLOW, *WITH_TENSORFLOW):
        lines = ", ".join(f"`{line}`" for line in each.lines)
        means = f"error: {each.means}" if each.kind is Kind.ERROR else each.means
        rows[each.kind].append(f"| {means} | {lines} |\n")
    return "| on the CPU | lines |\n|---|---|\n" + "".join(sum(rows.values(), []))


if __name__ == "__main__":
    start, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{start}{BEGIN}\n\n{table()}\n{END}{rest.split(END, maxsplit=1)[1]}")
