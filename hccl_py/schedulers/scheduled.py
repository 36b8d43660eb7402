"""The record of an environment's facts, and its construction from a source's variables."""

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

from hccl_py.transport.errors import InvalidArgumentError

_MOST = 1 << 20  # ranks or nodes: more is a mistake
_TEXTS = ("master_addr", "job_id")
_COMMON = {"master_addr": "MASTER_ADDR", "master_port": "MASTER_PORT"}
NODE_OPTIONS = "--nnodes {} --node-rank {} --master-addr HOST on each node"
"""The options of hccl-launch if the environment does not identify the node."""
# The number must be below the limit, if both are known.
_BOUNDS = (("rank", "world_size"), ("local_rank", "local_world_size"), ("node_rank", "num_nodes"))


class Task(enum.Enum):
    """The role in which the scheduler started this process."""

    RANK = "one process per rank"
    NODE = "one process per node"
    NONE = "an allocation, in which nothing was started yet"


class Scheduled(NamedTuple):
    """An environment's facts about this process; None is unknown.

    Attributes:
        source: the source in words: "Slurm step 12.0", "Open MPI", "indexed Job".
        task: the role of this process.
        variables: the variable that each field was read from.
        is_innermost: a launcher set all these variables for this process. Other variables then
            describe the process that started the launcher.
        nodes: names of the nodes, in order.
        job_id: the same text in all processes of the job, and unique to it.
        is_pod: names of other nodes may resolve only some time after this process has begun.
        is_node_0: this is node 0; only the other nodes get its address.
        options: options of hccl-launch, if it needs them to know the other nodes.
    """

    source: str
    task: Task
    variables: Mapping[str, str] = {}
    is_innermost: bool = False
    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    num_nodes: int | None = None
    nodes: tuple[str, ...] = ()
    master_addr: str | None = None
    master_port: int | None = None
    job_id: str | None = None
    is_pod: bool = False
    is_node_0: bool = False
    options: str = ""

    def __str__(self) -> str:
        """Render all facts in one line, with the variables."""
        parts = [
            _of("rank", self.rank, self.world_size),
            _of("local rank", self.local_rank, self.local_world_size),
            _of("node", self.node_rank, self.num_nodes),
        ]
        names = ", ".join(dict.fromkeys(self.variables.values()))
        return f"{', '.join(filter(None, parts)) or self.task.value} ({self.source}: {names})"


def from_variables(
    environ: Mapping[str, str], source: str, task: Task, names: Mapping[str, str], **known: Any
) -> Scheduled:
    """Read each field from the first of its variables that is set and not empty.

    Args:
        environ: the environment.
        source: see `Scheduled`.
        task: see `Scheduled`.
        names: variables of each field, separated by spaces, best first.
        known: fields that the caller knows; None is unknown.

    Raises:
        InvalidArgumentError: a variable is not a number, or out of another one's range.
    """
    values: dict[str, Any] = {}
    variables: dict[str, str] = {}
    for key, candidates in {**_COMMON, **names}.items():
        name = next((each for each in candidates.split() if environ.get(each)), None)
        if name is not None:
            values[key] = environ[name] if key in _TEXTS else number(environ, name)
            variables[key] = name
    values.update({key: value for key, value in known.items() if value is not None})
    for key, size in _BOUNDS:
        index, limit, name = values.get(key), values.get(size), variables.get(size, size)
        if limit is not None and limit > _MOST:
            raise InvalidArgumentError(f"{name} ({source}): expected {_MOST} at most, got {limit}")
        if index is not None and limit is not None and index >= limit:
            raise InvalidArgumentError(
                f"{variables.get(key, key)} ({source}): expected 0 to {limit - 1}, as "
                f"{name} is {limit}, got {index}"
            )
    return Scheduled(source, task, variables, **values)


def number(environ: Mapping[str, str], name: str) -> int:
    """Return a variable as a number that is not negative."""
    text = environ[name]
    if not (text.isascii() and text.isdigit()):
        raise InvalidArgumentError(f"{name}: expected a number, got {text!r}")
    return int(text)


def refuse_contradiction(one: Scheduled, other: Scheduled) -> None:
    """Raise InvalidArgumentError if the two give this process different numbers of one world.

    They describe different worlds if their world sizes differ: for example torchrun under srun.
    """
    for key, size in (("rank", "world_size"), ("node_rank", "num_nodes")):
        mine, theirs = getattr(one, key), getattr(other, key)
        sizes = {getattr(one, size), getattr(other, size)} - {None}
        if mine is not None and theirs is not None and mine != theirs and len(sizes) < 2:
            names = one.variables.get(key, key), other.variables.get(key, key)
            raise InvalidArgumentError(
                f"{names[0]}={mine} ({one.source}) and {names[1]}={theirs} ({other.source}) give "
                f"this process two {key.replace('_', ' ')}s: unset {names[0]}, or give it the "
                f"value of {names[1]} in every process"
            )


def _of(what: str, index: int | None, size: int | None) -> str:
    if index is None:
        return "" if size is None else f"one of {size} {what}s"
    return f"{what} {index}" + ("" if size is None else f" of {size}")
