"""Who gets in where every account of the machine can connect: the token, the cookie, host and origin."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from each import for_each

from distui.tui.browser.gate import Gate

PORT = 8765
OURS = f"127.0.0.1:{PORT}"
ORIGIN = f"http://{OURS}"


def token_of(gate: Gate) -> str:
    """The token in the printed address."""
    return parse_qs(urlsplit(gate.address).query)["token"][0]


def test_the_token_opens_once() -> None:
    gate = Gate(PORT)
    token = token_of(gate)
    assert not gate.knows(gate.session), "nobody has brought the token yet"
    assert not any(
        gate.redeem(wrong) for wrong in ("", "x", token[:-1], token + "x", token.swapcase(), "\udc80")
    )
    assert gate.redeem(token)
    assert not gate.redeem(token)
    assert gate.knows(gate.session)
    assert not any(gate.knows(wrong) for wrong in ("", "x", token, gate.session[:-1], "\udc80"))


def test_secrets_are_long_and_of_one_server() -> None:
    gates = [Gate(PORT) for _ in range(2)]
    secrets = {secret for gate in gates for secret in (token_of(gate), gate.session, gate.place)}
    assert len(secrets) == 6
    assert min(len(token_of(gate)) for gate in gates) >= 43
    assert min(len(gate.session) for gate in gates) >= 43
    assert gates[0].address.startswith(f"{ORIGIN}/?token=")


@for_each(
    ("host", "origin", "is_websocket", "ours"),
    [
        (OURS, None, False, True),
        (OURS, ORIGIN, False, True),
        (OURS, ORIGIN, True, True),
        (OURS, None, True, False),  # browsers always send the origin of a websocket
        (OURS, "null", True, False),  # a sandboxed frame, a file
        (OURS, "null", False, False),
        (OURS, "", True, False),
        (OURS, "http://evil.example", True, False),
        (OURS, "http://evil.example", False, False),
        (OURS, "http://127.0.0.1:9999", True, False),  # another account's server
        (OURS, "http://127.0.0.1", True, False),
        (OURS, f"https://{OURS}", True, False),
        (OURS, f"{ORIGIN}.evil.example", True, False),
        (OURS, f"{ORIGIN}/", True, False),
        ("", None, False, False),
        ("evil.example", None, False, False),
        (f"evil.example:{PORT}", ORIGIN, True, False),  # a name that leads to 127.0.0.1
        (f"127.0.0.1.evil.example:{PORT}", None, False, False),
        (f"localhost:{PORT}", None, False, False),  # perhaps ::1, where another account listens
        ("127.0.0.1", None, False, False),
        (f"{OURS}, evil.example", None, False, False),
    ],
)
def test_host_and_origin(host: str, origin: str | None, is_websocket: bool, ours: bool) -> None:
    assert Gate(PORT).is_ours(host, origin, is_websocket) == ours
