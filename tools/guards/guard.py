"""The record of one guard, and of the mistake to leave it out."""

from __future__ import annotations

from dataclasses import dataclass

from guards.hunt import Hunt
from guards.patch import Patch


@dataclass(frozen=True)
class Guard:
    """One guard of one clause: what takes it away, and what must find that it is gone. `test` is a pytest id;
    a guard without one is proved by the simulation alone."""

    clause: str
    what: str
    file: str
    old: str
    new: str
    test: str = ""
    promise: str = ""
    """The promise of the conformance suite that `test` must find broken, if it is a test of promises."""
    promises: tuple[str, ...] = ()
    """Other promises of the conformance suite that a store in memory breaks."""
    mutant: str = ""
    """What the simulation calls it."""
    does: str = ""
    """What the simulation does without it."""
    hunts: tuple[Hunt, ...] = ()
    instead: tuple[Patch, ...] = ()
    """The same mistake in what the simulation and a store in memory run, if that is other code or more."""
    also: tuple[Patch, ...] = ()
    """What the simulation changes besides, so that nothing behind the guard hides the mistake."""

    @property
    def name(self) -> str:
        return f"{self.clause} {self.what}"

    @property
    def patch(self) -> Patch:
        return Patch(self.file, self.old, self.new)

    @property
    def patches(self) -> tuple[Patch, ...]:
        """The mistake as the simulation and a store in memory make it."""
        return (*(self.instead or (self.patch,)), *self.also)

    @property
    def broken(self) -> tuple[str, ...]:
        """The promises that a store in memory breaks."""
        if not self.promise or self.patches[0].file.startswith("txstream/state/sql/"):
            return self.promises
        return tuple(dict.fromkeys([*self.promises, self.promise]))
