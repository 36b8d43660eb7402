"""When to say what is waited for: no wait of the launcher is silent."""

_FIRST_LINE_S, _NEXT_LINE_S = 5.0, 60.0


class WaitingLines:
    """Lines of one wait: after 5 s, then once a minute. All times are those of the caller's clock.

    Attributes:
        next_s: when the next line is due.
    """

    def __init__(self, now_s: float) -> None:
        """Begin to wait."""
        self.next_s = now_s + _FIRST_LINE_S

    def is_due(self, now_s: float) -> bool:
        """Return whether to say a line now; the next one is due in a minute then."""
        if now_s < self.next_s:
            return False
        self.next_s = now_s + _NEXT_LINE_S
        return True
