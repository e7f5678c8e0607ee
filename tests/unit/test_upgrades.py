"""Upgrades of running topologies: the contract on SQLite."""

from __future__ import annotations

import pytest
from support.growth_contract import GrowthContract
from support.upgrade_contract import UpgradeContract


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


class TestContract(UpgradeContract):
    pass


class TestGrowth(GrowthContract):
    pass
