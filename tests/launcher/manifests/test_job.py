"""The texts of --print-sbatch and --print-k8s: what is taken from the command line."""

import os

import pytest

from hccl_py.launcher.command_line.read import parse
from hccl_py.launcher.main import main
from hccl_py.launcher.manifests.texts import k8s, name_of, sbatch

SCRIPT = __file__


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("src/Train_GPT.py --x", "train-gpt"),
        ("-m pkg.train", "pkg-train"),
        ("2.py", "job-2"),
        (f"{'a' * 49}-{'b' * 20}.py", "a" * 49),
    ],
)
def test_name_is_one_that_dns_takes(program: str, name: str) -> None:
    assert name_of(parse(["--print-k8s", *program.split()], {})) == name


def test_pod_gets_sizes_as_variables_and_the_other_words_as_they_are() -> None:
    words = ["--print_k8s", "--nnodes=4", "--nproc", "8", "--master-port", "300", "--bind", "core"]
    text = k8s(parse([*words, "train.py", "--print-k8s", 'a "b" $(X)'], {}))
    command = text.partition("command:\n")[2].partition("          env:")[0].splitlines()
    assert [line.strip() for line in command] == [
        '- "hccl-launch"',
        '- "--bind"',
        '- "core"',
        '- "train.py"',
        '- "--print-k8s"',
        r'- "a \"b\" $$(X)"',
    ]
    assert text.count('value: "4"') == text.count("completions: 4") == 1
    assert 'value: "300"' in text
    assert 'cpu: "8"' in text


def test_batch_script_has_all_options_and_makes_its_own_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HCCL_SECRET", "c0ffee")
    words = ["--nnodes", "4", "--nproc", "8", SCRIPT, "two words"]
    text = sbatch(parse(["--print-sbatch", *words], os.environ))
    assert "#SBATCH --nodes=4\n" in text
    assert text.endswith(f"-m hccl_py.launcher.main --nnodes 4 --nproc 8 {SCRIPT} 'two words'\n")
    assert "c0ffee" not in text


@pytest.mark.parametrize("option", ["--print-sbatch", "--print-k8s"])
@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ("--nnodes 2:4", "expected --nnodes N, got options of an elastic job"),
        ("--hosts 127.0.0.1", "leave out --hosts"),
        ("--nnodes 2 --node-rank 1 --master-addr a", "leave out --hosts"),
    ],
)
def test_option_that_a_scheduler_decides_is_refused(
    option: str, others: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([option, *others.split(), SCRIPT]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"hccl-launch: error: {option}: ")
    assert expected in told.err
    assert told.out == ""


def test_ranks_of_a_pod_that_depend_on_this_machine_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--print-k8s", "--nproc", "auto", SCRIPT]) == 2
    expected = "--print-k8s: expected a number after --nproc, got 'auto'"
    assert capsys.readouterr().err == f"hccl-launch: error: {expected}\n"
