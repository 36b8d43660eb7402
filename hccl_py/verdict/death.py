"""Ranks that are gone: died, left, or cut off."""

from hccl_py.verdict.causes import CLOSED_SILENTLY, Cause
from hccl_py.verdict.evidence import Evidence, Proposal, ranks
from hccl_py.verdict.finding import Finding


def tell_death(evidence: Evidence) -> Finding | None:
    """Name all ranks that died; nothing is gained by naming the first that was noticed alone."""
    proposals = evidence.proposals(Cause.DIED)
    if not proposals:
        return None
    dead = {one.rank for one in proposals}
    dead |= {rank for rank, why in evidence.absent.items() if why == "dead"}
    for testimony in evidence.testimonies.values():
        dead |= {rank for rank, (left, _) in testimony.gone.items() if not left}
    culprits = sorted(dead)
    how = proposals[0].text.removeprefix("died: ")
    if len(culprits) > 1:
        how = CLOSED_SILENTLY.replace("its", "their")
    text = (
        f"{evidence.all_of(culprits)} died: {how}; "
        f"look at the output of {ranks(culprits[:1])} first"
    )
    return Finding(Cause.DIED, culprits[0], evidence.call(proposals), text)


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
    proposals = evidence.proposals(Cause.UNREACHABLE)
    if not proposals:
        return None

    def weight(one: Proposal) -> tuple[int, bool, int]:
        blamed = sum(other.rank == one.rank for other in proposals)
        return -blamed, one.rank in evidence.testimonies, one.rank

    found = min(proposals, key=weight)
    ends = {found.rank, *(one.reporter for one in proposals if one.rank == found.rank)}
    text = (
        f"{evidence.who(found.rank)} {found.text}; look at the output of {ranks(list(ends))} first"
    )
    return Finding(Cause.UNREACHABLE, found.rank, evidence.call(proposals), text)
