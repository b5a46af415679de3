"""The notification channels in `[notify]` of settings.toml, and the sources of their secrets.

A plan has only the names of channels and rules. Addresses and tokens are read when a notification is sent.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import Struct, field, structs

from ...presets.sanitize import quoted
from ...presets.secrets import is_secret
from ...presets.spelling import nearest_or_all
from ..run.errors import RunError
from ..run.packages import install_extra
from ..run.settings_file import (
    Lookup,
    SecretError,
    is_address,
    loaded,
    no_section,
    others_read,
    secret_of,
    settings_path,
    unknown_keys,
)
from .rule_words import NAME, OFF, ChosenChannel, Minutes, every_rule, rules_of, split_word

_ADDRESSES = ("url", "url_file", "url_env")
_TOKENS = ("token_file", "token_env")
KINDS: Mapping[str, tuple[str, ...]] = {
    "webhook": (*_ADDRESSES, *_TOKENS),
    "apprise": _ADDRESSES,
    "command": ("command",),
    "desktop": (),
    "terminal": ("sequence",),
}
"""Kind of a channel → its own settings."""
POSTED = ("webhook", "apprise")
"""Kinds with an address."""
OWN = ("terminal", "desktop")
"""Kinds that need no settings. Each is also the name of a channel."""
SEQUENCES = ("auto", "osc9", "osc777", "bell")
"""Escape sequences for a terminal."""
_SERVICE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\x00-\x20\x7f]+")
"""An address of apprise."""


class NotificationChannel(Struct, frozen=True):
    name: str
    kind: str
    rules: Minutes = field(default_factory=every_rule)
    url: str = ""
    url_file: str = ""
    url_env: str = ""
    token_file: str = ""
    token_env: str = ""
    command: tuple[str, ...] = ()
    sequence: str = "auto"

    def __repr__(self) -> str:
        return f"NotificationChannel({self.name!r}, {self.kind!r})"


class Configured(Struct, frozen=True):
    """The notification settings."""

    path: Path
    channels: Mapping[str, NotificationChannel]
    send: tuple[str, ...] = ()
    """Words like those of `--notify`, for launches without it."""
    problems: tuple[str, ...] = ()
    """One sentence per setting that cannot be used."""
    unusable: Mapping[str, str] = {}
    """Channel with a mistake → the sentence about it."""

    def why_not(self, name: str) -> str:
        """Return why there is no such channel, if the settings are wrong, or ""."""
        if name in self.unusable:
            return self.unusable[name]
        if self.problems and len(self.channels) == len(OWN):
            return self.problems[0]
        return ""


def load(environ: Mapping[str, str] = os.environ) -> Configured:
    """Load this user's settings. Never fails."""
    nothing = Configured(settings_path(environ), _own_channels(every_rule()))
    return loaded("notify", of_table, lambda why: structs.replace(nothing, problems=(why,)), environ)


def of_table(table: Any, path: Path) -> Configured:
    """Parse `[notify]`. A channel with a mistake is left out and reported."""
    if not isinstance(table, Mapping):
        return Configured(path, _own_channels(every_rule()), problems=(no_section(path, "notify"),))
    there = "there are notify.send, notify.rules, notify.channels"
    problems = unknown_keys(path, "notify", table, ("send", "rules", "channels"), there)
    rules = every_rule()
    try:
        rules = _rules(table, "notify.rules", rules)
    except RunError as error:
        problems.append(f"{path}: {error}")
    send = table.get("send", [])
    if not _is_texts(send):
        problems.append(f'{path}: notify.send must be a list of channels, as in ["team", "terminal"]')
        send = []
    channels, unusable = _own_channels(rules), dict[str, str]()
    sections = table.get("channels", {})
    if not isinstance(sections, Mapping):
        problems.append(f"{path}: notify.channels has to hold sections, as [notify.channels.team]")
        sections = {}
    for name, section in sections.items():
        try:
            channels[name] = _channel(name, section, rules)
        except RunError as error:
            unusable[name] = f"{path}: {error}"
    return Configured(path, channels, tuple(send), (*problems, *unusable.values()), unusable)


