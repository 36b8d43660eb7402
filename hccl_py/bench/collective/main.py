"""The command `hccl-bench`: options in, table and JSON out. Start reading here, then `measure`."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from hccl_py.bench.carry_out import carry_out
from hccl_py.bench.collective.analysis.profile import is_profiled, lines, profile, start_profile
from hccl_py.bench.collective.analysis.validate_command import validate, validate_job
from hccl_py.bench.collective.command_line.read import parse
from hccl_py.bench.collective.contender import Open
from hccl_py.bench.collective.contenders import contenders_of
from hccl_py.bench.collective.job_ranks import is_rank
from hccl_py.bench.collective.measure import measure
from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.output.document import document, facts, write
from hccl_py.bench.collective.output.live import Screen
from hccl_py.bench.collective.output.plot import plot
from hccl_py.bench.collective.output.table import Table, doubtful, introduction
from hccl_py.bench.collective.rank import statistics
from hccl_py.bench.collective.ranks import Ranks, open_hosts
from hccl_py.bench.collective.results import Row
from hccl_py.bench.namespaces import Hosts
from hccl_py.bench.tuning.main import tune
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.network.system_calls import available_memory


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0; 1 if a result was wrong, a link is slow or a rank failed; see also `carry_out`.

    Raises:
        SystemExit: help, or wrong arguments (code 2).
    """
    argv = sys.argv[1:] if argv is None else argv
    cases = parse(argv)
    options, command = cases[0], shlex.join(["hccl-bench", *argv])

    def work() -> int:
        _check_memory(cases)
        if options.tune_path:
            return tune(options, command)
        if options.validate:
            return (validate_job if is_rank() else validate)(options, command)
        return run(cases, command, contenders_of(options))

    return carry_out("hccl-bench", work)


def run(
    cases: Sequence[Options],
    command: str,
    contenders: Mapping[str, Open],
    hosts: Hosts | None = None,
) -> int:
    """Measure and report.

    Args:
        cases: what to measure; they differ in the collective and its data only.
        command: the command line, for the record.
        contenders: what to measure, by name; the others are compared with the first.
        hosts: hosts of the nodes; None: by the options.

    Returns:
        The exit code: 0, or 1 if a result was wrong.

    Raises:
        RankFailure: a rank raised, died or did not answer in time.
        NamespaceError: the hosts of --veth could not be made.
    """
    found, options, names = facts(), cases[0], list(contenders)
    measured: list[tuple[Options, list[Row]]] = []
    if not options.csv:
        print("\n".join(introduction(cases, command, found, names)), flush=True)
    with ExitStack() as opened:
        hosts = hosts or open_hosts(options, opened)
        ranks = opened.enter_context(Ranks(options, list(contenders.values()), hosts))
        screen = opened.enter_context(Screen(options))
        ranks.on_ask = screen.status
        if options.profile:
            ranks.ask(start_profile, what="starting the profile")
        for case in cases:
            table, rows = Table(case, names), []
            if not measured or measured[-1][0].collective != case.collective:
                screen.header(table, first=not measured)
            for row in measure(ranks, case, names):
                screen.row(table, row)
                if case.profile and is_profiled(case):
                    parts = profile(ranks, case, row.results[0].calls_per_round)
                    row = replace(row, profiles=tuple(parts))
                    if not case.csv:
                        screen.lines(lines(parts))
                rows.append(row)
            measured.append((case, rows))
        if not options.csv and not options.markdown:
            screen.lines(doubtful([row for _, rows in measured for row in rows]), "yellow")
        if options.verbose:
            counted = zip(
                names, ranks.ask(statistics, what="asking for statistics")[0], strict=True
            )
            screen.lines(["", *(f"# {name}: {text or 'no statistics'}" for name, text in counted)])
    _write(measured, command, found, names)
    wrong = sum(one.wrong or 0 for _, rows in measured for row in rows for one in row.results)
    if wrong:
        print(f"hccl-bench: {wrong} wrong elements, see the column wrong", file=sys.stderr)
    return 1 if wrong else 0


def _check_memory(cases: Sequence[Options]) -> None:
    """Reject sizes whose buffers do not fit the memory, before the kernel kills a process."""
    available = available_memory()
    for case in cases:
        num_ranks = case.nproc if is_rank() else case.world_size
        num_buffers = 1 if case.validate or case.tune_path else len(contenders_of(case))
        size = max(case.sizes, default=0)
        if (needed := num_ranks * num_buffers * case.buffer_bytes(size)) > available:
            raise InvalidArgumentError(
                f"sizes: expected buffers of at most {available} bytes, the memory of {num_ranks} "
                f"ranks, got {size}, which needs {needed}; try smaller sizes or fewer ranks"
            )


def _write(
    measured: Sequence[tuple[Options, Sequence[Row]]],
    command: str,
    found: dict[str, Any],
    names: Sequence[str],
) -> None:
    """Write the requested files."""
    options = measured[0][0]
    if options.json_path:
        write(options.json_path, document(measured, command, found))
    if options.csv_path:
        tables = [(Table(each, names, as_csv=True), rows) for each, rows in measured]
        text = tables[0][0].header(first=True)
        text += [line for table, rows in tables for row in rows for line in table.row(row)]
        options.csv_path.write_text("\n".join(text) + "\n")
    if options.plot_path:
        title = introduction([each for each, _ in measured], command, found, names)[1:3]
        plot(measured, "\n".join(line.lstrip("#- ") for line in title), options.plot_path)


if __name__ == "__main__":
    sys.exit(main())
