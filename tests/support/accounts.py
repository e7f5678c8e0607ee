"""What the ledger example must come to, worked out from the movements alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

Movement = tuple[str, int]

MOVEMENTS: list[Movement] = [(f"account-{n * n % 7}", (n * 37 % 50) - 24) for n in range(60)]


def books(movements: Sequence[Movement]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the accounts and the refusals, worked out one movement after the other."""
    balances: Counter[str] = Counter()
    booked: Counter[str] = Counter()
    refused: defaultdict[str, list[int]] = defaultdict(list)
    for account, amount in movements:
        if balances[account] + amount < 0:
            refused[account].append(amount)
        else:
            balances[account] += amount
            booked[account] += 1
    accounts = {account: (balances[account], times) for account, times in booked.items()}
    return accounts, {account: (sum(amounts), len(amounts)) for account, amounts in refused.items()}