def problems_of(table: Any, path: Path) -> tuple[str, ...]:
    """Return a sentence per mistake in `[notify]`, including words of `send` that no launch could use."""
    configured = of_table(table, path)
    problems = dict.fromkeys(configured.problems)
    for word in configured.send:
        try:
            resolved((), structs.replace(configured, send=(word,)))
        except RunError as error:
            problems[str(error)] = None
    return tuple(problems)


def _own_channels(rules: Minutes) -> dict[str, NotificationChannel]:
    return {kind: NotificationChannel(kind, kind, rules) for kind in OWN}


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _rules(section: Mapping[str, Any], where: str, basis: Minutes) -> Minutes:
    """Return the section's rules. Raises RunError."""
    if "rules" not in section:
        return basis
    if not _is_texts(section["rules"]):
        raise RunError(f'{where} must be a list of rules, as in ["hang", "gave-up", "gpus-idle=20"]')
    return rules_of(section["rules"], where, basis)


def _channel(name: str, section: Mapping[str, Any], rules: Minutes) -> NotificationChannel:
    """Return the channel of a section. Raises RunError."""
    if not isinstance(section, Mapping):
        raise RunError(f"notify.channels.{name} must be a section, [notify.channels.{name}]")
    kind = section.get("type", name)
    mistake = next(_mistakes(name, kind, section), None)
    if mistake is not None:
        raise RunError(mistake)
    settings = {key: section[key] for key in KINDS[kind] if key in section}
    if "command" in settings:
        settings["command"] = tuple(settings["command"])
    return NotificationChannel(
        name, kind, _rules(section, f"notify.channels.{name}.rules", rules), **settings
    )


def _mistakes(name: str, kind: Any, section: Mapping[str, Any]) -> Iterator[str]:
    """Yield the mistakes of a channel. Only the first is used. No text quotes a value, which may be secret."""
    where = f"notify.channels.{name}"
    if not NAME.fullmatch(name) or name == OFF:
        yield f"notify.channels: {quoted(name)} is not a valid channel name: use up to 32 letters, digits, _ and -"
    if not isinstance(kind, str) or kind not in KINDS:
        yield f"{where}.type must be one of {', '.join(KINDS)}"
    if kind == "terminal" and name != kind:
        yield f"{where}: a channel of type terminal must be called terminal: write [notify.channels.terminal]"
    yield from _mistakes_of_settings(where, kind, section)
    if kind == "command" and not _is_command(section.get("command")):
        yield f'{where}.command must be a list of words, the program first, as in ["mail-me", "-q"]'
    if kind in POSTED:
        yield from _mistakes_of_address(where, section)
    if section.get("sequence", "auto") not in SEQUENCES:
        yield f"{where}.sequence must be one of {', '.join(SEQUENCES)}"


def _mistakes_of_settings(where: str, kind: str, section: Mapping[str, Any]) -> Iterator[str]:
    known = (*KINDS[kind], "type", "rules")
    for key, value in section.items():
        if key not in known:
            yield f"{where}: a channel of type {kind} has no setting {quoted(key)}{nearest_or_all(key, known)}"
        if key not in ("command", "rules") and not isinstance(value, str):
            yield f"{where}.{key} must be a string"


def _mistakes_of_address(where: str, section: Mapping[str, Any]) -> Iterator[str]:
    if sum(bool(section.get(key)) for key in _ADDRESSES) != 1:
        yield f"{where} needs its address in one of url_file, url_env and url"
    if all(section.get(key) for key in _TOKENS):
        yield f"{where}: token_file and token_env exclude each other: write one"
    for key in ("url_env", "token_env"):
        if section.get(key) and not is_secret(section[key]):
            yield (
                f"{where}.{key}: {quoted(section[key])} does not read as the name of a secret, and would be written "
                "into run directories: call it TEAM_WEBHOOK or NTFY_TOKEN, say"
            )


