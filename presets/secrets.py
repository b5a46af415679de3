"""What is a secret, by its name, its shape or its place in a text, and how it is shown. Pure.

Python 3.9 and the standard library alone: runners/inrank loads this file by its path. Shapes of values are those of
detect-secrets 1.5 (Apache-2.0), and of the services that trainings use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

MASK = "***"
"""Stands in place of a secret value."""
SECRET_WORDS = "DISTUI_SECRET_WORDS"
"""Variable in which words of a command and texts of files that hold secrets reach whoever executes a plan, as JSON."""


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
"""Words of a name: HF_TOKEN, hf-token, hfToken."""
_TAILS = _set("PROD PRODUCTION DEV TEST STAGING OLD NEW BACKUP READ WRITE RO RW V VALUE BASE PEM")
"""What may follow the word that counts: HF_TOKEN_READ, API_KEY_2."""
_PLACES = _set(
    "FILE PATH DIR FOLDER NAME PREFIX TYPE LENGTH LEN SIZE COUNT LIMIT TTL EXPIRY TIMEOUT SOCK ENV VAR"
)
"""A name that ends so says where a secret is, or how long: TOKEN_FILE, PASSWORD_LENGTH."""
_ANYWHERE = ("PASSWORD", "PASSWD", "PASSPHRASE", "PASSCODE", "CREDENTIAL", "SECRET", "WEBHOOK")
"""Parts of a word that no innocent word has."""
_WORDS = _set("DSN JWT AUTHORIZATION BEARER CREDS SASL") | frozenset(
    left + right
    for left in ("API", "ACCESS", "PRIVATE", "AUTH", "SSH", "AWS", "MASTER")
    for right in ("KEY", "KEYS")
)
_LAST = _set("KEY TOKEN AUTH PAT PASS PWD COOKIE COOKIES")
"""Words that count where a name ends with them."""
_OF_SECRETS = _set(
    "API ACCESS AUTH PRIVATE SIGNING ENCRYPTION MASTER ACCOUNT STORAGE SSH DEPLOY SERVICE LICENSE HMAC AES RSA HF HUB "
    "GITHUB GH GITLAB GL REFRESH SESSION BEARER BOT SLACK WANDB COMET NEPTUNE NGC KAGGLE AWS AZURE GCP OPENAI "
    "ANTHROPIC CLIENT USER APP PERSONAL ID DB LOGIN SECURITY"
)
"""What goes before KEY, KEYS, TOKEN or TOKENS of a secret wherever they stand: AWS_ACCESS_KEY_ID, HF_TOKENS."""
_OF_DATA = _set(
    "PAD EOS BOS UNK CLS SEP MASK IMAGE AUDIO VIDEO SPECIAL STOP START END PER NEXT FIRST LAST PREVIOUS BY EACH MAX MIN "
    "PREFIX SUFFIX NUM TOTAL INPUT OUTPUT TARGET SAMPLE LABEL TEXT CAPTION MONITOR METRIC COLUMN JSON FEATURE BATCH "
    "INDEX LOOKUP HOT SHORTCUT STATE DICT CACHE PUBLIC PRIMARY FOREIGN SORT GROUP PARTITION DATA LOSS EXPERT BEST "
    "PROMPT CHOSEN REJECTED RESPONSE ANSWER QUESTION MESSAGE MESSAGES CONTENT REWARD SCORE FN KV RNG PRNG DATASET "
    "INSTRUCTION CONVERSATION FORWARD BACKWARD SINGLE MULTI ONE TWO SECOND LOW HIGH WORK OLD"
)
"""What goes before the same words where they mean something of the training: PAD_TOKEN, MONITOR_KEY, FORWARD_PASS."""
_STORES = _set(
    "DATABASE DB REDIS MONGO MONGODB POSTGRES POSTGRESQL PG MYSQL MARIADB AMQP RABBITMQ BROKER CELERY SQLALCHEMY"
)
_NO_PASS = re.compile(
    r"(?:COM|BY|TRES|SUR|ENCOM|UNDER|OVER|LOW|HIGH|BAND|ALL|MULTI|ONE|TWO|SINGLE|PER|ASK|SUB)?PASS"
)
HARMLESS = frozenset({"TOKENIZERS_PARALLELISM", "NCCL_IB_PKEY", "PWD", "OLDPWD", "GIT_CONFIG_KEY_"})
"""Well-known names that contain such a word and hold no secret; without a number at their end."""


def is_secret(name: str) -> bool:
    """Whether the variable, option or field `name` holds a secret, judged by its name alone."""
    words = [word.upper() for word in _WORD.findall(name)]
    if name.upper().rstrip("0123456789") in HARMLESS or not words or words[-1] in _PLACES:
        return False
    return any(map(_word_tells, words)) or _pair_tells(words) or _end_tells(words)


def _word_tells(word: str) -> bool:
    if word in _WORDS or (any(part in word for part in _ANYWHERE) and "SECRETAR" not in word):
        return True
    if word.endswith("PASS"):
        return not _NO_PASS.fullmatch(word)
    return word.endswith(("TOKEN", "PWD")) and word not in ("TOKEN", "PWD", "OLDPWD", "DETOKEN", "SUBTOKEN")


def _pair_tells(words: Sequence[str]) -> bool:
    pairs = {(word, words[at + 1]) for at, word in enumerate(words[:-1])}
    if any(left in _OF_SECRETS and right in ("KEY", "KEYS", "TOKEN", "TOKENS") for left, right in pairs):
        return not (words[-1] in ("TOKENS", "KEYS") and words[-2] in ("ID", "USER", "CLIENT"))
    if {("CONNECTION", "STRING"), ("CONN", "STR")} & pairs:
        return True
    return words[-1] in ("URL", "URI") and not _STORES.isdisjoint(words)


def _end_tells(words: list[str]) -> bool:
    end = len(words)
    while end > 1 and (words[end - 1].isdigit() or words[end - 1] in _TAILS):
        end -= 1
    last, before = words[end - 1], words[end - 2] if end > 1 else ""
    return last in _LAST and before not in _OF_DATA and not (last == "PWD" and not before)


def _hidden(value: str) -> str:
    return MASK


Hide = Callable[[str], str]
"""What a secret is replaced by."""

_NOTHING = frozenset(("", MASK, "none", "null", "true", "false", "yes", "no", "0", "1"))
_NUMBER = re.compile(r"-?[\d.]{1,7}")
_FRACTION = re.compile(r"[-+]?\d{1,9}\.\d{1,20}(?:[eE][-+]?\d{1,3})?")
_SPECIAL = re.compile(r"<[|/]?[\w ]{1,32}\|?>")
"""A token of a model: `<s>`, `<|assistant|>`."""
_REFERENCE = re.compile(r"\$\{?[A-Za-z_]\w*\}?|<[\w -]+>|%\w+%")
_RANDOM = re.compile(r"(?=[^\d]*\d)(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_~+=-]{16,}")
_Q = r"\\*['\"]"
_SCHEME = r"(?i:(?:bearer|basic|token|apikey|digest|negotiate)[ \t]+)?"
_HINT = "(?i:token|secret|pass|pwd|key|auth|cred|webhook|dsn|jwt|pat|cookie|ur[li]|conn|bearer|sasl)"
_BARE = r"(?:[^\s'\"\\,;&<>]|,(?=[^\s'\"]))+"
_NAME = (
    rf"(?<![A-Za-z0-9_-])(?=[A-Za-z0-9_-]{{3,131}}(?:{_Q})?\]?[ \t]*[=:])"
    rf"(?P<name>-{{0,2}}[A-Za-z0-9_-]{{0,64}}?{_HINT}[A-Za-z0-9_-]{{0,64}})"
)
_NAMED = re.compile(
    rf"{_NAME}(?P<sep>(?:{_Q})?\]?[ \t]*(?:=>|:=|[=:])[ \t]*)"
    rf"(?:(?P<q>{_Q})(?P<s1>{_SCHEME})(?P<quoted>[^\n]{{1,1024}}?)(?P=q)|(?P<s2>(?:{_Q})?{_SCHEME})(?P<bare>{_BARE}))"
)
"""`HF_TOKEN=x`, `"HF_TOKEN": "x"`, `HF_TOKEN: x`, `Authorization: Bearer x`."""
_OPTION = re.compile(
    rf"(?<![\w-])(?P<name>--?[A-Za-z0-9_.-]{{0,64}}?(?i:{_HINT}|pw)[A-Za-z0-9_-]{{0,64}})"
    rf"(?P<sep>[ \t]+|{_Q},\s*{_Q})(?:(?P<q>{_Q})(?P<quoted>[^\n]{{1,1024}}?)(?P=q)|(?P<bare>{_BARE}))"
)
"""`--hf-token x`, also as two words of a list."""
_USER = re.compile(r"(://)([^/\s:@'\"]{0,256}:[^/\s'\"]{1,512}|[A-Za-z0-9_~.-]{20,512})@")
_QUERY = re.compile(r"([?&;]([\w.-]{1,64})=)([^&\s'\"<>#\\]+)")
_SIGNED = frozenset(("sig", "signature", "x-amz-signature", "x-goog-signature", "code"))
_BEARER = re.compile(r"\b((?i:bearer|basic)[ \t]+)([A-Za-z0-9._~+/-]{8,}={0,2})")
_COOKIE = re.compile(r"(?<![\w-])((?i:set-cookie|cookie):[ \t]*)([^\r\n'\"]+)")
_WANDB = re.compile(
    r"((?i:wandb)(?:(?!(?i:commit|sha|revision))[^\n]){0,80}?(?<![0-9A-Za-z]))([0-9a-f]{40})(?![0-9A-Za-z])"
)
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9_-])(?:(?:hf|gh[pousr]|npm|r8|gsk)_[A-Za-z0-9]{16,}"
    r"|(?:github_pat_|dckr_pat_|nvapi-|hvs\.|glrt-|pypi-AgE)[A-Za-z0-9_-]{16,}"
    r"|(?:sk-|glpat-|xapp-|xox[abeoprs]-)(?=[A-Za-z_-]{0,256}\d)[A-Za-z0-9_-]{10,}"
    r"|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b|AIza[0-9A-Za-z_-]{35}"
    r"|SG\.[\w-]{16,64}\.[\w-]{16,64}|ya29\.[\w-]{16,}|eyJ[A-Za-z0-9_=-]{8,}\.[A-Za-z0-9_=-]{4,}(?:\.[A-Za-z0-9_+/=-]*)?)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[A-Za-z0-9+/=\s\\]+"
)
"""Values that are known by how they begin, and private keys."""
_HOOK = re.compile(
    r"(hooks\.slack\.com/(?:services|workflows)/|discord(?:app)?\.com/api/webhooks/)([\w/-]+)"
)
_OPTIONS = frozenset(("pwd", "pass", "pw"))
"""Options that take a password, though a variable of that name would not, or not surely."""
_ARGUMENTS = frozenset(
    (("sshpass", "-p"), ("curl", "-u"), ("curl", "--user"), ("wget", "--http-user"), ("redis-cli", "-a"))
)
"""Short options of well-known programs."""
_TYPED = re.compile(
    r"(?<![\w-])((?:sshpass\b[^\n|;]{0,256}?[ \t]-p|redis-cli\b[^\n|;]{0,256}?[ \t]-a"
    r"|curl\b[^\n|;]{0,256}?[ \t](?:-[uU]|--user|--proxy-user)(?=[ \t=]*\\*['\"]?[^\s:'\"]{0,256}:))[ \t=]*)"
    rf"(?:(?P<q>{_Q})(?P<quoted>[^\n]{{1,1024}}?)(?P=q)|(?P<bare>{_BARE}))"
)
"""The same in the text of a command: `bash -c "curl -u me:x URL"`."""
_GLUED = re.compile(
    rf"(?<![\w-])((?:mysql\w*|mariadb[\w-]*)\b[^\n|;]{{0,256}}?[ \t]-p)(?=[^\s'\"-])(?P<bare>{_BARE})"
)
"""`mysql -pX`: the password stands at the option itself."""
_GLUING = re.compile(r"mysql\w*|mariadb[\w-]*")
_CONNECTION = re.compile(
    rf"((?i:(?<![\w-])pwd[ \t]*=[ \t]*))(?P<bare>(?![$/.~]){_BARE})(?=;)"
    rf"|((?i:;[ \t]*pwd[ \t]*=[ \t]*))(?P<last>(?![$/.~]){_BARE})"
)
"""`Server=h;Uid=u;Pwd=X;`: there PWD is no folder."""
_HEX40 = re.compile(r"[0-9a-f]{40}")
_OF_GIT = re.compile(r"(?i)commit|sha|rev")
_NESTED = 16
"""Assignments in one word that are told apart."""
_ASSIGNED = re.compile(r"[-+~]{0,2}[A-Za-z_][\w.@/-]*")


def _random(value: str) -> bool:
    return _RANDOM.fullmatch(value) is not None


def _harmless(name: str, value: str) -> bool:
    """Whether a value cannot be the secret `name`: nothing, a small number, a reference to a variable."""
    if value.lower() in _NOTHING or _REFERENCE.fullmatch(value):
        return True
    if "PASS" in name.upper() or "PWD" in name.upper():
        return False
    counts = name.upper().endswith(("TOKENS", "KEYS", "TOTAL", "COUNT", "SEEN"))
    return _NUMBER.fullmatch(value) is not None or (
        value.isdigit() if counts else _FRACTION.fullmatch(value) is not None
    )


def _field_tells(name: str, value: str) -> bool:
    """Whether `name` in a text is that of a secret: "key: x" and "token: x" are often none, KEY=x and api_key: x are."""
    if not is_secret(name):
        return False
    words = [word.upper() for word in _WORD.findall(name)]
    return name.isupper() or any(map(_word_tells, words)) or _pair_tells(words) or _random(value)


def _option_tells(name: str) -> bool:
    return is_secret(name) or name.strip("-").lower() in _OPTIONS


def _mask_named(match: re.Match[str], hide: Hide) -> str:
    value = match["quoted"] or match["bare"]
    tells = _option_tells if match["name"].startswith("-") else lambda name: _field_tells(name, value)
    if not tells(match["name"]) or _harmless(match["name"], value):
        return match[0]
    return (
        match[0][: match.start("quoted" if match["quoted"] else "bare") - match.start()]
        + hide(value)
        + (match["q"] or "")
    )


def _mask_option(match: re.Match[str], hide: Hide) -> str:
    value = match["quoted"] or match["bare"]
    prose = len(value) <= 4 and value.isalpha() and match["sep"].isspace()
    if (
        prose
        or value.startswith("--")
        or not _option_tells(match["name"])
        or _harmless(match["name"], value)
    ):
        return match[0]
    quote = match["q"] or ""
    return match["name"] + match["sep"] + quote + hide(value) + quote


def _connections(text: str, hide: Hide) -> str:
    """Connection strings in a text."""

    def masked(match: re.Match[str]) -> str:
        value = match["bare"] or match["last"]
        return match[0] if value == MASK else (match[1] or match[3]) + hide(value)

    return _CONNECTION.sub(masked, text) if ";" in text else text


def mask_text(text: str, hide: Hide = _hidden) -> str:
    """A text of any kind as it may be shown: secrets by the names before them, by their shapes, in URLs and headers."""

    def query(match: re.Match[str]) -> str:
        secret = is_secret(match[2]) or match[2].lower() in _SIGNED
        return (
            match[0]
            if not secret or match[3] == MASK or re.fullmatch(r"\d{1,3}", match[3])
            else match[1] + hide(match[3])
        )

    def typed(match: re.Match[str]) -> str:
        value, quote = match["quoted"] or match["bare"], match["q"] or ""
        return match[0] if value == MASK else match[1] + quote + hide(value) + quote

    def bare(match: re.Match[str]) -> str:
        return match[0] if match["bare"] == MASK else match[1] + hide(match["bare"])

    def tail(match: re.Match[str]) -> str:
        return match[0] if MASK in match[2] else match[1] + hide(match[2])

    def bearer(match: re.Match[str]) -> str:
        sure = len(match[2]) >= 20 or re.search(r"[\d=]", match[2])
        return match[1] + hide(match[2]) if sure else match[0]

    named, option = partial(_mask_named, hide=hide), partial(_mask_option, hide=hide)
    text = _SHAPES.sub(lambda match: hide(match[0]), text)
    text = _USER.sub(lambda match: match[0] if match[2] == MASK else match[1] + hide(match[2]) + "@", text)
    text = _connections(_GLUED.sub(bare, _TYPED.sub(typed, text)), hide)
    for pattern, by in ((_HOOK, tail), (_WANDB, tail), (_COOKIE, tail), (_QUERY, query), (_OPTION, option)):
        text = pattern.sub(by, text)
    return _BEARER.sub(bearer, _NAMED.sub(named, text))


def mask(name: str, value: str, hide: Hide = _hidden) -> str:
    """`value` of the variable `name` as it may be shown; an empty value stays empty."""
    if value and is_secret(name):
        return value if value == MASK else hide(value)
    return mask_text(value, hide)


def holds_secret(name: str, value: str) -> bool:
    """Whether all or some of a variable's value may be shown to nobody."""
    return mask(name, value) != value


