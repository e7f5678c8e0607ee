"""How many files and functions does one batch go through?

    python benchmarks/one_batch.py            # two figures; a second
    python benchmarks/one_batch.py --list     # and every function, by file

Counts the files and the functions of txstream that the second batch of a word count enters in `TopologyTest`,
without Spark, with its states in SQLite. Left out are `txstream.testing`, its recorder of calls, the user's
bolt, and the first batch, which fills caches. A lambda, a comprehension and a generator count as functions.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType

from txstream import (
    CountBolt,
    OpaqueSpout,
    SqlState,
    SqlStateBolt,
    Sum,
    Topology,
    TransactionalTopologyBuilder,
)
from txstream.examples.word_count import SplitLine
from txstream.spouts.memory import MemorySpout
from txstream.testing import TopologyTest

LINES = ["the cat sat", "the dog sat", "a cat", "a dog"]
HERE = Path(__file__).resolve().parent.parent
OURS = tuple(str(HERE / folder) for folder in ("txstream/", "spouts/", "bolts/"))
TESTING = (str(HERE / "txstream/testing"), str(HERE / "txstream/plugins/testing/recorded_calls.py"))


def word_count(source: MemorySpout) -> Topology:
    spout = OpaqueSpout(source, max_batch_records=2)
    builder = TransactionalTopologyBuilder("word-count", "lines", spout)
    builder.set_bolt("split", SplitLine()).shuffle_grouping("lines")
    builder.set_bolt("count", CountBolt("word")).fields_grouping("split", "word")
    state = SqlState("word_count", key="word string", value="n bigint")
    builder.set_committer_bolt("store", SqlStateBolt(state, n=Sum("n"))).fields_grouping("count", "word")
    return builder.build()


class Seen:
    """The code that threads enter while `is_on`."""

    def __init__(self) -> None:
        self.is_on = False
        self.code: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if self.is_on and event == "call":
            self.code.add(frame.f_code)


def functions_of_a_batch() -> dict[str, list[str]]:
    """Return the functions that a batch enters, by file."""
    seen = Seen()
    threading.setprofile(seen)
    sys.setprofile(seen)
    try:
        with MemorySpout("value string", {"p": LINES}) as source, TopologyTest(word_count(source)) as test:
            test.commit(1)
            seen.is_on = True
            test.commit(2)
            seen.is_on = False
            assert test.table("word_count") == {"the": 2, "sat": 2, "cat": 2, "dog": 2, "a": 2}
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    found = defaultdict(list)
    for code in seen.code:
        file = code.co_filename
        if file.startswith(OURS) and not file.startswith(TESTING):
            found[str(Path(file).relative_to(HERE))].append(f"{code.co_firstlineno:4} {code.co_qualname}")
    return {file: sorted(found[file]) for file in sorted(found)}


def main() -> int:
    parser = argparse.ArgumentParser(description="how many files and functions one batch goes through")
    parser.add_argument("--list", action="store_true", help="print every function, by file")
    found = functions_of_a_batch()
    if parser.parse_args().list:
        for file, functions in found.items():
            print(f"{file}  {len(functions)}", *(f"    {function}" for function in functions), sep="\n")
    print(f"{len(found)} files, {sum(map(len, found.values()))} functions")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
