"""All questions and answers of a check, between responders of this process over loopback."""

import json
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest
from made_nodes import run
from quiet_clock import HANG_S

from hccl_py.launcher.preflight.check import Ask, CheckReport, Job
from hccl_py.launcher.preflight.node.responder import CheckResponder
from hccl_py.schedulers.ports import free_port

SECRET = secrets.token_hex(32)
NAMES = ("localhost", "localhost")


def travelled(message: Any) -> Any:
    """Return a message as it is after the way between coordinator and agent."""
    return json.loads(json.dumps(message))


def checked(job: Job, responders: Mapping[int, CheckResponder]) -> CheckReport:
    def exchange(ask: Ask) -> dict[int, Any]:
        with ThreadPoolExecutor() as threads:
            answers = {
                node: threads.submit(responders[node].answer, travelled(question))
                for node, question in ask.questions.items()
                if node in responders
            }
            return {node: travelled(one.result(ask.timeout_s)) for node, one in answers.items()}

    return run(job, exchange)


def responder(**environ: str) -> CheckResponder:
    everywhere = {"HCCL_SOCKET_IFNAME": "lo", "HCCL_SOCKET_FAMILY": "AF_INET"}
    return CheckResponder({**everywhere, "HCCL_SECRET": SECRET, **environ})


def job(port: int = 0, *, full: bool = False) -> Job:
    return Job(NAMES, (1, 1), NAMES, "127.0.0.1", port or free_port(), full)


def test_check_of_two_nodes_lists_them_and_finds_that_they_are_one_machine() -> None:
    port = free_port()
    with ExitStack() as opened:
        responders = {node: opened.enter_context(closing(responder())) for node in (0, 1)}
        report = checked(job(port, full=True), responders)
    assert [each.what for each in report.findings] == ["is the same machine as node 0 (localhost)"]
    assert "lo 127.0.0.1" in report.details
    assert len(report.details.splitlines()) == 3
    with socket.create_server(("127.0.0.1", port)):
        pass  # the ports are free again for the ranks


def test_check_names_a_node_that_does_not_answer_and_a_clock_that_is_wrong() -> None:
    late = CheckResponder({"HCCL_SOCKET_IFNAME": "lo"}, clock=lambda: 0.0)
    with closing(late):
        report = checked(job(), {1: late})
    found = {(each.node, each.severity): each.what for each in report.findings}
    assert "did not answer the question 'examine' within 10 s" in found[0, "error"]
    assert "s behind the one where the job was started" in found[1, "warning"]


def test_check_finds_a_master_port_and_a_port_range_that_are_taken() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with closing(responder(HCCL_PORT_RANGE=f"{port}-{port}")) as first:
            report = checked(job(port), {0: first})
    texts = [each.what for each in report.findings if each.node == 0]
    assert "cannot listen on the master port: Address already in use" in texts
    assert "cannot listen on 127.0.0.1: Address already in use" in texts


def test_check_finds_a_setting_that_makes_no_sense_and_never_shows_the_secret() -> None:
    with closing(responder(HCCL_TLS="yes", HCCL_SECRET="not to be seen")) as first:
        report = checked(job(full=True), {0: first})
        question = {"kind": "examine", "names": (), "master_addr": "127.0.0.1", "listens_at": 0}
        answer = first.answer(question)
    assert any("HCCL_TLS: expected 0 or 1, got 'yes'" in each.what for each in report.findings)
    assert "not to be seen" not in f"{report}{answer}{first!r}"


@pytest.mark.parametrize("module", ["check", "node.responder"])
def test_preflight_imports_neither_torch_nor_the_engine(module: str) -> None:
    script = (
        f"import sys, hccl_py.launcher.preflight.{module}\n"
        "print({'numpy', 'torch', 'hccl_py.transport._core'} & set(sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S
    )
    assert ran.stdout == "set()\n", ran.stderr