def mask_words(words: Iterable[str], hide: Hide = _hidden) -> list[str]:
    """A command line as it may be shown, word by word."""
    shown: list[str] = []
    programs: set[str] = set()
    before, expected = "", False
    for word in words:
        if expected and not word.startswith("--") and len(word) > 2 - (word[:1] != "-") * 2:
            innocent = word.lower() in _NOTHING or (
                _SPECIAL.fullmatch(word) and "pass" not in before.lower()
            )
            shown.append(word if innocent else hide(word))
            before, expected = word, False
            continue
        if word.startswith("-p") and len(word) > 2 and any(map(_GLUING.fullmatch, programs)):
            shown.append("-p" + hide(word[2:]))
        elif "wandb" in programs and _HEX40.fullmatch(word) and not _OF_GIT.search(before):
            shown.append(hide(word))
        else:
            shown.append(_masked_word(word, hide))
        takes = next((program for program in programs if (program, word) in _ARGUMENTS), None)
        expected = word.startswith("-") and "=" not in word and (_option_tells(word) or takes is not None)
        programs.discard(takes or "")  # sshpass -p X ssh -p 22
        if "wandb" in word.lower():
            programs.add("wandb")
        if not word.startswith("-"):
            programs.add(word.rpartition("/")[2])
        before = word
    return shown


