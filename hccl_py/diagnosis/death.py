"""Ranks that are gone: died, left, or cut off."""

from signal import Signals

from hccl_py.diagnosis.finding import Finding
from hccl_py.diagnosis.record import Cause, Failure
from hccl_py.diagnosis.reports import Evidence, Proposal, Testimony, ranks

_MOST_SHOWN = 4


def tell_death(evidence: Evidence) -> Finding | None:
    """Name all ranks that died; nothing is gained by naming the first that was noticed alone."""
    proposals = evidence.proposals(Cause.DIED)
    dead = {one.rank for one in proposals}
    for testimony in evidence.testimonies.values():
        dead |= {rank for rank, (cause, _) in testimony.gone.items() if cause is Cause.DIED}
    if proposals:
        dead |= {rank for rank, why in evidence.absent.items() if why == "dead"}
    culprits = sorted(rank for rank in dead if not _lives(evidence, rank))
    if not culprits:
        return None
    proposals = proposals or evidence.proposals(Cause.LOST)
    if not proposals:
        return None
    how = "their connections closed without a goodbye"
    if len(culprits) == 1:
        told = [one.failure for one in proposals if one.rank == culprits[0]]
        how = _how(told[0]) if told else "its connections closed without a goodbye"
    text = (
        f"{evidence.all_of(culprits)} died: {how}; "
        f"look at the output of {ranks(culprits[:1])} first"
    )
    return Finding(Cause.DIED, culprits[0], evidence.call(proposals), text)


def _how(failure: Failure) -> str:
    """Say how a process ended."""
    if failure.signal is not None:
        return f"killed by signal {failure.signal} ({Signals(failure.signal).name})"
    if failure.exit_code is not None:
        return f"its process ended with exit code {failure.exit_code}"
    return failure.error or "its connections closed without a goodbye"


def tell_lost(evidence: Evidence) -> Finding | None:
    """Name the ranks of other nodes that closed all connections and whose end nobody confirms."""
    proposals = evidence.proposals(Cause.LOST)
    lost = {one.rank for one in proposals}
    lost |= {rank for rank, why in evidence.absent.items() if why == "dead"}
    culprits = sorted(rank for rank in lost if not _lives(evidence, rank))
    if not proposals or not culprits:
        return None
    their = "its" if len(culprits) == 1 else "their"
    text = (
        f"{evidence.all_of(culprits)} lost: {their} connections closed without a goodbye, and no "
        f"rank of the same node confirms that the process ended; "
        f"look at the output of {ranks(culprits[:1])} first, then at the network"
    )
    return Finding(Cause.LOST, culprits[0], evidence.call(proposals), text)


def _lost(testimony: Testimony) -> set[int]:
    return {rank for rank, (cause, _) in testimony.gone.items() if cause is not Cause.LEFT}


def _lives(evidence: Evidence, rank: int) -> bool:
    """Say whether only connections of it ended: it has lost one that lost it, and says so.

    Of two processes at the ends of a connection, one that died tells nothing of its end. To have
    answered is not enough: it may have died since.
    """
    testimony = evidence.testimonies.get(rank)
    if testimony is None:
        return False
    lost = _lost(testimony)
    return any(rank in _lost(other) for one, other in evidence.testimonies.items() if one in lost)


def tell_left(evidence: Evidence) -> Finding | None:
    """Name the rank that left earliest while others still call."""
    proposals = evidence.proposals(Cause.LEFT)
    if not proposals:
        return None
    left = {}
    for testimony in evidence.testimonies.values():
        for rank, (cause, last) in testimony.gone.items():
            if cause is Cause.LEFT:
                left[rank] = last
    blamed = {one.rank: one for one in proposals}
    rank = min(blamed, key=lambda one: (left.get(one, 0), one))
    failure = blamed[rank].failure
    handling = f" (handling {failure.error})" if failure.error else ""
    hint = (
        f"look at the output of rank {rank} first"
        if handling
        else "see whether all ranks make the same number of calls"
    )
    text = (
        f"{evidence.who(rank)} left after collective {failure.last_sequence}{handling} "
        f"while others still call; {hint}"
    )
    return Finding(Cause.LEFT, rank, evidence.call(proposals), text)


def tell_unreachable(evidence: Evidence) -> Finding | None:
    """Name the rank that most others cannot reach; of a pair, the one that did not report."""
    proposals = evidence.proposals(Cause.UNREACHABLE, Cause.LOST, Cause.DIED)
    if not proposals:
        return None

    def weight(one: Proposal) -> tuple[int, bool, int]:
        blamed = sum(one.rank in _blamed(other) for other in evidence.testimonies.values())
        return -blamed, one.rank in evidence.testimonies, one.rank

    found = min(proposals, key=weight)
    told = [one.rank for one in evidence.testimonies.values() if found.rank in _blamed(one)]
    text = (
        f"{evidence.who(found.rank)} can be reached no more: {_cut_off(found.failure)}; "
        f"look at the output of {ranks([found.rank, *told][:_MOST_SHOWN])} first"
    )
    return Finding(Cause.UNREACHABLE, found.rank, evidence.call(proposals), text)


def _blamed(testimony: Testimony) -> set[int]:
    """Return the ranks that a rank says it can reach no more."""
    proposal = testimony.proposal
    return _lost(testimony) | ({proposal.rank} if proposal is not None else set())


def _cut_off(failure: Failure) -> str:
    """Say how a rank that lives went out of reach."""
    if failure.process_lives or failure.cause is not Cause.UNREACHABLE:
        return "a connection closed, though its process lives"
    paths = ", ".join(map(str, failure.paths))
    if failure.error:
        return f"{failure.error}; {paths}" if paths else failure.error
    return f"no connection came back; {paths}" if paths else "no connection came back"
