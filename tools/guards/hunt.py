"""Where a simulation must find a mistake: the histories to search, and the error that shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from txstream.core.semantics import Semantics
from txstream.plugins.proof.simulation.world import WrongResultError

OPAQUE, TRANSACTIONAL = Semantics.OPAQUE, Semantics.TRANSACTIONAL

ZOMBIES = {"freeze": 0.03, "commit late": 0.1, "call late": 0.1}
MORE_ZOMBIES = {"freeze": 0.05, "commit late": 0.15, "call late": 0.15}
CRASHES = {"crash": 0.02, "call late": 0.15}
OLD_LEADERS = {
    "freeze": 0.0,
    "crash": 0.0,
    "lock kept": 0.0,
    "source away": 0.0,
    "deadline": 0.0,
    "meanwhile": 0.0,
    "batch fails": 0.0,
    "answer lost": 0.0,
    "freeze at start": 0.06,
    "call late": 0.4,
    "another driver": 0.03,
}
LATE = {"commit late": 0.2, "call late": 0.2}
LATE_ENDS = {"freeze": 0.04, "crash": 0.02, "call late": 0.2}
GIVEN_UP = {"tasks given up": 0.3, "freeze": 0.03}
LATE_BEGINS = {"tasks given up": 0.3, "call late": 0.2, "late arrives": 0.5, "commit late": 0.0}
STALE = {"stale message": 0.2}
DYING = {"crash": 0.03, "commit late": 0.1}

RACES = {"another driver": 0.06, "release": 0.06, "freeze at start": 0.03, "database away": 0.0}
LOSSES = {"zookeeper lost": 0.04, "release": 0.05, "crash": 0.03}
PRUNES = {"prune": 0.2, "zookeeper lost": 0.02, "answer lost": 0.15}


@dataclass(frozen=True)
class Hunt:
    """`shows` is a wrong result, or the error of a guard behind the one that is gone."""

    shows: type[Exception]
    semantics: Semantics
    databases: int = 1
    more: Mapping[str, float] | None = None
    """Faults that are more likely than usual."""
    first_seed: int = 0
    """The first seed to try: earlier histories are known not to show the hole."""
    gaps_are_built_upon: bool = False
    """Whether the guard behind it is gone as well."""
    at_end: bool = False
    """Whether the topology begins at the end of its log."""
    restores: bool = False
    """Whether somebody restores databases from older copies beneath running drivers."""
    refuses: bool = False
    """Whether a database refuses values within the commit, where records fail by themselves."""
    at_once: bool = False
    """Whether the first attempt may leave out records that fail by themselves."""

    def __str__(self) -> str:
        return f"{self.semantics}-{self.databases}-{self.shows.__name__}"


class ChangeHunt(Hunt):
    """A hunt in histories of a topology whose code changes."""


class LetterHunt(Hunt):
    """A hunt in histories of a topology with dead letters."""


class KeepHunt(Hunt):
    """A hunt in histories of tables with `keep`, on machines whose clocks differ."""


class RewindHunt(Hunt):
    """A hunt in histories of savepoints and rewinds."""


def refused_by_the_next_commit(*hunts: Hunt) -> tuple[Hunt, ...]:
    """Return hunts that end in a refusal, and the same ones without that guard, for which the result is
    wrong."""
    behind = [replace(hunt, shows=WrongResultError, gaps_are_built_upon=True) for hunt in hunts]
    return (*hunts, *behind)
