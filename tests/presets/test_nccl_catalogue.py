"""The catalogue of NCCL variables: what it lets through and what its sentences say."""

from __future__ import annotations

import pytest

from distui.presets import nccl

KINDS = {"flag", "torch", "int", "word", "level", "text", "debug", "mask"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_DEBUG", "info"),
        ("NCCL_DEBUG_SUBSYS", "^coll,NET"),
        ("NCCL_P2P_DISABLE", "1"),
        ("NCCL_P2P_LEVEL", "nvl"),
        ("NCCL_P2P_LEVEL", "3"),
        ("NCCL_BUFFSIZE", "0x100000"),
        ("NCCL_IB_GID_INDEX", "-1"),
        ("NCCL_CROSS_NIC", "0"),
        ("NCCL_ALGO", "^Tree"),
        ("NCCL_LSA_TEAM_SIZE", "anything"),
        ("TORCH_NCCL_BLOCKING_WAIT", "True"),
        ("TORCH_FR_BUFFER_SIZE", "0"),
    ],
)
def test_good_values_pass(name: str, value: str) -> None:
    assert nccl.check(name, value) is None


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("NCCL_DEBG", "INFO", "did you mean NCCL_DEBUG?"),
        ("nccl_debug", "INFO", "did you mean NCCL_DEBUG?"),
        ("NCCL_DEBUG", "LOUD", "take VERSION, WARN, INFO or TRACE"),
        ("NCCL_DEBUG_SUBSYS", "COLL,NETT", "'NETT' is not a subsystem of NCCL: did you mean NET?"),
        ("NCCL_P2P_DISABLE", "true", "takes 0 or 1, not 'true'"),
        ("NCCL_P2P_LEVEL", "NVLINK", "takes LOC, NVL, PIX, PXB, PHB or SYS"),
        ("NCCL_IB_TIMEOUT", "300", "takes a whole number from 0 to 255, not '300'"),
        ("NCCL_BUFFSIZE", "4MB", "takes a whole number of 0 or more"),
        ("NCCL_TREE_THRESHOLD", "0", "no longer read: NCCL 2.4.8"),
        ("TORCH_NCCL_BLOCKING_WAIT", "maybe", "takes 1 or 0"),
        ("NCCL_SOCKET_FAMILY", "ipv4", "takes AF_INET or AF_INET6"),
        ("", "1", "is no variable"),
    ],
)
def test_bad_values_get_a_sentence(name: str, value: str, part: str) -> None:
    text = nccl.check(name, value)
    assert text is not None
    assert part in text
    assert "\n" not in text


def test_the_table_is_whole() -> None:
    variables = nccl.catalogue()
    described = [variable for variable in variables.values() if variable.meaning]
    assert len(described) >= 60
    assert len(variables) >= 270
    for variable in variables.values():
        assert variable.kind in KINDS, variable.name
        assert variable.scope in ("live", "communicator", "restart"), variable.name
        assert bool(variable.values) == (variable.kind in ("word", "level", "debug")), variable.name
        if variable.since and not variable.since.startswith("torch "):
            assert nccl.version_key(variable.since) >= (2,), variable.name
    for variable in described:
        assert variable.meaning.endswith("."), variable.name


def test_what_follows_a_live_switch() -> None:
    live = {name for name, variable in nccl.catalogue().items() if variable.scope == "live"}
    assert {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"} <= live
    assert nccl.catalogue()["NCCL_ALGO"].scope == "communicator"
    assert nccl.catalogue()["NCCL_IB_TIMEOUT"].scope == "restart"


def test_levels_are_in_order() -> None:
    assert [nccl.parse_level(text) for text in ("version", " Warn", "INFO", "trace")] == list(nccl.LEVELS)
    with pytest.raises(nccl.NcclError, match="'' is not a level"):
        nccl.parse_level("")


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("", nccl.DEFAULT_SUBSYS),
        ("init", "INIT"),
        ("Init, coll", "INIT,COLL"),
        ("^coll", "^COLL"),
        ("A LL".replace(" ", ""), "ALL"),
        ("NET,NET", "NET"),
    ],
)
def test_subsystems_are_read(text: str, result: str) -> None:
    assert nccl.parse_subsys(text) == result


@pytest.mark.parametrize("text", ["INIT,,NET", ",", "^", "INIT NET", "^INIT,^NET", "BOGUS"])
def test_subsystems_are_refused(text: str) -> None:
    with pytest.raises(nccl.NcclError):
        nccl.parse_subsys(text)


def test_a_version_has_the_subsystems_of_its_time() -> None:
    old = {known.name for known in nccl.subsystems("2.21.5+cuda12.4")}
    assert "REG" in old
    assert "RAS" not in old
    assert nccl.subsystems() == nccl.SUBSYSTEMS
    assert nccl.parse_subsys(nccl.DEFAULT_SUBSYS) == nccl.DEFAULT_SUBSYS
