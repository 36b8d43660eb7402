"""The checked command line. `command_line` makes it; other rooms only read it."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hccl_py.launcher.hosts.options import HostOptions
    from hccl_py.launcher.job.serve import StartOthers
    from hccl_py.launcher.output.options import OutputOptions
    from hccl_py.launcher.placement.binding import Bind

MAX_PORT = 65535
DEFAULT_MASTER_PORT = 29500
CONTROL_PORT_OFFSET = 1
"""The coordinator's port relative to the ranks' store, so that one option gives both."""


class EmulatedCluster(NamedTuple):
    """The settings of `--emulate`.

    Attributes:
        num_nodes: of the job.
        ranks_per_node: of each.
        network: names the network for the ranks; returns a function that starts it.
    """

    num_nodes: int
    ranks_per_node: int
    network: "Callable[[], StartOthers]"


class JobOptions(NamedTuple):
    """A checked command line.

    Attributes:
        num_nodes: of the job; the largest number if it may change.
        nodes_given: whether the user gave that number.
        ranks_per_node: of this node.
        standalone: all nodes are this machine, regardless of the environment.
        node_rank: None: not given.
        coordinator: host and port of the coordinator; None: not given.
        master_port: of the ranks' store; 0: not given.
        job_id: the same on all nodes; empty: not given.
        by_arrival: nodes are numbered in order of arrival.
        elastic: torch.distributed.elastic runs the job.
        max_restarts: how often all ranks may start again.
        min_ranks: how many ranks must remain when others fail; 0: all.
        stop_s: between SIGTERM and SIGKILL of a rank.
        connect_timeout_s: how long to wait for all nodes.
        remote: None without --hosts and --hostfile.
        emulates: None without --emulate.
        variables: environment variables of all ranks.
        bind: the cores of each rank.
        output: destinations of the ranks' lines.
        checks: only check the nodes.
        dry_run: only print what would run.
        print_sbatch, print_k8s: only print a file that starts the job.
        own_words: the command line before the program.
        program: the ranks' program: a script, `-m` and a module, or a program.
        is_python: whether it is a Python program.
    """

    num_nodes: int
    nodes_given: bool
    ranks_per_node: int
    standalone: bool
    node_rank: int | None
    coordinator: tuple[str, int] | None
    master_port: int
    job_id: str
    by_arrival: bool
    elastic: bool
    max_restarts: int
    min_ranks: int
    stop_s: float
    connect_timeout_s: float
    remote: "HostOptions | None"
    emulates: EmulatedCluster | None
    variables: Mapping[str, str]
    bind: "Bind"
    output: "OutputOptions"
    checks: bool
    dry_run: bool
    print_sbatch: bool
    print_k8s: bool
    own_words: tuple[str, ...]
    program: tuple[str, ...]
    is_python: bool
