"""The kernel checks: what they are made of, how they compare, and what they say."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from conformance.kernels.example import Memory
from conformance.kernels.outcomes import judged
from conformance.kernels.rows import OPERATORS, kernel_rows, launched, without_generator
from conformance.surface.inventory import known_path, load
from conformance.surface.model import Inventory
from conformance.target import parse_subject

VERSIONS = ("0.30.0", "0.31.0", "0.32.0")


@pytest.fixture(scope="module")
def inventories() -> dict[str, Inventory]:
    return {version: load(known_path(version)) for version in VERSIONS}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_kernel_that_a_cpu_launches_has_a_generator(
    version: str, inventories: dict[str, Inventory]
) -> None:
    from conformance.kernels.generators import GENERATOR

    assert without_generator(inventories[version], GENERATOR) == {}
    assert len(launched(inventories[version])) >= 17


def test_a_new_kernel_has_none_and_is_told(inventories: dict[str, Inventory]) -> None:
    from conformance.kernels.generators import GENERATOR

    inventory = inventories["0.32.0"]
    site = launched(inventory)["triton:expand_kernel"][0]
    new = dataclasses.replace(site, attribute="triton:a_new_kernel", module="vllm.new", line=7)
    grown = Inventory.of("0.32.1", (*inventory.rows, new))
    assert without_generator(grown, GENERATOR) == {"triton:a_new_kernel": "vllm.new:7"}
    assert {f"a_new_kernel/{way}" for way in ("launched", "called")} <= {
        row.id for row in kernel_rows(grown)
    }
    unsure = dataclasses.replace(new, on_cpu="unknown")
    assert without_generator(Inventory.of("", [unsure]), GENERATOR) == {}


def test_a_generator_is_for_what_some_release_may_launch(inventories: dict[str, Inventory]) -> None:
    from conformance.kernels.generators import GENERATOR

    reached = {
        kernel for inventory in inventories.values() for kernel in launched(inventory, surely=False)
    }
    assert set(GENERATOR) <= reached


def test_the_kernels_with_an_operator_are_those_whose_generator_has_one() -> None:
    from conformance.kernels.generators import GENERATOR

    assert set(OPERATORS) == {name for name, g in GENERATOR.items() if g.operator is not None}


@pytest.mark.parametrize("kernel", ["triton:expand_kernel", "triton:batch_memcpy_kernel"])
def test_the_same_inputs_are_drawn_every_time(kernel: str) -> None:
    from conformance.kernels.generators import GENERATOR
    from conformance.kernels.recording import drawn_from

    first = drawn_from(GENERATOR[kernel], (), 30)
    assert len({repr(example) for example in first}) == 30
    assert drawn_from(GENERATOR[kernel], (), 30) == first


def _example() -> Any:
    memory = Memory(-77)
    view = memory.output("out", (2, 2), "float32", gap=1)
    return memory.example({"out": view, "flag": True}, (1,)), view


def _after(example: Any, at: int, value: float) -> list[bytes]:
    import numpy as np

    content = np.frombuffer(example.regions[0].content, np.float32).copy()
    content[at] = value
    return [content.tobytes()]


@pytest.mark.parametrize(
    ("at", "says"),
    [
        (1, "out[0, 0] (float32): a GPU leaves -77, here 5"),
        (5, "out[1, 1]"),
        (0, "element 1 before out"),
        (3, "memory between the rows of out"),
        (8, "element 3 after out"),
    ],
)
def test_any_element_that_differs_is_told_with_its_place(at: int, says: str) -> None:
    from conformance.kernels.comparing import difference

    example, _ = _example()
    want = [example.regions[0].content]
    assert difference(example, want, want) is None
    assert says in (difference(example, want, _after(example, at, 5.0)) or "")


def test_bits_decide_but_for_nan_and_a_tolerance() -> None:
    from conformance.kernels.comparing import difference

    example, _ = _example()
    nan = float("nan")
    assert difference(example, _after(example, 1, 0.0), _after(example, 1, -0.0))
    assert difference(example, _after(example, 1, nan), _after(example, 1, nan)) is None
    assert difference(example, _after(example, 1, nan), _after(example, 1, 0.0), 0.5)
    assert difference(example, _after(example, 1, 1.0), _after(example, 1, 1.001))
    assert difference(example, _after(example, 1, 1.0), _after(example, 1, 1.001), 0.01) is None
    assert difference(example, _after(example, 1, 1.0), _after(example, 1, 1.02), 0.01)


def test_float32_is_rounded_to_the_nearest_bfloat16_and_to_even_at_a_tie() -> None:
    from conformance.kernels.example import from_storage, to_storage

    values = [1.0, 1.0 + 2**-8, 1.0 + 3 * 2**-8, 1.0 + 2**-8 + 2**-20, -77.0]
    kept = from_storage(to_storage(values, "bfloat16"), "bfloat16").tolist()
    assert kept == [1.0, 1.0, 1.0 + 2**-6, 1.0 + 2**-7, -77.0]


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    from conformance.kernels.generators import GENERATOR
    from conformance.kernels.recording import drawn_from
    from conformance.kernels.store import Record, read, write

    examples = tuple(drawn_from(GENERATOR["triton:batch_memcpy_kernel"], (), 5))
    after = tuple(tuple(r.content[::-1] for r in example.regions) for example in examples)
    record = Record("triton:x", ("a", "B"), ("B",), examples, after, {"source": "gpu-code"})
    write(tmp_path / "x.json", record)
    assert read(tmp_path / "x.json") == record


_RESULT = {
    "examples": 9,
    "failed": 0,
    "raised": 0,
    "refused": 0,
    "smallest": None,
    "parameters": None,
}


@pytest.mark.parametrize(
    ("subject", "changes", "replaced", "state"),
    [
        ("ours", {}, False, "holds"),
        ("ours", {"refused": 4}, False, "holds"),
        ("ours", {"failed": 1, "smallest": "x"}, False, "red"),
        ("ours", {"failed": 1, "smallest": "x"}, True, "red"),
        ("ours", {"failed": 9, "raised": 9, "smallest": "x"}, False, "red"),
        ("ours", {"failed": 9, "raised": 9, "smallest": "x"}, True, "replaced"),
        ("ours", {"parameters": "x"}, False, "red"),
        ("bare", {"failed": 9, "raised": 9, "smallest": "x"}, True, "red"),
    ],
)
def test_only_a_kernel_that_answers_nothing_and_is_never_launched_is_left_out(
    subject: str,
    changes: dict[str, Any],
    replaced: bool,
    state: str,
    inventories: dict[str, Inventory],
) -> None:
    row = next(
        row for row in kernel_rows(inventories["0.32.0"]) if row.id == "expand_kernel/launched"
    )
    step = ":".join(row.sites[0].chain[0].split(":")[:2])
    outcome = judged(
        row, {**_RESULT, **changes}, frozenset([step] if replaced else []), parse_subject(subject)
    )
    assert outcome.state == state
    if state == "red":
        assert "triton:expand_kernel" in outcome.text
        assert "vllm.v1.sample.rejection_sampler:612" in outcome.text
