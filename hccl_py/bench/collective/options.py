"""The command line of `hccl-bench`: arguments in, one frozen `Options` out for each case."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from hccl_py.bench.collective.arguments import make_parser, parse_size
from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.contenders import PEERS
from hccl_py.bench.collective.oracle import BITWISE_OPS, FLOAT_TYPES

_DEFAULT_RANGE = (parse_size("4"), parse_size("64M"))
_DEFAULT_FACTOR = 16
_VALIDATE_SIZE = parse_size("1M")
_TUNED_SIZES = (8, 256, *(1 << exponent for exponent in range(10, 25, 2)))


@dataclass(frozen=True)
class Options:
    """One collective to measure, how, and what to do with the result."""

    collective: str
    nproc: int
    nnodes: int
    veth_links: int | None
    rate_mbit: float | None
    compressions: tuple[str, ...]
    algorithms: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: str
    reduce_op: str
    root: int
    in_place: bool
    pairs: tuple[tuple[int, int], ...]
    measure: str
    validate: bool
    profile: bool
    iters: int | None
    warmup: int | None
    checks: int
    average: int
    timeout_s: float
    api: str
    compare: tuple[str, ...]
    programs: tuple[tuple[str, Path | None], ...]
    install_into: Path | None
    registered: bool
    json_path: Path | None
    csv_path: Path | None
    plot_path: Path | None
    tune_path: Path | None
    tune_check: bool
    markdown: bool
    csv: bool
    verbose: bool

    @property
    def nodes(self) -> tuple[int, ...]:
        """The node of each rank."""
        return tuple(map(self.node, range(self.world_size)))

    @property
    def world_size(self) -> int:
        """Number of ranks in all."""
        return self.nproc * self.nnodes

    @property
    def contenders(self) -> tuple[str, ...]:
        """Names of what is measured; the others are compared with the first."""
        first = "registered" if self.registered else None
        algorithms = (Path(place).name for place in self.algorithms)
        names = (first, "hccl", *self.compressions, *algorithms, *self.compare)
        return tuple(name for name in names if name)

    @property
    def has_root(self) -> bool:
        """Whether the collective has a root."""
        return CASES[self.collective].has_root

    def node(self, rank: int) -> int:
        """The emulated node that a rank is on."""
        return rank // self.nproc


def parse(argv: Sequence[str] | None) -> tuple[Options, ...]:
    """Read the command line; return the options of each case.

    Raises:
        SystemExit: help was asked for (code 0) or an argument is wrong (code 2, one line).
    """
    parser = make_parser()
    given = parser.parse_known(argv)
    problem = _problem(given)
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
                        algorithms=given.algorithm,
                        sizes=_sizes(given) if case.has_data else (0,),
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
                        programs=tuple((name, getattr(given, name)) for name in PEERS),
                        install_into=given.install_into,
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
    """How hccl is called: beside MPI and UCC alone without torch, as they are."""
    if given.profile:
        return "communicator"
    alone = given.compare and {*given.compare} <= {*PEERS}
    return given.api or ("communicator" if alone else "torch")


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


def _sizes(given: argparse.Namespace) -> tuple[int, ...]:
    """The sizes asked for, smallest first where a range was given."""
    if given.sizes:
        return tuple(given.sizes)
    if not (given.minbytes or given.maxbytes or given.size_range):
        if given.validate:
            return (_VALIDATE_SIZE,)
        if given.tune and not (given.stepfactor or given.stepbytes):
            return _TUNED_SIZES
    factor = given.stepfactor or _DEFAULT_FACTOR
    least, most = _DEFAULT_RANGE
    if given.size_range:
        least, most = given.size_range
        factor = 2 ** (given.size_range_inc or 1)
    least = given.minbytes or least
    most = given.maxbytes or (max(least, most) if given.minbytes else most)
    sizes = []
    while least <= most:
        sizes.append(least)
        least = least + given.stepbytes if given.stepbytes else least * factor
    return tuple(sizes)


def _problem(given: argparse.Namespace) -> str | None:
    """What is wrong with arguments that argparse found well-formed, or None."""
    n = given.nproc * given.nnodes
    ranged = given.minbytes or given.maxbytes or given.stepfactor or given.stepbytes
    cases = [CASES[name] for name in given.test]
    named = ", ".join(given.test)
    roots, ops = given.root or (), given.op or ()
    bitwise = next((op for op in ops if op in BITWISE_OPS), None)
    floats = [dtype for dtype in given.datatype if dtype in FLOAT_TYPES]
    wholes = [dtype for dtype in given.datatype if dtype not in FLOAT_TYPES]
    paired = [rank for pair in given.ranks_list or () for rank in pair]
    outside = [rank for rank in (*roots, *paired) if rank >= n]
    files = {
        "--json": given.json,
        "--output_file": given.output_file,
        "--plot": given.plot,
        "--tune": given.tune,
    }
    other_output = given.csv or given.markdown or given.output_file
    strange = _strange_algorithm(given)
    lacking = next((name for name in PEERS if _lacks(given, name)), "")
    where = f"--{lacking}" + (" or --install-into" if lacking != "ucc" else ", its ucc_perftest")
    lost = [(name, path) for name, path in files.items() if path and not path.parent.is_dir()]
    rules = (
        (given.sizes and (ranged or given.size_range), "give --sizes or a range of them, not both"),
        (ranged and given.size_range, "give -b, -e, -f, -i or --size_range, not both"),
        (given.stepfactor and given.stepbytes, "give -f or -i, not both"),
        (given.size_range_inc and not given.size_range, "--size_range_inc needs --size_range"),
        (
            not any(case.has_data for case in cases)
            and (given.sizes or ranged or given.size_range),
            f"{named} has no sizes",
        ),
        (not _sizes(given), "the first size (-b) must not be larger than the last one (-e)"),
        (ops and not any(case.reduces for case in cases), f"--op means nothing to {named}"),
        (
            given.place in ("in", "out") and not any(given.place in case.places for case in cases),
            f"{named} does not work with --place {given.place}",
        ),
        (
            bitwise and floats,
            f"--op {bitwise} needs an integer type (-d int32), got {next(iter(floats), '')}",
        ),
        (
            "gloo" in given.compare and "avg" in ops and wholes,
            "--compare gloo: gloo averages floating-point numbers only, got -d "
            + next(iter(wholes), ""),
        ),
        (outside, f"a rank must be in 0..{n - 1}, got {next(iter(outside), '')}"),
        (
            given.ranks_list and not {"send_recv", "ping_pong"} & {*given.test},
            "--ranks_list needs --test send_recv or --test ping_pong",
        ),
        (
            len(paired) > len(set(paired)),
            "--ranks_list: a rank may be in one pair only",
        ),
        (
            n < 2 and {"send_recv", "ping_pong"} & {*given.test},
            f"{named} needs at least 2 ranks: give -g 2",
        ),
        (given.veth and given.nnodes < 2, "--veth joins nodes: give --nnodes 2 or more"),
        (given.rate and not given.veth, "--rate limits the links of --veth: give --veth 1"),
        (
            given.compression and given.nnodes < 2,
            "--compression is between nodes: give --nnodes 2 or more",
        ),
        (strange, f"--algorithm: {strange}"),
        (lacking, f"--compare {lacking}: it has an environment of its own, give {where}"),
        (
            {*given.compare} & {*PEERS} and (given.nnodes > 1 or given.measure == "latency"),
            f"--compare {','.join(given.compare)}: MPI and UCC are measured on one node, with "
            "--measure bw: leave --nnodes and --measure out, or compare with gloo alone",
        ),
        (given.validate and n < 2, "--validate needs at least 2 ranks: give -g 2"),
        (
            given.profile and given.registered,
            "--profile is of the first contender: leave --registered out",
        ),
        (
            given.validate
            and (given.compare or given.compression or given.algorithm or other_output),
            "--validate measures hccl alone and writes text, --json and --plot",
        ),
        (
            given.tune
            and (given.validate or given.profile or given.compare or given.registered)
            or (given.tune and (given.compression or given.algorithm))
            or (given.tune and (given.json or given.plot or other_output)),
            "--tune measures hccl's algorithms alone and writes its own file; give it with ranks, "
            "sizes and --timeout only",
        ),
        (given.tune_check and not given.tune, "--tune_check needs --tune"),
        (given.csv and given.markdown, "give --csv or --markdown, not both"),
        *((True, f"{name}: there is no folder {path.parent}") for name, path in lost),
        (
            given.plot and find_spec("matplotlib") is None,
            "--plot needs matplotlib: pip install 'hccl-py[bench]'",
        ),
    )
    return next((message for broken, message in rules if broken), None)


def _lacks(given: argparse.Namespace, name: str) -> bool:
    """Say whether a peer is to be measured, but not where it is."""
    can_install = given.install_into is not None and name != "ucc"
    return name in given.compare and getattr(given, name) is None and not can_install


def _strange_algorithm(given: argparse.Namespace) -> str:
    """What is wrong with the algorithms of --algorithm; empty if nothing is."""
    if not given.algorithm:
        return ""
    from hccl_py.algorithms.custom import loaded
    from hccl_py.transport.errors import InvalidArgumentError

    try:
        unused = [one for one in map(loaded, given.algorithm) if one.collective not in given.test]
    except InvalidArgumentError as error:
        return str(error)
    if unused:
        return f"{unused[0]} is for {unused[0].collective}: give --test {unused[0].collective}"
    names = [Path(place).name for place in given.algorithm]
    return "two have the same name" if len(set(names)) < len(names) else ""
