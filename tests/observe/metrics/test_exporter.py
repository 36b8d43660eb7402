"""The metrics of real jobs, compared with what their ranks did; and who may read them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as text_of_prometheus
from quiet_clock import HANG_S
from ranks import run_ranks

from hccl_py import Communicator, InvalidArgumentError
from hccl_py.observe.metrics.counters import METRICS
from hccl_py.observe.metrics.settings import read_settings
from hccl_py.schedulers.ports import free_port

SENT = np.arange(25, dtype=np.float32)
SUMMED = np.ones(1000, dtype=np.float64)
ROUNDS = 5
CHILD_S = 20.0
SECRET = "0123456789abcdef"
DASHBOARD = Path(__file__).parents[3] / "examples" / "grafana.json"

Values = dict[str, dict[str, float]]


def scrape(port: int, token: str = "", accept: str = "*/*") -> str:
    headers = {"Accept": accept, **({"Authorization": f"Bearer {token}"} if token else {})}
    url = f"http://127.0.0.1:{port}/metrics"
    return str(urlopen(Request(url, headers=headers), timeout=HANG_S).read().decode())


def values(text: str) -> Values:
    """Return each sample by its name, and by its labels but run and node."""
    found: Values = defaultdict(dict)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {name: of_it for name, of_it in sample.labels.items() if name != "run"}
            assert labels.pop("node")
            found[sample.name][",".join(f"{k}={labels[k]}" for k in sorted(labels))] = sample.value
    return found


def scraped_when(port: int, condition: Callable[[Values], bool]) -> Values:
    end_s = time.monotonic() + HANG_S
    while time.monotonic() < end_s:
        try:
            found = values(scrape(port))
        except (OSError, HTTPException, ValueError):  # nobody listens, or it ends in its answer
            continue
        if condition(found):
            return found
        time.sleep(0.05)
    raise AssertionError(f"in vain: {found}")


def has_ranks(count: int) -> Callable[[Values], bool]:
    return lambda found: sum(found["hccl_rank_up"].values()) == count


def exchange(rank: int, world_size: int) -> Values:
    """Sum five times, send once, leave a second communicator, and let rank 1 scrape."""
    with Communicator() as comm:
        port = int(os.environ["HCCL_METRICS_PORT"])
        scraped_when(port, has_ranks(2))
        comm.barrier()
        before = values(scrape(port))["hccl_sent_bytes_total"]
        comm.barrier()
        with comm.subset(range(2), "of a moment") as other:
            for _ in range(ROUNDS):
                other.all_reduce(SUMMED.copy())
        if rank == 0:
            comm.send(SENT, 1)
        else:
            comm.recv(np.empty_like(SENT), 0)
        comm.barrier()
        found = values(scrape(port))
        comm.barrier()
        sent = found["hccl_sent_bytes_total"]
        found["sent"] = {key: sent[key] - before.get(key, 0.0) for key in sent}
        return dict(found)


@pytest.mark.parametrize("nodes", ["aa", "ab"])
def test_metrics_of_a_job_are_what_its_ranks_did(nodes: str) -> None:
    port = str(free_port("127.0.0.1"))
    env = [{"HCCL_METRICS_PORT": port, "HCCL_NODE_ID": node} for node in nodes]
    for found in run_ranks(exchange, 2, env=lambda rank: env[rank]):
        assert found["hccl_rank_up"] == {"rank=0": 1, "rank=1": 1}
        calls = found["hccl_calls_total"]
        for rank in range(2):
            assert calls[f"call=all_reduce,rank={rank}"] == ROUNDS
        assert calls["call=send,rank=0"] == calls["call=recv,rank=1"] == 1
        device = "shm" if nodes == "aa" else "tcp"
        sent = [found["sent"][f"device={device},rank={rank}"] for rank in range(2)]
        summed = ROUNDS * SUMMED.nbytes
        # Two ranks exchange what they sum; a barrier sends some bytes.
        assert SENT.nbytes + summed <= sent[0] < SENT.nbytes + summed + 100
        assert summed <= sent[1] < summed + 100
        assert found["hccl_communicators"] == {"rank=0": 1, "rank=1": 1}
        assert found["hccl_failures_total"] == {"rank=0": 0, "rank=1": 0}


def sums_of_node(rank: int, world_size: int) -> Values:
    with Communicator() as comm:
        for _ in range(ROUNDS):
            comm.all_reduce(SUMMED.copy())
        found = scraped_when(int(os.environ["HCCL_METRICS_PORT"]), has_ranks(2))
        comm.barrier()
        return dict(found)


def test_node_metrics_are_the_sums_of_its_ranks() -> None:
    port = str(free_port("127.0.0.1"))
    found = run_ranks(sums_of_node, 2, env={"HCCL_METRICS_PORT": port})[0]
    assert found["hccl_node_calls_total"]["call=all_reduce"] == 2 * ROUNDS
    for name in METRICS:
        ending = "" if METRICS[name].is_gauge else "_total"
        of_ranks, of_node = (found.get(f"hccl{of}_{name}{ending}", {}) for of in ("", "_node"))
        assert sum(of_ranks.values()) == pytest.approx(sum(of_node.values()))
    waits = found["hccl_node_straggler_calls_total"]
    assert waits and waits.keys() <= {"straggler=0", "straggler=1"}


def end_in_turn(rank: int, world_size: int) -> Values | None:
    """Whoever exports leaves first, by a signal; the last rank scrapes."""
    port = int(os.environ["HCCL_METRICS_PORT"])
    with Communicator() as comm:
        scraped_when(port, has_ranks(3))
        comm.all_reduce(SUMMED.copy())
        comm.barrier()
        if rank != 2:
            if rank == 1:
                time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        return dict(scraped_when(port, has_ranks(1)))


def test_metrics_survive_the_rank_that_exports_them() -> None:
    env = {"HCCL_METRICS_PORT": str(free_port("127.0.0.1"))}
    found = run_ranks(end_in_turn, 3, env=env, victims=(0, 1))[2]
    assert found["hccl_rank_up"]["rank=2"] == 1
    assert found["hccl_calls_total"]["call=all_reduce,rank=2"] == 1


ALONE = """
import os, sys, time, numpy as np
from hccl_py import Communicator
comm = Communicator(rank=0, world_size=1)
for _ in range(3):
    comm.all_reduce(np.ones(10))
