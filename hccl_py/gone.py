"""What stands where a communicator's engine was."""

from typing import Any

from hccl_py.transport.errors import HcclError


class Gone:
    """Stands where the engine was; every use says why it is gone."""

    def __init__(self, error: type[HcclError], message: str) -> None:
        """Answer everything with this error."""
        self._error = error
        self._message = message

    def close(self, _last_words: str = "") -> None:
        """Nothing is open here."""

    def abort(self, _reason: str) -> None:
        """No call is under way here."""

    def __getattr__(self, _name: str) -> Any:
        """Return what raises when it is called."""
        return self._refuse

    def _refuse(self, *_: object) -> None:
        raise self._error(self._message)
