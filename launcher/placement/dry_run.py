"""The text of `--dry-run`: where every rank would run, with its variables and its command."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hccl_py.launcher.number_ranges import ranges
from hccl_py.launcher.placement.binding import Place

_WIDTH = 100
_HOST_WIDTH = 40
# Some only as whole words: TOKENIZERS_PARALLELISM is no secret, HF_TOKEN is one.
_SECRET_NAME = re.compile(
    r"secret|passw|passphrase|credential|apikey|(^|_)(token|key|auth)s?(_|$)", re.IGNORECASE
)
_SECRET_VALUE = re.compile(r"://[^/\s]*@")  # user and password, as in a proxy's address


@dataclass(frozen=True)
class PlannedRank:
    """One rank as the launcher would start it."""

    host: str
    node: int
    local_rank: int
    rank: int
    place: Place | None  # None: on a host that was not asked
    # What the launcher sets or passes on, secrets included; None: the start chooses it.
    environment: Mapping[str, str | None]
    command: tuple[str, ...]


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
