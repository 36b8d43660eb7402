"""What a package has beside its code is complete, agrees with itself, and has each fact once."""

import re
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from tiers import COMMANDS, ENVIRONMENTS, TORCH_VERSIONS

from hccl_py.torch_backend import TESTED_TORCH

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
REPOSITORY = PROJECT["urls"]["Homepage"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "custom.github-workflows-require-timeout": WORKFLOWS,
    "vendor.github-issue-forms": [
        ROOT / f".github/ISSUE_TEMPLATE/{x}.yml" for x in ("bug", "feature")
    ],
    "vendor.github-issue-config": [ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"],
    "vendor.dependabot": [ROOT / ".github" / "dependabot.yml"],
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}
FORMATTER = "clang-format"  # each major version formats in another way


def requirements() -> list[Requirement]:
    every = chain(PROJECT["dependencies"], *EXTRAS.values())
    return [Requirement(one) for one in every if not one.startswith("hccl-py[")]


def text_of(place: str) -> str:
    return (ROOT / place).read_text()


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_package_that_is_required_has_a_lower_bound_alone(requirement: Requirement) -> None:
    operators = {one.operator for one in requirement.specifier}
    assert operators == ({">=", "<"} if requirement.name == FORMATTER else {">="})


@pytest.mark.parametrize("section", ENVIRONMENTS)
def test_nightly_tier_has_an_exact_version_of_each_framework(section: str) -> None:
    own = f".ci/constraints_{section}.txt"
    lines = text_of(own if (ROOT / own).exists() else ".ci/constraints.txt").splitlines()
    exact = dict(line.split("==") for line in lines if "==" in line)
    wanted = [Requirement(one) for extra in ENVIRONMENTS[section] for one in EXTRAS[extra]]
    frameworks = [one for one in wanted if one.name != "hccl-py"]
    assert {one.name for one in frameworks} <= set(exact)
    assert all(one.specifier.contains(exact[one.name]) for one in frameworks)


def test_torch_is_an_extra_whose_bound_is_the_oldest_tested_version() -> None:
    assert EXTRAS["torch"] == [f"torch>={TESTED_TORCH[0]}"]
    assert not any(Requirement(one).name == "torch" for one in PROJECT["dependencies"])
    assert all("hccl-py[torch]" in EXTRAS[name] for name in ("examples", "lightning", "ray"))
    assert any("examples" in one for one in EXTRAS["test"])


def test_tested_versions_of_torch_are_those_of_the_matrix_and_of_the_pages() -> None:
    matrix = re.search(r"torch: \[(.*)\]", text_of(".github/workflows/ci.yml"))
    default = re.search(r"TORCH:-([\d.]+)\}", text_of(".ci/run"))
    assert matrix and default
    assert tuple(matrix[1].split(", ")) == TORCH_VERSIONS
    *exact, newest = TORCH_VERSIONS
    assert (tuple(one.rpartition(".")[0] for one in exact), newest) == (TESTED_TORCH, "newest")
    assert default[1] == exact[0]
    assert f"pip install torch=={exact[0]}\n" in text_of(".github/workflows/nightly.yml")
    listed = f"{', '.join(TESTED_TORCH[:-1])} and {TESTED_TORCH[-1]}"
    assert f"tested](docs/stability.md#versions) with {listed} |" in text_of("README.md")
    assert f"| {', '.join(TESTED_TORCH)} and the newest |" in text_of("docs/stability.md")


def test_versions_of_python_are_those_of_the_matrix() -> None:
    prefix = "Programming Language :: Python :: 3."
    known = [f"3.{one[len(prefix) :]}" for one in PROJECT["classifiers"] if one.startswith(prefix)]
    matrix = re.search(r"python: \[(.*)\]", text_of(".github/workflows/ci.yml"))
    assert matrix and re.findall(r'"(.*?)"', matrix[1]) == known
    assert PROJECT["requires-python"] == f">={known[0]}"
    assert f"| {known[0]} to {known[-1]};" in text_of("docs/stability.md")


def test_hints_for_an_extra_come_from_one_function() -> None:
    folders = ("hccl_py", "transport", "launcher", "benchmarks")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert [path for path in files if "pip install 'hccl-py" in path.read_text()] == []
    assert [path for path in files if re.search(r"hccl-py\[\w", path.read_text())] == []


def test_version_stands_in_one_place_and_in_the_changelog() -> None:
    headings = re.findall(r"^## \[(.*?)\]", text_of("CHANGELOG.md"), re.M)
    assert headings[:2] == ["Unreleased", PROJECT["version"]]
    assert not re.search(r"^version:", text_of("CITATION.cff"), re.M)
    versions = [Version(one) for one in headings[1:]]
    assert versions == sorted(versions, reverse=True)


def test_licence_is_the_one_that_the_metadata_name() -> None:
    assert (PROJECT["license"], PROJECT["license-files"]) == ("Apache-2.0", ["LICENSE"])
    licence = text_of("LICENSE")
    assert "Version 2.0, January 2004" in licence and "END OF TERMS AND CONDITIONS" in licence
    assert not any(one.startswith("License ::") for one in PROJECT["classifiers"])


def test_repository_has_one_address() -> None:
    places = ("*.md", "*.toml", "*.cff", "docs/**/*.md", ".github/**/*", "hccl_py/**/*.py")
    files = [path for place in places for path in ROOT.glob(place) if path.is_file()]
    pattern = re.compile(r"https://github\.com/hccl-py[^/ ]*/[\w-]+")
    named = {one for path in files for one in pattern.findall(path.read_text())}
    assert named == {REPOSITORY}


def test_hooks_of_commits_have_the_tools_of_the_tests() -> None:
    hooks = re.findall(r'additional_dependencies: \["(.*)"\]', text_of(".pre-commit-config.yaml"))
    assert len(hooks) >= 3 and set(hooks) <= set(EXTRAS["test"])


@pytest.mark.parametrize("schema", SCHEMAS)
def test_file_of_the_host_has_its_schema(schema: str) -> None:
    program = shutil.which("check-jsonschema", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("check-jsonschema is not installed")
    done = subprocess.run([program, "--builtin-schema", schema, *SCHEMAS[schema]], text=True)
    assert done.returncode == 0


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_has_least_rights_and_exact_actions_and_starts_by_hand(path: Path) -> None:
    text = path.read_text()
    assert "\npermissions:\n  contents: read\n" in text and "\n  workflow_dispatch:" in text
    actions = re.findall(r"uses: (\S+)( # v[\d.]+)?$", text, re.M)
    assert len(actions) == text.count("uses: ")
    ours = "./.github/workflows/"
    loose = [it for it, tag in actions if not (tag and re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", it))]
    assert all(one.startswith(ours) and (ROOT / one).exists() for one in loose)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_scripts_of_a_workflow_exist(path: Path) -> None:
    scripts = re.findall(r"(?<![\w/])\.ci/[\w.-]+", path.read_text())
    assert all((ROOT / script).exists() for script in scripts)


def test_nightly_workflow_runs_every_section() -> None:
    listed = subprocess.run(
        [sys.executable, ROOT / ".ci" / "nightly", "--list"], capture_output=True, text=True
    ).stdout
    assert [line.split(" ")[0] for line in listed.splitlines()] == list(COMMANDS)
