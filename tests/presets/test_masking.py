"""What leaves this machine holds no secret, and is otherwise as it was."""

from __future__ import annotations

import json

from each import for_each

from distui.presets.secrets import Masker, secrets_in

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
    assert masker.value(["x geheim\ufffd\ufffd12 y"]) == ["x *** y"]


def test_a_colour_inside_a_secret_does_not_hide_it() -> None:
    masker = Masker()
    token = b"hf_abcdefghijklm" + b"\x1b[1m" + b"nopqrstuvwxyz012345"
    assert b"nopqrstuvwxyz012345" not in masker.text(b"login with " + token + b"\n")
    assert masker.text(b"\x1b[31mred\x1b[0m\n") == b"\x1b[31mred\x1b[0m\n"
