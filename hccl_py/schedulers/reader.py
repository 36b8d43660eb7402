"""One reader of every scheduler's environment."""

from collections.abc import Mapping

from hccl_py.schedulers import kubernetes, lightning, mpi, slurm, table, torchrun
from hccl_py.schedulers.scheduled import Scheduled, refuse_contradiction

_INNERMOST_FIRST = (
    *(torchrun.read, mpi.read, slurm.read, kubernetes.read, table.read_node, lightning.read),
    table.read_allocation,
)


def read(environ: Mapping[str, str]) -> Scheduled | None:
    """Return the scheduler's facts about this process; None: no scheduler is found.

    Launchers run inside each other, so several sources may be present. The innermost one counts,
    because it started this process: a rank's own variables (RANK, …), then mpirun's, a Slurm
    step's, a Kubernetes pod's, another scheduler's node, NODE_RANK, which is set by hand, and an
    allocation's. torchrun, hccl-launch and mpirun set all variables of each process that they
    start, so other sources are ignored: SLURM_PROCID is then the number of torchrun's or mpirun's
    own process. Any other two sources that give this process different numbers in a world of the
    same size are an error.

    Raises:
        InvalidArgumentError: two sources contradict each other, or a variable is invalid.
    """
    found: list[Scheduled] = []
    for source in _INNERMOST_FIRST:
        said = source(environ)
        if said is None:
            continue
        for inner in found:
            refuse_contradiction(inner, said)
        found.append(said)
        if said.is_innermost:
            break
    # A scheduler that knows this node's number has priority over one that does not.
    return min(found, key=lambda each: bool(each.options), default=None)
