"""The command `hccl-plan`: what it can do, its options and its exit codes."""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from hccl_py.algorithms.custom import CustomAlgorithm, WrongAlgorithmError
from hccl_py.algorithms.neighbours import count_ranks
from hccl_py.command_line import Parser, parse_size
from hccl_py.lab.plan_command.chosen import Where, algorithm_named, every_algorithm, nodes_of
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.transport.errors import InvalidArgumentError

if TYPE_CHECKING:
    from hccl_py.lab.simulation.costs import Costs

_ALGORITHM = "all_reduce=ring of the table, mine.py:ring of your own, or plan:FILE, plans in a file"
_CHECKED = (*map(str, range(1, 10)), "1,1", "1,4", "3,5", "2,3,4", "4,4", "2,2,2,2")

_APART = {
    "predict": "predict the time of algorithms on other networks",
    "calibrate": "find the costs of machines that were measured",
    "synthesize": "make plans for a network with uneven links",
}
"""Commands with a file each, which has `ABOUT`, `EPILOG`, `add_options` and `run`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, 1 where an algorithm is wrong, 2 for wrong arguments."""
    words = list(sys.argv[1:] if argv is None else argv)
    is_apart = bool(words) and words[0] in _APART
    parser = _parser_apart(words.pop(0)) if is_apart else _parser()
    options = parser.read(words)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except InvalidArgumentError as error:
        print(f"hccl-plan {options.command}: {error}", file=sys.stderr)
        return 1 if isinstance(error, WrongAlgorithmError) else 2
    except OSError as error:
        print(f"hccl-plan {options.command}: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2


def _parser_apart(name: str) -> Parser:
    """Return the parser of a command that stands in a file of its own, imported only now."""
    module = import_module(f"hccl_py.lab.plan_command.{name}")
    parser = Parser(
        prog=f"hccl-plan {name}",
        description=module.ABOUT,
        epilog=module.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_options(parser)
    parser.set_defaults(run=module.run, command=name)
    return parser


def _parser() -> Parser:
    parser = Parser(prog="hccl-plan", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(
        name: str, run: Callable[[argparse.Namespace], int], about: str
    ) -> Callable[..., object]:
        one = commands.add_parser(name, help=about, description=about)
        one.set_defaults(run=run)
        return one.add_argument

    command("list", _list, "list the algorithms of the table, with their cost")
    add = command("check", _check, "prove an algorithm for many ranks, nodes and roots")
    add("algorithm", help=_ALGORITHM)
    add("--nodes", action="append", metavar="LIST", help="only for these, such as 4,4 (many)")
    add = command("show", _show, "print the plan of a rank, or of all")
    add("algorithm", help=_ALGORITHM)
    _add_where(add)
    add("--rank", type=int, help="of this rank only")
    add = command("draw", _draw, "write a page that shows a plan: messages, and who holds what")
    add("algorithm", help=_ALGORITHM)
    _add_where(add)
    about = "draw us by these costs: of a well-known machine (see predict)"
    add("--preset", metavar="NAME", help=about)
    about = "or those of hccl-plan calibrate or hccl-bench --tune"
    add("--costs", type=Path, metavar="FILE", help=about)
    add("--size", type=parse_size, metavar="SIZE", help="with them: bytes of the call, such as 1M")
    add("--trace", type=Path, metavar="DIR", help="draw a call of these flight recorders over it")
    add("--call", type=int, metavar="N", help="with it: number of the call (the last one)")
    add("-o", "--output", type=Path, default=Path("plan.html"), help="the page (plan.html)")
    for name, about in _APART.items():
        commands.add_parser(name, help=about)
    return parser


def _add_where(add: Callable[..., object]) -> None:
    about = "ranks of each node, such as 4,4 (8; of plans in a file theirs)"
    add("--nodes", metavar="LIST", help=about)
    add("--root", type=int, default=0, help="of a rooted collective (0)")


def _where(options: argparse.Namespace, chosen: CustomAlgorithm) -> Where:
    nodes = nodes_of(options.nodes or str(chosen.world_size or 8))
    if not COLLECTIVES[chosen.collective].rooted:
        return Where(nodes, None)
    if not 0 <= options.root < count_ranks(nodes):
        problem = f"--root: expected one of 0..{count_ranks(nodes) - 1}, got {options.root}"
        raise InvalidArgumentError(problem)
    return Where(nodes, options.root)


def _list(options: argparse.Namespace) -> int:
    for one in every_algorithm():
        print(f"{one!s:32} {one.cost}")
    return 0


def _check(options: argparse.Namespace) -> int:
    chosen = algorithm_named(options.algorithm)
    count, proved, others = 0, list[str](), list[str]()
    # Plans in a file are for one number of ranks, and do not ask which nodes these are on.
    default = _CHECKED if chosen.world_size is None else [str(chosen.world_size)]
    for text in options.nodes or default:
        nodes = nodes_of(text)
        if not chosen.serves(nodes):
            others.append(text)
            continue
        rooted = COLLECTIVES[chosen.collective].rooted
        for root in range(count_ranks(nodes)) if rooted else (None,):
            chosen.verify(nodes, root)
            count += 1
        proved.append(text)
    if not count:
        raise InvalidArgumentError(f"{chosen} does not serve nodes of these sizes: {others[0]}")
    print(f"{chosen} is right in {count} cases: each contribution once, no deadlock, same bits")
    each_root = ", each root" * COLLECTIVES[chosen.collective].rooted
    print(f"It was proved for nodes of these sizes{each_root}: {'; '.join(proved)}")
    if others:
        print(f"It does not serve nodes of these sizes: {'; '.join(others)}")
    return 0


def _show(options: argparse.Namespace) -> int:
    chosen = algorithm_named(options.algorithm)
    where = _where(options, chosen)
    n = count_ranks(where.nodes)
    if options.rank is not None and not 0 <= options.rank < n:
        raise InvalidArgumentError(f"--rank: expected one of 0..{n - 1}, got {options.rank}")
    ranks = range(n) if options.rank is None else [options.rank]
    print("\n\n".join(str(chosen.plan(rank, where.nodes, where.root)) for rank in ranks))
    return 0


def _draw(options: argparse.Namespace) -> int:
    from hccl_py.lab.plan_command.drawing import Drawing, page
    from hccl_py.lab.plan_command.times import durations, measured
    from hccl_py.plan.history import Duration, in_steps

    if options.call is not None and options.trace is None:
        raise InvalidArgumentError("--call: expected --trace with it")
    chosen = algorithm_named(options.algorithm)
    where = _where(options, chosen)
    plans = chosen.verify(where.nodes, where.root)
    about, call, num_bytes = f"{where}. {chosen.cost}.", None, options.size
    duration: Duration = in_steps
    if options.trace is not None:
        n = count_ranks(where.nodes)
        call = measured(options.trace, chosen.collective, n, options.call)
        num_bytes = num_bytes or call.num_bytes
        about += f" Bars: call {call.number} of {call.num_bytes} bytes as the ranks recorded it."
    if costs := _costs(options):
        if not num_bytes:
            raise InvalidArgumentError("--preset, --costs: expected --size or --trace with it")
        duration = durations(costs, num_bytes, where.nodes)
        source = options.preset or options.costs
        about += f" Times of single messages of a call of {num_bytes} bytes by {source}."
    elif options.size:
        raise InvalidArgumentError("--size: expected --preset or --costs with it")
    drawing = Drawing(plans, chosen.contract, where.nodes, duration)
    content = drawing.content(str(chosen), about, call)
    options.output.write_text(page(content), encoding="utf-8")
    print(f"{options.output}: {chosen}, {where}")
    return 0


def _costs(options: argparse.Namespace) -> "Costs | None":
    from hccl_py.lab.simulation.costs import costs_from
    from hccl_py.lab.simulation.presets import PRESETS

    if options.preset is None:
        return None if options.costs is None else costs_from(options.costs)
    if options.costs is not None or options.preset not in PRESETS:
        expected = f"expected one of {', '.join(PRESETS)}, and no --costs"
        raise InvalidArgumentError(f"--preset: {expected}; got {options.preset}")
    return PRESETS[options.preset]


if __name__ == "__main__":
    sys.exit(main())