def _masked_word(word: str, hide: Hide) -> str:
    """Of `--export=ALL,A=b` and its like each name is looked at, up to `_NESTED`; the rest is text like any other."""
    before, rest = "", _connections(word, hide)
    for _ in range(_NESTED):
        name, equals, value = rest.partition("=")
        if not equals or not _ASSIGNED.fullmatch(name):
            break
        tells = (
            _option_tells(name)
            if name.startswith("-")
            else is_secret(name) and name.lower() not in ("key", "pat")
        )
        if tells and value.lower() not in _NOTHING:
            return before + name + equals + hide(value)
        if "=" not in value:
            break
        before, rest = before + name + equals, value
    return before + mask_text(rest, hide)


def mask_value(value: Any, hide: Hide = _hidden) -> Any:
    """A JSON value as it may be shown: its texts, command lines in lists, and texts under names of secrets."""
    if isinstance(value, str):
        return mask_text(value, hide)
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(word, str) for word in value):
            return mask_words(value, hide)
        return [mask_value(part, hide) for part in value]
    if isinstance(value, Mapping):
        return {key: _masked_member(str(key), part, hide) for key, part in value.items()}
    return value


def _masked_member(key: str, value: Any, hide: Hide) -> Any:
    if isinstance(value, str) and _field_tells(key, value):
        return value if _harmless(key, value) else hide(value)
    return mask_value(value, hide)
