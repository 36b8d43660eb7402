"""Logs paths that break and come back, without a line for each of many breaks."""

import logging
import time

logger = logging.getLogger("hccl_py.transport")

_CALM_S = 60.0


class Flaps:
    """Logs two breaks and the first return of a path, then nothing until a minute without any.

    A first break is no warning if it is brief: on a busy machine the other end may confirm nothing
    for seconds while it waits for a core.
    """

    def __init__(self) -> None:
        self._num_breaks: dict[object, int] = {}
        self._last_s: dict[object, float] = {}
        self._levels: dict[object, int] = {}

    def log_break(self, name: str, path: object, is_brief: bool = False) -> None:
        """Log a break of `path`, which messages call `name`."""
        if time.monotonic() > self._last_s.get(path, 0.0) + _CALM_S:
            self._num_breaks[path] = 0
        self._last_s[path] = time.monotonic()
        self._num_breaks[path] = number = self._num_breaks[path] + 1
        if number == 1:
            self._levels[path] = level = logging.INFO if is_brief else logging.WARNING
            logger.log(level, "%s broke; it will be used again when it can", name)
        elif number == 2:
            logger.warning("%s broke again; not logged again within %g s", name, _CALM_S)

    def log_return(self, name: str, path: object) -> None:
        """Log that a path works again, if its last break was the first."""
        self._last_s[path] = time.monotonic()
        if self._num_breaks.get(path) == 1:
            logger.log(self._levels[path], "%s works again", name)
