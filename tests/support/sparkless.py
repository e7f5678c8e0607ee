"""`python -m txstream`, except that `run` and `demo outage` process batches on the driver's threads.

Everything else is as in a real run: the command line, signals, faults, sessions and the exit status. Tests
run this as a script, in a process that they freeze and kill.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import NoReturn

from txstream.cli.main import main


class NoPandas:
    """Hides pandas: pyarrow imports it if it is installed, which takes 0.3 s and is of no use here."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)


def _no_spark(**options: object) -> NoReturn:
    raise AssertionError("a run without Spark has come to start Spark")


if __name__ == "__main__":
    sys.meta_path.insert(0, NoPandas())
    if {"run", "outage"} & set(sys.argv):  # the other commands need none of this, and start faster without it
        from txstream.engine import run
        from txstream.engine.spark import session
        from txstream.testing import InProcessRunner

        run.start = partial(run.start, runner_factory=InProcessRunner)
        session.create_context = _no_spark
    sys.exit(main())
