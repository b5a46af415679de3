"""Find secrets by name, shape or position in a text, and mask them. Pure.

Limited to Python 3.9 and its standard library, because runners/inrank loads this file. The value shapes are those of
detect-secrets 1.5 (Apache-2.0), and of the services that trainings use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from .sanitize import ESCAPE

MASK = "***"
"""Replaces a secret value."""
SECRET_WORDS = "DISTUI_SECRET_WORDS"
"""Variable that passes words and file texts with secrets to the process that runs a plan, as JSON."""


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
"""Words of a name: HF_TOKEN, hf-token, hfToken."""
_TAILS = _set("PROD PRODUCTION DEV TEST STAGING OLD NEW BACKUP READ WRITE RO RW V VALUE BASE PEM")
"""Words that may follow the deciding word: HF_TOKEN_READ, API_KEY_2."""
_PLURALS = _set("TOKENS KEYS PASSWORDS PASSPHRASES SECRETS COOKIES CREDENTIALS CREDS WEBHOOKS")
_PLACES = _set(
    "FILE PATH DIR FOLDER NAME PREFIX TYPE LENGTH LEN SIZE COUNT LIMIT TTL EXPIRY TIMEOUT SOCK ENV VAR"
)
"""Last words of names that hold a secret's place or length: TOKEN_FILE, PASSWORD_LENGTH."""
_ANYWHERE = ("PASSWORD", "PASSWD", "PASSPHRASE", "PASSCODE", "CREDENTIAL", "SECRET", "WEBHOOK")
"""Parts of words that occur only in names of secrets."""
_WORDS = _set("DSN JWT AUTHORIZATION BEARER CREDS SASL") | frozenset(
    left + right
    for left in ("API", "ACCESS", "PRIVATE", "AUTH", "SSH", "AWS", "MASTER")
    for right in ("KEY", "KEYS")
)
_LAST = _set("KEY PSK TOKEN AUTH PAT PASS PWD COOKIE COOKIES")
"""Words that mark a secret at the end of a name."""
_OF_SECRETS = _set(
    "API ACCESS AUTH PRIVATE SIGNING ENCRYPTION MASTER ACCOUNT STORAGE SSH DEPLOY SERVICE LICENSE HMAC AES RSA HF HUB "
    "GITHUB GH GITLAB GL REFRESH SESSION BEARER BOT SLACK WANDB COMET NEPTUNE NGC KAGGLE AWS AZURE GCP OPENAI "
    "ANTHROPIC CLIENT USER APP PERSONAL ID DB LOGIN SECURITY"
)
"""Words before KEY, KEYS, TOKEN or TOKENS that mark a secret anywhere in a name: AWS_ACCESS_KEY_ID, HF_TOKENS."""
_OF_DATA = _set(
    "PAD EOS BOS UNK CLS SEP MASK IMAGE AUDIO VIDEO SPECIAL STOP START END PER NEXT FIRST LAST PREVIOUS BY EACH MAX MIN "
    "PREFIX SUFFIX NUM TOTAL INPUT OUTPUT TARGET SAMPLE LABEL TEXT CAPTION MONITOR METRIC COLUMN JSON FEATURE BATCH "
    "INDEX LOOKUP HOT SHORTCUT STATE DICT CACHE PUBLIC PRIMARY FOREIGN SORT GROUP PARTITION DATA LOSS EXPERT BEST "
    "PROMPT CHOSEN REJECTED RESPONSE ANSWER QUESTION MESSAGE MESSAGES CONTENT REWARD SCORE FN KV RNG PRNG DATASET "
    "INSTRUCTION CONVERSATION FORWARD BACKWARD SINGLE MULTI ONE TWO SECOND LOW HIGH WORK OLD"
)
"""Words before the same words that mark training data: PAD_TOKEN, MONITOR_KEY, FORWARD_PASS."""
_STORES = _set(
    "DATABASE DB REDIS MONGO MONGODB POSTGRES POSTGRESQL PG MYSQL MARIADB AMQP RABBITMQ BROKER CELERY SQLALCHEMY"
)
_NO_PASS = re.compile(
    r"(?:COM|BY|TRES|SUR|ENCOM|UNDER|OVER|LOW|HIGH|BAND|ALL|MULTI|ONE|TWO|SINGLE|PER|ASK|SUB)?PASS"
)
HARMLESS = frozenset({"TOKENIZERS_PARALLELISM", "NCCL_IB_PKEY", "PWD", "OLDPWD", "GIT_CONFIG_KEY_"})
"""Well-known names that contain such a word and hold no secret, without their trailing number."""


