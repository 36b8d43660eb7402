"""The settings of a communicator, from arguments and the environment: read, and compared.

`transport/network/agreed.py` lists the settings that must agree. A rank reads them once it can
report errors to the others.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from hccl_py.algorithms.choice.shared import REPRODUCIBLE, Reproducible, Shared, is_reproducible
from hccl_py.algorithms.choice.tuner import VARIABLE as ALGORITHM
from hccl_py.algorithms.choice.tuner import items, names_a_file, overrides
from hccl_py.algorithms.choice.tuning import VARIABLE as TUNING
from hccl_py.algorithms.choice.tuning import read_for_all_ranks
from hccl_py.compression import VARIABLE as COMPRESSION
from hccl_py.compression import default_compression
from hccl_py.diagnosis.stall import warning_from_environment
from hccl_py.observe.metrics.settings import read_settings
from hccl_py.transport import arguments
from hccl_py.transport._core import Wait
from hccl_py.transport.bootstrap.mesh import Terms
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.types import Compression

if TYPE_CHECKING:
    from hccl_py.algorithms.custom import CustomAlgorithm

WAIT = "HCCL_WAIT"


def wait_of(name: str | None) -> Wait:
    """Return the way to wait of this name; None: of HCCL_WAIT, else balanced.

    Raises:
        InvalidArgumentError: there is no such way.
    """
    where, given = ("wait", name) if name is not None else (WAIT, os.environ.get(WAIT))
    ways = [way.name.lower() for way in Wait]
    if given and given not in ways:
        raise InvalidArgumentError(f"{where}: expected {' or '.join(ways)}, got {given!r}")
    return Wait[given.upper()] if given else Wait.BALANCED


class Wanted:
    """The settings of one communicator.

    Attributes:
        encoding: compression, from the arguments and, once read, the environment.
        given_algorithms: algorithms from the caller.
        own: users' algorithms, including the environment's.
        is_reproducible: whether this rank requests it, and how.
        wait: how this rank waits for its peers.
    """

    def __init__(
        self,
        compression: str | None,
        algorithms: "Sequence[CustomAlgorithm]",
        reproducible: Reproducible | None,
        wait: str | None,
        member: tuple[int, int],
    ) -> None:
        """Take the caller's settings; None: the environment's. `member`: rank, world size."""
        self.encoding = Compression.NONE
        self.given_algorithms: tuple[CustomAlgorithm, ...] = ()
        self.own: tuple[CustomAlgorithm, ...] = ()
        self.is_reproducible: Reproducible = False
        self.wait = Wait.BALANCED
        self._given = compression, algorithms, reproducible, wait
        self._rank, self._world_size = member

    def read(self) -> Terms:
        """Read the environment and its files, and check them against the caller's settings.

        Raises:
            InvalidArgumentError: a setting is invalid, or a file cannot be read.
        """
        compression, algorithms, reproducible, wait = self._given
        self.wait = wait_of(wait)
        self.encoding = default_compression(compression)
        if reproducible is None:
            reproducible = is_reproducible()
        if not (isinstance(reproducible, str) and reproducible == "exact"):
            reproducible = arguments.flag("reproducible", reproducible, "True, False or 'exact'")
        self.is_reproducible = reproducible
        if self.is_reproducible and self.encoding is not Compression.NONE:
            raise InvalidArgumentError(
                f"reproducible: expected no compression with it, got {self.encoding.name.lower()}; "
                f"leave one of the two out ({REPRODUCIBLE}, {COMPRESSION})"
            )
        # Otherwise the error would only occur after the ranks have met.
        warning_from_environment()
        read_settings()
        overrides(os.environ.get(ALGORITHM, ""))
        expected = "functions under @hccl_py.algorithm(...)"
        self.given_algorithms = arguments.items("algorithms", algorithms, expected)
        self.own = _in_effect(self.given_algorithms)
        names = ", ".join(map(str, self.own))
        tuning = self._tuning()
        settings = {
            ALGORITHM: _with_files(os.environ.get(ALGORITHM, "")),
            "algorithms": names,
            COMPRESSION: self.encoding.name.lower(),
            REPRODUCIBLE: {False: "", True: "1", "exact": "exact"}[self.is_reproducible],
            TUNING: f"a file of digest {_digest(tuning)}" if tuning else "",
        }
        return Terms(settings, Shared(names, self.is_reproducible, tuning).packed())

    def _tuning(self) -> bytes:
        if self._world_size == 1:
            return b""
        try:
            return read_for_all_ranks()
        except InvalidArgumentError:
            if self._rank == 0:
                raise
            return b""  # only rank 0 needs the file


def _in_effect(given: "Sequence[CustomAlgorithm]") -> "tuple[CustomAlgorithm, ...]":
    if not given and not names_a_file():
        return ()
    from hccl_py.algorithms.loading import in_effect

    return in_effect(given)


def _with_files(text: str) -> str:
    """Return HCCL_ALGORITHM with a digest for each file, whose folder may differ between hosts."""
    parts = []
    for owner, place in items(text):
        if ":" in place:
            first, _, last = place.rpartition(":")
            path = Path(last if first == "plan" else first)
            with suppress(OSError):  # reported when it is loaded
                place = place.replace(str(path), f"{path.name}({_digest(path.read_bytes())})")
        parts.append(place if owner is None else f"{owner}={place}")
    return ",".join(parts)


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()
