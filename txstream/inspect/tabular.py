"""Answers as tables: as HTML for notebooks, in Arrow and in pandas."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from txstream.core.tabular import html_table

if TYPE_CHECKING:
    import pyarrow as pa


class Tabular(ABC):
    """What inspection answers, as a table: in a notebook, in Arrow and in pandas."""

    __slots__ = ()

    @abstractmethod
    def as_table(self) -> tuple[str, list[str], list[Sequence[object]]]:
        """Return a title, the names of the columns, and the rows."""

    def _repr_html_(self) -> str:
        title, names, rows = self.as_table()
        return html_table(title, ([_plain(value) for value in row] for row in rows), names)

    def to_arrow(self) -> pa.Table:
        """Return the table's rows as an Arrow table. Values of types that Arrow lacks are text."""
        import pyarrow as pa

        _, names, rows = self.as_table()
        columns = [[row[place] for row in rows] for place in range(len(names))]
        return pa.table([_arrow(pa, column) for column in columns], names=names)

    def to_pandas(self) -> Any:
        """Return the table's rows as a DataFrame. Needs pandas, which the extra `dataframe` installs."""
        return self.to_arrow().to_pandas()


def _plain(value: object) -> object:
    return value.isoformat(sep=" ", timespec="seconds") if isinstance(value, datetime) else value


def _arrow(pa: Any, column: list[object]) -> Any:
    try:
        return pa.array(column)
    except (pa.ArrowException, TypeError):
        return pa.array([None if value is None else str(value) for value in column], pa.string())
