"""No secret stays on a command line.

All users of a machine can read the command lines of its processes (`ps`, `/proc/*/cmdline`). A process's
environment is for its own user alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from txstream.settings.given_secrets import PLACEHOLDER, without_secret

# The flags whose values may have a secret in them, and in which `${NAME}` is filled in.
_URLS = {"--database", "--state-database", "--schema-registry"}
_PAIRS = {"-p", "--parameter", "--spark-conf"}


def off_the_command_line(arguments: Sequence[str]) -> tuple[list[str], dict[str, str], list[str]]:
    """Return a command's arguments with a variable in place of each secret that a flag was given; the
    variables; and for each such flag what would better have been typed."""
    variables: dict[str, str] = {}

    def variable(secret: str) -> str:
        name = f"TXSTREAM_SECRET_{len(variables) + 1}"
        variables[name] = secret
        return f"${{{name}}}"

    moved: list[str] = []
    typed: list[str] = []
    flag = ""
    for place, argument in enumerate(arguments):
        if argument == "--":  # what follows are no flags
            return [*moved, *arguments[place:]], variables, typed
        own, equals, rest = argument.partition("=")
        if flag:  # this is its value
            head, value, shown = "", argument, f"{flag} "
        elif own in _URLS | _PAIRS and equals:
            flag, head, value, shown = own, f"{own}=", rest, f"{own} "
        elif argument.startswith("-p") and argument != "-p":
            flag, head, value, shown = "-p", "-p", argument[2:], "-p "
        else:
            moved.append(argument)
            flag = argument if argument in _URLS | _PAIRS else ""
            continue
        kept = without_secret(value, variable, is_pair=flag in _PAIRS)
        if kept != value:
            public = without_secret(value, lambda _: PLACEHOLDER, is_pair=flag in _PAIRS)
            typed.append(f"{shown}{shlex.quote(public)}")
        moved.append(f"{head}{kept}")
        flag = ""
    return moved, variables, typed
