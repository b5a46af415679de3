"""What leaves this machine holds no secret, and is otherwise as it was."""

from __future__ import annotations

import json
import re

from each import for_each
from hypothesis import given
from hypothesis import strategies as st

from distui.presets.masker import Masker, secrets_in
from distui.presets.secrets import mask_text

TOKEN = "hf_" + "aB3" * 8


@for_each(
    ("text", "expected"),
    [
        ("WANDB_API_KEY=0123abcd rank 3", "WANDB_API_KEY=*** rank 3"),
        ("environ({'HF_TOKEN': 'x1y2', 'A': 'b'})", "environ({'HF_TOKEN': '***', 'A': 'b'})"),
        ('{\\"HF_TOKEN\\": \\"x1y2\\"}', '{\\"HF_TOKEN\\": \\"***\\"}'),
        ("DB_PASSWORD: geheim", "DB_PASSWORD: ***"),
        ("train.py --hf-token x1y2 --lr 1", "train.py --hf-token *** --lr 1"),
        ("['--api-key', 'x1y2', '--lr']", "['--api-key', '***', '--lr']"),
        ("clone https://me:pw@git.example/x", "clone https://***@git.example/x"),
        (f"login with {TOKEN}.", "login with ***."),
        ("AKIA" + "A" * 16, "***"),
        ("/prod/db/password: hunter22", "/prod/db/password: ***"),
        ('{"/prod/db/password": "hunter"}', '{"/prod/db/password": "***"}'),
        ("password: `hunter22`", "password: ***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc=\n-----END", "***-----END"),
    ],
)
def test_secrets_by_name_and_by_looks(text: str, expected: str) -> None:
    masker = Masker()
    assert masker.text(text.encode()).decode() == expected
    assert masker.count == 1
    assert masker.text(expected.encode()).decode() == expected


