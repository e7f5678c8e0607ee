"""How numbers and other values appear in sentences and tables."""

from decimal import Decimal

_LONGEST_STORED = 10_000  # MySQL's TEXT takes 65,535 bytes


def shown(value: object) -> str:
    """Return a value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float | Decimal):
        return f"{value:,}"
    return str(value)


def in_order(partition: str) -> tuple[str, int]:
    """Return a sort key for partitions: `lines/2` comes before `lines/10`."""
    name, _, number = partition.rpartition("/")
    return (name, int(number)) if number.isdecimal() else (partition, -1)


def a(noun: str) -> str:
    """Return `an int`, `a str`: the noun, often the name of a type, with its article."""
    is_vowel = noun[:1].lower() in set("aeiou") and not noun.lower().startswith(("us", "uni", "uu", "eu"))
    return f"{'an' if is_vowel else 'a'} {noun}"


def counted(number: int, one: str, many: str = "") -> str:
    """Return `1 record`, `2,000 records`. Give `many` where the plural is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def storable(text: str, most: int = _LONGEST_STORED) -> str:
    """Return text that JSON, every database and every log take: with lone surrogates and NUL escaped, and
    beyond `most` characters cut in the middle, because an error's place and its cause are at its ends."""
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]} [{len(text) - 2 * half:,} characters left out] {text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def printable(text: str) -> str:
    """Return `text` on one line, with unprintable characters escaped. Ids and fields may be any strings."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
