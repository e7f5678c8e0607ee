"""What `make bench` reports about its figures."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("beside_peers")


def catch_up(contender: str, variant: str, batch: int, rate: int, cold: int) -> dict[str, Any]:
    return {
        "contender": contender,
        "variant": variant,
        "batch": batch,
        "records_per_second": rate,
        "cold_records_per_second": cold,
        "batches_per_second": rate / batch,
    }


def test_each_is_measured_by_its_best_batch_size(bench: Any) -> None:
    catch_ups = [
        catch_up("structured_streaming", "", 500_000, 300_000, 100_000),
        catch_up("structured_streaming", "", 10_000, 40_000, 30_000),
        catch_up("ours", "columnar", 500_000, 900_000, 250_000),
        catch_up("ours", "columnar", 10_000, 320_000, 200_000),
        catch_up("ours", "tuples", 500_000, 600_000, 150_000),
        catch_up("plain_loop", "", 100_000, 450_000, 440_000),
    ]
    lives = [
        {"contender": contender, "rate": rate, "p50": p50, "p99": p99}
        for rate in (1_000, 10_000)
        for contender, p50, p99 in (
            ("structured_streaming", 300, 600),
            ("ours", 50, 150),
            ("plain_loop", 5, 9),
        )
    ]
    assert bench.ratios(catch_ups, lives) == {
        "throughput_vs_structured_streaming": 3.0,
        "cold_throughput_vs_structured_streaming": 2.5,
        "per_tuple_throughput_vs_structured_streaming": 2.0,
        "batches_per_second_vs_structured_streaming": 8.0,
        "latency_p50_vs_structured_streaming": 6.0,
        "latency_p99_vs_structured_streaming": 4.0,
        "throughput_vs_plain_loop": 2.0,
    }


def test_what_a_slow_machine_left_unmeasured_has_no_ratio_and_breaks_nothing(
    bench: Any, tmp_path: Path
) -> None:
    workload = importlib.import_module("peers.workload")
    catch_ups = [
        {**catch_up("structured_streaming", "", 10_000, 40_000, 30_000), "batches_per_second": None},
        catch_up("ours", "columnar", 10_000, 320_000, 200_000),
    ]
    nothing = workload._percentiles([], 6.0)
    early = workload._percentiles(
        [(f"m-{tick}-{tick * 10_000}", tick / 100 + 0.05) for tick in range(300)], 6.0
    )
    assert nothing == early
    assert nothing["markers"] == 0
    lives = [
        {"contender": "structured_streaming", "rate": 1_000, "exact": False, **nothing},
        {"contender": "ours", "rate": 1_000, "exact": True, **nothing, "p50": 12.5, "p90": 20.0, "p99": 30.0},
    ]
    found = bench.ratios(catch_ups, lives)
    assert found == {
        "throughput_vs_structured_streaming": 8.0,
        "cold_throughput_vs_structured_streaming": 6.67,
    }
    assert bench.latency_p50_ms(lives) == {"structured_streaming": {"1000": None}, "ours": {"1000": 12.5}}
    document = {
        "catch_up": [{**one, "exact": True} for one in catch_ups],
        "live": [{**one, "guarantee": bench.GUARANTEES[one["contender"]]} for one in lives],
        "ratios": found,
    }
    bench.show(document)
    bench.draw(document, tmp_path / "chart.svg")
    assert (tmp_path / "chart.svg").exists()


def test_the_truth_is_that_of_the_records(bench: Any) -> None:
    workload = importlib.import_module("peers.workload")
    assert sum(workload.truth(5_000).values()) == 5_000
    assert workload.truth(5_000) == workload.truth(5_000)
    wide = workload.truth(5_000, 1_000_000)
    assert sum(wide.values()) == 5_000
    assert len(wide) > 4_900


def test_every_contender_has_a_name_a_guarantee_and_a_script(bench: Any) -> None:
    assert bench.GUARANTEES.keys() == bench.NAMES.keys()
    for contender in bench.NAMES:
        assert (BENCHMARKS / "peers" / f"{contender}.py").is_file()


def test_the_chart_shows_every_contender(bench: Any, tmp_path: Path) -> None:
    lives = [{"contender": one, "rate": 1_000, "p50": 7.0, "p99": 30.0} for one in bench.NAMES]
    bench.draw({"catch_up": [], "live": lives}, tmp_path / "chart.svg")
    drawn = (tmp_path / "chart.svg").read_text()
    assert all(f"<!-- {name}" in drawn for name in bench.NAMES.values())


def test_a_peer_is_found_once_it_is_wholly_installed(bench: Any, tmp_path: Path) -> None:
    ours, its = tmp_path / "venv", tmp_path / "venv-flink"
    assert bench.python_of("flink", str(ours)) is None
    (its / "bin").mkdir(parents=True)
    assert bench.python_of("flink", str(ours)) is None
    (its / ".installed").touch()
    assert bench.python_of("flink", str(ours)) == str(its / "bin" / "python")
    assert bench.python_of("pathway", str(ours)) is None


def test_a_contender_that_ends_before_it_is_ready_is_told_with_its_log(bench: Any, tmp_path: Path) -> None:
    sitting = bench.Sitting(tmp_path, "127.0.0.1:1", "127.0.0.1:2", "postgresql://")
    with (
        pytest.raises(SystemExit, match=r"(?s)no_such_peer failed:.*No module named"),
        sitting.contender("no_such_peer", "live", "t") as reports,
    ):
        next(reports)


@pytest.mark.parametrize(
    ("contender", "exact", "behind", "shown", "wrong"),
    [
        ("pathway_table", True, 0, "yes", False),
        ("pathway_table", False, 5_700, "NO, 5,700 behind", False),
        ("pathway_table", False, 0, "NO", True),  # more than there are
        ("ours", False, 5_700, "NO, 5,700 behind", True),
    ],
)
def test_a_peer_that_is_late_is_shown_and_is_not_wrong(
    bench: Any, contender: str, exact: bool, behind: int, shown: str, wrong: bool
) -> None:
    result = {"contender": contender, "exact": exact, "behind": behind}
    assert (bench.exactness(result), bench.is_wrong(result)) == (shown, wrong)


def test_a_wrong_total_of_records_that_were_there_from_the_start_is_wrong(bench: Any) -> None:
    result = {"contender": "structured_streaming", "exact": False}
    assert (bench.exactness(result), bench.is_wrong(result)) == ("NO", True)
