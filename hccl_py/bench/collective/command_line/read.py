"""A command line in, one `Options` out for each case: start reading here."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.command_line.combinations import problem_of
from hccl_py.bench.collective.command_line.parser import make_parser
from hccl_py.bench.collective.command_line.sizes import sizes_of
from hccl_py.bench.collective.options import Options


def parse(argv: Sequence[str] | None) -> tuple[Options, ...]:
    """Read the command line; return the options of each case.

    Raises:
        SystemExit: help was asked for (code 0) or an argument is wrong (code 2, one line).
    """
    parser = make_parser()
    given = parser.read(argv)
    problem = problem_of(given, parser.read([]))
    if problem:
        parser.error(problem)
    return tuple(options for collective in given.test for options in _cases(given, collective))


def _cases(given: argparse.Namespace, collective: str) -> Iterator[Options]:
    """Every combination of what a list was given for, as far as this collective knows it."""
    case, n = CASES[collective], given.nproc * given.nnodes
    roots = range(n) if given.root is None else given.root
    for dtype in given.datatype if case.has_data else ("uint8",):
        for reduce_op in (given.op or ("sum",)) if case.reduces else ("none",):
            for root in roots if case.has_root else roots[:1]:
                for in_place in _places(given, collective):
                    yield Options(
                        collective=collective,
                        nproc=given.nproc,
                        nnodes=given.nnodes,
                        veth_links=given.veth,
                        rate_mbit=given.rate,
                        compressions=given.compression,
                        reproducible=given.reproducible,
                        algorithms=given.algorithm,
                        sizes=sizes_of(given) if case.has_data else (0,),
                        dtype=dtype,
                        reduce_op=reduce_op,
                        root=root,
                        in_place=in_place,
                        pairs=_pairs(given, collective, n),
                        measure=given.measure,
                        validate=given.validate,
                        profile=given.profile,
                        iters=given.iters,
                        warmup=given.warmup_iters,
                        checks=given.check,
                        average=given.average,
                        timeout_s=given.timeout,
                        api=_api(given),
                        compare=given.compare,
                        registered=given.registered,
                        json_path=given.json,
                        csv_path=given.output_file,
                        plot_path=given.plot,
                        tune_path=given.tune,
                        tune_check=given.tune_check,
                        markdown=given.markdown,
                        csv=given.csv,
                        verbose=given.verbose,
                    )


def _api(given: argparse.Namespace) -> str:
    """How hccl is called."""
    # A second group of torch would be reproducible if the first one is.
    if given.profile or given.reproducible:
        return "communicator"
    return given.api or "torch"


def _places(given: argparse.Namespace, collective: str) -> list[bool]:
    """Whether to work in place; a collective that has one way only is measured that way."""
    case = CASES[collective]
    if given.place is None or len(case.places) == 1:
        return [case.places[0] == "in"]
    return [place == "in" for place in ("out", "in") if given.place in (place, "both")]


def _pairs(given: argparse.Namespace, collective: str, n: int) -> tuple[tuple[int, int], ...]:
    if collective == "ping_pong" and given.ranks_list is None:
        return tuple((rank, rank + 1) for rank in range(0, n - 1, 2))
    return given.ranks_list or () if collective in ("send_recv", "ping_pong") else ()