@lru_cache(4096)
def is_secret(name: str) -> bool:
    """Return True if the variable, option or field `name` holds a secret, judged only by its name."""
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
"""Returns the replacement of a secret."""

_NOTHING = frozenset(("", MASK, "none", "null", "true", "false", "yes", "no", "0", "1"))
SHORT_NUMBER = re.compile(r"-?[\d.]{1,7}")
_FRACTION = re.compile(r"[-+]?\d{1,9}\.\d{1,20}(?:[eE][-+]?\d{1,3})?")
_SPECIAL = re.compile(r"<[|/]?[\w ]{1,32}\|?>")
"""A special token of a model: `<s>`, `<|assistant|>`."""
_REFERENCE = re.compile(r"\$\{?[A-Za-z_]\w*\}?|<[\w -]+>|%\w+%")
_RANDOM = re.compile(r"(?=[^\d]*\d)(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_~+=-]{16,}")
_MIXED = re.compile(r"(?=[^\d]*\d)(?=[^A-Za-z]*[A-Za-z])[^\s(){}\[\]$]{3,}")
_TURN = re.compile(r"[a-z][A-Z]")
_AMOUNT = re.compile(r"[-+~]?\d[\d._,:-]*(?:[eE][-+]?\d+)?[KMGTBkmgtbsx%]{0,2}(?:/\w+)?")
_PIECE = r"(?:[A-Z]?[a-z]{1,15}(?:[A-Z][a-z]{1,14}){0,3}|[A-Z]{1,15})\d{0,2}"
_PLAIN = re.compile(rf"(?![A-Za-z]+\d+\Z)(?:[~.]{{0,2}}/)?{_PIECE}(?:[._/: -](?:{_PIECE}|\d{{1,4}}))*")
"""A word, a path, the name of a parameter: `attn`, `data/train`, `layers.0.conv1.weight`."""
_Q = r"\\*['\"]"
_OPEN = r"(?P<q>(?P<b>\\*)['\"])"
_REST = (
    r"(?P<quoted>[^\n]{0,4096}?(?<!\\)(?:(?:(?P=b)\\){2})*)"
    r"(?:(?P=q)(?!(?<=')')(?:(?<!'')|(?<=[\s=:,(\[{]''))|\\*\Z)"
)
"""The rest of a string after its quote, at any depth of escaping, with escaped or doubled quotes, or cut off."""
_SCHEME = r"(?i:(?:bearer|basic|token|apikey|digest|negotiate)[ \t]+)?"
_HINT = "(?i:token|secret|pass|pwd|key|auth|cred|webhook|dsn|jwt|pat|cookie|ur[li]|conn|bearer|sasl)"
_BARE = r"(?:[^\s'\"\\,;&<>]|,(?=[^\s'\"]))+"
_NAME = (
    rf"(?<![A-Za-z0-9_-])(?=[A-Za-z0-9_-]{{3,131}}(?:{_Q})?\]?[ \t]*[=:])"
    rf"(?P<name>-{{0,2}}[A-Za-z0-9_-]{{0,64}}?{_HINT}[A-Za-z0-9_-]{{0,64}})"
)
# Patterns that are texts here are compiled on first use, because most processes mask nothing.
_NAMED = (
    rf"{_NAME}(?P<sep>(?:{_Q})?\]?[ \t]*(?:=>|:=|[=:])(?:(?<=['\"]:)\s{{0,99}}(?=['\"])|[ \t]*))"
    rf"(?:{_OPEN}{_SCHEME}{_REST}|(?:{_Q})?{_SCHEME}(?P<bare>{_BARE}))"
)
"""`HF_TOKEN=x`, `"HF_TOKEN": "x"`, `HF_TOKEN: x`, `Authorization: Bearer x`."""
_OPENED = rf"{_NAME}(?P<sep>(?:{_Q})?\]?[ \t]*(?:=>|:=|[=:])\s{{0,99}})(?=[\[{{(])"
"""`"tokens": [`, `password={`."""
_TOKEN = rf"{_OPEN}{_REST}|[\[\]{{}}()]"
_ITEM = rf"{_OPEN}{_REST}|(?P<bare>[^\s,:\[\]{{}}()'\"\\]+)"
_SCANNED = 4096
"""Longest list, in characters, whose end is searched."""
_COLON = re.compile(r"\s*:")
_GLUED_ON = re.compile(r"[^\s,;:&'\"\\\[\](){}]")
_AT_START = re.compile(r"(?:\A|[\n{(\[,='\"])[ \t]*(?:- )?\Z")
"""Text before the name of a YAML field. Other words precede a word of a sentence."""
_OPTION = (
    rf"(?<![\w-])(?P<name>--?[A-Za-z0-9_.-]{{0,64}}?(?i:{_HINT}|pw)[A-Za-z0-9_-]{{0,64}})"
    rf"(?P<sep>[ \t]+|{_Q},\s*(?=\\*['\"]))(?:{_OPEN}{_REST}|(?P<bare>{_BARE}))"
)
"""`--hf-token x`, also as two words of a list."""
_USER = (
    r"(://)([^/\s:@'\"]{0,256}:[^/\s'\"]{1,512}|[A-Za-z0-9_~.-]{20,512}"
    r"|(?:(?<=(?i:http)://)|(?<=(?i:https)://))(?![a-z][a-z._-]{0,14}\d{0,2}@)[^/\s:@'\"?#\\]{1,512})@"
)
"""Also matches a token as the user of a web address, if it is no plain name: `git+https://X@host`."""
_QUERY = r"([?&;]([\w.-]{1,64})=)([^&\s'\"<>#\\]+)"
_SIGNED = frozenset(("sig", "signature", "x-amz-signature", "x-goog-signature", "code"))
_BEARER = r"\b((?i:bearer|basic)[ \t]+)([A-Za-z0-9._~+/-]{8,}={0,2})"
_COOKIE = rf"(?<![\w-])((?i:set-cookie|cookie):[ \t]*(?:{_Q})?)([^\s'\"][^\r\n'\"]*)"
_WANDB = (
    r"((?i:wandb)(?:(?!(?i:commit|sha|revision))[^\n]){0,80}?(?<![0-9A-Za-z]))([0-9a-f]{40})(?![0-9A-Za-z])"
)
_SHAPES = (
    r"(?<![A-Za-z0-9_-])(?:(?:hf|gh[pousr]|npm|r8|gsk)_[A-Za-z0-9]{16,}"
    r"|(?:github_pat_|dckr_pat_|nvapi-|hvs\.|glrt-|pypi-AgE)[A-Za-z0-9_-]{16,}"
    r"|(?:sk-|glpat-|xapp-|xox[abeoprs]-)(?=[A-Za-z_-]{0,256}\d)[A-Za-z0-9_-]{10,}"
    r"|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b|AIza[0-9A-Za-z_-]{35}"
    r"|SG\.[\w-]{16,64}\.[\w-]{16,64}|ya29\.[\w-]{16,}|eyJ[A-Za-z0-9_=-]{8,}\.[A-Za-z0-9_=-]{4,}(?:\.[A-Za-z0-9_+/=-]*)?)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[A-Za-z0-9+/=\s\\]+"
)
"""Values with a known prefix, and private keys."""
_HOOK = r"(hooks\.slack\.com/(?:services|workflows)/|discord(?:app)?\.com/api/webhooks/)([\w/-]+)"
_NO_FLAG = re.compile(r"[=:\s]")
_OPTIONS = frozenset(("pwd", "pass", "pw"))
"""Options that take a password, although a variable of that name may not."""
_ARGUMENTS = frozenset(
    (("sshpass", "-p"), ("curl", "-u"), ("curl", "--user"), ("wget", "--http-user"), ("redis-cli", "-a"))
)
"""Short options of well-known programs that take a secret."""
_TYPED = (
    r"(?<![\w-])((?:sshpass\b[^\n|;]{0,256}?[ \t]-p|redis-cli\b[^\n|;]{0,256}?[ \t]-a"
    r"|curl\b[^\n|;]{0,256}?[ \t](?:-[uU]|--user|--proxy-user)(?=[ \t=]*\\*['\"]?[^\s:'\"]{0,256}:))[ \t=]*)"
    rf"(?:{_OPEN}{_REST}|(?P<bare>{_BARE}))"
)
"""These options in the text of a command: `bash -c "curl -u me:x URL"`."""
_GLUED = rf"(?<![\w-])((?:mysql\w*|mariadb[\w-]*)\b[^\n|;]{{0,256}}?[ \t]-p)(?=[^\s'\"-])(?P<bare>{_BARE})"
"""`mysql -pX`: the password is part of the option's word."""
_GLUING = re.compile(r"mysql\w*|mariadb[\w-]*")
_CONNECTION = (
    rf"((?i:(?<![\w-])pwd[ \t]*=[ \t]*))(?P<bare>(?![$/.~]){_BARE})(?=;)"
    rf"|((?i:;[ \t]*pwd[ \t]*=[ \t]*))(?P<last>(?![$/.~]){_BARE})"
)
"""`Server=h;Uid=u;Pwd=X;`: PWD is not a folder here."""
_HEX40 = re.compile(r"[0-9a-f]{40}")
_OF_GIT = re.compile(r"(?i)commit|sha|rev")
_NESTED = 16
"""Most assignments to split in one word."""
_ASSIGNED = re.compile(r"[-+~]{0,2}[A-Za-z_][\w.@/-]*")


