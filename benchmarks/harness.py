"""What the commands share: options, the record of a run, Ctrl-C, exit codes."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hccl_py.bench.collective.output.document import facts
from hccl_py.command_line import Parser, parse_input, parse_output, parse_positive

Document = dict[str, Any]
"""What a run found, as --json writes it: `results` and `failures` beside facts and settings."""


def parser_of_command(module: str, description: str, epilog: str = "") -> Parser:
    """Make the parser of `python -m module`."""
    return Parser(
        prog=f"python -m {module}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt in the block: network namespaces outlive their processes."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True)
class Recorded:
    """A command whose run is recorded, and can be shown again.

    Attributes:
        parser: its own options; `read` adds --starts, --json, --markdown and --show.
        introduction: the lines before the run, from the document and whether to write Markdown.
        tables: those after it.
        finish: what else is done with the document, given the options.
    """

    parser: Parser
    introduction: Callable[[Document, bool], list[str]]
    tables: Callable[[Document, bool], list[str]]
    finish: Callable[[argparse.Namespace, Document], None] = lambda given, document: None

    def read(self, argv: Sequence[str], starts: int) -> argparse.Namespace:
        """Read the command line; `starts` is the default of --starts."""
        add = self.parser.add_argument
        help = f"fresh starts of each ({starts})"
        add("--starts", type=parse_positive, default=starts, metavar="N", help=help)
        add("--json", type=parse_output, metavar="FILE", help="write every start's figures")
        add("--markdown", action="store_true", help="print Markdown")
        help = "measure nothing; print the tables of an earlier --json"
        add("--show", type=parse_input, metavar="FILE", help=help)
        return self.parser.read(argv)

    def show(self, given: argparse.Namespace) -> int:
        """Print what --show names; return the exit code."""
        try:
            document = json.loads(given.show.read_text())
            lines = [text for part in self._parts(document, given) for text in part]
        except (ValueError, KeyError, TypeError) as error:
            message = f"--show: {given.show} is no --json file of this command: {error}"
            print(f"{self.parser.prog}: {message}", file=sys.stderr)
            return 2
        _print(lines)
        self.finish(given, document)
        return 0

    def run(
        self,
        given: argparse.Namespace,
        argv: Sequence[str],
        measure: Callable[[Document], Iterator[str]],
        **settings: object,
    ) -> int:
        """Measure, and print the tables; after Ctrl-C or SIGTERM, of what there is.

        Args:
            given: the options.
            argv: the command line, for the record.
            measure: adds to the results and failures of the document; yields what it is going to do
                before each step.
            settings: of the run, for the record.

        Returns:
            The exit code: 0, 1 where a step failed, 130 after an interruption.
        """
        command = shlex.join([*self.parser.prog.split(), *argv])
        document = {"schema": 1, "command": command, **facts(), "starts": given.starts}
        document |= {**settings, "results": [], "failures": []}
        _print(self.introduction(document, given.markdown))
        code = 0
        try:
            with sigterm_as_interrupt():
                for step in measure(document):
                    _write(given, document)  # a run takes hours
                    print(step, file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            code = 130
        _write(given, document)
        _print(self.tables(document, given.markdown))
        self.finish(given, document)
        return code or (1 if document["failures"] else 0)

    def _parts(self, document: Document, given: argparse.Namespace) -> Iterator[list[str]]:
        yield self.introduction(document, given.markdown)
        yield self.tables(document, given.markdown)


def failed(document: Document, what: str, error: object) -> None:
    """Note a step that failed, and print why."""
    document["failures"].append(f"{what}: {error}".splitlines()[0])
    print(f"{what}: {error}", file=sys.stderr, flush=True)


def _write(given: argparse.Namespace, document: Document) -> None:
    if given.json:
        given.json.write_text(json.dumps(document) + "\n")


def _print(lines: Sequence[str]) -> None:
    print("\n".join(lines), flush=True)
