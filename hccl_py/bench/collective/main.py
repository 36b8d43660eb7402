"""The command `hccl-bench`: options in, table and JSON out. Start reading here, then `measure`."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hccl_py.bench.collective.analysis.profile import is_profiled, lines, profile
from hccl_py.bench.collective.analysis.trust import Load, load_doubts
from hccl_py.bench.collective.analysis.validate import Validation, Validator
from hccl_py.bench.collective.command_line.read import parse
from hccl_py.bench.collective.contender import Open
from hccl_py.bench.collective.contenders import (
    APIS,
    BASELINES,
    COMPRESSED,
    REGISTERED,
    open_reproducible,
    with_algorithm,
)
from hccl_py.bench.collective.job_ranks import JobRanks, is_rank, rank_of_job
from hccl_py.bench.collective.measure import Row, measure
from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.output import matrix
from hccl_py.bench.collective.output.document import document, facts
from hccl_py.bench.collective.output.live import Lines, choose
from hccl_py.bench.collective.output.plot import plot
from hccl_py.bench.collective.output.table import Table, introduction
from hccl_py.bench.collective.ranks import RankFailure, Ranks, open_hosts
from hccl_py.bench.namespaces import Hosts, NamespaceError
from hccl_py.bench.tuning.main import tune
from hccl_py.transport.errors import InvalidArgumentError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0; 1 where a result was wrong or a rank failed; 130 after Ctrl-C or SIGTERM.

    Raises:
        SystemExit: help, or wrong arguments (code 2).
    """
    argv = sys.argv[1:] if argv is None else argv
    collectives = parse(argv)
    options = collectives[0]
    contenders = {"hccl": APIS[options.api]}
    if options.registered:
        contenders = {"registered": REGISTERED[options.api], **contenders}
    for compression in options.compressions:
        contenders[compression] = COMPRESSED[options.api, compression]
    if options.reproducible:
        contenders["reproducible"] = open_reproducible
    for place in options.algorithms:
        contenders[Path(place).name] = with_algorithm(options.api, place)
    contenders |= {name: BASELINES[name] for name in options.compare if name in BASELINES}
    # Like Ctrl-C: nothing may be left behind, and network namespaces outlive their processes.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if options.tune_path:
            return tune(options, argv)
        if options.validate:
            if is_rank():
                return validate_job(options, argv)
            return validate(options, argv, contenders["hccl"])
        return run(collectives, argv, contenders)
    except (RankFailure, NamespaceError, InvalidArgumentError) as failure:
        print(f"hccl-bench: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("hccl-bench: interrupted", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def run(collectives: Sequence[Options], argv: Sequence[str], contenders: Mapping[str, Open]) -> int:
    """Measure and report.

    Args:
        collectives: what to measure; they differ in the collective and its data alone.
        argv: the command line, for the record.
        contenders: what to measure it with, by name; the first is what the others are
            compared with.

    Returns:
        The exit code: 0, or 1 where a result was wrong.

    Raises:
        RankFailure: a rank raised, died or did not answer in time.
        NamespaceError: --veth could not have its two hosts.
    """
    found, options, measured = facts(), collectives[0], []
    if not options.csv:
        Lines().lines(introduction(collectives, argv, found))
    with ExitStack() as opened:
        hosts = open_hosts(options, opened)
        ranks = opened.enter_context(Ranks(options, list(contenders.values()), hosts))
        screen = opened.enter_context(choose(options))
        ranks.on_ask = screen.status
        if options.profile:
            ranks.ask("start_profile", what="starting the profile")
        above = None
        for collective in collectives:
            table, rows = Table(collective), []
            if above != collective.collective:
                screen.header(table, first=above is None)
            above = collective.collective
            for row in measure(ranks, collective, list(contenders)):
                screen.row(table, row)
                if collective.profile and is_profiled(collective):
                    profiles = profile(ranks, collective, row)
                    row = replace(row, profiles=tuple(profiles))
                    if not collective.csv:
                        screen.lines(lines(profiles))
                rows.append(row)
            measured.append((collective, rows))
        if options.verbose:
            screen.lines(_statistics(ranks, list(contenders)))
    _write(measured, argv, found)
    return _exit_code([row for _, rows in measured for row in rows])


def validate(
    options: Options, argv: Sequence[str], contender: Open, hosts: Hosts | None = None
) -> int:
    """Measure every pair of ranks and show the matrix.

    Args:
        options: which ranks; the last of its sizes is that of the messages.
        argv: the command line, for the record.
        contender: what to measure it with.
        hosts: where the nodes are; None: as the options say.

    Returns:
        The exit code: 0, or 1 where a link is slow.
    """
    Lines().lines(introduction([options], argv, facts())[:3])
    with ExitStack() as opened:
        hosts = hosts or open_hosts(options, opened)
        ranks = opened.enter_context(Ranks(options, [contender], hosts))
        before = Load.now(ranks.pids)
        result = Validator(ranks, options.nodes, options.sizes[-1]).run()
        doubts = load_doubts(before, Load.now(ranks.pids))

    def name(rank: int) -> str:
        node = options.node(rank)
        return f"rank {rank} (node {node}" + (f", {hosts.address(node)})" if hosts else ")")

    return _show(options, argv, Validated(result, options.nodes, doubts), name)


def validate_job(options: Options, argv: Sequence[str]) -> int:
    """Measure every pair of ranks of the job that this process is in; rank 0 shows the matrix.

    Returns:
        The exit code: 0, or 1 on rank 0 where a link is slow.
    """
    with rank_of_job() as (rank, communicator):
        if communicator.world_size < 2:
            raise InvalidArgumentError("--validate needs at least 2 ranks: start a larger job")
        ranks = JobRanks(rank, communicator)
        nodes, names = ranks.nodes, ranks.names()
        before = Load.now([os.getpid()])
        result = Validator(ranks, nodes, options.sizes[-1]).run()
        doubts = load_doubts(before, Load.now([os.getpid()]))
        if communicator.rank != 0:
            return 0
    found = Validated(result, nodes, doubts)
    return _show(
        options, argv, found, lambda rank: f"rank {rank} (node {nodes[rank]}, {names[rank]})"
    )


@dataclass(frozen=True)
class Validated:
    """What --validate found out.

    Attributes:
        links: all of them.
        nodes: by rank, the node.
        doubts: of the measurement.
    """

    links: Validation
    nodes: Sequence[int]
    doubts: Sequence[str]


def _show(options: Options, argv: Sequence[str], found: Validated, name: matrix.Name) -> int:
    """Print the matrix and write the files that were asked for; return the exit code."""
    result, n, about = found.links, len(found.nodes), facts()
    Lines().lines(matrix.text(result, n, name))
    Lines().lines([f"# doubtful: {doubt}" for doubt in found.doubts])
    if options.json_path:
        written = {"command": shlex.join(["hccl-bench", *argv]), **about, "doubts": found.doubts}
        text = json.dumps(written | matrix.document(result), indent=2)
        options.json_path.write_text(text + "\n")
    if options.plot_path:
        num_nodes = len(set(found.nodes))
        where = "1 node" if num_nodes == 1 else f"{num_nodes} nodes"
        title = f"links between {n} ranks on {where}, {about['machine']['cpu']}"
        matrix.plot(result, n, title, options.plot_path)
    for slow in result.slow:
        print(f"hccl-bench: {matrix.describe(slow, name)}", file=sys.stderr)
    return 1 if result.slow else 0


def _write(
    measured: Sequence[tuple[Options, Sequence[Row]]], argv: Sequence[str], found: dict[str, Any]
) -> None:
    """Write the files that were asked for."""
    options = measured[0][0]
    if options.json_path:
        text = json.dumps(document(measured, argv, found), indent=2)
        options.json_path.write_text(text + "\n")
    if options.csv_path:
        tables = [(Table(each, as_csv=True), rows) for each, rows in measured]
        lines = tables[0][0].header(first=True)
        lines += [line for table, rows in tables for row in rows for line in table.row(row)]
        options.csv_path.write_text("\n".join(lines) + "\n")
    if options.plot_path:
        title = introduction([each for each, _ in measured], argv, found)[1:3]
        plot(measured, "\n".join(line.lstrip("#- ") for line in title), options.plot_path)


def _exit_code(rows: Sequence[Row]) -> int:
    """Return the exit code, and print the reason to stderr where it is not 0."""
    wrong = sum(result.wrong or 0 for row in rows for result in row.results)
    if not wrong:
        return 0
    print(f"hccl-bench: {wrong} wrong elements, see the column wrong", file=sys.stderr)
    return 1


def _statistics(ranks: Ranks, names: Sequence[str]) -> list[str]:
    """Render what rank 0's contenders counted."""
    counted = ranks.ask("statistics", what="asking for statistics")[0]
    pairs = zip(names, counted, strict=True)
    return ["", *(f"# {name}: {text or 'keeps no statistics'}" for name, text in pairs)]


if __name__ == "__main__":
    sys.exit(main())
