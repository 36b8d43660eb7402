"""The command `hccl-bench`: options in, table and JSON out. Start reading here, then `measure`."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from hccl_py.bench.contender import APIS, BASELINES, REGISTERED, Open
from hccl_py.bench.measure import Row, measure
from hccl_py.bench.namespaces import Hosts, NamespaceError
from hccl_py.bench.options import Options, parse
from hccl_py.bench.ranks import RankFailure, Ranks
from hccl_py.bench.report import Table, document, facts, introduction


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0; 1 where a result was wrong or a rank failed; 130 after Ctrl-C or SIGTERM.

    Raises:
        SystemExit: help, or wrong arguments (code 2).
    """
    argv = sys.argv[1:] if argv is None else argv
    options = parse(argv)
    contenders = {"hccl": APIS[options.api]}
    if options.registered:
        contenders = {"registered": REGISTERED[options.api], **contenders}
    if options.compare:
        contenders[options.compare] = BASELINES[options.compare]
    # Like Ctrl-C: nothing may be left behind, and network namespaces outlive their processes.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(options, argv, contenders)
    except (RankFailure, NamespaceError) as failure:
        print(f"hccl-bench: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("hccl-bench: interrupted", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def run(options: Options, argv: Sequence[str], contenders: Mapping[str, Open]) -> int:
    """Measure and report.

    Args:
        options: what to measure.
        argv: the command line, for the record.
        contenders: what to measure it with, by name; the first is what the others are
            compared with.

    Returns:
        The exit code: 0, or 1 where a result was wrong.

    Raises:
        RankFailure: a rank raised, died or did not answer in time.
        NamespaceError: --veth could not have its two hosts.
    """
    found, table, rows = facts(), Table(options), []
    _print(introduction(options, argv, found))
    with ExitStack() as opened:
        hosts = None
        if options.veth_links:
            hosts = opened.enter_context(Hosts(num_links=options.veth_links))
        ranks = opened.enter_context(Ranks(options, list(contenders.values()), hosts))
        _print(table.header())
        for row in measure(ranks, options, list(contenders)):
            _print(table.row(row))
            rows.append(row)
        if options.verbose:
            _print(_statistics(ranks, list(contenders)))
    if options.json_path:
        written = document(options, argv, rows, found)
        options.json_path.write_text(json.dumps(written, indent=2) + "\n")
    return _verdict(rows)


def _verdict(rows: Sequence[Row]) -> int:
    """The exit code, and where it is not 0 the reason on stderr."""
    wrong = sum(result.wrong for row in rows for result in row.results)
    if not wrong:
        return 0
    print(f"hccl-bench: {wrong} wrong elements, see the column wrong", file=sys.stderr)
    return 1


def _statistics(ranks: Ranks, names: Sequence[str]) -> list[str]:
    """What rank 0's contenders counted."""
    counted = ranks.ask("statistics", what="asking for statistics")[0]
    pairs = zip(names, counted, strict=True)
    return ["", *(f"# {name}: {text or 'keeps no statistics'}" for name, text in pairs)]


def _print(lines: Sequence[str]) -> None:
    """Print at once: a row must not wait for the next one when stdout is a file."""
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    sys.exit(main())
