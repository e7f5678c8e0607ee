"""Secrets that a user gives: none stands on a command line, and `${NAME}` in a text is a variable of the
environment.

All users of a machine can read the command lines of its processes (`ps`, `/proc/*/cmdline`). A process's
environment is for its own user alone.
"""

from __future__ import annotations

import os
import re
import shlex
from urllib.parse import quote

from txstream.api.errors import UsageError

_VARIABLE = re.compile(r"\$\{(\w+)\}")
# In a URL: user and password, and what follows the question mark.
_QUOTED = re.compile(r"(?<=://)[^/?#]*(?=@)|(?<=\?).*")
# The password in a URL, as SQLAlchemy reads it; and an option in it. `(?!\d+/)`: a port and a path with an @.
_IN_URL = re.compile(
    r"(?<=://)[^/:@?]*:(?!\d+/)(?P<password>[^@]+)(?=@)"
    r"|[?&][\w.-]*(?:password|passwd|passphrase|pwd|secret|token)[\w.-]*=(?P<option>[^&]+)",
    re.IGNORECASE,
)
_NAME = re.compile(
    r"(password|passwd|passphrase|secret|token|credentials?|(access|secret|api)[._-]?key)$", re.IGNORECASE
)
_PLACEHOLDER = "${PASSWORD}"


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
    spans = [found.span(found.lastgroup or 0) for found in _IN_URL.finditer(text)]
    for start, end in reversed(spans):
        if not _VARIABLE.fullmatch(text[start:end]):
            text = f"{text[:start]}{_PLACEHOLDER}{text[end:]}"
    return text


def refuse_secret(flag: str, text: str, instead: str = "") -> None:
    """Raise UsageError, which does not show it, if the value of a flag has a password in it. `instead` says
    where else it may stand."""
    public = without_secrets(text)
    if public != text:
        _refuse(f"{flag} has a password in it", f"{flag} {shlex.quote(public)}", instead)


def refuse_secret_pair(flag: str, name: str, value: str) -> None:
    """Do the same for NAME=VALUE, whose name may say that the value is a secret."""
    refuse_secret(flag, f"{name}={value}")
    if value and _NAME.search(name) and not _VARIABLE.search(value):
        _refuse(f"{flag} {name} is a secret", f"{flag} {shlex.quote(f'{name}={_PLACEHOLDER}')}", "")


def as_typed(url: str) -> str:
    """Return a URL that was made to be shown as it is typed on a command line, with `${PASSWORD}` for ***."""
    return shlex.quote(without_secrets(url))


def _refuse(what: str, typed: str, instead: str) -> None:
    raise UsageError(
        f"{what}, and all users of this machine can read a command line; set a variable PASSWORD in the "
        f"environment and type, with the quotes: {typed}" + (f"; or {instead}" if instead else "")
    )
