"""Stores a database and znodes as this version of txstream makes them, in tests/releases/VERSION/.

The tests of all later versions go on from there (tests/unit/test_releases.py). Run it once, before the
version is raised: what a release stored is never written again.

`state.sql` is an SQLite database as SQL; `znodes.json` maps each topology to its znodes, path to text;
`metas.json` has the ranges of each source as ZooKeeper and the ledger keep them.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Final

from tracked_wheel import ROOT

RELEASES: Final = ROOT / "tests" / "releases"


def make(folder: Path) -> None:
    """Write the files into `folder`."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.release_topologies import METAS, ORDERS, SCHEMA, SEMANTICS, orders

    from txstream.core.batch_metas import BatchMetas, MetaCodec
    from txstream.core.fault_points import Point
    from txstream.spouts.memory import MemorySpout
    from txstream.testing import TopologyTest

    znodes: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "state.db"
        for semantics in SEMANTICS:
            with (
                MemorySpout(SCHEMA, ORDERS) as source,
                TopologyTest(orders(semantics, source), database=f"sqlite:///{file}") as test,
            ):
                test.commit(2)  # with a dead letter
                test.scale({"check": 1})
                test.process(4)  # with the plans of both, if they are stored
                test.crash(Point.AFTER_COMMIT, txid=3)  # committed, but ZooKeeper does not know
                znodes[test.topology.id] = dict(sorted(test.zookeeper.items()))
        with contextlib.closing(sqlite3.connect(file)) as connection:
            statements = "\n".join(connection.iterdump()) + "\n"
    places = {scratch: "/srv/orders", str(ROOT): "/srv/txstream", socket.gethostname(): "counter1"}

    def anonymous(text: str) -> str:
        for here, there in places.items():
            text = re.sub(rf"{re.escape(here)}\b", there, text)
        return text

    metas = {
        name: MetaCodec(type(meta)).encode(
            BatchMetas({"lines/0": meta}, {"lines/1": meta}, {"lines/2": "away"})
        )
        for name, meta in METAS.items()
    }
    folder.mkdir(parents=True)
    (folder / "state.sql").write_text(anonymous(statements), encoding="utf-8")
    (folder / "znodes.json").write_text(anonymous(json.dumps(znodes, indent=1)) + "\n", encoding="utf-8")
    (folder / "metas.json").write_text(json.dumps(metas, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    import txstream

    folder = RELEASES / txstream.__version__.rpartition(".")[0]
    if folder.exists():
        print(f"{folder} is there already; what a release stored is not written again", file=sys.stderr)
        return 1
    make(folder)
    print(f"wrote {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
