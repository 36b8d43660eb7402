"""A short look at this node before it meets the others.

The agents of an elastic job have no channel to each other, so nobody dials anybody: this is the
part of preflight that a node can do alone.
"""

import socket
from typing import NamedTuple

from hccl_py.launcher.job.program import Program
from hccl_py.launcher.options import Options
from hccl_py.launcher.preflight.finding import Finding
from hccl_py.launcher.preflight.judge.compare import compare
from hccl_py.launcher.preflight.judge.nodes import Nodes
from hccl_py.launcher.preflight.node.facts import Settings, examine


class Local(NamedTuple):
    """What was found, errors first."""

    findings: tuple[Finding, ...]

    @property
    def has_errors(self) -> bool:
        """Whether the job would fail."""
        return any(each.severity == "error" for each in self.findings)

    def __str__(self) -> str:
        host = socket.gethostname()
        lines = [f"{host} was checked" + ": all good" * (not self.findings)]
        for each in self.findings:
            lines += [f"{each.severity:7}  {host}: {each.what}", f"{'':7}  -> {each.remedy}"]
        return "\n".join(lines)


def look(options: Options, program: Program) -> Local:
    """Look at this node, for a job of as many nodes as may take part."""
    node_sizes = (options.ranks_per_node,) * options.num_nodes
    log_dir = program.output.log_dir
    facts = examine(
        Settings(
            node=0,
            node_sizes=node_sizes,
            names=(),
            master_addr=options.head[0] if options.head else "127.0.0.1",
            master_port=None,
            environ=program.environment,
            folders=(str(log_dir),) if log_dir else (),
        )
    )
    found = compare(Nodes(("",) * len(node_sizes), node_sizes, {0: facts}))
    shown = (each for each in found if each.severity != "info" or options.checks)
    return Local(tuple(sorted(shown, key=lambda each: each.severity)))
