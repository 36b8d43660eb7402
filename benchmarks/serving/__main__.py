"""The command: engines of all contenders side by side, which answer in turns, then the tables."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.harness import Document, Page, Recorded, failed, parser_of_command
from benchmarks.serving.engines import CONTENDERS, EngineError, engines, has_own
from hccl_py.bench.collective.output.text import number
from hccl_py.bench.collective.results import Spread
from hccl_py.command_line import Parser, names_of, parse_numbers, parse_positive, parse_seconds
from hccl_py.installation import pip_install

_CHECKED_TOKENS = 64
_HEAD = ["", "tokens/s", "of gloo's", "cpu ms per token", "idle"]
_DESCRIPTION = """\
Measure engines of vLLM on the CPUs of this machine: a tiny Llama with random weights, and two
prompts at a time. A start has one engine of each contender; they answer in turns. The first tokens
of each are compared.

contenders:
  gloo        torch.distributed on gloo
  own         vLLM's shared memory; left out on a processor without AVX-512
  hccl        HCCL_REPLACE=gloo:all
  hccl_spin, hccl_idle   the same with HCCL_WAIT"""
_EPILOG = """\
examples:
  python -m benchmarks.serving --json serving.json
  python -m benchmarks.serving --tensor-parallel 2 --contenders gloo,hccl,hccl_idle

columns:
  tokens/s           of both prompts: median over the rounds (p10-p90)
  cpu ms per token   of all processes of the engine: median over the rounds
  idle               part of a core that its busiest worker uses without work: median of the starts

exit codes: 0 good, 1 wrong tokens or an engine failed, 2 wrong arguments, 130 interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code. Ctrl-C and SIGTERM print the results so far."""
    recorded = Recorded(_parser(), _introduce, _report)
    given = recorded.read(argv, starts=3)
    if not given.show and find_spec("vllm") is None:
        recorded.parser.error(f"this needs vLLM: {pip_install('vllm')}")
    missing = list[str]()
    if not given.show and "own" in given.contenders and not has_own():
        missing = ["without own: vLLM has shared memory only on a processor with AVX-512"]
        given.contenders = [name for name in given.contenders if name != "own"]
        if not given.contenders:
            recorded.parser.error(missing[0])
    return recorded.carry_out(
        given,
        lambda document: _starts(given, document),
        rounds=given.rounds,
        tokens=given.tokens,
        missing=missing,
    )


def _starts(given: argparse.Namespace, document: Document) -> Iterator[str]:
    """Start engines afresh for each number of workers."""
    for start, ranks in product(range(given.starts), given.tensor_parallel):
        what = f"start {start + 1} of {given.starts}, {ranks} workers"
        yield what
        try:
            measured = _measure(given, ranks)
        except EngineError as error:
            failed(document, what, error)
            continue
        where = {"ranks": ranks, "start": start}
        document["results"] += [{**where, **each} for each in measured]
        document["failures"] += [
            f"{what}: {each['contender']} gave other tokens than {measured[0]['contender']}"
            for each in measured
            if each["differs"]
        ]


def _measure(given: argparse.Namespace, ranks: int) -> list[dict[str, Any]]:
    """Return an object for each contender."""
    names = given.contenders
    with (
        tempfile.TemporaryDirectory() as folder,
        engines(Path(folder), names, (ranks, 1)) as started,
    ):
        tokens = [each.generate(_CHECKED_TOKENS)["tokens"] for each in started]
        found: list[dict[str, Any]] = [
            {"contender": name, "differs": its != tokens[0], "tokens_per_s": [], "cpu_ms": []}
            for name, its in zip(names, tokens, strict=True)
        ]
        for turn in range(given.rounds * len(names)):
            index = (turn + turn // len(names)) % len(names)  # in an order that rotates
            answer = started[index].generate(given.tokens)
            num_tokens = sum(map(len, answer["tokens"]))
            found[index]["tokens_per_s"].append(num_tokens / answer["seconds"])
            found[index]["cpu_ms"].append(1e3 * answer["cpu_s"] / num_tokens)
        for each, engine in zip(found, started, strict=True):
            each["idle"] = engine.idle_share(given.idle)
    return found


def _introduce(document: Document, page: Page) -> None:
    page.introduction(
        document,
        *document["missing"],
        f"{document['starts']} fresh starts; {document['rounds']} rounds in each, of "
        f"{document['tokens']} tokens for each of two prompts",
    )


def _report(document: Document, page: Page) -> None:
    results = document["results"]
    for ranks in sorted({each["ranks"] for each in results}):
        starts: dict[str, list[dict[str, Any]]] = {}
        for each in results:
            if each["ranks"] == ranks:
                starts.setdefault(each["contender"], []).append(each)
        page.heading(f"{ranks} workers", level=3)
        page.table([_HEAD, *_rows(starts)])
    page.failures(document)


def _rows(starts: dict[str, list[dict[str, Any]]]) -> Iterator[list[str]]:
    def spread(name: str, what: str) -> Spread:
        return Spread.of([value for each in starts[name] for value in each[what]])

    gloo = spread("gloo", "tokens_per_s").median if "gloo" in starts else None
    for name, its in starts.items():
        speed = spread(name, "tokens_per_s")
        yield [
            name,
            f"{number(speed.median)} ({number(speed.p10)}-{number(speed.p90)})",
            "" if gloo is None else f"{speed.median / gloo:.2f}x",
            number(spread(name, "cpu_ms").median),
            f"{Spread.of([each['idle'] for each in its]).median:.1%}",
        ]


def _parser() -> Parser:
    parser = parser_of_command("benchmarks.serving", _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add(
        *("--tensor_parallel", "--tensor-parallel"),
        type=parse_numbers,
        default=(2, 4),
        metavar="LIST",
        help="workers (2,4)",
    )
    help = f"{', '.join(CONTENDERS)} (the first three)"
    first = tuple(CONTENDERS)[:3]
    add("--contenders", type=names_of(CONTENDERS), default=first, metavar="LIST", help=help)
    add("--tokens", type=parse_positive, default=200, metavar="N", help="of each prompt (200)")
    add("--rounds", type=parse_positive, default=10, metavar="N", help="in each start (10)")
    add("--idle", type=parse_seconds, default=10.0, metavar="S", help="seconds without work (10)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
