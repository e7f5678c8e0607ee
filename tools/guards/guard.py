"""The record of one guard."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Guard:
    """One guard of one clause."""

    clause: str
    what: str
    file: str
    old: str
    new: str
    test: str

    @property
    def name(self) -> str:
        return f"{self.clause} {self.what}"