def _random(value: str) -> bool:
    return _RANDOM.fullmatch(value) is not None


def _harmless(name: str, value: str) -> bool:
    """Return True if a value cannot be the secret `name`: empty, a small number, or a reference to a variable."""
    if value.lower() in _NOTHING or _REFERENCE.fullmatch(value):
        return True
    if "PASS" in name.upper() or "PWD" in name.upper():
        return False
    counts = name.upper().endswith(("TOKENS", "KEYS", "TOTAL", "COUNT", "SEEN"))
    return SHORT_NUMBER.fullmatch(value) is not None or (
        value.isdigit() if counts else _FRACTION.fullmatch(value) is not None
    )


Check = Callable[[str], bool]
"""Returns True if a value may be a secret."""


def _mixed(value: str) -> bool:
    """Return True if a value mixes letters with digits or cases, unlike a word, path or amount."""
    varied = _MIXED.fullmatch(value) or (value.isalpha() and len(_TURN.findall(value)) > 1)
    return _random(value) or (bool(varied) and not (_AMOUNT.fullmatch(value) or _PLAIN.fullmatch(value)))


def _any(value: str) -> bool:
    return True


@lru_cache(4096)
def _sure(name: str) -> bool:
    words = [word.upper() for word in _WORD.findall(name)]
    return is_secret(name) and (name.isupper() or any(map(_word_tells, words)) or _pair_tells(words))


