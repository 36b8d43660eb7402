"""The text of `--dry-run`: the ranks that this command would start, here and on other hosts.

Nothing is started, and no port is opened. Values that only the start can choose are left open.
"""

import os
import re
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from hccl_py.launcher.exit_codes import UsageError
from hccl_py.launcher.hosts.options import HostOptions
from hccl_py.launcher.job.layout import Attempt, RankProgram, Slot, rank_variables
from hccl_py.launcher.number_ranges import ranges
from hccl_py.launcher.options import CONTROL_PORT_OFFSET, JobOptions
from hccl_py.launcher.parts import over_ssh, scheduled, several_nodes
from hccl_py.launcher.parts.settings import planned_program, settings_of, slots_of
from hccl_py.launcher.placement.binding import Place, place
from hccl_py.launcher.placement.topology import USE_CPU, read_machine
from hccl_py.schedulers.scheduled import Scheduled, Task
from hccl_py.transport.network.secret import SECRET

_SHELL = "ranks on this host also get the other variables of this shell"


class _Agent(NamedTuple):
    """The ranks of one host. Fields of `attempt` that only the start knows are empty or 0."""

    host: str
    is_here: bool
    program: RankProgram
    attempt: Attempt
    makes_secret: bool = False
    passed_on: Mapping[str, str] = MappingProxyType({})


class PlannedRank(NamedTuple):
    """One rank as the launcher would start it."""

    host: str
    node: int
    local_rank: int
    rank: int
    place: Place | None  # None: on a host that was not queried
    # Variables that the launcher sets or passes on, secrets included; None: chosen at the start.
    environment: Mapping[str, str | None]
    command: tuple[str, ...]


def text(options: JobOptions, found: Scheduled | None) -> str:
    """Return the output of `--dry-run`; `found` has the scheduler's facts."""
    if options.elastic:
        raise UsageError("--dry-run: an elastic job places its ranks when its nodes have come")
    if options.remote is not None:
        agents, notes = _hosts(options, options.remote)
    elif found is not None and found.task is Task.NONE:
        agents, notes = _allocation(options, found)
    elif found is not None:
        agents, notes = [_scheduled(options, found)], [str(found)]
    elif options.coordinator is not None:
        node = 0 if options.by_arrival else several_nodes.node_of(options)
        agents, notes = [_one_node(options, node, options.num_nodes)], []
        if options.by_arrival:
            notes = ["as the first node that comes: nodes get numbers in the order of arrival"]
    else:
        agents, notes = [_local(options)], []
    ranks = []
    for agent in agents:
        planned, note = _ranks(agent)
        ranks += planned
        notes += [note] * bool(note)
    if any(agent.is_here for agent in agents):
        notes.append(_SHELL)
    return render(ranks, notes)


def _agent(
    options: JobOptions, slots: tuple[Slot, ...], first_rank: int, sizes: Sequence[int]
) -> _Agent:
    """Return this host's ranks in a job with these node sizes."""
    settings = settings_of(options, (), "")
    attempt = Attempt(
        number=0,
        first_rank=first_rank,
        slots=slots,
        world_size=sum(sizes),
        node_sizes=tuple(sizes),
        master_addr=settings.master_addr,
        master_port=settings.master_port,
        job_id=options.job_id,
        max_restarts=options.max_restarts,
    )
    return _Agent(socket.gethostname(), True, planned_program(options, Path(), slots), attempt)


def _local(options: JobOptions) -> _Agent:
    """Return all ranks on this host, on emulated nodes if there are several."""
    nodes, ranks = options.num_nodes, options.ranks_per_node
    agent = _agent(options, slots_of(options, range(nodes)), 0, [ranks] * nodes)
    attempt = agent.attempt._replace(master_addr="127.0.0.1")
    return agent._replace(attempt=attempt, makes_secret=True)


def _hosts(options: JobOptions, remote: HostOptions) -> tuple[list[_Agent], list[str]]:
    locations = over_ssh.locations(remote)
    sizes = [location.host.slots for location in locations]
    if all(location.is_here for location in locations):
        agent = _local(options._replace(ranks_per_node=sizes[0]))
        return [agent._replace(passed_on=remote.environment)], []
    os.environ.update(remote.environment)
    agents = []
    for index, location in enumerate(locations):
        slots = tuple(Slot(index, rank) for rank in range(sizes[index]))
        agent = _agent(options, slots, sum(sizes[:index]), sizes)
        program, attempt = agent.program, agent.attempt
        if not location.is_here:
            command = _command_there(options, remote, program)
            program = program._replace(environment=remote.environment, command=command)
        if locations[0].is_here:
            attempt = attempt._replace(master_addr=over_ssh.address_of_this(locations))
        host, passed_on = location.host.name, remote.environment
        agents.append(_Agent(host, location.is_here, program, attempt, True, passed_on))
    return agents, [f"working directory on the other hosts: {remote.directory}"]


def _command_there(
    options: JobOptions, remote: HostOptions, program: RankProgram
) -> tuple[str, ...]:
    if not options.is_python or remote.python == sys.executable:
        return program.command
    return remote.python, "<hccl_py there>/launcher/worker.py", *options.program


def _allocation(options: JobOptions, found: Scheduled) -> tuple[list[_Agent], list[str]]:
    """Return the agents of an allocation in which srun would start the nodes."""
    names = scheduled.nodes_to_start(options, found)
    if not names:
        return [_local(options)], []
    agents = []
    for index, name in enumerate(names):
        agent = _one_node(options, index, len(names))
        agents.append(agent._replace(host=name, is_here=False, makes_secret=True))
    return agents, [f"{found.source}: srun passes all variables of this shell on"]


