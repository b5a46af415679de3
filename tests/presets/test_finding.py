"""One class of findings for lint, doctor, logs and runs."""

from __future__ import annotations

from distui.presets.finding import SEVERITIES, Finding, failed, worst_first


def test_the_worst_come_first_and_an_error_fails() -> None:
    found = [
        Finding(name, severity, "") for name, severity in zip("abc", reversed(SEVERITIES), strict=True)
    ]
    assert [finding.id for finding in worst_first(found)] == ["c", "b", "a"]
    assert (failed(found), failed(found[:2])) == (True, False)


def test_lint_and_status_print_what_is_documented() -> None:
    finding = Finding("L1", "error", "it is", where="line 3", value="7", remedy="change it", ranks=(0, 1))
    assert finding.as_dict() == {
        "id": "L1", "severity": "error", "where": "line 3", "value": "7", "text": "it is", "remedy": "change it"
    }  # fmt: skip
    assert finding.of_run()["ranks"] == [0, 1]
