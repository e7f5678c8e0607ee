"""Secrets that a user gives: none is shown, and `${NAME}` in a text is a variable of the environment."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from urllib.parse import quote, unquote, unquote_plus

from txstream.core.errors import UsageError

_VARIABLE = re.compile(r"\$\{(\w+)\}")
# In a URL: user and password, and what follows the question mark.
_QUOTED = re.compile(r"(?<=://)[^/?#]*(?=@)|(?<=\?).*")
# The password in a URL, as SQLAlchemy reads it, and an option in it. Digits and a slash may begin a password;
# in a URL of the web they are a port and a path. No parser, because all else must stay as it is typed.
_IN_URL = re.compile(
    r"(?<=://)(?!(?:(?<=http://)|(?<=https://))[^/:@?]*:\d+/)[^/:@?]*:(?P<password>[^@]+)(?=@)"
    r"|[?&][\w.-]*(?:password|passwd|passphrase|pwd|secret|token)[\w.-]*=(?P<option>[^&]+)",
    re.IGNORECASE,
)
_NAME = re.compile(
    r"(password|passwd|passphrase|secret|token|credentials?|(access|secret|api)[._-]?key)$", re.IGNORECASE
)
PLACEHOLDER = "${PASSWORD}"


def with_variables(text: str, where: str) -> str:
    """Return a text with each `${NAME}` replaced by that variable. Within user, password and options of a URL
    the value is percent-encoded, so it is written in the variable as it is.

    Raises UsageError, which says `where` the text stands, for a variable that is not set or empty.
    """
    encoded = [found.span() for found in _QUOTED.finditer(text)]

    def value(found: re.Match[str]) -> str:
        given = os.environ.get(found[1])
        if not given:
            raise UsageError(
                f"{where} has {found[0]} in it, and the environment has no variable {found[1]}; set it (in a "
                f"URL, a dollar sign that is meant as such is written %24)"
            )
        is_encoded = any(start <= found.start() < end for start, end in encoded)
        return quote(given, safe="") if is_encoded else given

    return _VARIABLE.sub(value, text)


def without_secrets(text: str) -> str:
    """Return a text with `${PASSWORD}` in place of each password in a URL and each secret in its options."""
    return _replaced(text, lambda _: PLACEHOLDER)


def as_typed(url: str) -> str:
    """Return a URL that was made to be shown as it is typed on a command line, with `${PASSWORD}` for ***."""
    return shlex.quote(without_secrets(url))


def is_secret_pair(pair: str) -> bool:
    """Whether NAME=VALUE has a password in a URL, or a name that says that the value is a secret."""
    return without_secret(pair, lambda _: PLACEHOLDER, is_pair=True) != pair


def without_secret(text: str, instead: Callable[[str], str], *, is_pair: bool) -> str:
    """Return a text, or NAME=VALUE, with `instead(secret)` for each secret in it."""
    public = _replaced(text, instead)
    name, _, value = text.partition("=")
    if is_pair and public == text and value and _NAME.search(name) and not _VARIABLE.search(value):
        return f"{name}={instead(value)}"
    return public


def _replaced(text: str, instead: Callable[[str], str]) -> str:
    """Return a text with `instead(secret)` for each password in a URL and each secret in its options."""
    for found in reversed(list(_IN_URL.finditer(text))):
        start, end = found.span(found.lastgroup or 0)
        secret = text[start:end]
        if not _VARIABLE.fullmatch(secret):
            plain = unquote_plus(secret) if found.lastgroup == "option" else unquote(secret)
            text = f"{text[:start]}{instead(plain)}{text[end:]}"
    return text
