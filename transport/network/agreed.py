"""All settings of a rank, and whether ranks need equal values: one table, compared at the start.

Peer infos (`bootstrap/rendezvous.py`) carry the compared settings, for the whole job and for every
subset. An argument of a communicator is in the row of the variable that it replaces.
"""

import enum
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

_MOST_SHOWN = 8
_MOST_CHARACTERS = 200


class Rule(enum.Enum):
    """The ranks that must have the same value."""

    SAME = "the same on all ranks"
    AS_RANK_0 = "rank 0's counts for all; a rank that has one has the same"
    OWN = "each rank may have its own"


class Setting(NamedTuple):
    """A row of the table.

    Attributes:
        why: the reason for the rule.
        argument: the argument that replaces the variable.
        unset: the value that equals an unset variable.
    """

    rule: Rule
    why: str
    argument: str = ""
    unset: str = ""


_SAME, _AS_RANK_0, _OWN = Rule.SAME, Rule.AS_RANK_0, Rule.OWN

SETTINGS: Mapping[str, Setting] = {
    "HCCL_ALGORITHM": Setting(_SAME, "it decides what ranks send, as do its files"),
    "algorithms": Setting(_SAME, "they decide what ranks send", "algorithms"),
    "HCCL_COMPRESSION": Setting(_SAME, "both ends encode alike", "compression"),
    "HCCL_CONNECTIONS": Setting(_SAME, "each connection has two ends"),
    "HCCL_TRANSPORT": Setting(_SAME, "each message has two ends"),
    "HCCL_CHECKSUM": Setting(_SAME, "both ends compute it"),
    "HCCL_TLS": Setting(_SAME, "both ends encrypt"),
    "HCCL_IB_QPS_PER_CONNECTION": Setting(_SAME, "each queue pair has two ends", unset="1"),
    "HCCL_GUARD": Setting(_SAME, "all ranks compare parameters, or none", unset="warn"),
    "HCCL_REPRODUCIBLE": Setting(_AS_RANK_0, "it orders what ranks reduce", "reproducible"),
    "HCCL_TUNING": Setting(_AS_RANK_0, "rank 0 hands its file to all"),
    "HCCL_SECRET": Setting(_OWN, "the handshake compares it, and never shows it"),
    "HCCL_NODE_ID": Setting(_OWN, "it tells nodes apart"),
    "HCCL_COMM_ID": Setting(_OWN, "ranks with another value are another job"),
    "HCCL_SOCKET_IFNAME": Setting(_OWN, "hosts have other interfaces"),
    "HCCL_SOCKET_FAMILY": Setting(_OWN, "the addresses that it leads to are compared"),
    "HCCL_PORT_RANGE": Setting(_OWN, "hosts have other free ports"),
    "HCCL_CORES": Setting(_OWN, "a receiver takes what comes, whichever way it was copied"),
    "HCCL_WAIT": Setting(_OWN, "each rank waits on its own cores", "wait"),
    "HCCL_ARENA_BYTES": Setting(_OWN, "each rank maps as much as its peers have"),
    "HCCL_IB_HCA": Setting(_OWN, "hosts have other devices"),
    "HCCL_IB_GID_INDEX": Setting(_OWN, "hosts have other tables of GIDs"),
    "HCCL_IB_TC": Setting(_OWN, "it marks what this rank sends"),
    "HCCL_IB_SL": Setting(_OWN, "it marks what this rank sends"),
    "HCCL_IB_TIMEOUT": Setting(_OWN, "each rank resends what it sent"),
    "HCCL_IB_RETRY_CNT": Setting(_OWN, "each rank resends what it sent"),
    "HCCL_IB_REGISTERED_BYTES": Setting(_OWN, "hosts have other memory"),
    "HCCL_VERIFY": Setting(_OWN, "it only checks"),
    "HCCL_DEBUG": Setting(_OWN, "it only logs"),
    "HCCL_STALL_WARNING_S": Setting(_OWN, "it only logs"),
    "HCCL_TRACE_DIR": Setting(_OWN, "hosts have other folders"),
    "HCCL_METRICS_PORT": Setting(_OWN, "a node has one target to scrape"),
    "HCCL_METRICS_FILE": Setting(_OWN, "hosts have other folders"),
    "HCCL_PROGRESS_FILE": Setting(_OWN, "hccl-launch gives each rank its own"),
    "HCCL_EMULATED_NETWORK": Setting(_OWN, "hccl-launch --emulate sets it on all ranks"),
    "HCCL_BENCH_ADDRESS": Setting(_OWN, "hccl-bench gives each rank its own"),
    "HCCL_REPLACE": Setting(_OWN, "a rank without it uses gloo, so hccl-py never sees it"),
    "HCCL_NATIVE_BACKEND": Setting(_OWN, "the two classes make the same calls"),
    "HCCL_HABANA_SHIM": Setting(_OWN, "it imports a module"),
}
COMPARED = frozenset(name for name, one in SETTINGS.items() if one.rule is not Rule.OWN)


def may_differ(name: str) -> bool:
    """Return whether ranks may have different values of this variable."""
    return name in SETTINGS and SETTINGS[name].rule is Rule.OWN


def given(known: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return this rank's values of the compared settings, as far as a peer info has room.

    `known` has the values that are not simply the variable's text.
    """
    texts = {name: environ.get(name) or SETTINGS[name].unset for name in COMPARED}
    return {name: _short(value) for name, value in (texts | dict(known)).items() if value}


def _short(value: str) -> str:
    if len(value) <= _MOST_CHARACTERS:
        return value
    digest = blake2b(value.encode(errors="surrogateescape"), digest_size=8).hexdigest()
    return f"{value[:_MOST_CHARACTERS]}... (digest {digest})"


def differences(given: Sequence[Mapping[str, str]]) -> str:
    """Describe settings that wrongly differ, with all values and ranks; "" if none does.

    Args:
        given: settings by rank; an empty or absent value is not set.
    """
    found = []
    for name in sorted(COMPARED):
        values = [one.get(name, "") for one in given]
        differ = [value not in ("", values[0]) for value in values]
        if any(differ) if SETTINGS[name].rule is Rule.AS_RANK_0 else len(set(values)) > 1:
            found.append(f"{_title(name)} is {_who_has(values)}")
    return f"{'; '.join(found)}: give all ranks the same" if found else ""


def _title(name: str) -> str:
    argument = SETTINGS[name].argument
    return f"{name} (argument {argument})" if argument not in ("", name) else name


def _who_has(values: Sequence[str]) -> str:
    ranks = defaultdict(list)
    for rank, value in enumerate(values):
        ranks[value].append(rank)
    return ", ".join(
        f"{repr(value) if value else 'not set'} on {_named(those)}"
        for value, those in ranks.items()
    )


def _named(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_MOST_SHOWN]))
    more = f" and {len(ranks) - _MOST_SHOWN} more" * (len(ranks) > _MOST_SHOWN)
    return f"rank{'s' * (len(ranks) > 1)} {shown}{more}"
