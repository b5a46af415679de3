"""What is masked by its name, shape and place, and what is not."""

from __future__ import annotations

import json
import random
import string

from each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from test_plan_text import SECRET_NAMES

from distui.presets.secrets import holds_secret, mask, mask_text, mask_value, mask_words

V = "S3cr3tV4lue99xyz"
HEX = "0123456789abcdef" * 2 + "01234567"


@for_each(
    "words",
    [
        ["--token", V], [f"--token={V}"], ["--hf-token", V], ["--db", f"https://bob:{V}@host/x"], ["-token", V],
        [f"https://h/p?token={V}&a=b"], [f"https://h/p?x=1&api_key={V}"], ["-H", f"Authorization: Bearer {V}"],
        ["-H", f"Authorization: Basic {V}"], ["-H", f"X-Api-Key: {V}"], ["curl", "-u", f"me:{V}"], ["sshpass", "-p", V],
        [f"WANDB_API_KEY={V}"], ["--env", f"WANDB_API_KEY={V}"], [f"--env=WANDB_API_KEY={V}"], [f"wandb.api_key={V}"],
        [f"+auth.password={V}"], ["--config", f'{{"api_key": "{V}"}}'], ["bash", "-c", f"HF_TOKEN={V} python t.py"],
        ["-c", f"os.environ['HF_TOKEN']='{V}'"], ["bash", "-c", f"x --token {V} --lr 1"], [f"redis://:{V}@h"],
        ["--slack", f"https://hooks.slack.com/services/T00/B00/{V}"], ["--password", f"a b,{V}"],
        [f"--password=a b;{V}"],
        ["mysql", "-u", "me", f"-p{V}"], ["/usr/bin/mysqldump", f"-p{V}", "db"], ["sh", "-c", f"mariadb -ume -p{V} db"],
        ["--db", f"Server=h;Uid=u;Pwd={V};"], [f"Pwd={V};Server=h"],
        ["--pw", V], ["--password", f"-x{V}"], ["--database-url", f"postgres://u:{V}@h/d"], ["--passphrase", V],
        [f"postgres://u:pa@ss{V}@h/d"], [f"https://{V}{V}@sentry.io/1"], ["--pat", V], ["--dsn", V],
        ["bash", "-c", f"curl -s -u me:{V} http://h"], ["bash", "-c", f"sshpass -p '{V}' ssh h"],
        ["curl", "-X", "POST", "http://h", "-u", f"me:{V}"], ["=".join(["a"] * 3000), f"x=a=HF_TOKEN={V}"],
    ],
)  # fmt: skip
def test_command_lines(words: list[str]) -> None:
    shown = mask_words(words)
    assert V not in " ".join(shown)
    assert mask_words(shown) == shown
    assert len(shown) == len(words)


def test_short_and_hexadecimal_secrets() -> None:
    assert mask_words(["--password", "123456"]) == ["--password", "***"]
    assert mask_words(["wandb", "login", HEX]) == ["wandb", "login", "***"]
    assert mask_words(["git", "checkout", HEX]) == ["git", "checkout", HEX]


