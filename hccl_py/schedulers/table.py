"""Schedulers whose variables need no more than a row: clouds and operators, and batch systems.

`NODES` start a process on each node and give it its number and node 0's address. Sources: the
AWS Batch User Guide, "Environment variables" of multi-node parallel jobs; the README of
sagemaker-training-toolkit; Volcano's guides to the plugins `env` and `svc`;
`api/leaderworkerset/v1` of kubernetes-sigs/lws; "Distributed Jobs on Many Nodes" in SkyPilot's
documentation; the reference of environment variables of dstack; "Understand the CLUSTER_SPEC
variable" in the documentation of Vertex AI.

`ALLOCATIONS` run one process on their first node, or do not give node 0's address. With several
nodes such a process is rejected, with the options that give the rest. Sources: LSF's "Environment
variables set for job execution"; qsub(1B) of OpenPBS and Torque; qsub(1) of Grid Engine; oarsub(1);
Cobalt's qsub(1); the HTCondor manual, "Parallel Applications"; "Use multi-instance tasks" in the
documentation of Azure Batch; flux-environment(7); job scripts of Fujitsu's pjsub in public.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hccl_py.schedulers.scheduled import (
    NODE_OPTIONS,
    Scheduled,
    Task,
    from_variables,
    number,
)
from hccl_py.transport.errors import InvalidArgumentError

_Environ = Mapping[str, str]


class SchedulerRow(NamedTuple):
    """One scheduler.

    Attributes:
        source: its name, for messages.
        marker: variables, separated by spaces; every process that it starts has one of them.
        names: see `from_variables`.
        known: returns the fields of `Scheduled` that need more than a variable.
        options: see `Scheduled`.
        is_pod: see `Scheduled`.
    """

    source: str
    marker: str
    names: Mapping[str, str] = {}
    known: Callable[[_Environ], dict[str, Any]] = lambda _environ: {}
    options: str = ""
    is_pod: bool = False


def read_node(environ: _Environ) -> Scheduled | None:
    """Read the variables of a process that was started on each node."""
    row = _first(NODES, environ)
    if row is None:
        return None
    known = row.known(environ)
    if known.get("nodes") and not environ.get("MASTER_ADDR"):
        known["master_addr"] = known["nodes"][0]
    task = known.pop("task", Task.NODE)
    found = from_variables(environ, row.source, task, row.names, is_pod=row.is_pod, **known)
    if found.num_nodes == 1 and found.node_rank is None:
        return None
    marker = next(filter(environ.get, row.marker.split()))
    return found._replace(variables={"node_rank": marker, **found.variables})


def read_allocation(environ: _Environ) -> Scheduled | None:
    """Read the variables of an allocation; None if it has one node, which needs no scheduler."""
    row = _first(ALLOCATIONS, environ)
    if row is None:
        return None
    known = {"options": row.options, **row.known(environ)}
    found = from_variables(environ, row.source, Task.NONE, row.names, **known)
    return None if found.num_nodes == 1 else found


def _first(rows: tuple[SchedulerRow, ...], environ: _Environ) -> SchedulerRow | None:
    return next((row for row in rows if any(map(environ.get, row.marker.split()))), None)


def _aws_batch(environ: _Environ) -> dict[str, Any]:
    """The main node need not be node 0, and is the only one without its address."""
    if not environ.get("AWS_BATCH_JOB_NODE_INDEX"):
        return {}
    texts = {"AWS_BATCH_JOB_MAIN_NODE_INDEX": "0", "AWS_BATCH_JOB_NUM_NODES": "1", **environ}
    main, node, nodes = (
        number(texts, f"AWS_BATCH_JOB_{name}")
        for name in ("MAIN_NODE_INDEX", "NODE_INDEX", "NUM_NODES")
    )
    is_node_0 = node == main and not environ.get("MASTER_ADDR")
    return {"node_rank": (node - main) % nodes if node < nodes else node, "is_node_0": is_node_0}


def _sage_maker(environ: _Environ) -> dict[str, Any]:
    """SM_HOSTS is a list in JSON, in the same order on all hosts."""
    try:
        nodes = tuple(json.loads(environ["SM_HOSTS"]))
        node = nodes.index(environ.get("SM_CURRENT_HOST", ""))
    except (ValueError, TypeError):
        raise InvalidArgumentError(
            f"SM_HOSTS: expected a list with SM_CURRENT_HOST={environ.get('SM_CURRENT_HOST')}, "
            f'such as ["algo-1", "algo-2"], got {environ["SM_HOSTS"]!r}'
        ) from None
    return {"nodes": nodes, "num_nodes": len(nodes), "node_rank": node}


def _volcano(environ: _Environ) -> dict[str, Any]:
    """A job may have several tasks, each with a list of hosts and numbers from 0."""
    lists = [value for name, value in environ.items() if re.fullmatch("VC_.+_HOSTS", name)]
    if len(lists) != 1:
        return {"task": Task.NONE, "options": NODE_OPTIONS.format("N", "I")}
    nodes = tuple(lists[0].split(","))
    index = "VC_TASK_INDEX" if environ.get("VC_TASK_INDEX") else "VK_TASK_INDEX"
    return {"nodes": nodes, "num_nodes": len(nodes), "node_rank": number(environ, index)}


def _cluster_spec(environ: _Environ) -> dict[str, Any]:
    """The hosts of each pool, and this one's index; TensorFlow's variable has the same."""
    name = "CLUSTER_SPEC" if environ.get("CLUSTER_SPEC") else "TF_CONFIG"
    try:
        given = json.loads(environ[name])
        cluster, task = given["cluster"], given["task"]
        pools = sorted(cluster, key=lambda pool: (pool not in _FIRST_POOLS, pool))
        hosts = [host.rpartition(":")[0] or host for pool in pools for host in cluster[pool]]
        before = sum(len(cluster[pool]) for pool in pools[: pools.index(task["type"])])
        node = before + int(task["index"])
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InvalidArgumentError(
            f'{name}: expected {{"cluster": {{"workerpool0": ["HOST:PORT"], ...}}, "task": '
            f'{{"type": "workerpool0", "index": 0}}}}, got {environ[name]!r}'
        ) from None
    return {"nodes": tuple(hosts), "num_nodes": len(hosts), "node_rank": node}


def _lines(name: str) -> Callable[[_Environ], dict[str, Any]]:
    """Return a function that reads the nodes' addresses from a variable's lines."""
    return lambda environ: {"nodes": tuple(environ.get(name, "").split())}


_FIRST_POOLS = ("chief", "master")  # of TensorFlow; the pools of Vertex AI are numbered
NODES = (
    SchedulerRow(
        "AWS Batch",
        "AWS_BATCH_JOB_NODE_INDEX AWS_BATCH_JOB_NUM_NODES",
        {
            "num_nodes": "AWS_BATCH_JOB_NUM_NODES",
            "master_addr": "MASTER_ADDR AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS",
        },
        _aws_batch,
    ),
    SchedulerRow("SageMaker", "SM_HOSTS", {}, _sage_maker, is_pod=True),
    SchedulerRow("Volcano", "VC_TASK_INDEX VK_TASK_INDEX", {}, _volcano, is_pod=True),
    SchedulerRow(
        "LeaderWorkerSet",
        "LWS_WORKER_INDEX LWS_GROUP_SIZE",
        {
            "node_rank": "LWS_WORKER_INDEX",
            "num_nodes": "LWS_GROUP_SIZE",
            "master_addr": "MASTER_ADDR LWS_LEADER_ADDRESS",
        },
        is_pod=True,
    ),
    SchedulerRow(
        "SkyPilot",
        "SKYPILOT_NODE_RANK SKYPILOT_NUM_NODES",
        {"node_rank": "SKYPILOT_NODE_RANK", "num_nodes": "SKYPILOT_NUM_NODES"},
        _lines("SKYPILOT_NODE_IPS"),
    ),
    SchedulerRow(
        "dstack",
        "DSTACK_NODE_RANK DSTACK_NODES_NUM",
        {
            "node_rank": "DSTACK_NODE_RANK",
            "num_nodes": "DSTACK_NODES_NUM",
            "master_addr": "MASTER_ADDR DSTACK_MASTER_NODE_IP",
        },
    ),
    SchedulerRow("Vertex AI", "CLUSTER_SPEC TF_CONFIG", {}, _cluster_spec, is_pod=True),
)


def _hosts_of_file(name: str) -> Callable[[_Environ], dict[str, Any]]:
    """Return a function that counts the hosts of a file, the first word of each line."""

    def known(environ: _Environ) -> dict[str, Any]:
        try:
            with open(environ[name]) as lines:
                hosts = tuple(dict.fromkeys(line.split()[0] for line in lines if line.strip()))
        except (KeyError, OSError, UnicodeError):  # the file is on the first host only
            return {}
        return {"nodes": hosts, "num_nodes": len(hosts) or None}

    return known


def _lsf(environ: _Environ) -> dict[str, Any]:
    """LSB_MCPU_HOSTS alternates hosts and slots; blaunch numbers its tasks from 1."""
    hosts = tuple(environ.get("LSB_MCPU_HOSTS", "").split()[::2])
    known = {"nodes": hosts, "num_nodes": len(hosts)}
    if not hosts:
        known = _hosts_of_file("LSB_DJOB_HOSTFILE")(environ)
    if environ.get("LSF_PM_TASKID"):
        known["options"] = NODE_OPTIONS.format(len(hosts) or "N", "$((LSF_PM_TASKID - 1))")
    return known


def _grid_engine(environ: _Environ) -> dict[str, Any]:
    """NHOSTS is set in jobs of a parallel environment only."""
    return _hosts_of_file("PE_HOSTFILE")(environ) if not environ.get("NHOSTS") else {}


def _azure_batch(environ: _Environ) -> dict[str, Any]:
    hosts = tuple(environ["AZ_BATCH_HOST_LIST"].split(","))
    return {"nodes": hosts, "num_nodes": len(hosts)}


def _by_host_file(source: str, marker: str, name: str) -> SchedulerRow:
    """Return the row of a scheduler whose variable `name` is a file of hosts."""
    return SchedulerRow(source, marker, {}, _hosts_of_file(name), f"--hostfile ${name}")


ALLOCATIONS = (
    SchedulerRow("LSF", "LSB_JOBID", {}, _lsf, "--hostfile $LSB_DJOB_HOSTFILE"),
    _by_host_file("PBS", "PBS_JOBID", "PBS_NODEFILE"),
    SchedulerRow(
        "Grid Engine",
        "NHOSTS PE_HOSTFILE",
        {"num_nodes": "NHOSTS"},
        _grid_engine,
        '''--hosts "$(awk '{print $1":"$2}' $PE_HOSTFILE | paste -sd,)"''',
    ),
    _by_host_file("OAR", "OAR_JOB_ID", "OAR_NODEFILE"),
    _by_host_file("Cobalt", "COBALT_JOBID", "COBALT_NODEFILE"),
    SchedulerRow(
        "Fujitsu's Job Operation Software",
        "PJM_JOBID",
        {"num_nodes": "PJM_NODE"},
        _hosts_of_file("PJM_O_NODEINF"),
        "--hostfile $PJM_O_NODEINF (where it is not set: start the ranks with mpiexec)",
    ),
    SchedulerRow(
        "Azure Batch",
        "AZ_BATCH_HOST_LIST",
        {},
        _azure_batch,
        "--hosts $AZ_BATCH_HOST_LIST",
    ),
    SchedulerRow(
        "HTCondor",
        "_CONDOR_NPROCS",
        {"num_nodes": "_CONDOR_NPROCS"},
        options=NODE_OPTIONS.format("$_CONDOR_NPROCS", "$_CONDOR_PROCNO"),
    ),
    SchedulerRow(
        "Flux",
        "FLUX_JOB_NNODES FLUX_JOB_SIZE FLUX_JOB_ID FLUX_ENCLOSING_ID FLUX_URI",
        {"num_nodes": "FLUX_JOB_NNODES"},
        options=NODE_OPTIONS.format("N", "I"),
    ),
    SchedulerRow(  # a container with only some of its variables
        "Slurm",
        "SLURM_JOB_NUM_NODES SLURM_NNODES",
        {"num_nodes": "SLURM_JOB_NUM_NODES SLURM_NNODES"},
        options=NODE_OPTIONS.format("$SLURM_NNODES", "$SLURM_NODEID"),
    ),
)