@for_each(
    "text",
    [
        "step 20 loss 2.1 tokens/s=512.5",
        "MAX_TOKENS=2048 TOKENIZERS_PARALLELISM=false",
        "train.py --tokenizer gpt2 --keys a,b",
        "KeyError: 'weight'",
        "NCCL INFO NCCL_IB_PKEY set by environment to 0.",
        "HF_TOKEN= ",
        "http://host:8080/path and user@host",
        "No run '/etc/passwd': `distui ls` lists all runs",
        "No run 'hf-token': `distui ls` lists all runs",
        "cannot read /etc/passwd: Permission denied",
        "gpu-a:71:71 [0] NCCL INFO comm 0x55d1 rank 0 nranks 2 - Init COMPLETE",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    masker = Masker()
    assert masker.text(text.encode()).decode() == text
    assert masker.count == 0


def test_known_values_go_wherever_they_stand() -> None:
    secrets = secrets_in(
        {"MY_SECRET": 'geh"eim1', "HF_TOKEN": "abc", "PATH": "/bin/long", "API_KEY": "1234567"}
    )
    assert secrets == {'geh"eim1'}
    masker = Masker(secrets)
    assert masker.text(b'it is geh"eim1, says abc') == b"it is ***, says abc"
    line = json.dumps({"text": 'it is geh"eim1'}).encode()
    assert json.loads(masker.text(line)) == {"text": "it is ***"}


@for_each("name", ["DATABASE_URL", "REPOSITORY"])
def test_the_password_of_a_url_goes_also_where_it_stands_alone(name: str) -> None:
    secrets = secrets_in({name: "postgres://me:geheim1@db/x"})
    assert Masker(secrets).text(b"logging in with geheim1") == b"logging in with ***"


def test_of_secrets_that_begin_alike_the_longest_goes() -> None:
    assert Masker({"geheim1", "geheim1-and-more"}).text(b"it is geheim1-and-more") == b"it is ***"


def test_documents_stay_documents() -> None:
    plan = {
        "env": {"HF_TOKEN": "x1", "MAX_TOKENS": "2048", "KEY": None, "LR": "1"},
        "argv": ["--password", "pw", "a", "--token=pw", "--hf-token", "pw"],
    }
    masked = json.loads(Masker().document(json.dumps(plan).encode()))
    assert masked["env"] == {"HF_TOKEN": "***", "MAX_TOKENS": "2048", "KEY": None, "LR": "1"}
    assert masked["argv"] == ["--password", "***", "a", "--token=***", "--hf-token", "***"]
    journal = b'{"seq":1,"event":{"env":{"A_KEY":"secret"}}}\n{"torn\n'
    assert Masker().lines(journal) == b'{"seq":1,"event":{"env":{"A_KEY":"***"}}}\n'


def test_long_lines_are_masked() -> None:
    """In hours, if a pattern were quadratic."""
    masker = Masker({"no-such-value"})
    for text in (b"A" * (1 << 19), b"KEY" * (175 << 10), b"--a-" * (125 << 10), b"://a:" * (100 << 10)):
        masker.text(text)


def test_a_secret_need_not_be_utf_8() -> None:
    """A variable's bytes come as os.environ has them."""
    masker = Masker(["geheim\udcff\udcfe12"])
    assert masker.text(b"x geheim\xff\xfe12 y") == b"x *** y"
    assert masker.text("x geheim\ufffd\ufffd12 y".encode()) == b"x *** y"
    assert masker.value("x geheim\udcff\udcfe12 y") == "x *** y"
    assert masker.value(("x geheim\ufffd\ufffd12 y",)) == ["x *** y"]


def test_codes_inside_a_secret_hide_it_from_no_rule() -> None:
    """Programs highlight parts of words. What is not hidden keeps its colours."""
    masker = Masker()
    token = b"hf_abcdefghijklm" + b"\x1b[1m" + b"nopqrstuvwxyz012345"
    assert masker.text(b"\x1b[31mred\x1b[0m\nlogin with " + token + b"\n\x1b[32mgreen\x1b[0m\n") == (
        b"\x1b[31mred\x1b[0m\nlogin with ***\n\x1b[32mgreen\x1b[0m\n"
    )
    key = f"-----BEGIN PRIVATE KEY-----\n\x1b[2m{'MIIE' * 8}\n\x1b[2m{'abcd' * 8}=\n-----END"
    for text in (
        "HF_TO\x1b[1mKEN=x1y2",
        "https://me:\x9b1mpw@git.example",
        "--token \x1b]0;t\x07x1y2z",
        key,
    ):
        assert not re.search("x1y2|pw|MIIE|abcd", mask_text(text))


@for_each(
    ("text", "expected"),
    [
        ("a sec\x1b[31mret7\x1b[0m b", "a ***\x1b[31m\x1b[0m b"),
        ("\x1b[1ms\x1b[2me\x1b[3mc\x1b[4mret7", "\x1b[1m***\x1b[2m\x1b[3m\x1b[4m"),
        ("sec\x1b]8;;http://x\x07ret7", "***\x1b]8;;http://x\x07"),
        ("title \x1b]0;secret7\x07", "title \x1b]0;***\x07"),
        ("sec\x9b31mret7", "***\x9b31m"),
        (r'{"m": "sec\u001b[31mret7"}', r'{"m": "***\u001b[31m"}'),
        (r"b'sec\x1b[0mret7'", r"b'***\x1b[0m'"),
        ("10%|# | secret7\r20%|##| secret7\r", "10%|# | ***\r20%|##| ***\r"),
        ("sec\rret7", "***\r"),
        ("secx\x08ret7 secrex\x08t7", "secx\x08ret7 secrex\x08t7"),
        ("token sec\n      ret7\nend", "token ***\n      \nend"),
        ("sec\r\nret7", "***\r\n"),
        ("-----BEGIN\r\n  line1\r\n  line2", "***\r\n  \r\n  "),
        ("two secret7 of sec\x1b[mret7, secret7", "two *** of ***\x1b[m, ***"),
        ("sec ret7, se\x1b[1mcre, 7", "sec ret7, se\x1b[1mcre, 7"),
    ],
)
def test_known_values_go_also_with_codes_rewrites_and_wraps_inside(text: str, expected: str) -> None:
    masker = Masker({"secret7", "-----BEGIN\nline1\nline2"})
    assert masker.text(text.encode()).decode() == expected
    assert masker.value({text: [text]}) == {expected: [expected]}
    assert masker.text(expected.encode()).decode() == expected


@given(st.lists(st.tuples(st.text("secrt7 \n", max_size=4), st.sampled_from(["", "\x1b[1m", "\r", "\n "]))))
def test_what_is_masked_is_what_is_read_and_nothing_else_changes(pieces: list[tuple[str, str]]) -> None:
    text = "".join(map("".join, [*pieces, ("secret7", ""), *pieces]))
    masked = Masker({"secret7"}).text(text.encode()).decode()
    assert "secret7" not in re.sub(r"\x1b\[1m|\r|\n *", "", masked)
    assert masked.count("\n") == text.count("\n")
    assert masked.count("\x1b[1m") == text.count("\x1b[1m")


def test_the_name_of_a_field_may_hold_a_secret() -> None:
    masker = Masker({"swordfish42"})
    assert masker.value({"swordfish42": 1, TOKEN: 2, "HF_TOKEN": "x1", "steps": 3}) == {
        "***": 2,
        "HF_TOKEN": "***",
        "steps": 3,
    }


@for_each(
    "form",
    [
        "s%65cret7",
        "c2VjcmV0Nw==",
        "7terces",
        "secre",
        "│ sec │\n│ ret7 │",
    ],
)
def test_other_forms_of_a_value_are_not_found_as_docs_security_says(form: str) -> None:
    assert Masker({"secret7"}).text(form.encode()).decode() == form