if os.fork() == 0:  # a worker of a DataLoader that outlives the rank
    os.close(1)
    os.close(2)
    time.sleep(float(sys.argv[1]))
    os._exit(0)
print("here", flush=True)
sys.stdin.readline()
"""


def run_alone(child_s: float = 0.0, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ALONE, str(child_s)]
    pipe = subprocess.PIPE
    env = {**os.environ, **environment}
    ran = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert ran.stdout is not None
    assert ran.stdout.readline() == "here\n", ran.communicate()
    return ran


def test_metrics_file_has_the_last_counters_after_the_job(tmp_path: Path) -> None:
    file = tmp_path / "hccl.prom"
    _, errors = run_alone(HCCL_METRICS_FILE=str(file)).communicate("\n", timeout=HANG_S)
    assert errors == ""
    found = {
        (sample.name, sample.labels.get("call")): sample.value
        for family in text_of_prometheus(file.read_text())
        for sample in family.samples
    }
    assert found["hccl_calls_total", "all_reduce"] == 3
    assert os.listdir(tmp_path) == ["hccl.prom"]


@pytest.mark.nightly("faults")
def test_metrics_port_is_free_once_the_rank_ends_beside_its_forked_child() -> None:
    port = str(free_port("127.0.0.1"))
    run_alone(CHILD_S, HCCL_METRICS_PORT=port).communicate("\n", timeout=HANG_S)
    second = run_alone(HCCL_METRICS_PORT=port)
    found = scraped_when(int(port), has_ranks(1))
    assert found["hccl_calls_total"] == {"call=all_reduce,rank=0": 3}
    second.communicate("\n", timeout=HANG_S)


def test_metrics_beyond_loopback_need_the_token_of_the_secret() -> None:
    port = free_port()
    settings = {"HCCL_METRICS_PORT": f"0.0.0.0:{port}", "HCCL_SECRET": SECRET}
    token = read_settings(settings).token
    command = ["openssl", "dgst", "-sha256", "-hmac", SECRET]
    ran = run_alone(**settings)
    while True:
        try:
            with pytest.raises(HTTPError) as refused:
                scrape(port)
            break
        except URLError:
            time.sleep(0.05)
    assert refused.value.code == 401
    for wrong in ("", SECRET, token[:-1], token + "é"):
        with pytest.raises(HTTPError):
            scrape(port, wrong)
    assert values(scrape(port, token))["hccl_calls_total"] == {"call=all_reduce,rank=0": 3}
    assert "# EOF" not in scrape(port, token, accept="text/plain")
    ran.communicate("\n", timeout=HANG_S)
    try:
        printed = subprocess.run(command, input="hccl metrics", capture_output=True, text=True)
    except FileNotFoundError:
        return
    assert printed.stdout.split()[-1] == token  # as docs/jobs/metrics.md says


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"HCCL_METRICS_PORT": "metrics"}, "HCCL_METRICS_PORT"),
        ({"HCCL_METRICS_PORT": "70000"}, "HCCL_METRICS_PORT"),
        ({"HCCL_METRICS_PORT": "host:9400"}, "HCCL_METRICS_PORT"),
        ({"HCCL_METRICS_PORT": "0.0.0.0:9400"}, "HCCL_SECRET"),
        ({"HCCL_METRICS_PORT": "[::]:9400", "HCCL_SECRET": "short"}, "HCCL_SECRET"),
        ({"HCCL_METRICS_FILE": "/no/such/folder/hccl.prom"}, "HCCL_METRICS_FILE"),
        ({"HCCL_METRICS_FILE": "/tmp/hccl.txt"}, "HCCL_METRICS_FILE"),
    ],
)
def test_metrics_settings_that_are_wrong_are_named(settings: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        read_settings(settings)


def test_metrics_settings_name_addresses_and_switch_off() -> None:
    assert not read_settings({}).is_on
    assert not read_settings({"HCCL_METRICS_PORT": "0"}).is_on
    assert read_settings({"HCCL_METRICS_PORT": "9400"})[:2] == ("127.0.0.1", 9400)
    assert read_settings({"HCCL_METRICS_PORT": "[::1]:9400"})[:2] == ("::1", 9400)


def test_metrics_without_prometheus_client_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(InvalidArgumentError, match=r"prometheus_client: pip install .*metrics"):
        read_settings({"HCCL_METRICS_PORT": "9400"})


def test_dashboard_uses_metrics_that_exist() -> None:
    names = {f"hccl_{name}" + "_total" * (not one.is_gauge) for name, one in METRICS.items()}
    names |= {name.replace("hccl_", "hccl_node_") for name in names} | {"hccl_rank_up"}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    used = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"\bhccl_\w+", target["expr"])
    }
    assert used and used <= names
    page = (DASHBOARD.parents[1] / "docs" / "jobs" / "metrics.md").read_text()
    named = set(re.findall(r"\bhccl_\w+", page)) - {"hccl_py"}
    assert named <= names | {name.removesuffix("_total") for name in names} | {"hccl_node_"}
    assert {f"hccl_{name}" for name in METRICS} <= {name.removesuffix("_total") for name in named}
