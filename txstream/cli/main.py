"""The entry point: parses, runs a command, and turns an error into one sentence and an exit status.

Exit status: 0 done; 1 failed; 2 usage; 3 fenced by a newer leader.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from txstream.cli import administration, describe, inspection, letter_commands, operate, run
from txstream.cli.context import print_error
from txstream.cli.options import ALL_OPTIONS
from txstream.cli.secret_flags import off_the_command_line
from txstream.core.entry_points import COMMANDS, load, names
from txstream.core.errors import TxstreamError

_USAGE_STATUS = 2
_INTERRUPTED_STATUS = 130
_LONGEST_END = 20
_FLAGS = frozenset(("-q", "--quiet", "-v", "--verbose", "--json", "--debug"))  # of (nearly) every command

app = typer.Typer(
    name="txstream",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich would take longer to import than everything else
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from txstream import __version__

        sys.stdout.write(f"txstream {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Exactly-once state in a SQL database from Kafka.

    -q, -v, --json and --debug may stand before or after the command.
    """


def _add_commands() -> None:
    """Add the commands of txstream's kernel, and what installed packages have, its own among them."""
    for room in (run, describe, operate, inspection, letter_commands, administration):
        room.register(app)
    for name in names(COMMANDS):
        try:
            load(COMMANDS, name, f"command {name!r}")(app)
        except TxstreamError as error:  # the others must work without it
            print_error(f"txstream: {error}")


_add_commands()


@functools.cache
def parser() -> Any:
    """Return the parser of all commands, typer's `Command`. Making it takes 15 ms."""
    return typer.main.get_command(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. `arguments` default to those of the process."""
    if arguments is None:
        _hide_secrets()
    # Half of a short command's time are imports, and a tenth of that the collector's looks at what they make.
    gc.set_threshold(20_000)
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal's encoding lacks must not end a command.
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    given = _flags_last(given)
    debug, verbose = "--debug" in given, not {"--verbose", "-v"}.isdisjoint(given)
    for argument in given:
        if not _is_unicode(argument):
            print_error(f"txstream: the argument {argument!a} is not valid {sys.getfilesystemencoding()}")
            return _USAGE_STATUS
    try:
        shown = {ALL_OPTIONS: verbose}  # with --help
        status = parser().main(given, prog_name="txstream", standalone_mode=False, obj=shown)
        if status == _INTERRUPTED_STATUS:  # how the parser reports a KeyboardInterrupt
            print_error("txstream: interrupted")
        return status if isinstance(status, int) else 0
    except TxstreamError as error:
        _show_story(error, verbose=verbose)
        _report(error, str(error), debug=debug)
        return error.exit_status
    except (KeyboardInterrupt, typer.Abort):
        print_error("txstream: interrupted")
        return _INTERRUPTED_STATUS
    except BrokenPipeError:
        # The reader of our output has closed it; the interpreter must not try to flush it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001 - the last resort of a command
        if isinstance(error, _parser_errors()):
            _report_usage(error)
            return _USAGE_STATUS
        _report(error, f"unexpected {type(error).__name__}: {error}", debug=debug)
        return 1


def _hide_secrets() -> None:
    """Begin again, as the same process, without the secrets of the command line, which `ps` shows to
    everybody on this machine: they move into the environment."""
    moved, variables, typed = off_the_command_line(sys.argv[1:])
    before = sys.orig_argv[: -len(moved)]
    if not variables or sys.orig_argv != [*before, *sys.argv[1:]]:
        return
    print_error(
        "txstream: a password on the command line can be read by all users of this machine; it was moved "
        "into the environment as soon as this process began, but the shell's history has it too. Set a "
        f"variable PASSWORD and type, with the quotes: {' '.join(typed)}; "
        "or use --database-file or txstream.toml"
    )
    os.execve(sys.executable, [*before, *moved], {**os.environ, **variables})  # noqa: S606 - no shell is wanted


def _flags_last(given: list[str]) -> list[str]:
    """Return the arguments with flags that stand before the command right behind it, where it takes them."""
    flags = list(itertools.takewhile(_FLAGS.__contains__, given))
    rest = given[len(flags) :]
    commands, words = parser().commands, 0
    while commands and words < len(rest) and rest[words] in commands:
        commands = getattr(commands[rest[words]], "commands", None)  # those of a group, such as `state`
        words += 1
    if words == 0:  # what stands there is the mistake, or asks for help
        return rest or given
    return [*rest[:words], *flags, *rest[words:]]


def _is_unicode(argument: str) -> bool:
    try:
        argument.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _parser_errors() -> tuple[type[BaseException], ...]:
    """The base class of the option parser's errors: the last of BadParameter, UsageError, ClickException."""
    own = [kind for kind in typer.BadParameter.__mro__ if issubclass(kind, Exception)]
    return (own[own.index(Exception) - 1],)


def _report_usage(error: BaseException) -> None:
    """Print the parser's error in one line, with the `--help` command that explains it."""
    message = getattr(error, "format_message", lambda: str(error))()
    if type(error).__name__ == "NoArgsIsHelpError":  # no public name to import; its message is the help
        print_error(message)
        return
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "txstream"
    dash = ""
    if getattr(error, "option_name", None) and _takes_values(context):
        dash = "a value that begins with a dash comes last, after `--`; "
    print_error(f"txstream: {' '.join(message.split()).rstrip('.')}; {dash}see `{path} --help`")


def _takes_values(context: Any) -> bool:
    """Whether the typed command takes any number of values, as `state get` does."""
    parameters = getattr(getattr(context, "command", None), "params", ())
    return any(one.nargs == -1 and one.param_type_name == "argument" for one in parameters)


def _show_story(error: TxstreamError, *, verbose: bool) -> None:
    """Print the coordinator's last events and commands, if the error has them and they are wanted."""
    lines = error.story if verbose else error.story[-_LONGEST_END:] if error.shows_story else ()
    if lines:
        more = "" if len(lines) == len(error.story) else " (--verbose shows more)"
        print_error(f"the run's last events and commands{more}:")
        for line in lines:
            print_error(line)


def _report(error: BaseException, sentence: str, *, debug: bool) -> None:
    from txstream.cli import remedies  # what ends well needs no guide

    if debug:
        print_error("".join(traceback.format_exception(error)).rstrip())
    hidden = bool(getattr(error, "__notes__", None)) or not isinstance(error, TxstreamError)
    hint = "" if debug or not hidden else " (--debug shows the traceback)"
    guide = remedies.pointer(remedies.of_error(error)) if isinstance(error, TxstreamError) else ""
    print_error(f"txstream: {' '.join(sentence.split())}{guide}{hint}")


if __name__ == "__main__":
    sys.exit(main())
