"""HCCL_SECRET: read and checked in one place, for ranks and for the launcher."""

import os
from collections.abc import Mapping

from hccl_py.transport.errors import InvalidArgumentError

SECRET = "HCCL_SECRET"
SHORTEST_BYTES = 16
"""A shorter secret can be guessed: a client learns by one connection whether a guess was right."""


def read_secret(environ: Mapping[str, str] = os.environ) -> bytes | None:
    """Return the job's secret; None: it is not set.

    Raises:
        InvalidArgumentError: it is set but empty, which would authenticate nothing.
    """
    given = environ.get(SECRET)
    if given is not None and not given.strip():
        raise InvalidArgumentError(
            f"{SECRET}: expected a long random value (openssl rand -hex 32), got an empty one; "
            "unset it to have none"
        )
    return None if given is None else os.fsencode(given)


def sealing_key() -> bytes:
    """Return the secret unchecked; an empty one is rejected where all ranks get the error."""
    return os.fsencode(os.environ.get(SECRET, ""))


def weakness(secret: bytes | None) -> str:
    """Return why a secret is weak, without showing it; "" if it is long enough."""
    if secret is None or len(secret) >= SHORTEST_BYTES:
        return ""
    return (
        f"{SECRET} has {len(secret)} byte{'s' * (len(secret) > 1)}, and fewer than "
        f"{SHORTEST_BYTES} can be guessed: make one with openssl rand -hex 32"
    )
