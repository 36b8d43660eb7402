"""What travels to other hosts: by default, by -x and from --env-file."""

from pathlib import Path

import pytest

from hccl_py.launcher.exit_codes import UsageError
from hccl_py.launcher.hosts.environment import read_env_file, select

HERE = {
    "HCCL_DEBUG": "1",
    "HCCL_NODE_ID": "this",
    "OMP_NUM_THREADS": "4",
    "PYTHONPATH": "/here",
    "SSH_AUTH_SOCK": "/agent",
    "PATH": "/bin",
    "HOME": "/root",
    "RANK": "3",
    "TORCHELASTIC_RUN_ID": "7",
    "DATA_A": "1",
    "DATA_B": "2",
    "BASH_FUNC_x%%": "() { :; }",
}


def test_settings_of_the_job_travel_and_those_of_the_process_stay() -> None:
    always = {"HCCL_DEBUG": "1", "OMP_NUM_THREADS": "4", "PYTHONPATH": "/here"}
    assert select(HERE) == always
    assert select(HERE, ["DATA_*"]) == {**always, "DATA_A": "1", "DATA_B": "2"}
    assert select(HERE, ["*"]) == {**always, "DATA_A": "1", "DATA_B": "2", "PATH": "/bin"}
    assert select(HERE, ["NOTHING_*"]) == always


def test_a_name_wins_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.write_text("HCCL_DEBUG=2\nOMP_NUM_THREADS=1\nOTHER=file\n")
    found = select(HERE, ["OMP_NUM_THREADS=8", "HOME", "EMPTY="], [path])
    assert [found[name] for name in ("HCCL_DEBUG", "OTHER")] == ["2", "file"]
    assert [found[name] for name in ("OMP_NUM_THREADS", "HOME", "EMPTY")] == ["8", "/root", ""]


@pytest.mark.parametrize(
    ("export", "problem"),
    [
        ("MISSING", "-x MISSING: it is not set here; set it or write -x MISSING=value"),
        ("1A=2", "expected NAME, NAME=value or a pattern, got '1A'"),
        ("", "got ''"),
    ],
)
def test_wrong_export_is_one_line(export: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        select(HERE, [export])
    assert problem in str(caught.value)


def test_file_is_read_as_docker_and_dotenv_do(tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.write_text(
        "# comment\n\nA=1\n export B = two words \nC='single # kept'\nD=\"it's\" # dropped\n"
        "E=http://x/#part\nF=value # comment\nG=\nH=#empty\nI=$A\nJ='a' 'b'\n"
    )
    assert list(read_env_file(path).items()) == [
        *[("A", "1"), ("B", "two words"), ("C", "single # kept"), ("D", "it's")],
        *[("E", "http://x/#part"), ("F", "value"), ("G", ""), ("H", "")],
        *[("I", "$A"), ("J", "'a' 'b'")],
    ]


def test_wrong_line_of_file_is_named_and_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.write_text("A=1\nSECRET hunter2\n")
    with pytest.raises(UsageError, match="env:2: expected NAME=value") as caught:
        read_env_file(path)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(UsageError, match="--env-file .*missing: No such file"):
        read_env_file(tmp_path / "missing")
