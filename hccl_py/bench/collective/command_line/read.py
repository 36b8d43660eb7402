"""A command line in, one `Options` out for each case: start reading here."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import product
from typing import Any

from hccl_py.bench.collective.cases import CASES, PAIRED
from hccl_py.bench.collective.command_line.combinations import problem_of, sizes_of
from hccl_py.bench.collective.command_line.parser import make_parser
from hccl_py.bench.collective.contender import has_torch
from hccl_py.bench.collective.options import Options

_NAMES = {field.name for field in fields(Options)}


def parse(argv: Sequence[str] | None) -> tuple[Options, ...]:
    """Read the command line; return the options of each case.

    Raises:
        SystemExit: help was asked for (code 0) or an argument is wrong (code 2, one line).
    """
    parser = make_parser()
    given = parser.read(argv)
    problem = problem_of(given, parser)
    if problem:
        parser.error(problem)
    return tuple(options for collective in given.test for options in _cases(given, collective))


def _cases(given: argparse.Namespace, collective: str) -> Iterator[Options]:
    """Yield the options of every combination of listed values that the collective has."""
    case = CASES[collective]
    n = given.nproc * given.nnodes
    common: dict[str, Any] = {k: value for k, value in vars(given).items() if k in _NAMES}
    common |= {"collective": collective, "pairs": _pairs(given, collective, n)}
    common["sizes"] = sizes_of(given) if case.has_data else (0,)
    # A second torch group takes HCCL_REPRODUCIBLE from the first: the two cannot be compared.
    needs_communicator = given.profile or given.reproducible or not has_torch()
    common["api"] = "communicator" if needs_communicator else given.api or "torch"
    roots = tuple(range(n)) if given.roots is None else given.roots
    for dtype, reduce_op, root, in_place in product(
        given.dtypes if case.has_data else ("uint8",),
        (given.op or ("sum",)) if case.reduces else ("none",),
        roots if case.has_root else roots[:1],
        _places(given, collective),
    ):
        data = {"dtype": dtype, "reduce_op": reduce_op, "root": root, "in_place": in_place}
        yield Options(**common | data)


def _places(given: argparse.Namespace, collective: str) -> list[bool]:
    """Return whether to work in place, for each case; a collective with one way has one case."""
    case = CASES[collective]
    if given.place is None or len(case.places) == 1:
        return [case.places[0] == "in"]
    return [place == "in" for place in ("out", "in") if given.place in (place, "both")]


def _pairs(given: argparse.Namespace, collective: str, n: int) -> tuple[tuple[int, int], ...]:
    if collective == "ping_pong" and given.ranks_list is None:
        return tuple((rank, rank + 1) for rank in range(0, n - 1, 2))
    return given.ranks_list or () if collective in PAIRED else ()
