"""`python -m hccl_py.bench.prediction`: measure cells into a file, or compare one with simulation."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from hccl_py.bench.collective.arguments import parse_rate
from hccl_py.bench.collective.output.document import facts
from hccl_py.bench.prediction.measure import Layout, measure


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="hccl_py.bench.prediction", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    measuring = steps.add_parser("measure", help="measure (needs root); adds to a file's cells")
    measuring.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    measuring.add_argument(
        "--rates", nargs="+", default=["100mbit", "1gbit", "unlimited"], help="or none: one node"
    )
    measuring.add_argument("cells", type=Path)
    given = parser.parse_args()
    return _measure(given)


def _measure(given: argparse.Namespace) -> int:
    document = {"facts": facts(), "cells": []}
    if given.cells.exists():
        document = json.loads(given.cells.read_text())
    for world_size in given.ranks:
        for rate in given.rates:
            for cell in measure(_layout(world_size, rate)):
                document["cells"].append(cell._asdict())
                given.cells.write_text(json.dumps(document, indent=1))
                print(*cell[:6], flush=True)
    return 0


def _layout(world_size: int, rate: str) -> Layout:
    if rate == "none":
        return Layout(1, world_size, None)
    return Layout(2, world_size // 2, None if rate == "unlimited" else parse_rate(rate))


if __name__ == "__main__":
    sys.exit(main())
