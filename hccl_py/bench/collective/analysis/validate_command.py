"""`hccl-bench --validate`, on ranks of its own or as a rank of a launcher's job."""

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from hccl_py.bench.collective.analysis.trust import Load, load_doubts
from hccl_py.bench.collective.analysis.validate import Asked, Link, Validator
from hccl_py.bench.collective.contenders import Api
from hccl_py.bench.collective.job_ranks import JobRanks, rank_of_job
from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.output import matrix
from hccl_py.bench.collective.output.document import facts, write
from hccl_py.bench.collective.output.table import introduction
from hccl_py.bench.collective.ranks import Ranks, open_hosts
from hccl_py.bench.namespaces import Hosts
from hccl_py.transport.errors import InvalidArgumentError

Found = tuple[list[Link], list[str]]
"""All links, and the doubts about them."""


def validate(options: Options, command: str, hosts: Hosts | None = None) -> int:
    """Measure every pair of ranks and show the matrix.

    Args:
        options: which ranks to start; messages have the last of its sizes.
        command: the command line, for the record.
        hosts: hosts of the nodes; None: by the options.

    Returns:
        The exit code: 0, or 1 if a link is slow.
    """
    print("\n".join(introduction([options], command, facts(), ["hccl"])[:3]), flush=True)
    with ExitStack() as opened:
        hosts = hosts or open_hosts(options, opened)
        ranks = opened.enter_context(Ranks(options, [Api(options.api)], hosts))
        addresses = [hosts.address(node) if hosts else "" for node in options.nodes]
        found = _measure(ranks, options, options.nodes, ranks.pids)
    return _show(options, command, options.nodes, addresses, found)


def validate_job(options: Options, command: str) -> int:
    """Measure every pair of ranks of the job that this process is in; rank 0 shows the matrix.

    Returns:
        The exit code: 0, or 1 on rank 0 if a link is slow.
    """
    with rank_of_job() as rank:
        ranks = JobRanks(rank)
        if ranks.communicator.world_size < 2:
            raise InvalidArgumentError("--validate needs at least 2 ranks: start a larger job")
        nodes, names = ranks.nodes, ranks.names()
        found = _measure(ranks, options, nodes, [os.getpid()])
    return 0 if rank.rank else _show(options, command, nodes, names, found)


def _measure(
    ranks: Asked, options: Options, nodes: Sequence[int], pids_here: Sequence[int]
) -> Found:
    before = Load.now(pids_here)
    links = Validator(ranks, nodes, options.sizes[-1]).run()
    return links, load_doubts(before, Load.now(pids_here))


def _show(
    options: Options, command: str, nodes: Sequence[int], hosts: Sequence[str], found: Found
) -> int:
    """Print the matrix and write the requested files; return the exit code."""

    def name(rank: int) -> str:
        return f"rank {rank} (node {nodes[rank]}{', ' * bool(hosts[rank])}{hosts[rank]})"

    (links, doubts), num_bytes, about = found, options.sizes[-1], facts()
    lines = matrix.text(links, num_bytes, name)
    print("\n".join([*lines, *(f"# doubtful: {doubt}" for doubt in doubts)]), flush=True)
    if options.json_path:
        written = {"command": command, **about, "doubts": doubts}
        write(options.json_path, written | matrix.document(links, num_bytes))
    if options.plot_path:
        num_nodes = len(set(nodes))
        where = "1 node" if num_nodes == 1 else f"{num_nodes} nodes"
        title = f"links between {len(nodes)} ranks on {where}, {about['machine']['cpu']}"
        matrix.plot(links, num_bytes, title, options.plot_path)
    slow = [link for link in links if link.is_slow]
    for link in slow:
        print(f"hccl-bench: {matrix.describe(link, name)}", file=sys.stderr)
    return 1 if slow else 0
