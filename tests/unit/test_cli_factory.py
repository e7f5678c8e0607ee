"""MODULE:FACTORY is found in the working directory, called and shipped; and the errors when that fails."""

from __future__ import annotations

import importlib
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.lists import each

from txstream.cli.factory import FactoryError, load_topology, put_working_directory_first, shipped_module
from txstream.core.errors import TxstreamError, UsageError

GOOD = """
from txstream import KafkaSource, OpaqueSpout, SqlState, SqlStateBolt, TransactionalTopologyBuilder

def topology(topic: str = "lines", parallelism: int = 2):
    builder = TransactionalTopologyBuilder("mine", "lines", OpaqueSpout(KafkaSource(topic)))
    state = SqlState("mine", key="value string", value="partition int")
    builder.set_committer_bolt("store", SqlStateBolt(state), parallelism).fields_grouping("lines", "value")
    return builder.build()

def builder():
    return TransactionalTopologyBuilder("mine", "lines", OpaqueSpout(KafkaSource("lines")))

def wrong_field():
    builder = TransactionalTopologyBuilder("mine", "lines", OpaqueSpout(KafkaSource("lines")))
    state = SqlState("mine", key="value string", value="partition int")
    builder.set_committer_bolt("store", SqlStateBolt(state)).fields_grouping("lines", "wort")
    return builder.build()

def leaves():
    raise SystemExit("bye")

def divides():
    return 1 // 0

number = 7
"""


@pytest.fixture(autouse=True)
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory. The interpreter forgets afterwards what was imported from it."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_a_topology_from_a_module_in_the_working_directory(workshop: Path) -> None:
    (workshop / "shop_good.py").write_text(GOOD)
    topology = load_topology("shop_good:topology", ["topic=words", "parallelism=3"])
    assert topology.id == "mine"
    assert topology.spout.source.identity() == {"topics": ["words"]}
    assert topology.bolts[0].parallelism == 3


def test_the_working_directory_comes_first_and_once(workshop: Path) -> None:
    (workshop / "colorsys.py").write_text(GOOD)
    sys.modules.pop("colorsys", None)
    assert load_topology("colorsys:topology", []).id == "mine", "a standard module of that name loses"
    put_working_directory_first()
    assert sys.path.count(str(workshop)) == 1


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("shop_good", ["MODULE:FACTORY"]),
        (":topology", ["MODULE:FACTORY"]),
        ("shop_good:", ["MODULE:FACTORY"]),
        ("shop_good.py:topology", ["is a file", "shop_good:topology"]),
        ("a/b.py:topology", ["is a file", "a.b:topology"]),
        ("nowhere_at_all:topology", ["no module 'nowhere_at_all'"]),
        ("shop_good.inner:topology", ["no module 'shop_good.inner'"]),
        ("shop_good:topologie", ["no 'topologie'", "builder", "topology"]),
        ("shop_good:number", ["an int", "function"]),
        ("shop_needs:topology", ["shop_needs", "cannot be imported", "not_installed_here"]),
        ("shop_syntax:topology", ["shop_syntax", "cannot be imported", "SyntaxError"]),
        ("shop_raises:topology", ["shop_raises", "ZeroDivisionError", "shop_raises.py, line 2"]),
        ("shop_leaves:topology", ["shop_leaves", "SystemExit"]),
    ],
)
def test_a_bad_module_or_factory_is_a_usage_error(workshop: Path, target: str, words: list[str]) -> None:
    (workshop / "shop_good.py").write_text(GOOD)
    (workshop / "shop_needs.py").write_text("import not_installed_here\n")
    (workshop / "shop_syntax.py").write_text("def topology(:\n")
    (workshop / "shop_raises.py").write_text("x = 0\ny = 1 / x\n")
    (workshop / "shop_leaves.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(UsageError) as refused:
        load_topology(target, [])
    assert all(word in str(refused.value) for word in words), str(refused.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("divides", ["ZeroDivisionError", "shop_good.py, line"]),
        ("leaves", ["SystemExit", "bye"]),
        ("wrong_field", ["TopologyError", "'wort'", "'store'", "value"]),
        ("builder", ["not a Topology", "builder.build()"]),
    ],
)
def test_a_factory_that_raises_is_a_failure_and_not_a_usage_error(
    workshop: Path, name: str, words: list[str]
) -> None:
    (workshop / "shop_good.py").write_text(GOOD)
    with pytest.raises(FactoryError) as failed:
        load_topology(f"shop_good:{name}", [])
    assert failed.value.exit_status == 1
    assert all(word in str(failed.value) for word in [f"shop_good:{name}", *words]), str(failed.value)


