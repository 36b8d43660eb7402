"""Ranks that are gone: died, left, or cut off."""

from hccl_py.diagnosis.causes import CLOSED_SILENTLY, Cause
from hccl_py.diagnosis.finding import Finding
from hccl_py.diagnosis.reports import Evidence, Proposal, Testimony, ranks

_MOST_SHOWN = 4


def tell_death(evidence: Evidence) -> Finding | None:
    """Name all ranks that died; nothing is gained by naming the first that was noticed alone."""
    proposals = evidence.proposals(Cause.DIED)
    dead = {one.rank for one in proposals}
    dead |= {rank for rank, why in evidence.absent.items() if why == "dead"}
    for testimony in evidence.testimonies.values():
        dead |= _lost(testimony)
    culprits = sorted(rank for rank in dead if not _lives(evidence, rank))
    if not proposals or not culprits:
        return None
    how = proposals[0].text.removeprefix("died: ")
    if len(culprits) > 1:
        how = CLOSED_SILENTLY.replace("its", "their")
    text = (
        f"{evidence.all_of(culprits)} died: {how}; "
        f"look at the output of {ranks(culprits[:1])} first"
    )
    return Finding(Cause.DIED, culprits[0], evidence.call(proposals), text)


def _lost(testimony: Testimony) -> set[int]:
    return {rank for rank, (left, _) in testimony.gone.items() if not left}


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
        for rank, (with_goodbye, last) in testimony.gone.items():
            if with_goodbye:
                left[rank] = last
    blamed = {one.rank: one for one in proposals}
    rank = min(blamed, key=lambda one: (left.get(one, 0), one))
    handles_error = blamed[rank].text.endswith(")")
    hint = (
        f"look at the output of rank {rank} first"
        if handles_error
        else "see whether all ranks make the same number of calls"
    )
    text = f"{evidence.who(rank)} {blamed[rank].text} while others still call; {hint}"
    return Finding(Cause.LEFT, rank, evidence.call(proposals), text)


def tell_unreachable(evidence: Evidence) -> Finding | None:
    """Name the rank that most others cannot reach; of a pair, the one that did not report."""
    proposals = evidence.proposals(Cause.UNREACHABLE, Cause.DIED)
    if not proposals:
        return None

    def weight(one: Proposal) -> tuple[int, bool, int]:
        blamed = sum(one.rank in _blamed(other) for other in evidence.testimonies.values())
        return -blamed, one.rank in evidence.testimonies, one.rank

    found = min(proposals, key=weight)
    how = found.text
    if found.cause == Cause.DIED:
        how = "can be reached no more: connections closed, though its process lives"
    told = [one.rank for one in evidence.testimonies.values() if found.rank in _blamed(one)]
    text = (
        f"{evidence.who(found.rank)} {how}; "
        f"look at the output of {ranks([found.rank, *told][:_MOST_SHOWN])} first"
    )
    return Finding(Cause.UNREACHABLE, found.rank, evidence.call(proposals), text)


def _blamed(testimony: Testimony) -> set[int]:
    """Return the ranks that a rank says it can reach no more."""
    proposal = testimony.proposal
    return _lost(testimony) | ({proposal.rank} if proposal is not None else set())
