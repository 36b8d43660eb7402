"""Checks of how options go together, after argparse found each well-formed."""

from __future__ import annotations

import argparse
from pathlib import Path

from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.command_line.sizes import MOST_SIZES, sizes_of
from hccl_py.bench.collective.oracle import BITWISE_OPS, FLOAT_TYPES

_OF_RANKS = {"nproc", "nnodes", "veth_links", "rate_mbit", "timeout_s"}
_OF_SIZES = {"sizes", "minbytes", "maxbytes", "stepfactor", "stepbytes", "size_range"}
_ALONE = {
    "validate": (
        {*_OF_RANKS, "sizes", "minbytes", "api", "json_path", "plot_path"},
        "sends messages of one size between every pair of ranks and writes text, --json and --plot",
    ),
    "tune_path": (
        {*_OF_RANKS, *_OF_SIZES, "size_range_inc", "tune_check"},
        "measures all algorithms and writes its own file",
    ),
}
"""Options that are a measurement of their own: what goes with them, and what they do."""


def problem_of(given: argparse.Namespace, parser: argparse.ArgumentParser) -> str | None:
    """Say what is wrong with arguments that `parser` found well-formed; None: nothing is."""
    alone = (_beside(option, given, parser) for option in _ALONE)
    return next(filter(None, alone), None) or _problem_of_values(given)


def _beside(option: str, given: argparse.Namespace, parser: argparse.ArgumentParser) -> str:
    """Say what was given beside an option that it would ignore; empty if nothing was."""
    allowed, does = _ALONE[option]
    if not getattr(given, option):
        return ""
    for action in parser._actions:
        name, value = action.dest, getattr(given, action.dest, action.default)
        if value != parser.get_default(name) and name not in {option, *allowed}:
            spelled = next(one for one in action.option_strings if one.startswith("--"))
            return f"--{option.partition('_')[0]} {does}: leave {spelled} out"
    return ""


def _problem_of_values(given: argparse.Namespace) -> str | None:
    n, sizes = given.nproc * given.nnodes, sizes_of(given)
    ranged = given.minbytes or given.maxbytes or given.stepfactor or given.stepbytes
    cases = [CASES[name] for name in given.test]
    named = ", ".join(given.test)
    roots, ops = given.roots or (), given.op or ()
    bitwise = next((op for op in ops if op in BITWISE_OPS), None)
    floats = [dtype for dtype in given.dtypes if dtype in FLOAT_TYPES]
    wholes = [dtype for dtype in given.dtypes if dtype not in FLOAT_TYPES]
    paired = [rank for pair in given.ranks_list or () for rank in pair]
    outside = [rank for rank in (*roots, *paired) if rank >= n]
    strange = _strange_algorithm(given)
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
        (
            len(sizes) > MOST_SIZES,
            f"that is more than {MOST_SIZES} sizes: give -f, or a larger -i",
        ),
        (given.validate and len(sizes) > 1, "--validate takes one size: give --sizes 1M"),
        (not sizes, "the first size (-b) must not be larger than the last one (-e)"),
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
        (given.veth_links and given.nnodes < 2, "--veth joins nodes: give --nnodes 2 or more"),
        (
            given.rate_mbit and not given.veth_links,
            "--rate limits the links of --veth: give --veth 1",
        ),
        (
            given.compressions and given.nnodes < 2,
            "--compression is between nodes: give --nnodes 2 or more",
        ),
        (
            given.reproducible and not any(case.reduces for case in cases),
            f"--reproducible is of reductions: {named} has none",
        ),
        (
            given.reproducible and given.api == "torch",
            "--reproducible compares communicators: leave --api torch out",
        ),
        (strange, f"--algorithm: {strange}"),
        (given.validate and n < 2, "--validate needs at least 2 ranks: give -g 2"),
        (
            given.profile and given.registered,
            "--profile is of the first contender: leave --registered out",
        ),
        (given.tune_check and not given.tune_path, "--tune_check needs --tune"),
        (given.csv and given.markdown, "give --csv or --markdown, not both"),
    )
    return next((message for broken, message in rules if broken), None)


def _strange_algorithm(given: argparse.Namespace) -> str:
    """What is wrong with the algorithms of --algorithm; empty if nothing is."""
    if not given.algorithms:
        return ""
    from hccl_py.algorithms.loading import loaded
    from hccl_py.transport.errors import InvalidArgumentError

    try:
        unused = [one for one in map(loaded, given.algorithms) if one.collective not in given.test]
    except InvalidArgumentError as error:
        return str(error)
    if unused:
        return f"{unused[0]} is for {unused[0].collective}: give --test {unused[0].collective}"
    names = [Path(place).name for place in given.algorithms]
    return "two have the same name" if len(set(names)) < len(names) else ""
