"""The catalogue of NCCL variables: what it lets through and what its sentences say."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from each import for_each

from distui.presets import nccl, secrets
from distui.presets.spelling import misspells

KINDS = {"flag", "torch", "int", "number", "word", "level", "text", "debug", "mask"}
DOCUMENTED = (
    Path(__file__).with_name(f"nccl-{nccl.NEWEST}-variables.txt").read_text("utf-8").splitlines()[1:]
)


@for_each(
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
        ("NCCL_DEBUG", "attn"),
        ("NCCL_RAS_TIMEOUT_FACTOR", "0.5"),
        ("NCCL_IB_PKEY_VALUE", "0x8111"),
        ("NCCL_TREE_THRESHOLD", "0"),
        ("NCCL_FOOBAR", "1"),
        ("NCCL_NEW", "1"),
        ("NCCL_INSPECTOR_ENABLE", "1"),
        ("NCCL_INSPECTOR_NOT_YET_THERE", "x"),
        ("NCCL_OFI_TUNER", "x"),
        ("OFI_NCCL_PROTOCOL", "RDMA"),
        ("FI_PROVIDER", "efa"),
    ],
)
def test_good_values_pass(name: str, value: str) -> None:
    assert nccl.error_in(name, value) is None


@for_each(
    ("name", "value", "part"),
    [
        ("NCCL_DEBG", "INFO", "did you mean NCCL_DEBUG?"),
        ("NCCL_DEUBG", "INFO", "did you mean NCCL_DEBUG?"),
        ("NCCL_SOCKET_IFNMAE", "eth0", "did you mean NCCL_SOCKET_IFNAME?"),
        ("NCCL_PROFILER_PLUGN", "x", "did you mean NCCL_PROFILER_PLUGIN?"),
        ("nccl_debug", "INFO", "did you mean NCCL_DEBUG?"),
        ("DEBUG", "INFO", "did you mean NCCL_DEBUG?"),
        ("GLOO_SOCKET_IFNAME", "eth0", "their names begin with NCCL_, TORCH_NCCL_ or TORCH_FR_"),
        ("NCCL_DEBUG", "LOUD", "take VERSION, WARN, INFO or TRACE"),
        ("NCCL_DEBUG_SUBSYS", "COLL,NETT", "'NETT' is not a subsystem of NCCL: did you mean NET?"),
        ("NCCL_P2P_DISABLE", "true", "takes 0 or 1, not 'true'"),
        ("NCCL_P2P_LEVEL", "NVLINK", "takes LOC, NVL, PIX, PXB, PHB or SYS"),
        ("NCCL_IB_TIMEOUT", "300", "takes a whole number from 0 to 255, not '300'"),
        ("NCCL_BUFFSIZE", "4MB", "takes a whole number of 0 or more"),
        ("NCCL_RAS_TIMEOUT_FACTOR", "0", "takes a number above 0, not '0'"),
        ("NCCL_RAS_TIMEOUT_FACTOR", "nan", "takes a number above 0"),
        ("NCCL_INSPECTOR_ENABLE", "yes", "takes 0 or 1"),
        ("TORCH_NCCL_BLOCKING_WAIT", "maybe", "takes 0 or 1 (also no, yes, false, true)"),
        ("NCCL_SOCKET_FAMILY", "ipv4", "takes AF_INET or AF_INET6"),
        ("", "1", "is not a variable"),
    ],
)
def test_bad_values_get_a_sentence(name: str, value: str, part: str) -> None:
    text = nccl.error_in(name, value)
    assert text is not None
    assert part in text
    assert "\n" not in text


def test_the_table_is_whole() -> None:
    variables = nccl.catalogue()
    assert len(variables) >= 340
    for variable in variables.values():
        assert variable.kind in KINDS, variable.name
        assert variable.scope in ("live", "communicator", "restart"), variable.name
        assert bool(variable.values) == (variable.kind in ("word", "level", "debug")), variable.name
        if variable.since and not variable.since.startswith("torch "):
            assert nccl.version_key(variable.since) >= (2,), variable.name
        if variable.meaning:
            assert (variable.meaning[:1].isupper(), variable.meaning[-1]) == (True, "."), variable.name
            assert len(variable.meaning.split()) >= 4, variable.name


def test_every_variable_of_the_documentation_has_help() -> None:
    assert len(DOCUMENTED) == len(set(DOCUMENTED)) == 126
    listed = nccl.catalogue()
    assert [name for name in DOCUMENTED if name not in listed or not listed[name].meaning] == []


@for_each(
    ("name", "near"),
    [
        ("NCCL_FOOBAR", ""),
        ("NCCL_IB_SOMETHING_NEW", ""),
        ("TORCH_NCCL_FOOBAR", ""),
        ("NCCL_P2P_LVL", "NCCL_P2P_LEVEL"),
        ("NCCL_IB_ENABLE", "NCCL_IB_DISABLE"),
        ("NCCL_DEUBG", "NCCL_DEBUG"),
    ],
)
def test_an_unknown_variable_is_doubted(name: str, near: str) -> None:
    (text,) = nccl.warnings_for(["PATH", name, "NCCL_DEBUG", "NCCL_INSPECTOR_ENABLE", "NCCL_OFI_X", "FI_X"])
    assert text.startswith(
        f"Neither NCCL up to 2.32 nor torch is known to read {name}: it does nothing, unless"
    )
    assert text.partition(" Did you mean ")[2].rstrip("?") == near


def test_a_variable_of_the_past_is_doubted() -> None:
    assert nccl.warnings_for(["NCCL_LL_THRESHOLD"]) == [
        "NCCL_LL_THRESHOLD is no longer read: NCCL 2.4.8 was the last that did."
    ]


def test_words_that_names_share_make_them_no_neighbours() -> None:
    assert {nccl.suggestion(name) for name in ("NCCL_WEATHER_ENABLE", "NCCL_FOO_PLUGIN")} == {""}
    assert nccl.suggestion("NCCL_GDR_LEVEL") == "NCCL_NET_GDR_LEVEL"
    assert nccl.suggestion("NCCL_INSPECT_ENABLE") == "NCCL_INSPECTOR_ENABLE"


def test_names_of_the_catalogue_are_no_slips_of_each_other() -> None:
    names = [name for name, entry in nccl.catalogue().items() if not entry.until]
    assert [pair for pair in combinations(names, 2) if misspells(*pair)] == [
        ("NCCL_WIN_ENABLE", "NCCL_GIN_ENABLE")
    ]


def test_the_key_of_encryption_is_a_secret() -> None:
    assert secrets.is_secret("NCCL_PSK")


def test_what_follows_a_live_switch() -> None:
    live = {name for name, variable in nccl.catalogue().items() if variable.scope == "live"}
    assert {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"} <= live
    assert nccl.catalogue()["NCCL_ALGO"].scope == "communicator"
    assert nccl.catalogue()["NCCL_IB_TIMEOUT"].scope == "restart"


def test_levels_are_in_order() -> None:
    assert [nccl.parse_level(text) for text in ("version", " Warn", "INFO", "trace")] == list(nccl.LEVELS)
    with pytest.raises(nccl.NcclError, match="'' is not a level"):
        nccl.parse_level("")


@for_each(
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


@for_each("text", ["INIT,,NET", ",", "^", "INIT NET", "^INIT,^NET", "BOGUS"])
def test_subsystems_are_refused(text: str) -> None:
    with pytest.raises(nccl.NcclError):
        nccl.parse_subsys(text)


def test_a_version_has_the_subsystems_of_its_time() -> None:
    old = {known.name for known in nccl.subsystems("2.21.5+cuda12.4")}
    assert "REG" in old
    assert "RAS" not in old
    assert "RAS" in {known.name for known in nccl.subsystems()}
    assert nccl.parse_subsys(nccl.DEFAULT_SUBSYS) == nccl.DEFAULT_SUBSYS
