"""Checks of how options go together, after argparse checked each alone; the sizes of a range."""

import argparse
from pathlib import Path

from hccl_py.bench.collective.cases import CASES, PAIRED
from hccl_py.bench.collective.contender import has_torch
from hccl_py.bench.collective.oracle import BITWISE_OPS, FLOAT_TYPES
from hccl_py.command_line import parse_size
from hccl_py.installation import pip_install

_DEFAULT_RANGE = (parse_size("4"), parse_size("64M"))
_DEFAULT_FACTOR = 16
_VALIDATE_SIZE = parse_size("1M")
_MOST_SIZES = 1000
_TUNED_SIZES = (8, 256, *(1 << exponent for exponent in range(10, 25, 2)))

_OF_RANKS = {"nproc", "nnodes", "veth_links", "rate_mbit", "timeout_s"}
_OF_SIZES = {"sizes", "minbytes", "maxbytes", "stepfactor", "stepbytes", "size_range"}
_ALONE = {
    "validate": (
        {*_OF_RANKS, "sizes", "api", "json_path", "plot_path"},
        "sends messages of one size between every pair of ranks and writes text, --json and --plot",
    ),
    "tune_path": (
        {*_OF_RANKS, *_OF_SIZES, "size_range_inc", "tune_check"},
        "measures all algorithms and writes its own file",
    ),
}
"""Options that replace the usual measurement: which options they allow, and what they do."""


def sizes_of(given: argparse.Namespace) -> tuple[int, ...]:
    """Return the requested sizes, a range in increasing order, at most 1001."""
    if given.sizes:
        return tuple(given.sizes)
    if not (given.minbytes or given.maxbytes or given.size_range):
        if given.validate:
            return (_VALIDATE_SIZE,)
        if given.tune_path and not (given.stepfactor or given.stepbytes):
            return _TUNED_SIZES
    factor = given.stepfactor or _DEFAULT_FACTOR
    least, most = _DEFAULT_RANGE
    if given.size_range:
        least, most = given.size_range
        factor = 2 ** (given.size_range_inc or 1)
    least = given.minbytes or least
    most = given.maxbytes or (max(least, most) if given.minbytes else most)
    sizes: list[int] = []
    while least <= most and len(sizes) <= _MOST_SIZES:
        sizes.append(least)
        least = least + given.stepbytes if given.stepbytes else least * factor
    return tuple(sizes)


def problem_of(given: argparse.Namespace, parser: argparse.ArgumentParser) -> str | None:
    """Return what is wrong with arguments that `parser` accepted one by one; None: nothing."""
    alone = (_beside(option, given, parser) for option in _ALONE)
    return next(filter(None, alone), None) or next(
        (message for message, is_so in (_of_sizes(given) | _of_ranks(given)).items() if is_so),
        _of_torch(given),
    )


def _of_torch(given: argparse.Namespace) -> str | None:
    """Say what needs torch, which is not installed; None: nothing does."""
    needy = {
        "--api torch": given.api == "torch",
        "--compare": given.compare,
        "-d bfloat16": "bfloat16" in given.dtypes,
    }
    named = next((option for option, is_given in needy.items() if is_given), None)
    if named is None or has_torch():
        return None
    return f"{named} needs torch, which is not installed: leave it out, or {pip_install('torch')}"


def _beside(option: str, given: argparse.Namespace, parser: argparse.ArgumentParser) -> str:
    """Return an error if an option was given that `option` would ignore, else ""."""
    allowed, does = _ALONE[option]
    if not getattr(given, option):
        return ""
    for action in parser._actions:
        name, value = action.dest, getattr(given, action.dest, action.default)
        if value != parser.get_default(name) and name not in {option, *allowed}:
            spelled = next(one for one in action.option_strings if one.startswith("--"))
            return f"--{option.partition('_')[0]} {does}: leave {spelled} out"
    return ""