@lru_cache(4096)
def _several(name: str) -> bool:
    """Return True if `name` may hold several secrets. "tokens" does if its values look like secrets."""
    words = [word.upper() for word in _WORD.findall(name)]
    return bool(words) and words[-1] in _PLURALS and (words == ["TOKENS"] or is_secret(name))


def _field_tells(name: str, value: str, check: Check = _any) -> bool:
    """Return True if a field is a secret. `check` judges the value if the name is ambiguous, as in "token: x"."""
    if _sure(name):
        return True
    if _SPECIAL.fullmatch(value) or not _is_ambiguous(name) or _is_key_of_data(name, value):
        return False
    if name.lower() in ("pwd", "pw"):
        return name != "PWD" and value[:1] not in "/.~$" and check(value)
    return _mixed(value) if check is _any and not is_secret(name) else check(value)


def _is_ambiguous(name: str) -> bool:
    return is_secret(name) or _several(name) or name.lower() in _OPTIONS


def _is_key_of_data(name: str, value: str) -> bool:
    return name.upper().endswith("KEY") and bool(_PLAIN.fullmatch(value)) and not _random(value)


def _option_tells(name: str) -> bool:
    return is_secret(name) or name.strip("-").lower() in _OPTIONS


def _option_takes(name: str, value: str) -> bool:
    """Return True if `value` of an option is a secret."""
    return _option_tells(name) or (_several(name) and _mixed(value))


