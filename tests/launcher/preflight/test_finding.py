"""The text of findings: errors first, equal ones once, and what to do."""

from hccl_py.launcher.preflight.finding import Finding, name_nodes, render


def test_render_puts_errors_first_and_equal_ones_together() -> None:
    findings = [
        Finding(3, "error", "is broken", "mend it"),
        Finding(0, "warning", "is slow", "wait"),
        Finding(1, "error", "is broken", "mend it"),
    ]
    assert render(findings, ["a", "b", "c", "d"], 12).splitlines() == [
        "error    nodes 1, 3 (b, d): is broken",
        "         -> mend it",
        "warning  node 0 (a): is slow",
        "         -> wait",
        "12 checks on 4 nodes: 1 error, 1 warning",
    ]


def test_render_without_findings_is_one_line() -> None:
    assert render([], ["", ""], 12) == "12 checks on 2 nodes: all good"


def test_name_nodes_shortens_a_long_list() -> None:
    names = [f"h{node}" for node in range(64)]
    assert name_nodes(range(64), names) == "nodes 0-63 (h0, h1, h2, h3, h4, h5, h6, h7, ...)"
    assert name_nodes([5, 2], ["", "", "", "", "", ""]) == "nodes 2, 5"