# --- shipping ----------------------------------------------------------------------------------------------


def test_a_single_module_is_shipped_as_its_file(workshop: Path) -> None:
    (workshop / "shop_one.py").write_text("")
    put_working_directory_first()
    with shipped_module("shop_one:topology") as files:
        assert files == (str(workshop / "shop_one.py"),)


def test_a_package_is_shipped_whole_as_a_zip_that_imports(workshop: Path) -> None:
    package = workshop / "shop_package"
    (package / "inner" / "__pycache__").mkdir(parents=True)
    (package / ".hidden").mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner" / "__init__.py").write_text("ANSWER = 42\n")
    (package / "inner" / "words.txt").write_text("data")
    (package / "inner" / "__pycache__" / "x.pyc").write_text("")
    (package / ".hidden" / "secret").write_text("")
    put_working_directory_first()
    with shipped_module("shop_package.inner:topology") as files:
        (shipped,) = map(Path, files)
        assert shipped.name == "shop_package.zip"
        with zipfile.ZipFile(shipped) as archive:
            assert sorted(archive.namelist()) == [
                "shop_package/__init__.py",
                "shop_package/inner/__init__.py",
                "shop_package/inner/words.txt",
            ]
    assert not shipped.exists(), "it is removed after the run"


def test_a_package_without_init_is_shipped_too(workshop: Path) -> None:
    (workshop / "shop_namespace").mkdir()
    (workshop / "shop_namespace" / "mine.py").write_text("")
    put_working_directory_first()
    with shipped_module("shop_namespace.mine:topology") as files, zipfile.ZipFile(files[0]) as archive:
        assert archive.namelist() == ["shop_namespace/mine.py"]


def test_modules_beside_ones_own_are_shipped_with_it(workshop: Path) -> None:
    """Those that it imports in a function, over another module, or by name; no others."""
    elsewhere = workshop / "elsewhere"
    for name, text in {
        "shop_main.py": "import json, shop_direct, shop_far\ndef later():\n    from shop_package import x\n",
        "shop_direct.py": "import shop_indirect\nimportlib = __import__('importlib')\n"
        "importlib.import_module('shop_by_name')\n",
        "shop_indirect.py": "import shop_main\n",
        "shop_by_name.py": "",
        "shop_unused.py": "",
        "shop_package/__init__.py": "from . import inner\n",
        "shop_package/inner.py": "import shop_in_package\n",
        "shop_in_package.py": "not python",
        "elsewhere/shop_far.py": "",
    }.items():
        (workshop / name).parent.mkdir(exist_ok=True)
        (workshop / name).write_text(text)
    put_working_directory_first()
    sys.path.append(str(elsewhere))
    try:
        importlib.import_module("shop_main")
        with shipped_module("shop_main:topology") as files:
            names = sorted(Path(file).name for file in files)
    finally:
        sys.path.remove(str(elsewhere))
    assert files[0] == str(workshop / "shop_main.py")
    assert names == [
        *("shop_by_name.py", "shop_direct.py", "shop_in_package.py", "shop_indirect.py", "shop_main.py"),
        "shop_package.zip",
    ]


@each("target", ["txstream.examples.word_count:topology", "pytest:main", "json:loads"])
def test_what_is_installed_is_not_shipped(target: str) -> None:
    with shipped_module(target) as files:
        assert files == ()


def test_errors_of_both_kinds_have_the_one_root() -> None:
    assert issubclass(FactoryError, TxstreamError)
