"""Only the tests of one process use a shared service."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from support.processes import KAFKA, MYSQL, POSTGRES, SERVICES, SPARK, process_of, shares, times

TESTS = Path(__file__).resolve().parents[1]
FAMILY = re.compile(r"(own_)?(mariadb|mysql)(_server)?|contract_server")
OWN = {"postgres", "postgres_url", "own_postgres"}
OTHERS = {"services", "launcher", "own_zookeeper", "own_kafka", "steady_kafka"}
ON_SPARK = {"services", "launcher", "spark", "cluster"}


def test_by_the_file() -> None:
    for file in ("unit/test_rows.py", "unit/test_mysql.py", "acceptance/test_demo.py"):
        assert process_of(f"tests/{file}") == f"tests/{file}"
    assert process_of("tests/integration/test_leadership.py") == SERVICES
    assert process_of("tests/integration/test_state_postgres.py") == POSTGRES
    assert process_of("tests/integration/test_state_mysql.py") == MYSQL
    assert process_of("tests/integration/test_graph_on_spark.py") == SPARK
    assert process_of("tests/integration/test_kafka_spout_read.py") == KAFKA


def test_processes_get_whole_files_that_take_equally_long_and_servers_stay_together() -> None:
    spark = [f"tests/integration/test_{n}_on_spark.py" for n in "ab"]
    others = [f"tests/unit/test_{n:02}.py" for n in range(20)]
    seconds = {**dict.fromkeys(spark, 10.0), **dict.fromkeys(others, 1.0)}
    assert shares([*others, *spark], seconds, 2) == [spark, others]
    three = shares([*others, *spark], seconds, 3)
    assert [file for share in three for file in share] == [*spark, *others]
    assert [len(share) for share in three] == [1, 8, 13]  # 10, 17 and 13 seconds
    assert shares(["tests/unit/test_new.py"], {}, 3).count([]) == 2


def test_files_of_which_only_the_other_lane_has_tests_take_no_time() -> None:
    record = {"gate": {"a": (1, 4.0)}, "long": {"a": (1, 7.0), "b": (2, 9.0)}}
    assert times("gate", record) == {"a": 4.0, "b": 0.0}
    assert times("long", record) == {"a": 7.0, "b": 9.0}


def test_no_module_needs_servers_of_several() -> None:
    found = dict.fromkeys((SPARK, SERVICES, KAFKA, POSTGRES, MYSQL), 0)
    for file in sorted([*TESTS.glob("integration/test_*.py"), *TESTS.glob("acceptance/test_*.py")]):
        used = fixtures(file)
        family = {name for name in used if FAMILY.fullmatch(name)}
        process = process_of(file.relative_to(TESTS.parent).as_posix())
        allowed = {
            MYSQL: family | {"services"},
            POSTGRES: OWN,
            SERVICES: OWN | OTHERS,
            KAFKA: OTHERS,
            SPARK: OWN | ON_SPARK,
        }.get(process, {"services"})  # what `txstream up` has started, in tests of commands
        assert used & (OWN | OTHERS | ON_SPARK | family) <= allowed, file
        if process in found:
            found[process] += bool(used & allowed)
    assert min(found.values()) > 2


def fixtures(file: Path) -> set[str]:
    """Return all argument names and all strings of a module; both may name fixtures."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return arguments | {
        node.value for node in nodes if isinstance(node, ast.Constant) and type(node.value) is str
    }