def _is_command(value: Any) -> bool:
    return _is_texts(value) and bool(value and value[0]) and not any("\0" in word for word in value)


def resolved(words: Sequence[str], configured: Configured) -> tuple[str, ...]:
    """Return a plan's words for `--notify`, or for the settings without it, or (). Raises RunError."""
    where = "--notify" if words else f"{configured.path}: notify.send"
    named = [word for word in words or configured.send if word != OFF]
    chosen = [_chosen(word, configured, where) for word in named]
    if chosen and OFF in words:
        raise RunError("--notify off excludes every channel: use either off or names of channels")
    if words and not chosen:
        return (OFF,)
    return tuple({each.channel: each.word for each in chosen}.values())


def _chosen(word: str, configured: Configured, where: str) -> ChosenChannel:
    """Return the channel and the rules that a word names. Raises RunError."""
    name, rules = split_word(word, where)
    channel = channel_of(name, configured, where)
    if rules is None:
        return ChosenChannel(name, channel.rules)
    return ChosenChannel(name, rules_of(rules, f"{where} {name}", channel.rules))


def channel_of(name: str, configured: Configured, where: str) -> NotificationChannel:
    """Return the named channel. Raises RunError."""
    if name in configured.channels:
        return configured.channels[name]
    why = configured.why_not(name)
    if why:
        raise RunError(why)
    hint = nearest_or_all(name, configured.channels)
    raise RunError(
        f"{where}: unknown channel {quoted(name)}{hint}; add [notify.channels.{name}] to {configured.path} to create it"
    )


def secret_names() -> frozenset[str]:
    """Return the variables with addresses and tokens of the configured channels."""
    configured = load().channels.values()
    return frozenset(
        name for channel in configured for name in (channel.url_env, channel.token_env) if name
    )


class ChannelTarget(Struct, frozen=True):
    """The destination of a request, only in memory."""

    url: str
    token: str = ""

    @property
    def host(self) -> str:
        """Return the part of the address that is not secret: a host, or a service of apprise."""
        parts = urlsplit(self.url)
        if parts.scheme in ("http", "https"):
            return parts.hostname or ""
        return parts.scheme

    @property
    def secrets(self) -> set[str]:
        """Return texts that must not be quoted."""
        rest = self.url.partition("://")[2]
        words = [self.url, self.token, *re.split(r"[/?&=:@]+", rest)]
        return {text for word in words for text in (word, unquote(word)) if len(text) > 3} - {self.host}

    def __repr__(self) -> str:
        return f"ChannelTarget({self.host!r})"


def target(channel: NotificationChannel, lookup: Lookup, folder: Path) -> ChannelTarget:
    """Return the current address and token of a channel. `folder`: of the settings. Raises SecretError."""
    url = channel.url.strip()
    if url and others_read(folder / "settings.toml"):
        raise SecretError(
            f"others can read {folder / 'settings.toml'}, which holds its address: `chmod 600` it, or write url_file"
        )
    url = url or secret_of(channel.url_file, channel.url_env, lookup, folder)
    if channel.kind == "apprise":
        if not _SERVICE.fullmatch(url):
            raise SecretError("its address is not valid: it must be one line, as in ntfys://TOPIC")
        if importlib.util.find_spec("apprise") is None:
            raise SecretError(f"it needs apprise: {install_extra('notify')}")
        return ChannelTarget(url)
    return _web_target(url, secret_of(channel.token_file, channel.token_env, lookup, folder))


def _web_target(url: str, token: str) -> ChannelTarget:
    """Return the destination of a webhook's requests. Raises SecretError."""
    if not is_address(url):
        raise SecretError("its address is not valid: it must be one line, as in https://HOST/PATH")
    if urlsplit(url).username is not None:
        raise SecretError(
            "its address holds a user's name: write a token with token_file or token_env instead"
        )
    if not token.isascii() or any(char < " " for char in token):
        raise SecretError("its token has characters that no header can hold: it must be one line of ASCII")
    return ChannelTarget(url, token)
