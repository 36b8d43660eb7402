"""Shared by the commands: options, the record of a run, its report, exit codes."""

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hccl_py.bench.carry_out import carry_out
from hccl_py.bench.collective.command_line.read import parse
from hccl_py.bench.collective.contender import Open
from hccl_py.bench.collective.main import run
from hccl_py.bench.collective.output.document import facts
from hccl_py.bench.collective.output.text import lay_out
from hccl_py.bench.namespaces import Hosts
from hccl_py.command_line import Parser, parse_input, parse_output, parse_positive

Document = dict[str, Any]
"""The record of a run for --json: `results`, `failures`, facts and settings."""


def parser_of_command(module: str, description: str, epilog: str = "") -> Parser:
    """Make the parser of `python -m module`."""
    return Parser(
        prog=f"python -m {module}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def run_bench(
    words: Sequence[str], contenders: Mapping[str, Open], hosts: Hosts | None = None
) -> int:
    """Measure other contenders than hccl-bench's, with its options; return its exit code."""
    return run(parse(words), shlex.join(["hccl-bench", *words]), contenders, hosts)


@dataclass
class Page:
    """A report, as Markdown or as text.

    Attributes:
        lines: lines of the report.
    """

    markdown: bool
    lines: list[str] = field(default_factory=list)

    def introduction(self, document: Document, *more: str) -> None:
        """Add the command, the machine and the date, then `more`."""
        machine, versions = document["machine"], document["versions"]
        about = f"{machine['cpu']}, {machine['usable_cores']} usable cores, {machine['system']}; "
        about += f"{', '.join(' '.join(each) for each in versions.items())}; {document['date']}"
        prefix = "- " if self.markdown else "# "
        self.lines += [prefix + line for line in (document["command"], about, *more)]

    def heading(self, title: str, level: int = 2) -> None:
        """Begin a section."""
        marks = "#" * level if self.markdown else "#"
        self.lines += ["", f"{marks} {title}", *([""] if self.markdown else [])]

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        """Add a table, header first; in text its last column is for notes."""
        self.lines += lay_out(rows, self.markdown)

    def items(self, lines: Sequence[str], none: str = "") -> None:
        """Add a list; `none` is the text of an empty one."""
        prefix = "- " if self.markdown else "  "
        self.lines += [prefix + line for line in lines or filter(None, [none])]

    def failures(self, document: Document, title: str = "What failed") -> None:
        """Add the steps that failed, if any."""
        if document["failures"]:
            self.heading(title)
            self.items(document["failures"])


@dataclass(frozen=True)
class Recorded:
    """A command that writes the record of a run and can print its report again.

    Attributes:
        parser: its own options; `read` adds --starts, --json, --markdown and --show.
        introduce: adds the description of a run to a page, before it begins.
        report: adds the results to a page.
        finish: called at the end with the options and the document.
    """

    parser: Parser
    introduce: Callable[[Document, Page], None]
    report: Callable[[Document, Page], None]
    finish: Callable[[argparse.Namespace, Document], None] = lambda given, document: None

    def read(self, argv: Sequence[str] | None, starts: int) -> argparse.Namespace:
        """Read the command line, and add it as `argv`; `starts` is the default of --starts."""
        add = self.parser.add_argument
        help = f"fresh starts of each ({starts})"
        add("--starts", type=parse_positive, default=starts, metavar="N", help=help)
        add("--json", type=parse_output, metavar="FILE", help="write every start's figures")
        add("--markdown", action="store_true", help="print Markdown")
        help = "measure nothing; print the report of an earlier --json"
        add("--show", type=parse_input, metavar="FILE", help=help)
        words = sys.argv[1:] if argv is None else argv
        given = self.parser.read(words)
        given.argv = words
        return given

    def carry_out(
        self,
        given: argparse.Namespace,
        measure: Callable[[Document], Iterator[str]],
        on: Hosts | None = None,
        **settings: object,
    ) -> int:
        """Measure, or print the report of an earlier run; return the exit code.

        Args:
            given: the options.
            measure: adds to the results and failures of the document; yields a description of each
                step before it.
            on: hosts to make first.
            settings: of the run, for the record.
        """

        def work() -> int:
            with on or nullcontext():
                return self._run(given, measure, settings)

        return carry_out(self.parser.prog, partial(self._show, given) if given.show else work)

    def _show(self, given: argparse.Namespace) -> int:
        page = Page(given.markdown)
        try:
            document = json.loads(given.show.read_text())
            self.introduce(document, page)
            self.report(document, page)
        except (ValueError, KeyError, TypeError) as error:
            message = f"--show: expected a --json file of this command, got {given.show}: {error}"
            print(f"{self.parser.prog}: {message}", file=sys.stderr)
            return 2
        print("\n".join(page.lines))
        self.finish(given, document)
        return 0

    def _run(
        self,
        given: argparse.Namespace,
        measure: Callable[[Document], Iterator[str]],
        settings: dict[str, object],
    ) -> int:
        """Measure and print the report; after Ctrl-C or SIGTERM, of the results so far."""
        command = shlex.join([*self.parser.prog.split(), *given.argv])
        document = {"schema": 1, "command": command, **facts(), "starts": given.starts}
        document |= {**settings, "results": [], "failures": []}
        first, page = Page(given.markdown), Page(given.markdown)
        self.introduce(document, first)
        print("\n".join(first.lines), flush=True)
        try:
            for step in measure(document):
                _write(given, document)  # a run takes hours
                print(step, file=sys.stderr, flush=True)
        finally:
            _write(given, document)
            self.report(document, page)
            print("\n".join(page.lines), flush=True)
            self.finish(given, document)
        return 1 if document["failures"] else 0


def failed(document: Document, what: str, error: object) -> None:
    """Record a step that failed, and print why."""
    document["failures"].append(f"{what}: {error}".splitlines()[0])
    print(f"{what}: {error}", file=sys.stderr, flush=True)


def _write(given: argparse.Namespace, document: Document) -> None:
    if given.json:
        given.json.write_text(json.dumps(document) + "\n")
