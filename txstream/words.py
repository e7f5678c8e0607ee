"""Numbers and other values in sentences and tables."""

from decimal import Decimal


def shown(value: object) -> str:
    """A value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float | Decimal):
        return f"{value:,}"
    return str(value)


def counted(number: int, one: str, many: str = "") -> str:
    """`1 record`, `2,000 records`; `many` where it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
