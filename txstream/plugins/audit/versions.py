"""`Versions`: a place for the changes of a table that is the database itself. Only the declaration, which
executors have, too; `past_tables` reads what is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Versions:
    """`changes_to=Versions()`: what rows of an opaque table were before each batch is kept beside it, in a
    table `<name>_versions`, as long as the ledger keeps the batch. With that, `txstream replay` and `why`
    look rows up as they were when the batch was processed."""

    keeps_versions: ClassVar[bool] = True

    def __str__(self) -> str:
        return ""  # they leave for no place