def _value(match: re.Match[str]) -> str:
    return match["bare"] or match["quoted"] or ""


def _replaced(match: re.Match[str], hide: Hide, cut: str = "") -> str:
    """Return the match with its value hidden. A trailing `cut` in an unquoted value stays."""
    group = "quoted" if match["bare"] is None else "bare"
    value, start = match[group], match.start(group) - match.start()
    kept = (value.rstrip(cut) or value) if group == "bare" else value
    return (
        match[0][:start] + hide(kept) + match[0][start + len(kept) :]
        if kept not in ("", MASK)
        else match[0]
    )


def _is_key(match: re.Match[str]) -> bool:
    return match["sep"][0] in "\\'\""


def _check_of(match: re.Match[str]) -> Check:
    """Return the check for a value whose name is ambiguous."""
    if _is_key(match) and match["bare"] is None:
        return _any
    if not _is_key(match) and not is_secret(match["name"]) and _several(match["name"]):
        return _random
    before = match.string[max(0, match.start() - 64) : match.start()]
    return _mixed if _is_key(match) or "=" in match["sep"] or _AT_START.search(before) else _random


def _is_prose(match: re.Match[str]) -> bool:
    """Return True if the name is part of a sentence.

    Examples: "/etc/passwd: Permission denied", "No run 'hf-token': `distui ls`".
    """
    value = match["bare"]
    if value is None or "=" in match["sep"]:
        return False
    if value[0] == "`":
        return value.count("`") == 1
    return match.string[match.start() - 1 : match.start()] == "/" and not _mixed(value)


def _is_harmless_or_masked(match: re.Match[str]) -> bool:
    value = _value(match)
    core = value.strip("[](){}") if match["bare"] else value
    return not core or _harmless(match["name"], core) or (value[0] in "[{(" and MASK in value)


def _mask_named(match: re.Match[str], hide: Hide) -> str:
    if _is_prose(match) or _is_harmless_or_masked(match):
        return match[0]
    name, value = match["name"], _value(match)
    cut = "]})" if match["bare"] and (_is_key(match) or ":" in match["sep"]) else ""
    if name.startswith("-"):
        tells = _option_takes(name, value)
    else:
        tells = _field_tells(name, value.rstrip(cut), _check_of(match))
    return _replaced(match, hide, cut) if tells else match[0]


def _mask_option(match: re.Match[str], hide: Hide) -> str:
    name, value = match["name"], _value(match)
    prose = len(value) <= 4 and value.isalpha() and match["sep"].isspace()
    if prose or value.startswith("--") or _harmless(name, value):
        return match[0]
    return _replaced(match, hide) if _option_takes(name, value) else match[0]


def _mask_item(match: re.Match[str], hide: Hide, name: str, is_sure: bool) -> str:
    """Mask an item of a list or mapping `name`. Names of fields stay. `is_sure`: any value may be a secret."""
    value = _value(match)
    if _COLON.match(match.string, match.end()) or _harmless(name, value):
        return match[0]
    return _replaced(match, hide) if _field_tells(name, value, _any if is_sure else _mixed) else match[0]


def _has_members(name: str, mapping: bool) -> bool:
    """Return True if members of a list or mapping of that name may be secrets."""
    return _option_tells(name) or (_several(name) and not mapping)


def _closed(text: str, at: int) -> int:
    """Return the end of the bracket that opens at `at`, or 0 if it is not found."""
    depth = 0
    for token in re.compile(_TOKEN).finditer(text, at, at + _SCANNED):
        depth += (token[0] in "[{(") - (token[0] in "]})")
        if depth == 0:
            return token.end()
    return 0


