"""The user's hosts, and the ranks that each may run: `--hosts` and `--hostfile`.

The syntax is that of mpirun, horovodrun and DeepSpeed. A host's slots are the most ranks that it
runs. Where the tools disagree:

- A host without slots has `--nproc-per-node` slots, by default one.
- A host that is repeated without slots has one slot for each mention, as in the node files of PBS
  and in `mpirun --host a,a,b`. Each other host without slots then has one, too.
- A host that is repeated with slots is an error, as in DeepSpeed. mpirun adds the numbers: a list
  that was pasted twice would start twice the ranks.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hccl_py.launcher.exit_codes import UsageError

_HOST = re.compile(
    r"(?:(?P<user>\w[\w.-]*)@)?"
    r"(?:(?P<name>\w[\w.-]*)|\[(?P<ipv6>[0-9a-fA-F]*:[0-9a-fA-F:.]*(?:%\w+)?)\])"
    r"(?::(?P<slots>[0-9]+))?",
    re.ASCII,
)
_WORD_FORMS = "HOST, HOST:SLOTS, USER@HOST:SLOTS or [IPV6]:SLOTS"
_MOST_SLOTS = 1 << 15  # Linux's default limit of processes on a host
_MOST_BYTES = 1 << 20  # of a file: enough for ten thousand hosts
_LINE_FORMS = "HOST, HOST slots=N [max_slots=N] or HOST:N"


@dataclass(frozen=True)
class Host:
    """A host of the job, under the user's name for it.

    Attributes:
        name: for ssh and the resolver, an IPv6 address without brackets.
        slots: number of ranks on it.
        user: account for ssh; None: ssh's default.
    """

    name: str
    slots: int
    user: str | None = None


@dataclass(frozen=True)
class _Mention:
    name: str
    user: str | None
    slots: int | None
    where: str  # the option or FILE:LINE, for errors


def parse_hosts(text: str, default_slots: int | None = None) -> tuple[Host, ...]:
    """Read the value of `--hosts`, such as `a:8,b:8`.

    Args:
        text: hosts, separated by commas.
        default_slots: of a host without slots, `--nproc-per-node`.

    Raises:
        UsageError: a word is not a host, or a host is repeated with slots.
    """
    words = [word.strip() for word in text.split(",")]
    return _combine([_mention(word, "--hosts", _WORD_FORMS) for word in words], default_slots)


def read_hostfile(path: Path, default_slots: int | None = None) -> tuple[Host, ...]:
    """Read a host file: one host a line; `#` starts a comment.

    Args:
        path: of the file.
        default_slots: of a host without slots, `--nproc-per-node`.

    Raises:
        UsageError: the file is missing or empty, or a line is wrong; the message names it.
    """
    mentions = []
    for number, line in enumerate(read_lines(path, "--hostfile"), start=1):
        if content := line.partition("#")[0].strip():
            mentions.append(_line(content, f"{path}:{number}"))
    if not mentions:
        raise UsageError(f"--hostfile {path}: expected a line for each host, found none")
    return _combine(mentions, default_slots)


def read_lines(path: Path, option: str) -> list[str]:
    """Return the lines of a user's file.

    Raises:
        UsageError: it cannot be read, or is not text; the message has the option.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise UsageError(f"{option} {path}: expected {_MOST_BYTES >> 20} MiB at most, got more")
        return content.decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option} {path}: {getattr(error, 'strerror', error)}") from error


def choose(
    hosts: Sequence[Host],
    *,
    num_nodes: int | None = None,
    ranks_per_node: int | None = None,
    world_size: int | None = None,
) -> tuple[Host, ...]:
    """Return the hosts of this job, with one slot per rank.

    As with `deepspeed` and `mpirun`, a job may use a part of the list: the first `num_nodes` hosts,
    and `ranks_per_node` of their slots.

    Args:
        hosts: all of the user's hosts.
        num_nodes: `--nnodes`.
        ranks_per_node: `--nproc-per-node`.
        world_size: `--world_size`, the ranks of all hosts together.

    Raises:
        UsageError: the list has too few hosts or slots for an option, or another number of ranks.
    """
    if num_nodes is not None and num_nodes > len(hosts):
        names = ", ".join(host.name for host in hosts)
        raise UsageError(f"--nnodes {num_nodes}: expected that many hosts, got {names}")
    chosen = tuple(hosts[:num_nodes])
    if ranks_per_node is not None:
        full = ", ".join(f"{x.name} has {x.slots}" for x in chosen if x.slots < ranks_per_node)
        if full:
            raise UsageError(
                f"--nproc-per-node {ranks_per_node}: expected that many slots on each host, but "
                f"{full}; start fewer ranks or raise the slots"
            )
        chosen = tuple(replace(host, slots=ranks_per_node) for host in chosen)
    total = sum(host.slots for host in chosen)
    if world_size is not None and world_size != total:
        slots = ", ".join(f"{host.name}:{host.slots}" for host in chosen)
        raise UsageError(
            f"--world_size {world_size}: the hosts run {total} ranks ({slots}); leave the option "
            "out or change the slots"
        )
    return chosen


def _mention(word: str, where: str, forms: str) -> _Mention:
    match = _HOST.fullmatch(word)
    if match is None:
        hint = "; IPv6 addresses stand in brackets" if word.count(":") > 1 else ""
        raise UsageError(f"{where}: expected {forms}, got {word!r}{hint}")
    slots = None if match["slots"] is None else _count(match["slots"], where)
    return _Mention(match["name"] or match["ipv6"], match["user"], slots, where)


def _line(content: str, where: str) -> _Mention:
    word, *settings = re.sub(r"\s*=\s*", "=", content).split()
    mention = _mention(word, where, _LINE_FORMS)
    most: int | None = None
    for setting in settings:
        name, _, value = setting.partition("=")
        if name == "slots" and mention.slots is None:
            mention = replace(mention, slots=_count(value, where))
        elif name in ("max_slots", "max-slots") and most is None:
            most = _count(value, where)
        else:
            raise UsageError(f"{where}: expected {_LINE_FORMS}, got {setting!r}")
    # mpirun's maximum has no other effect, because ranks never exceed slots.
    if most is not None and most < (mention.slots or 1):
        raise UsageError(f"{where}: max_slots={most} is less than slots={mention.slots or 1}")
    return mention


def _count(text: str, where: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text, re.ASCII) or not 0 < int(text) <= _MOST_SLOTS:
        raise UsageError(f"{where}: expected 1 to {_MOST_SLOTS} slots, got {text!r}")
    return int(text)


def _combine(mentions: Iterable[_Mention], default_slots: int | None) -> tuple[Host, ...]:
    by_name: dict[str, list[_Mention]] = {}
    for mention in mentions:
        earlier = by_name.setdefault(mention.name, [])
        earlier.append(mention)
        first = earlier[0]
        if len(earlier) > 1 and (first.slots or mention.slots or first.user != mention.user):
            again = mention.where if mention.where == first.where else f"after {first.where}"
            raise UsageError(
                f"{mention.where}: host {mention.name} is named again ({again}); mpirun would add "
                "the slots and DeepSpeed refuse the list: name it once, with all its slots"
            )
    counted = any(len(found) > 1 for found in by_name.values())
    return tuple(
        Host(name, found[0].slots or (len(found) if counted else default_slots or 1), found[0].user)
        for name, found in by_name.items()
    )
