"""What a checked command line says. `command_line` makes it, all other rooms only read it."""

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
"""The coordinator listens beside the ranks' store, so that one option gives both ports."""


class EmulatedCluster(NamedTuple):
    """What `--emulate` asks for.

    Attributes:
        num_nodes: of the job.
        ranks_per_node: of each.
        network: gives the network a name, which ranks inherit; returns what starts it.
    """

    num_nodes: int
    ranks_per_node: int
    network: "Callable[[], StartOthers]"


class JobOptions(NamedTuple):
    """A checked command line.

    Attributes:
        num_nodes: of the job; the largest number where it may change.
        nodes_given: whether the user gave that number.
        ranks_per_node: of this node.
        standalone: all nodes are this machine, whatever the environment says.
        node_rank: None where it was not given.
        coordinator: host and port of the coordinator; None where they were not given.
        master_port: of the ranks' store; 0 where it was not given.
        job_id: the same on all nodes; empty where it was not given.
        by_arrival: nodes get their numbers in the order in which they come.
        elastic: torch.distributed.elastic runs the job.
        max_restarts: how often all ranks may start again.
        min_ranks: how many ranks have to go on when others fail; 0: all.
        stop_s: between SIGTERM and SIGKILL of a rank.
        connect_timeout_s: how long all nodes have to come.
        remote: None without --hosts and --hostfile.
        emulates: None without --emulate.
        variables: of all ranks, whoever starts them.
        bind: which cores each rank gets.
        output: where the lines of ranks go.
        checks: only check the nodes.
        dry_run: only print what would run.
        print_sbatch, print_k8s: only print what starts the job there.
        own_words: the command line before the program.
        program: as the ranks run it: a script, `-m` and a module, or a program.
        is_python: whether the program is one.
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