def _of_sizes(given: argparse.Namespace) -> dict[str, object]:
    """Return possible errors of sizes and types, each with whether it applies."""
    sizes = sizes_of(given)
    ranged = given.minbytes or given.maxbytes or given.stepfactor or given.stepbytes
    has_data = any(CASES[name].has_data for name in given.test)
    ops = given.op or ()
    bitwise = next((op for op in ops if op in BITWISE_OPS), None)
    some_float = next((dtype for dtype in given.dtypes if dtype in FLOAT_TYPES), "")
    some_whole = next((dtype for dtype in given.dtypes if dtype not in FLOAT_TYPES), "")
    of_gloo = "gloo" in given.compare and "avg" in ops and some_whole
    return {
        "give --sizes or a range of them, not both": given.sizes and (ranged or given.size_range),
        "give -b, -e, -f, -i or --size_range, not both": ranged and given.size_range,
        "give -f or -i, not both": given.stepfactor and given.stepbytes,
        "--size_range_inc needs --size_range": given.size_range_inc and not given.size_range,
        f"{', '.join(given.test)} has no sizes": (
            not has_data and (given.sizes or ranged or given.size_range)
        ),
        f"more than {_MOST_SIZES} sizes: give -f, or a larger -i": len(sizes) > _MOST_SIZES,
        "--validate takes one size: give --sizes 1M": given.validate and len(sizes) > 1,
        "the first size (-b) must not be larger than the last one (-e)": not sizes,
        f"--op {bitwise} needs an integer type (-d int32), got {some_float}": (
            bitwise and some_float
        ),
        f"--compare gloo: gloo averages floating-point numbers only, got -d {some_whole}": of_gloo,
    }


def _of_ranks(given: argparse.Namespace) -> dict[str, object]:
    """Return possible errors of ranks, collectives and contenders, each with whether it applies."""
    n, named = given.nproc * given.nnodes, ", ".join(given.test)
    is_one_node, has_veth = given.nnodes < 2, bool(given.veth_links)
    cases = [CASES[name] for name in given.test]
    reduces, paired = any(case.reduces for case in cases), {*PAIRED} & {*given.test}
    listed = [rank for pair in given.ranks_list or () for rank in pair]
    outside = [rank for rank in (*(given.roots or ()), *listed) if rank >= n]
    algorithm_problem = _algorithm_problem(given)
    return {
        f"--op is for reductions: {named} has none": given.op and not reduces,
        f"{named} does not work with --place {given.place}": (
            given.place in ("in", "out") and not any(given.place in case.places for case in cases)
        ),
        f"a rank must be in 0..{n - 1}, got {next(iter(outside), '')}": outside,
        "--ranks_list needs --test send_recv or ping_pong": given.ranks_list and not paired,
        "--ranks_list: a rank may be in one pair only": len(listed) > len(set(listed)),
        f"{named} needs at least 2 ranks: give -g 2": n < 2 and paired,
        "--veth joins nodes: give --nnodes 2 or more": has_veth and is_one_node,
        "--rate limits the links of --veth: give --veth 1": given.rate_mbit and not has_veth,
        "--compression works between nodes: give --nnodes 2 or more": (
            given.compressions and is_one_node
        ),
        f"--reproducible is for reductions: {named} has none": given.reproducible and not reduces,
        "--reproducible compares communicators: leave --api torch out": (
            given.reproducible and given.api == "torch"
        ),
        f"--algorithm: {algorithm_problem}": algorithm_problem,
        "--validate needs at least 2 ranks: give -g 2": given.validate and n < 2,
        "give --profile or --registered, not both": given.profile and given.registered,
        "--tune_check needs --tune": given.tune_check and not given.tune_path,
        "give --csv or --markdown, not both": given.csv and given.markdown,
    }


def _algorithm_problem(given: argparse.Namespace) -> str:
    """Return what is wrong with the algorithms of --algorithm; empty if nothing is."""
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
