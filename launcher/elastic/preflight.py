"""A short look at this node before it meets the others.

The agents of an elastic job have no channel to each other, so nobody dials anybody: this is the
part of preflight that a node can do alone.
"""

import socket
from collections.abc import Mapping

from hccl_py.launcher.exit_codes import CHECK_FAILED
from hccl_py.launcher.options import Options
from hccl_py.launcher.output.options import OutputOptions
from hccl_py.launcher.own_lines import say
from hccl_py.launcher.preflight.finding import Finding
from hccl_py.launcher.preflight.judge.compare import compare
from hccl_py.launcher.preflight.judge.nodes import Nodes
from hccl_py.launcher.preflight.node.facts import Settings, examine


def check(options: Options, environ: Mapping[str, str]) -> int | None:
    """Look at this node and say what is wrong; return the exit code, None if the job can start."""
    found = _look(options, environ)
    has_errors = any(each.severity == "error" for each in found)
    if found or options.checks:
        host = socket.gethostname()
        lines = [f"{host} was checked" + ": all good" * (not found)]
        for each in found:
            lines += [f"{each.severity:7}  {host}: {each.what}", f"{'':7}  -> {each.remedy}"]
        say("\n".join(lines))
    if has_errors:
        return CHECK_FAILED
    return 0 if options.checks else None


def _look(options: Options, environ: Mapping[str, str]) -> list[Finding]:
    """Return what is wrong, errors first, for a job of as many nodes as may take part."""
    node_sizes = (options.ranks_per_node,) * options.num_nodes
    log_dir = OutputOptions.of(options.output).log_dir
    facts = examine(
        Settings(
            node=0,
            node_sizes=node_sizes,
            names=(),
            master_addr=options.head[0] if options.head else "127.0.0.1",
            master_port=None,
            environ=environ,
            folders=(str(log_dir),) if log_dir else (),
        )
    )
    found = compare(Nodes(("",) * len(node_sizes), node_sizes, {0: facts}))
    shown = (each for each in found if each.severity != "info" or options.checks)
    return sorted(shown, key=lambda each: each.severity)
