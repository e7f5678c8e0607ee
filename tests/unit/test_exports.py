"""`txstream` itself: every public name loads, and type checkers see the same names as `__getattr__`."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from support.lists import each

import txstream
import txstream.testing


def imports_for_type_checkers() -> dict[str, str]:
    """Name to module, as written below `if TYPE_CHECKING:`."""
    tree = ast.parse(Path(txstream.__file__).read_text(encoding="utf-8"))
    found: dict[str, str] = {}
    for statement in tree.body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            for node in statement.body:
                assert isinstance(node, ast.ImportFrom)
                assert node.module is not None
                for alias in node.names:
                    assert alias.asname == alias.name, "mypy re-exports `X as X` only"
                    assert alias.name not in found, f"{alias.name} is imported twice"
                    found[alias.name] = node.module
    return found


def test_the_lazy_table_and_the_imports_for_type_checkers_agree() -> None:
    assert imports_for_type_checkers() == dict(txstream._HOME_OF)
    assert len(txstream._HOME_OF) == sum(len(names) for names in txstream._HOMES.values())


def test_all_is_every_public_name_and_dir_shows_it() -> None:
    assert set(txstream.__all__) == {"__version__", *txstream._HOME_OF}
    assert len(txstream.__all__) == len(set(txstream.__all__))
    assert dir(txstream) == sorted(txstream.__all__)


@each("name", [name for name in txstream.__all__ if name != "__version__"])
def test_every_name_resolves_to_what_its_home_has(name: str) -> None:
    assert getattr(txstream, name) is getattr(importlib.import_module(txstream._HOME_OF[name]), name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'txstream' has no attribute 'Bolt'"):
        txstream.Bolt  # noqa: B018
    with pytest.raises(AttributeError, match=r"module 'txstream.testing' has no attribute 'Runner'"):
        txstream.testing.Runner  # noqa: B018


def test_importing_txstream_loads_no_library() -> None:
    program = "import sys, txstream; print([m for m in sys.modules if m.split('.')[0] in sys.argv[1:]])"
    libraries = ["pyspark", "sqlalchemy", "kazoo", "kafka", "pyarrow", "alembic", "typer"]
    done = subprocess.run(
        [sys.executable, "-c", program, *libraries], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_importing_the_faults_loads_no_engine_on_spark() -> None:
    program = "import sys, txstream.cli.faults; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert txstream.testing.InProcessRunner.__module__ == "txstream.plugins.local.local_runner"


PROMISED = {
    "spouts": "PartitionedSpout PartitionCoordinator PartitionEmitter SpoutContext Unavailable KafkaSource "
    "TransactionalSpout OpaqueSpout NonTransactionalSpout",
    "bolts": "BasicBolt BatchBolt TransactionalBolt Committer CountBolt ReduceBolt SqlStateBolt "
    "OutputCollector OutputFieldsDeclarer TopologyContext Tuple",
    "state": "SqlState Semantics Count Sum Min Max",
    "topologies": "TransactionalTopologyBuilder Topology TransactionAttempt Settings start run",
    "errors": "TxstreamError BatchFailedError FailedException PartitionUnavailableError ShortReadError "
    "DataLostError CorruptStateError ProgressMismatchError FencedError",
}


@each("kind", PROMISED)
def test_the_names_that_users_write_are_there(kind: str) -> None:
    assert set(PROMISED[kind].split()) <= set(txstream.__all__)
