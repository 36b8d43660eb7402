"""The command `hccl-bench`: options in, table and JSON out. Start reading here, then `measure`."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from hccl_py.bench.collective.contender import Open
from hccl_py.bench.collective.contenders import APIS, BASELINES, REGISTERED
from hccl_py.bench.collective.measure import Row, measure
from hccl_py.bench.collective.options import Options, parse
from hccl_py.bench.collective.ranks import RankFailure, Ranks
from hccl_py.bench.collective.report import Table, document, facts, introduction
from hccl_py.bench.namespaces import Hosts, NamespaceError
from hccl_py.bench.tuning.main import tune


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
    if options.compare:
        contenders[options.compare] = BASELINES[options.compare]
    # Like Ctrl-C: nothing may be left behind, and network namespaces outlive their processes.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if options.tune_path is not None:
            return tune(options, argv)
        return run(collectives, argv, contenders)
    except (RankFailure, NamespaceError) as failure:
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
        collectives: what to measure; they differ in the collective alone.
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
        _print(introduction(collectives, argv, found))
    with ExitStack() as opened:
        hosts = None
        if options.veth_links:
            hosts = opened.enter_context(Hosts(num_links=options.veth_links))
        ranks = opened.enter_context(Ranks(options, list(contenders.values()), hosts))
        for collective in collectives:
            table, rows = Table(collective), []
            _print(table.header(first=collective is options))
            for row in measure(ranks, collective, list(contenders)):
                _print(table.row(row))
                rows.append(row)
            measured.append((collective, rows))
        if options.verbose:
            _print(_statistics(ranks, list(contenders)))
    if options.json_path:
        written = document(measured, argv, found)
        options.json_path.write_text(json.dumps(written, indent=2) + "\n")
    return _exit_code([row for _, rows in measured for row in rows])


def _exit_code(rows: Sequence[Row]) -> int:
    """Return the exit code, and print the reason to stderr where it is not 0."""
    wrong = sum(result.wrong for row in rows for result in row.results)
    if not wrong:
        return 0
    print(f"hccl-bench: {wrong} wrong elements, see the column wrong", file=sys.stderr)
    return 1


def _statistics(ranks: Ranks, names: Sequence[str]) -> list[str]:
    """Render what rank 0's contenders counted."""
    counted = ranks.ask("statistics", what="asking for statistics")[0]
    pairs = zip(names, counted, strict=True)
    return ["", *(f"# {name}: {text or 'keeps no statistics'}" for name, text in pairs)]


def _print(lines: Sequence[str]) -> None:
    """Print at once: a row must not wait for the next one when stdout is a file."""
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    sys.exit(main())
