"""What is masked by its name, shape and place, and what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distui.presets.secrets import holds_secret, mask, mask_text, mask_value, mask_words

V = "S3cr3tV4lue99xyz"
HEX = "0123456789abcdef" * 2 + "01234567"


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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
