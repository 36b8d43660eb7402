"""The command `hccl-plan`; each command of a file of its own is in `_IN_FILES`."""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import product

from hccl_py.algorithms.custom import CustomAlgorithm, WrongAlgorithmError
from hccl_py.algorithms.neighbours import count_ranks
from hccl_py.algorithms.table import ALGORITHMS
from hccl_py.command_line import Parser, until_reader_ends, wrapped
from hccl_py.lab import bound
from hccl_py.lab.algorithms import algorithm_named
from hccl_py.lab.plan_command.arguments import NODES, add_algorithm, add_nodes, chosen, parsed_nodes
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import PlanError
from hccl_py.plan.progress import ProofProgress
from hccl_py.transport.errors import InvalidArgumentError

_CHECKED = (*map(str, range(1, 10)), "1,1", "1,4", "3,5", "2,3,4", "4,4", "2,2,2,2")
_PROOF = "each contribution once, no deadlock, same bits"

_IN_FILES = {
    "draw": "write a page that shows a plan: its messages, and the data of each rank",
    "predict": "predict the time of collectives by running their plans in virtual time",
    "calibrate": "find costs with which simulated times match measured ones",
    "export": "write plans, or a recorded job, for other programs",
    "import": "prove plans of MSCCL or MSCCL++, and write them as a plan file",
    "synthesize": "make proved plans for a network, and compare them with its bound",
}
"""Commands with a file each, which has `EPILOG`, `add_options` and `run`."""
_MODULES = {"import": "importing"}  # `import` is a word of Python


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, 1 if an algorithm is wrong, 2 for wrong arguments."""
    words = list(sys.argv[1:] if argv is None else argv)
    options = _parser(words[0] if words else "").read(words)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return until_reader_ends(lambda: run(options))
    except (InvalidArgumentError, PlanError) as error:
        print(f"hccl-plan {options.command}: {error}", file=sys.stderr)
        return 1 if isinstance(error, WrongAlgorithmError) else 2
    except OSError as error:
        print(f"hccl-plan {options.command}: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2


def _parser(chosen: str) -> Parser:
    """Return the parser; imports the file of the chosen command only."""
    about = "List, prove, print, draw, predict, make and exchange the plans of collectives."
    parser = Parser(prog="hccl-plan", description=about)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    about = "list the algorithms of the table, with their cost"
    commands.add_parser("list", help=about, description=about).set_defaults(run=_list)
    about = "prove an algorithm for many ranks, nodes and roots"
    one = commands.add_parser("check", help=about, description=about)
    one.set_defaults(run=_check)
    add_algorithm(one)
    which = one.add_mutually_exclusive_group()
    about = f"only for nodes of these sizes (many): {NODES}"
    which.add_argument("--nodes", action="append", metavar="LIST", help=about)
    about = f"for the bound that CI proves the table's algorithms for: {bound.TEXT}"
    which.add_argument("--bound", action="store_true", help=about)
    about = "print the plan of a rank, or of all"
    one = commands.add_parser("show", help=about, description=about)
    one.set_defaults(run=_show)
    add_algorithm(one)
    add_nodes(one)
    one.add_argument("--rank", type=int, help="only this rank")
    raw = argparse.RawDescriptionHelpFormatter
    for name, about in _IN_FILES.items():
        one = commands.add_parser(name, help=about, description=about, formatter_class=raw)
        if name == chosen:
            module = import_module(f"hccl_py.lab.plan_command.{_MODULES.get(name, name)}")
            one.epilog = module.EPILOG
            one.set_defaults(run=module.run)
            module.add_options(one)
    return parser


def _list(options: argparse.Namespace) -> int:
    for collective, name in ALGORITHMS:
        one = algorithm_named(f"{collective}={name}")
        print(wrapped(f"{one!s:32} {one.cost}"))
    return 0


def _check(options: argparse.Namespace) -> int:
    algorithm = algorithm_named(options.algorithm)
    if options.bound:
        return _check_bound(algorithm)
    count, proved, others = 0, list[str](), list[str]()
    # Plans in a file are for one number of ranks, on any nodes.
    default = _CHECKED if algorithm.world_size is None else [str(algorithm.world_size)]
    for text in options.nodes or default:
        nodes = parsed_nodes(text)
        if not algorithm.serves(nodes):
            others.append(text)
            continue
        rooted = COLLECTIVES[algorithm.collective].rooted
        for root in range(count_ranks(nodes)) if rooted else (None,):
            algorithm.verify(nodes, root)
            count += 1
        proved.append(text)
    if not count:
        raise InvalidArgumentError(f"{algorithm} does not serve nodes of these sizes: {others[0]}")
    print(wrapped(f"{algorithm} is right in {count} case{'s' * (count > 1)}: {_PROOF}"))
    each_root = ", each root" * COLLECTIVES[algorithm.collective].rooted
    print(wrapped(f"It was proved for nodes of these sizes{each_root}: {'; '.join(proved)}"))
    if others:
        print(wrapped(f"It does not serve nodes of these sizes: {'; '.join(others)}"))
    if (algorithm.collective, algorithm.name) in ALGORITHMS:
        print(wrapped(f"CI proves it for {bound.TEXT}{each_root and f', with {bound.ROOTS_TEXT}'}"))
    else:
        print(wrapped("Other nodes were not tried; --bound tries more"))
    return 0


def _check_bound(algorithm: CustomAlgorithm) -> int:
    rooted = COLLECTIVES[algorithm.collective].rooted
    count, others, proved = 0, 0, bound.Proved()
    for n, every in bound.worlds():
        for nodes, root in product(every, bound.roots(n, rooted)):
            if not algorithm.serves(nodes):
                others += 1
                continue
            count += 1
            plans = algorithm.plans(nodes, root)
            if proved.is_new(plans):
                with ProofProgress("hccl-plan:") as progress:
                    algorithm.prove(plans, nodes, progress)
    if not count:
        raise InvalidArgumentError(f"{algorithm} serves none of {bound.TEXT}")
    print(wrapped(f"{algorithm} is right in {count} cases: {_PROOF}"))
    each_root = f", with {bound.ROOTS_TEXT}" * rooted
    print(wrapped(f"It was proved for {bound.TEXT}{each_root}"))
    if others:
        print(wrapped(f"It does not serve {others} other cases of these"))
    return 0


def _show(options: argparse.Namespace) -> int:
    algorithm, world = chosen(options)
    n = count_ranks(world.nodes)
    if options.rank is not None and not 0 <= options.rank < n:
        raise InvalidArgumentError(f"--rank: expected one of 0..{n - 1}, got {options.rank}")
    ranks = range(n) if options.rank is None else [options.rank]
    print("\n\n".join(str(algorithm.plan(rank, *world)) for rank in ranks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