def _lists(text: str, hide: Hide) -> str:
    """Mask values in lists and mappings under the name of secrets."""
    parts, at, seen = [], 0, 0
    for match in re.finditer(_OPENED, text):
        name, start = match["name"].lstrip("-"), match.end()
        is_mapping = text[start] == "{"
        if match.start() < at or not _has_members(name, is_mapping):
            continue
        end = _closed(text, start) if start >= seen else 0
        seen = max(seen, end or start + _SCANNED)
        if end and _GLUED_ON.match(text, end):
            continue
        end = end or _next_line(text, start)
        item = partial(_mask_item, hide=hide, name=name, is_sure=_is_key(match) and not is_mapping)
        parts += [text[at:start], re.sub(_ITEM, item, text[start:end])]
        at = end
    return "".join([*parts, text[at:]])


def _next_line(text: str, at: int) -> int:
    return text.find("\n", at) + 1 or len(text)


def _connections(text: str, hide: Hide) -> str:
    def masked(match: re.Match[str]) -> str:
        value = match["bare"] or match["last"]
        return match[0] if value == MASK else (match[1] or match[3]) + hide(value)

    return re.sub(_CONNECTION, masked, text) if ";" in text else text


_UNSEEN = re.compile(rf"{ESCAPE.pattern}|\x08")
"""Sequences that a terminal does not show. Cleaned texts have none."""


def mask_text(text: str, hide: Hide = _hidden) -> str:
    """Mask the secrets in any text: by the names before them, by their shapes, in URLs and in headers.

    Lines with escape sequences, such as colours, lose them if they would hide a secret.
    """
    return _mask_by_rules(_without_hiding_codes(text) if _UNSEEN.search(text) else text, hide)


def _without_hiding_codes(text: str) -> str:
    seen = _UNSEEN.sub("", text)
    if _codes_hide_nothing(text, seen):
        return text
    by_line = "\n".join(map(_without_hiding_codes, text.split("\n"))) if "\n" in text else seen
    return by_line if _codes_hide_nothing(by_line, seen) else seen  # a private key has several lines


def _codes_hide_nothing(text: str, seen: str) -> bool:
    return _UNSEEN.sub("", _mask_by_rules(text)) == _mask_by_rules(seen)


def _mask_query(match: re.Match[str], hide: Hide) -> str:
    secret = is_secret(match[2]) or match[2].lower() in _SIGNED
    if not secret or match[3] == MASK or re.fullmatch(r"\d{1,3}", match[3]):
        return match[0]
    return match[1] + hide(match[3])


def _mask_user(match: re.Match[str], hide: Hide) -> str:
    plain = match[2] == MASK or _REFERENCE.fullmatch(match[2])
    return match[0] if plain else match[1] + hide(match[2]) + "@"


def _mask_second_group(match: re.Match[str], hide: Hide) -> str:
    return match[0] if MASK in match[2] else match[1] + hide(match[2])


def _mask_bearer(match: re.Match[str], hide: Hide) -> str:
    sure = len(match[2]) >= 20 or re.search(r"[\d=]", match[2])
    return match[1] + hide(match[2]) if sure else match[0]


Rule = Callable[[str, Hide], str]


def _each(pattern: str, replacement: Callable[[re.Match[str], Hide], str]) -> Rule:
    return lambda text, hide: re.sub(pattern, lambda match: replacement(match, hide), text)


_RULES: tuple[Rule, ...] = (
    _each(_SHAPES, lambda match, hide: hide(match[0])),
    _each(_USER, _mask_user),
    _lists,
    _each(_TYPED, _replaced),
    _each(_GLUED, _replaced),
    _connections,
    _each(_HOOK, _mask_second_group),
    _each(_WANDB, _mask_second_group),
    _each(_COOKIE, _mask_second_group),
    _each(_QUERY, _mask_query),
    _each(_OPTION, _mask_option),
    _each(_NAMED, _mask_named),
    _each(_BEARER, _mask_bearer),
)


