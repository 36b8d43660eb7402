"""`python -m benchmarks.prediction`: measure cells into a file, or compare them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import parser_of_command, sigterm_as_interrupt
from benchmarks.prediction.compare import compare, table
from benchmarks.prediction.measure import QUEUE_MS, SIZES, Cell, Layout, measure, merged
from hccl_py.bench.collective.output.document import facts
from hccl_py.command_line import (
    parse_input,
    parse_output,
    parse_positive,
    parse_rate,
    parse_size,
)
from hccl_py.lab.simulation.costs import costs_from
from hccl_py.lab.simulation.presets import PRESETS
from hccl_py.transport.errors import InvalidArgumentError


def main() -> int:
    """Run the command; return its exit code."""
    parser = parser_of_command("benchmarks.prediction", __doc__ or "")
    steps = parser.add_subparsers(dest="step", required=True)
    measuring = steps.add_parser("measure", help="measure (needs root); adds to a file's cells")
    measuring.add_argument("--ranks", type=parse_positive, nargs="+", default=[2, 4, 8])
    measuring.add_argument(
        "--rates",
        type=_rate,
        nargs="+",
        default=["100mbit", "1gbit", "unlimited"],
        help="or none: one node",
    )
    measuring.add_argument("--sizes", type=parse_size, nargs="+", default=SIZES, help="as 64K")
    measuring.add_argument(
        "--queue-ms", type=float, default=QUEUE_MS, help="of a slow link (%(default)g ms)"
    )
    measuring.add_argument("cells", type=parse_output)
    comparing = steps.add_parser("compare", help="simulate the cells of files; print tables")
    comparing.add_argument("cells", type=parse_input, nargs="+")
    comparing.add_argument(
        "--costs", type=parse_input, help="of hccl-bench --tune (those of cloud25)"
    )
    comparing.add_argument(
        "--cores", type=parse_positive, default=2, help="of the machine measured (2)"
    )
    given = parser.read()
    try:
        with sigterm_as_interrupt():
            return _measure(given) if given.step == "measure" else _compare(given)
    except InvalidArgumentError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


def _measure(given: argparse.Namespace) -> int:
    document: dict[str, Any] = {"facts": facts(), "cells": []}
    if given.cells.exists():
        document = json.loads(given.cells.read_text())
    for world_size in given.ranks:
        for rate in given.rates:
            for cell in measure(_layout(world_size, rate), given.sizes, given.queue_ms):
                document["cells"].append(cell._asdict())
                given.cells.write_text(json.dumps(document, indent=1))
                print(*cell[:6], f"{cell.retransmits} retransmits", flush=True)
    return 0


def _compare(given: argparse.Namespace) -> int:
    cells = merged(cell for path in given.cells for cell in _cells(path))
    costs = costs_from(given.costs) if given.costs else PRESETS["cloud25"]
    print("\n".join(table(list(compare(cells, costs, given.cores)))))
    return 0


def _cells(path: Path) -> list[Cell]:
    try:
        return [Cell(**one) for one in json.loads(path.read_text())["cells"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgumentError(
            f"{path}: expected a file of the step measure, got {error}"
        ) from error


def _rate(text: str) -> str:
    """Read a rate as tc spells it, or one of two words."""
    if text not in ("unlimited", "none"):
        parse_rate(text)
    return text


def _layout(world_size: int, rate: str) -> Layout:
    if rate == "none":
        return Layout(1, world_size, None)
    return Layout(2, world_size // 2, None if rate == "unlimited" else parse_rate(rate))


if __name__ == "__main__":
    sys.exit(main())