def _scheduled(options: JobOptions, found: Scheduled) -> _Agent:
    index, count, slots = scheduled.place(options, found)
    where = scheduled.given_place(options, found)
    if where is not None:
        coordinator = where.address, where.port + CONTROL_PORT_OFFSET
        options = options._replace(coordinator=coordinator, master_port=where.port)
    if not scheduled.is_one_rank(found):
        return _one_node(options, index, count)
    size = found.local_world_size or 1
    return _agent(options, slots, index, [size] * (count // size))


def _one_node(options: JobOptions, node: int, num_nodes: int) -> _Agent:
    """Return one of several nodes with equal numbers of ranks."""
    slots = slots_of(options, [node])
    return _agent(options, slots, node * len(slots), [len(slots)] * num_nodes)


def _ranks(agent: _Agent) -> tuple[list[PlannedRank], str]:
    """Return the ranks of a host, and a line if they are not bound as asked."""
    program, attempt = agent.program, agent.attempt
    placement = place(read_machine(), len(program.slots), program.bind)
    chosen: dict[str, str | None]
    chosen = {"TORCHELASTIC_ERROR_FILE": None, "HCCL_PROGRESS_FILE": None}
    if agent.makes_secret:
        chosen[SECRET] = None
    if not attempt.master_addr:
        chosen["MASTER_ADDR"] = None
    if not attempt.master_port:
        chosen["MASTER_PORT"] = None
    if not attempt.job_id:
        chosen["TORCHELASTIC_RUN_ID"] = None
    ranks = []
    for index, slot in enumerate(program.slots):
        variables = {**agent.passed_on, **rank_variables(program, attempt, index), **chosen}
        # The cores of another host are not known here.
        where = placement.places[index] if agent.is_here else None
        if where is not None:
            variables.update(where.environment(program.environment))
        elif "OMP_NUM_THREADS" not in program.environment:
            variables["OMP_NUM_THREADS"] = None
        if not agent.is_here and USE_CPU not in program.environment:
            variables[USE_CPU] = None  # nor are its accelerators
        rank = attempt.first_rank + index
        host, command = agent.host, program.command
        ranks.append(PlannedRank(host, slot.node, slot.local_rank, rank, where, variables, command))
    return ranks, placement.note if agent.is_here else ""


_WIDTH = 100
_HOST_WIDTH = 40
# Some only as whole words: TOKENIZERS_PARALLELISM is not a secret, HF_TOKEN is.
_SECRET_NAME = re.compile(
    r"secret|passw|passphrase|credential|apikey|(^|_)(token|key|auth)s?(_|$)", re.IGNORECASE
)
_SECRET_VALUE = re.compile(r"://[^/\s]*@")  # user and password, as in a proxy's address


def render(ranks: Sequence[PlannedRank], notes: Sequence[str] = ()) -> str:
    """Render the map as a table, then variables and commands, with *** for each secret.

    Variables and commands that all ranks share are listed once.
    """
    common = dict(set.intersection(*(set(rank.environment.items()) for rank in ranks)))
    same_command = len({rank.command for rank in ranks}) == 1
    lines = [*_table(ranks), *notes, "", "every rank:", *_variables(common)]
    if same_command:
        lines.append(_command(ranks[0]))
    for rank in ranks:
        own = {name: value for name, value in rank.environment.items() if name not in common}
        lines += [f"rank {rank.rank}:", *_variables(own)]
        if not same_command:
            lines.append(_command(rank))
    return "\n".join(lines) + "\n"


def _table(ranks: Sequence[PlannedRank]) -> Iterator[str]:
    host_width = min(_HOST_WIDTH, max(4, *(len(rank.host) for rank in ranks)))
    yield f"{'host':{host_width}}  node  local rank   rank  threads  numa   cpus"
    for rank in ranks:
        host = rank.host if len(rank.host) <= host_width else f"{rank.host[: host_width - 1]}…"
        threads, numas, cpus = "?", "?", "?"
        if rank.place is not None:
            threads = str(rank.place.num_threads)
            numas, cpus = ranges(rank.place.numas, ","), ranges(rank.place.cpus, ",")
        numbers = f"{rank.node:4}  {rank.local_rank:10}  {rank.rank:5}  {threads:>7}  {numas:5}  "
        yield from _wrapped(f"{host:{host_width}}  {numbers}", cpus)


def _wrapped(begin: str, cpus: str) -> Iterator[str]:
    """Yield one line, or several if the CPUs need them, cut at commas."""
    width = _WIDTH - len(begin)
    while len(cpus) > width and "," in cpus[:width]:
        cut = cpus.rindex(",", 0, width) + 1
        yield begin + cpus[:cut]
        begin, cpus = " " * len(begin), cpus[cut:]
    yield begin + cpus


def _variables(environment: Mapping[str, str | None]) -> Iterator[str]:
    for name, value in sorted(environment.items()):
        if _SECRET_NAME.search(name) or _SECRET_VALUE.search(value or ""):
            shown = "***"
        else:
            shown = "<chosen at start>" if value is None else shlex.quote(value)
        yield f"  {name}={shown}"


def _command(rank: PlannedRank) -> str:
    return f"  $ {shlex.join(rank.command)}"