def _mask_by_rules(text: str, hide: Hide = _hidden) -> str:
    for rule in _RULES:
        text = rule(text, hide)
    return text


def mask(name: str, value: str, hide: Hide = _hidden) -> str:
    """Mask `value` of the variable `name`. An empty value stays empty."""
    if value and is_secret(name):
        return value if value == MASK else hide(value)
    return mask_text(value, hide)


def holds_secret(name: str, value: str) -> bool:
    """Return True if all or part of a variable's value is secret."""
    return mask(name, value) != value


def _may_be_a_value(word: str) -> bool:
    """Return False for an empty word, a short option ("-x") and a long one ("--name")."""
    if word.startswith("--"):
        return False
    return len(word) > (2 if word.startswith("-") else 0)


class _CommandLine:
    """Masks the words of a command line in their order, because earlier words decide about later ones."""

    def __init__(self, hide: Hide) -> None:
        self.hide = hide
        self.before = ""
        self.programs: set[str] = set()
        self.value_expected = False
        """True after an option that takes a secret."""
        self.several_expected = False
        """True between an option that takes several secrets and the next option."""

    def masked(self, word: str) -> str:
        if self.value_expected and _may_be_a_value(word):
            special = _SPECIAL.fullmatch(word) and "pass" not in self.before.lower()
            self.before, self.value_expected = word, False
            return word if special or word.lower() in _NOTHING else self.hide(word)
        shown = self._by_context(word)
        self._learn(word)
        return shown

    def _by_context(self, word: str) -> str:
        if self.several_expected and not word.startswith("-") and _mixed(word):
            return self.hide(word)
        if word.startswith("-p") and len(word) > 2 and any(map(_GLUING.fullmatch, self.programs)):
            return "-p" + self.hide(word[2:])
        if "wandb" in self.programs and _HEX40.fullmatch(word) and not _OF_GIT.search(self.before):
            return self.hide(word)
        return _masked_word(word, self.hide)

    def _learn(self, word: str) -> None:
        is_option = word.startswith("-")
        value_follows = is_option and not _NO_FLAG.search(word)
        takers = {program for program in self.programs if (program, word) in _ARGUMENTS}
        self.value_expected = value_follows and (_option_tells(word) or bool(takers))
        self.several_expected = _several(word) if value_follows else self.several_expected and not is_option
        self.programs -= takers  # sshpass -p X ssh -p 22
        if "wandb" in word.lower():
            self.programs.add("wandb")
        if not is_option:
            self.programs.add(word.rpartition("/")[2])
        self.before = word


def mask_words(words: Iterable[str], hide: Hide = _hidden) -> list[str]:
    """Mask the words of a command line."""
    line = _CommandLine(hide)
    return [line.masked(word) for word in words]


def _masked_word(word: str, hide: Hide) -> str:
    """Check up to `_NESTED` names of a word such as `--export=ALL,A=b`. The rest is masked like any text."""
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
    """Mask a JSON value: its texts, command lines in lists, and texts under names of secrets."""
    if isinstance(value, str):
        return mask_text(value, hide)
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(word, str) for word in value):
            return mask_words(value, hide)
        return [mask_value(part, hide) for part in value]
    if isinstance(value, Mapping):
        return {_shown_key(key): _masked_member(str(key), part, hide) for key, part in value.items()}
    return value


@lru_cache(4096)
def _shown_key(key: Any) -> Any:
    """Mask the name of a field, which may be a script's text."""
    return mask_text(key) if isinstance(key, str) else key


def _masked_member(key: str, value: Any, hide: Hide, check: Check = _any) -> Any:
    if isinstance(value, str) and _field_tells(key, value, check):
        return value if _harmless(key, value) else hide(value)
    if isinstance(value, (list, tuple)) and _has_members(key, False):
        return [_masked_member(key, part, hide, check) for part in value]
    if isinstance(value, Mapping) and _has_members(key, True):
        shown = {}
        for name, part in value.items():
            by_own_name = _masked_member(str(name), part, hide)
            shown[name] = _masked_member(key, by_own_name, hide, _mixed)
        return shown
    return mask_value(value, hide)
