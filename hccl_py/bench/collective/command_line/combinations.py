"""Checks of how options go together, after argparse found each well-formed."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.command_line.sizes import sizes_of
from hccl_py.bench.collective.oracle import BITWISE_OPS, FLOAT_TYPES
from hccl_py.bench.peers.environments import PEERS, Environments


def problem_of(given: argparse.Namespace) -> str | None:
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
    environments = Environments.of(given)
    lacking = {name: environments.lacks(name) for name in PEERS if name in given.compare}
    lost_peer, how = next(((name, how) for name, how in lacking.items() if how), ("", ""))
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
        (not sizes_of(given), "the first size (-b) must not be larger than the last one (-e)"),
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
        (lost_peer, f"--compare {lost_peer}: it has an environment of its own: {how}"),
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
