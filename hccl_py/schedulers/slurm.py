"""Slurm: a task that srun started, or an allocation (sbatch, salloc) in which nothing runs yet.

The node list is parsed here: containers on Slurm clusters have no `scontrol`.
"""

import itertools
import os
import re
from collections.abc import Iterator, Mapping

from hccl_py.schedulers.scheduled import Scheduled, Task, from_variables, number
from hccl_py.transport.errors import InvalidArgumentError

# Ids from here on are not steps of srun: the batch script, `salloc` with an interactive step.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
_MOST_NODES = 1 << 16  # Slurm's limit
_STEP = {
    "rank": "SLURM_PROCID",
    "world_size": "SLURM_STEP_NUM_TASKS SLURM_NTASKS",
    "local_rank": "SLURM_LOCALID",
    "node_rank": "SLURM_NODEID",
    "num_nodes": "SLURM_STEP_NUM_NODES",
}


def read(environ: Mapping[str, str]) -> Scheduled | None:
    """Read the variables of a step, or else of the allocation.

    A batch script has SLURM_PROCID=0 without being a task; only SLURM_STEP_ID distinguishes them.
    """
    job = environ.get("SLURM_JOB_ID")
    if not job:
        return None
    in_step = environ.get("SLURM_STEP_ID") and environ.get("SLURM_PROCID")
    is_special = in_step and number(environ, "SLURM_STEP_ID") >= _FIRST_SPECIAL_STEP
    if not in_step or is_special or _is_shell(environ):
        return _allocation(environ, job)
    step = f"{job}.{environ['SLURM_STEP_ID']}"
    tasks = _tasks_per_node(environ, "SLURM_STEP_TASKS_PER_NODE")
    node = environ.get("SLURM_NODEID") and number(environ, "SLURM_NODEID")
    return from_variables(
        environ,
        f"Slurm step {step}",
        Task.RANK,
        _STEP,
        local_world_size=tasks[node] if isinstance(node, int) and node < len(tasks) else None,
        nodes=_nodes(environ, "SLURM_STEP_NODELIST"),
        job_id=step,
    )


def _is_shell(environ: Mapping[str, str]) -> bool:
    """Return whether this process runs in a shell of `srun --pty`: the task has a terminal.

    Steps started from such a shell inherit SLURM_PTY_PORT, but no terminal. If the task is not
    visible, as from a container, a step of a single task is treated as a shell.
    """
    if not environ.get("SLURM_PTY_PORT") or environ.get("SLURM_TASK_PID") == str(os.getpid()):
        return False
    try:
        with open(f"/proc/{number(environ, 'SLURM_TASK_PID')}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[4] != "0"  # proc(5): tty_nr
    except (KeyError, OSError, InvalidArgumentError):
        return environ.get("SLURM_STEP_NUM_TASKS", "1") == "1"


def _allocation(environ: Mapping[str, str], job: str) -> Scheduled:
    nodes = _nodes(environ, "SLURM_JOB_NODELIST")
    names = {"num_nodes": "SLURM_JOB_NUM_NODES", "job_id": "SLURM_JOB_ID"}
    return from_variables(environ, f"Slurm job {job}", Task.NONE, names, nodes=nodes)


def parse_node_list(text: str) -> tuple[str, ...]:
    """Return the names of a node list such as `a[1-3,07-09],b,c[1-2]-ib[0-1]`.

    Raises:
        ValueError: it is none.
    """
    # A comma within brackets separates ranges, not nodes.
    parts = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if not parts or ",".join(parts) != text:
        raise ValueError(text)
    # One more detects an excess before a mistyped range fills the memory.
    names = tuple(
        itertools.islice((name for part in parts for name in _expand(part)), _MOST_NODES + 1)
    )
    if len(names) > _MOST_NODES:
        raise ValueError(text)
    return names


def _expand(part: str) -> Iterator[str]:
    # Every other piece is the inside of a pair of brackets.
    pieces = re.split(r"\[(.*?)\]", part)
    choices = [_numbers(each) if at % 2 else [each] for at, each in enumerate(pieces)]
    return map("".join, itertools.product(*choices))


def _numbers(ranges: str) -> list[str]:
    found = []
    for each in ranges.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", each)
        if match is None:
            raise ValueError(ranges)
        first, last = match[1], match[2] or match[1]
        if int(last) - int(first) >= _MOST_NODES:
            raise ValueError(ranges)
        found += [str(at).zfill(len(first)) for at in range(int(first), int(last) + 1)]
    return found


def parse_tasks_per_node(text: str) -> tuple[int, ...]:
    """Return the counts of a list such as `2(x3),1`: 2, 2, 2, 1.

    Raises:
        ValueError: it is none.
    """
    found: list[int] = []
    for each in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", each)
        if match is None or int(match[2] or 1) > _MOST_NODES:
            raise ValueError(text)
        found += [int(match[1])] * int(match[2] or 1)
    return tuple(found)


def _nodes(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    try:
        return parse_node_list(environ[name]) if environ.get(name) else ()
    except ValueError:
        raise InvalidArgumentError(
            f"{name}: expected a node list such as a[1-3,07],b, got {environ[name]!r}"
        ) from None


def _tasks_per_node(environ: Mapping[str, str], name: str) -> tuple[int, ...]:
    try:
        return parse_tasks_per_node(environ[name]) if environ.get(name) else ()
    except ValueError:
        raise InvalidArgumentError(
            f"{name}: expected counts such as 2(x3),1, got {environ[name]!r}"
        ) from None
