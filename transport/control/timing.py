"""How patient the two sides of a coordinator are, by the size of the communicator."""

from dataclasses import dataclass

_RANKS_AT_FULL_PACE = 128


@dataclass(frozen=True)
class Timing:
    """All in seconds.

    Attributes:
        period_s: between heartbeats.
        silence_s: without a heartbeat after which a rank counts as silent.
        window_s: how long a coordinator waits for the other ranks' reports, at most.
        ack_s: how long a report may go without an answer until the next rank is asked.
        verdict_s: the same for the verdict, once the report was acknowledged.
    """

    period_s: float = 0.25
    silence_s: float = 0.8
    window_s: float = 0.25
    ack_s: float = 0.25
    verdict_s: float = 0.7

    @classmethod
    def of_world(cls, world_size: int) -> "Timing":
        """Return what suits a number of ranks: one coordinator hears them all."""
        period_s = 0.25 * max(1.0, world_size / _RANKS_AT_FULL_PACE)
        return cls(period_s=period_s, silence_s=3.2 * period_s)
