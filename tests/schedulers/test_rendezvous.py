"""Where ranks meet if nobody says it, and what a rank finds in its environment afterwards."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from hccl_py import BootstrapError, InvalidArgumentError
from hccl_py.schedulers import pmi
from hccl_py.schedulers.adopt import adopt
from hccl_py.schedulers.reader import read
from hccl_py.schedulers.rendezvous import find_rendezvous, port_of_job
from hccl_py.schedulers.scheduled import Scheduled

TIMEOUT_S = 5.0
SLURM = dict(
    SLURM_JOB_ID="12",
    SLURM_STEP_ID="0",
    SLURM_PROCID="1",
    SLURM_LOCALID="1",
    SLURM_STEP_NUM_TASKS="2",
    SLURM_NODEID="0",
    SLURM_STEP_NUM_NODES="1",
    SLURM_STEP_TASKS_PER_NODE="2",
    SLURM_STEP_NODELIST="127.0.0.1",
)
TWO_NODES = dict(
    SLURM_STEP_NODELIST="127.0.0.[3-4]",
    SLURM_STEP_TASKS_PER_NODE="1(x2)",
    SLURM_NODEID="1",
    SLURM_LOCALID="0",
    SLURM_STEP_NUM_NODES="2",
)
OPEN_MPI = dict(
    OMPI_COMM_WORLD_RANK="1",
    OMPI_COMM_WORLD_SIZE="2",
    OMPI_COMM_WORLD_LOCAL_RANK="0",
    OMPI_COMM_WORLD_LOCAL_SIZE="1",
)


@pytest.fixture
def environ() -> Iterator[os._Environ[str]]:
    before = dict(os.environ)
    for name in (*SLURM, "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    yield os.environ
    os.environ.clear()
    os.environ.update(before)


def seen(environ: dict[str, str]) -> Scheduled:
    found = read(environ)
    assert found is not None
    return found


def test_ranks_of_a_slurm_step_meet_on_its_first_node_at_the_same_port() -> None:
    here = find_rendezvous(seen(SLURM), SLURM, TIMEOUT_S)
    both = {**SLURM, **TWO_NODES}
    there = find_rendezvous(seen(both), both, TIMEOUT_S)
    assert (here.address, there.address) == ("127.0.0.1", "127.0.0.3")
    assert here.port == there.port == port_of_job("12.0")


def test_ports_of_neighbouring_jobs_and_steps_differ_and_are_not_ephemeral() -> None:
    ports = [port_of_job(f"{job}.{step}") for job in range(4000, 4050) for step in range(10)]
    assert len(set(ports)) == len(ports)
    assert 1024 < min(ports) < max(ports) < 32768
    assert port_of_job("prterun-a-8@1") != port_of_job("prterun-a-9@1")


def test_what_is_given_counts() -> None:
    given = {**SLURM, **TWO_NODES, "MASTER_ADDR": "h", "MASTER_PORT": "1234"}
    found = find_rendezvous(seen(given), given, TIMEOUT_S)
    assert (found.address, found.port, found.secret) == ("h", 1234, None)


def test_port_of_the_job_in_use_is_named_by_rank_0() -> None:
    rank_0 = {**SLURM, "SLURM_PROCID": "0"}
    taken = socket.create_server(("0.0.0.0", port_of_job("12.0")))
    with taken, pytest.raises(BootstrapError, match="made of the id 12.0 .*set MASTER_PORT"):
        find_rendezvous(seen(rank_0), rank_0, TIMEOUT_S)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SLURM_STEP_NODELIST": "no-such-host[1-2]"}, "no-such-host1, but .* cannot resolve"),
        ({"SLURM_PROCID": "0"}, "127.0.0.3, but rank 0 runs on 127.0.0.4"),
    ],
)
def test_first_node_at_which_nobody_can_meet_is_refused_at_once(
    environ: dict[str, str], expected: str
) -> None:
    step = {**SLURM, **TWO_NODES, **environ}
    with pytest.raises(BootstrapError, match=f"{expected}.*: set MASTER_ADDR"):
        find_rendezvous(seen(step), step, TIMEOUT_S)


def test_several_hosts_of_an_mpirun_without_store_are_told_what_to_set() -> None:
    with pytest.raises(InvalidArgumentError, match="Open MPI .*mpirun -x MASTER_ADDR"):
        find_rendezvous(seen(OPEN_MPI), OPEN_MPI, TIMEOUT_S)


def test_rank_finds_torchruns_variables_afterwards(environ: os._Environ[str]) -> None:
    environ.update(SLURM)
    adopt()
    found = {name: environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    assert found == {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    assert (environ["LOCAL_WORLD_SIZE"], environ["MASTER_ADDR"]) == ("2", "127.0.0.1")
    assert environ["MASTER_PORT"] == str(port_of_job("12.0"))
    assert adopt() is None  # and from then on RANK is set


def test_environment_with_rank_stays_as_it_is(environ: os._Environ[str]) -> None:
    environ.update({**SLURM, "RANK": "0"})
    before = dict(environ)
    assert adopt() is None
    assert dict(environ) == before


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SLURM_JOB_ID": "12", "SLURM_PROCID": "0"}, "no task of Slurm job 12: .*srun"),
        ({"JOB_COMPLETION_INDEX": "2"}, "WORLD_SIZE is not set.*node 2 .*JOB_COMPLETION_INDEX"),
        (
            {"PET_NODE_RANK": "1", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "8"},
            "RANK is not set.*PET_NPROC_PER_NODE.*hccl-launch",
        ),
    ],
)
def test_process_that_is_no_rank_is_told_what_to_do(
    environ: os._Environ[str], variables: dict[str, str], expected: str
) -> None:
    environ.update(variables)
    with pytest.raises(InvalidArgumentError, match=expected):
        adopt()
    assert "WORLD_SIZE" not in environ


def test_only_process_of_a_pod_is_its_rank(environ: os._Environ[str]) -> None:
    environ.update({"JOB_COMPLETION_INDEX": "1", "PET_NNODES": "2", "PET_MASTER_ADDR": "p-0.p"})
    adopt()
    assert (environ["RANK"], environ["WORLD_SIZE"], environ["LOCAL_RANK"]) == ("1", "2", "0")
    assert (environ["MASTER_ADDR"], environ["MASTER_PORT"]) == ("p-0.p", "29500")


def hydra(server: socket.socket, answers: list[str]) -> None:
    with server, suppress(ConnectionError), server.makefile("rw") as lines:
        for answer in answers:
            lines.readline()
            lines.write(answer + "\n")
            lines.flush()
        lines.read()  # until the rank hangs up


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["cmd=response_to_init rc=-1"], "cmd=init: answer 'cmd=response_to_init rc=-1"),
        (["cmd=response_to_init rc=0"], "cmd=get_my_kvsname: no answer after .* all or none"),
    ],
)
def test_store_of_hydra_that_fails_says_at_what(
    monkeypatch: pytest.MonkeyPatch, answers: list[str], expected: str
) -> None:
    monkeypatch.setattr(pmi, "_begun", set())
    mine, theirs = socket.socketpair()
    thread = threading.Thread(target=hydra, args=(theirs, answers), daemon=True)
    thread.start()
    with mine, pytest.raises(BootstrapError, match=expected):
        pmi.share(mine.fileno(), None, 0.2)
    thread.join(TIMEOUT_S)


NODE_OF_LWS = dict(LWS_LEADER_ADDRESS="lws-0", LWS_GROUP_SIZE="4", LWS_WORKER_INDEX="3")
MAIN_OF_AWS = dict(
    AWS_BATCH_JOB_NUM_NODES="3", AWS_BATCH_JOB_NODE_INDEX="1", AWS_BATCH_JOB_MAIN_NODE_INDEX="1"
)


def test_program_without_launcher_is_the_only_rank_of_its_node(
    environ: os._Environ[str],
) -> None:
    environ.update(NODE_OF_LWS)
    adopt(TIMEOUT_S)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    assert [environ[name] for name in names] == ["3", "4", "0", "lws-0", "29500"]


def test_node_that_is_not_told_its_own_address_finds_it() -> None:
    found = find_rendezvous(seen(MAIN_OF_AWS), MAIN_OF_AWS, TIMEOUT_S)
    with socket.socket() as probe:
        probe.bind((found.address, 0))  # only an own address can be bound
    given = {**MAIN_OF_AWS, "MASTER_ADDR": "h", "MASTER_PORT": "1234"}
    assert find_rendezvous(seen(given), given, TIMEOUT_S).address == "h"


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ({"PBS_JOBID": "7"}, "--hostfile $PBS_NODEFILE"),
        ({"PJM_JOBID": "7", "PJM_NODE": "2"}, "--hostfile $PJM_O_NODEINF"),
        ({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "a 8 b 8"}, "--hostfile $LSB_DJOB_HOSTFILE"),
        ({"_CONDOR_NPROCS": "2", "_CONDOR_PROCNO": "1"}, "--node-rank $_CONDOR_PROCNO"),
    ],
)
def test_program_without_launcher_is_told_the_options_of_one(
    environ: os._Environ[str], variables: dict[str, str], options: str
) -> None:
    environ.update(variables)
    with pytest.raises(InvalidArgumentError) as caught:
        adopt(TIMEOUT_S)
    assert options in str(caught.value)
    assert "RANK" not in environ
