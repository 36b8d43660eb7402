"""The ranks of this node: their environments, their log files and how they failed."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from torch.distributed.elastic.multiprocessing import LogsSpecs
from torch.distributed.elastic.multiprocessing.api import LogsDest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from hccl_py.launcher.failure import Failure

_LOG_TAIL_BYTES = 4000


class LocalRanks(LogsSpecs):
    """The ranks of this machine: their environments, their log files and how they failed.

    Elastic calls `reify` with the environments just before it starts the ranks, when the nodes
    have met and this node knows its number.

    Attributes:
        job_id: what ranks see instead of elastic's; None: elastic's.
        world_size: of the last start; None: there was none.
    """

    def __init__(self, inner: LogsSpecs) -> None:
        self.job_id: str | None = None
        self.world_size: int | None = None
        self._inner = inner
        self._environments: dict[int, dict[str, str]] = {}
        self._files = LogsDest()

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Complete the environments and return where each rank's output goes."""
        for env in envs.values():
            env["NODE_RANK"] = env["GROUP_RANK"]
            self.world_size = int(env["WORLD_SIZE"])
            if self.job_id is not None:
                env["TORCHELASTIC_RUN_ID"] = self.job_id
        self._environments = envs
        self._files = self._inner.reify(envs)
        return self._files

    @property
    def root_log_dir(self) -> str:
        """Folder of all log files."""
        return self._inner.root_log_dir

    def failures(self, noticed: Mapping[int, ProcessFailure]) -> tuple[Failure, ...]:
        """Return the failures of this attempt, given those that elastic noticed by its local rank.

        A rank that recorded an exception failed, even if elastic stopped it before its process
        ended: the ranks that it failed may well end first.
        """
        found = []
        for number, env in self._environments.items():
            record = _record(self._files.error_files[number])
            process = noticed.get(number)
            if record or process is not None:
                log = self._files.stderrs[number] or self._files.stdouts[number]
                found.append(_failure(env, process, record, "" if log == os.devnull else log))
        return tuple(found)


def _record(path: str) -> dict[str, Any]:
    with suppress(OSError, ValueError, KeyError), open(path) as file:
        record = json.load(file)["message"]
        if isinstance(record, str):
            record = {"message": record, "extraInfo": {}}
        # Elastic's timestamp has whole seconds; the file's shows which of several ranks was first.
        return {**record["extraInfo"], "message": record["message"], "at_s": os.stat(path).st_mtime}
    return {}


def _failure(
    env: Mapping[str, str], process: ProcessFailure | None, record: Mapping[str, Any], log: str
) -> Failure:
    return Failure(
        rank=int(env["RANK"]),
        node=int(env["NODE_RANK"]),
        local_rank=int(env["LOCAL_RANK"]),
        host="",
        pid=process.pid if process else record.get("pid", 0),
        # Elastic may have stopped a rank between its exception and its end.
        exit_code=process.exitcode if process and (process.exitcode > 0 or not record) else 1,
        kind=record.get("type", ""),
        message=record.get("message", ""),
        traceback=record.get("py_callstack", ""),
        at_s=record["at_s"] if record or process is None else float(process.timestamp),
        log=log,
        last_lines=tuple(_tail(log).splitlines()),
    )


def _tail(path: str) -> str:
    if not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - _LOG_TAIL_BYTES))
        return file.read().decode(errors="replace")