@for_each(
    "words",
    [
        ["--tokenizer", "gpt2"], ["--max-tokens", "4096"], ["--num-key-value-heads", "8"], ["--lr", "1"],
        ["--keys", "a,b"],
        ["--use-auth-token", "true"], ["--token", "--lr", "3"], ["t.py", "key=attn"], ["data.text_key=content"],
        ["https://host:8080/path"], ["ssh://git@github.com/x"], ["s3://bucket/key=1/x"], ["--pad-token-id", "0"],
        ["user@host"], ["--patience", "3"], ["/data/token/x.py"], ["hf_transformers_cache_dir_name"],
        ["--compile", "path"],
        ["sk-learn-model-name"], ["--rdzv-endpoint", "127.0.0.1:29500"], ["--hosts", "a:b@c"], ["--passes", "3"],
        ["--chosen-key", "chosen"], ["--response-key=r"], ["data.reward_fn_key=data_source"], ["--kv-key", "x"],
        ["--user-token", "<|user|>"], ["--api-key-env", "MY_VARIABLE"], ["=".join(["a"] * 3000)],
        ["wandb", "--commit", HEX], ["bash", "-c", "curl -u me http://h"],
        ["mysql", "-p", "db"], ["mkdir", "-pv", "x"], ["sh", "-c", "cd /a;PWD=/b mysql -P 3306 -p"], ["-p8", "t.py"],
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(words: list[str]) -> None:
    assert mask_words(words) == words


@for_each(
    "text",
    [
        f"Authorization: Bearer {V}", f"headers={{'Authorization': 'Bearer {V}'}}", f'{{\\"HF_TOKEN\\": \\"{V}\\"}}',
        f"password: {V}", f"token='{V}'", f"Cookie: a={V}", f"got Bearer {V}", f"api_key={V}", f"X-Auth-Token: {V}",
        f"client_secret => '{V}'", f'"password": "my secret, {V}"', f"Proxy-Authorization: Basic {V}==",
        f"PRIVATE-TOKEN: {V}", f"AWS_SECRET_ACCESS_KEY={V}/a+b", f"export PGPASSWORD='{V}'", f"authorization=Token {V}",
        f"hf_{V}AAAA", f"sk-ant-{V}", f"ghp_{V}AAAA", f"github_pat_{V}", f"glpat-{V}", f"xoxb-1-{V}",
        f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIi.{V}",
    ],
)  # fmt: skip
def test_texts(text: str) -> None:
    shown = mask_text(text)
    assert V not in shown
    assert mask_text(shown) == shown


@for_each(
    "text",
    [
        "missing key: layer.weight", "token: hello", "use --token to give", "Basic configuration",
        "Bearer authentication",
        "path: /a/b", "KEYBOARD=us MONKEY_PATCH=1 AUTHOR=me", "key=value", "KeyError: 'weight'", "unexpected keys: a, b",
        "secret_loss=1.23456789", "master_key_weight: 1.23e-05", "session_tokens=1234567890", "GET /x?code=404",
        f"wandb: run commit {HEX}",
    ],
)  # fmt: skip
def test_innocent_texts_stay(text: str) -> None:
    assert mask_text(text) == text


def test_values_of_variables_and_documents() -> None:
    assert mask("COMET_URL", f"https://x:{V}@y/z") == "https://***@y/z"
    assert not holds_secret("COMET_URL", "https://y/z")
    document = {
        "argv": ["--token", V],
        "env": {"A_KEY": V, "LR": "1"},
        "key": "x",
        "deep": [{"password": V}],
    }
    hidden = {"argv": ["--token", "***"], "env": {"A_KEY": "***", "LR": "1"}, "deep": [{"password": "***"}]}
    assert mask_value(document) == {**hidden, "key": "x"}


@given(st.lists(st.text(max_size=12), max_size=6))
def test_any_words_keep_their_number_and_masking_twice_is_masking_once(words: list[str]) -> None:
    shown = mask_words(words)
    assert len(shown) == len(words)
    assert [mask_text(word) for word in mask_words(shown)] == [mask_text(word) for word in shown]


@for_each(
    ("text", "shown"),
    [
        ('{"password":"p","token":"jsonTTT222"}', '{"password":"***","token":"***"}'), ("token: L5x", "token: ***"),
        ('{"auth":"L5x"}', '{"auth":"***"}'), ('{"key":"L5x"}', '{"key":"***"}'), ('{"pwd":"L5x"}', '{"pwd":"***"}'),
        ("{'token':'L5x'}", "{'token':'***'}"), ('"token": "L5x"', '"token": "***"'), ("{pat: L5x}", "{pat: ***}"),
        ('{"pass":"p w","cookie":"a=b"}', '{"pass":"***","cookie":"***"}'), ("a=1,token=L5x", "a=1,token=***"),
        ('{\\"token\\":\\"L5x\\"}', '{\\"token\\":\\"***\\"}'), ('{"token":["L5x", 3]}', '{"token":["***", 3]}'),
        ('{"auth": {"x": "L5x", "type": "basic"}}', '{"auth": {"x": "***", "type": "basic"}}'),
        ('{"secrets": {"a": "b", "c": ["d"]}}', '{"secrets": {"a": "***", "c": ["***"]}}'),
        ('{"api_key":"L5x\\"L6x","lr":"1"}', '{"api_key":"***","lr":"1"}'), ('{"api_key":"L5x\\"L', '{"api_key":"***'),
        ('{"password":"","lr":"a"}', '{"password":"","lr":"a"}'), ('{"password": 123456}', '{"password": ***}'),
        ('{"tokens":["L5x","L6x"]}', '{"tokens":["***","***"]}'), ("tokens: [L5x, L6x]", "tokens: [***, ***]"),
        ('{"passwords": ["a1b2","c3d4"]}', '{"passwords": ["***","***"]}'),
        ("f(auth=('a', 'L5x'))", "f(auth=('a', '***'))"),
        ("password: 'it''s L5x'", "password: '***'"), ('{"key":\n "L5x"}', '{"key":\n "***"}'),
        ('cookie: "a=b"', 'cookie: "***"'),
        ("git+https://L5x@github.com/x", "git+https://***@github.com/x"), ("HTTPS://L5xa@h", "HTTPS://***@h"),
    ],
)  # fmt: skip
def test_fields_of_documents(text: str, shown: str) -> None:
    assert mask_text(text) == shown
    assert mask_words([text, f"--config={text}"]) == [shown, f"--config={shown}"]
    assert mask_text(shown) == shown


def test_several_secrets_of_one_option() -> None:
    assert mask_words(["--tokens", "L32x", "L33x", "--lr", "L1x"]) == [
        "--tokens",
        "***",
        "***",
        "--lr",
        "L1x",
    ]
    assert mask_words(["--passwords", "ab", "c3d4", "train2.py"]) == [
        "--passwords",
        "***",
        "***",
        "train2.py",
    ]
    assert mask_words(["--tokens", "10B", "hello", "--keys", "a1b"]) == [
        "--tokens",
        "10B",
        "hello",
        "--keys",
        "a1b",
    ]
    document = {
        "tokens": ["L5x", "hello"],
        "token": ["hello"],
        "secrets": {"a": "b", "n": 1},
        "key": ["attn"],
    }
    shown = {"tokens": ["***", "hello"], "token": ["***"], "secrets": {"a": "***", "n": 1}, "key": ["attn"]}
    assert mask_value(document) == shown


@for_each(
    "text",
    [
        '{"pad_token": "<pad>", "token": "<s>"}', '{"key": "text_column", "sort_key": "len1gth"}',
        '{"key": "layers.0.conv1.weight"}', '{"token": 50256, "auth": true, "pass": null, "key": 1.5}',
        '{"tokens": ["hello", "world"], "num_tokens": "10B", "max_tokens": ["a1b"]}', '{"tokens": [1, 2, 3]}',
        "tokens=10B tokens/s=512.5 tokens: 4x512", "unexpected keys: ['layer1.0.conv1.weight', 'b2']",
        "sorted(xs, key=lambda one: one.at1)", "max(x, key=itemgetter(0)) key=x[1] token=get_token2()",
        "cache key: 3f2a9c0", '{"auth": false, "pwd": "/data/me1/x", "PWD": "w1x"}', "pwd=/tmp/a1b",
        "parser.add_argument('--token', type=str)", "https://git@github.com/x https://bob@h http://h:80/a@b",
        "https://h/p?mail=a1b@c.de", "git+https://${TOKEN}@github.com/x", "def f(token: str, key: str): pass",
    ],
)  # fmt: skip
def test_fields_that_are_no_secret_stay(text: str) -> None:
    assert mask_text(text) == text


NAMES = sorted(
    {
        *SECRET_NAMES.split(),
        *SECRET_NAMES.lower().split(),
        "token",
        "auth",
        "key",
        "pwd",
        "pat",
        "pass",
        "dsn",
    }
)
LETTERS = string.ascii_letters + string.digits + "_-"
RANDOM = st.text(LETTERS, min_size=4, max_size=20).map(lambda text: f"k7Q{text}Z4w")
PRINTABLE = st.text(
    st.characters(min_codepoint=32, max_codepoint=126) | st.sampled_from("\"'\\{}[],:= ")
).map(lambda text: f"k7Q{text}Z4w")
SHAPES = (
    "a: b\n{}: {}\n", "a:\n  - {}: '{}'", "{{a: 1, {}: {}}}", "{{'a': {{'{}': '{}'}}}}", "A=b\n{}={}\nC=d",
    'export {}="{}"', "https://h/p?a=b&{}={}&c=d", "{}: {}", "--{}={}", "++a.{}={}", "--opts=a=1,{}={}",
    "cfg['{}'] = '{}'", "['--{}', '{}']", "x --{} '{}' --lr 1", "{}: [{}, b]", '{{"{}": ("a", "{}")}}',
    '{{"{}": {{"value": "{}"}}}}',
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(NAMES), RANDOM)
def test_a_random_value_under_a_secret_name_is_gone_in_every_shape(name: str, value: str) -> None:
    shown = mask_words(["--" + name, value, *(shape.format(name, value) for shape in SHAPES)])
    assert [word for word in shown if value in word] == []
    assert mask_words(shown) == shown


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(NAMES), PRINTABLE, st.integers(0, 3), st.booleans())
def test_json_stays_json_at_every_depth_of_quoting(name: str, value: str, depth: int, many: bool) -> None:
    document = {"a": "b", name: [value, value] if many else value, "z": ["end"], "n": 1}
    text = json.dumps(document)
    for _ in range(depth):
        text = json.dumps({"inner": text, "y": 2})
    shown = mask_text(text)
    assert mask_text(shown) == shown
    for _ in range(depth):
        shown = json.loads(shown)["inner"]
    assert json.loads(shown) == {**document, name: ["***", "***"] if many else "***"}


WORDS = """ " ' \\ { } [ ] ( ) : = , - -- *** token key password tokens auth pwd a1b https:// @ hf_ cookie: $A <s> ; """
PIECES = [*WORDS.split(), " ", "\n"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_masking_twice_is_masking_once(text: str) -> None:
    shown = mask_text(text)
    assert mask_text(shown) == shown


@for_each("seed", ['"token":["', '{"token":"a\\', "'tokens':['", '{"password":{"', "it's token='", "a.a1_"])
def test_long_hostile_texts_are_masked(seed: str) -> None:
    """In minutes, if a pattern were quadratic."""
    pick = random.Random(seed)
    mixture = "".join(pick.choices(PIECES, k=40000))[:100_000]
    for text in ((seed * 100_000)[:100_000], mixture):
        mask_text(text)
