"""The inventory's file: nothing is lost in it, and what is none is refused with what to do."""

from __future__ import annotations

import difflib
import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from conformance.surface import inventory as files
from conformance.surface.inventory import (
    INVENTORIES,
    SCHEMA,
    WALKER,
    differences,
    dumps,
    inventory_of,
    known_path,
    load,
    loads,
    write,
)
from conformance.surface.model import CONTEXTS, Call, Inventory, Kind, OnCpu, Row, Tier
from conformance.surface.sources import SourceTree, memory_tree
from conformance.target import WrongUse
from tests.walker_cases.case import in_execute

_PATH = Path("somewhere") / "0.99.0.json"
_CASE = in_execute(
    "events",
    """\
    event = torch.cuda.Event(enable_timing=True)
    if current_platform.is_rocm():
        torch.cuda.synchronize()
    self.wait()
    """,
    head="def wait():\n    torch.accelerator.synchronize()\n",
)


def tree(text: str = "") -> SourceTree:
    return memory_tree({**_CASE.tree, "vllm/extra.py": text}, version="0.99.0")


def generated(seed: int, count: int = 60) -> Inventory:
    """Rows in which all that a row may be turns up, with chains that share their beginnings."""
    chance = random.Random(seed)
    names = [f"vllm.m{n}" for n in range(6)] + ["vllm", "vllm.unicode_ü"]
    functions = ["<module>", "f", "Runner.run", "Runner.run.<locals>.<lambda>", "g", "#1", ""]
    texts = ["", "x", "a == 'b'", 'say("ü\u2028")', "\ud800", "no condition on the way", "0"]

    def some(values: list[str], most: int = 3) -> tuple[str, ...]:
        return tuple(chance.choice(values) for _ in range(chance.randint(0, most)))

    def row() -> Row:
        steps = [
            f"{chance.choice(names)}:{chance.choice(functions)}:{chance.randint(0, 3)}"
            for _ in range(chance.randint(0, 5))
        ]
        module, function, line = (
            chance.choice(names),
            chance.choice(functions),
            chance.randint(1, 9),
        )
        if chance.random() < 0.9:
            steps.append(f"{module}:{function}:{line}")
        if chance.random() < 0.05:
            steps.append(chance.choice(["", "a", "a:b", "a:b:07", "a:b:-1", "::", "a:b:c:٣"]))
        cpu = chance.choice(get_args(OnCpu))
        attribute = chance.choice(["torch.cuda.Event", "pin_memory=True", "triton:_k"])
        calls = (
            None,
            Call(),
            Call(keywords=(attribute,)),
            Call(some(texts), some(["a=b", "**c"])),
        )
        return Row(
            attribute=attribute,
            kind=chance.choice(get_args(Kind)),
            module=module,
            function=function,
            line=line,
            end_line=line + chance.choice([0, 0, 2]),
            contexts=tuple(c for c in CONTEXTS if chance.random() < 0.3),
            tier=chance.choice(get_args(Tier)),
            chain=tuple(steps),
            guards=some(["a", "b", "not (c)"], 4),
            generation=chance.choice(["v1", "v2", "both"]),
            on_cpu=cpu,
            reason=chance.choice([*texts, *files._REASONS.values()]),
            call=chance.choice(calls),
            upstream=chance.choice(["rebound", "overridden", "none"]),
        )

    rows = {row.key: row for row in (row() for _ in range(count))}
    return Inventory.of("0.99.0", rows.values())


def test_what_is_written_is_read_again_exactly():
    for seed in range(100):
        inventory = generated(seed)
        assert loads(dumps(inventory), _PATH) == inventory, f"seed {seed}"


def test_an_inventory_without_rows_is_read_again():
    assert loads(dumps(Inventory("0.99.0", ())), _PATH) == Inventory("0.99.0", ())


def test_the_inventory_of_a_tree_is_read_again():
    inventory = inventory_of(tree(), None)
    assert len(inventory.rows) >= 3 and inventory.vllm == "0.99.0"
    assert loads(dumps(inventory), _PATH) == inventory


@pytest.mark.parametrize("seed", range(5))
def test_the_text_does_not_depend_on_where_the_rows_come_from(seed: int):
    inventory = generated(seed)
    rows = list(inventory.rows)
    random.Random(seed).shuffle(rows)
    assert dumps(Inventory.of("0.99.0", rows)) == dumps(inventory)
    assert dumps(loads(dumps(inventory), _PATH)) == dumps(inventory)


@pytest.mark.parametrize(
    "change",
    [
        {"attribute": "torch.cuda.Other"},
        {"guards": ("another",)},
        {"call": Call(("another",))},
        {"on_cpu": "unknown", "reason": "another"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_row_that_changes_is_a_line_or_two_that_change(change: dict[str, Any]):
    rows = inventory_of(tree(), None).rows
    changed = (replace(rows[0], **change), *rows[1:])
    texts = [dumps(Inventory.of("0.99.0", r)).splitlines() for r in (rows, changed)]
    lines = [x for x in difflib.ndiff(*texts) if x[0] in "+-"]
    assert 2 <= len(lines) <= 6


def _damaged(**changes: Any) -> str:
    data = json.loads(dumps(_SMALL))
    function = data["modules"]["vllm.a"]["f"]
    for key, value in changes.items():
        if key in ("row", "own"):
            item = function["rows"][0]
            function["rows"][0] = value if key == "row" else [*item[:3], value]
        elif key in ("ways", "rows", "tier", "cpu", "why", "way", "surplus"):
            function[key] = value
        else:
            data[key] = value
    return json.dumps(data)


_SMALL = Inventory.of(
    "0.99.0",
    [
        Row(
            attribute="torch.cuda.Event",
            kind="call",
            module="vllm.a",
            function="f",
            line=3,
            end_line=3,
            contexts=("execute",),
            tier="resolved",
            chain=("vllm.a:Runner.run:1", "vllm.a:f:3"),
            guards=(),
            generation="v1",
            on_cpu="true",
            reason="no condition on the way excludes a CPU",
            call=Call(),
        )
    ],
)

NONE_OF_OURS = {
    "nothing": "",
    "broken": dumps(_SMALL)[:-10],
    "a merge conflict": "<<<<<<< HEAD\n" + dumps(_SMALL),
    "a list": "[]",
    "a word": '"inventory"',
    "deep": "[" * 100_000,
    "no schema": "{}",
    "another schema": _damaged(schema="vllm-conformance/inventory/99"),
    "a schema that is a list": _damaged(schema=[SCHEMA]),
    "another walker": _damaged(walker=WALKER + 1),
    "no version": _damaged(vllm=None),
    "no modules": _damaged(modules=None),
    "modules in a list": _damaged(modules=[]),
    "no functions": _damaged(modules={"vllm.a": 3}),
    "a function that is a text": _damaged(modules={"vllm.a": {"f": "text"}}),
    "no contexts": _damaged(contexts={}),
    "an unknown context": _damaged(contexts={"e": "elsewhere"}),
    "contexts in a list": _damaged(contexts=["e"]),
    "an unknown key": _damaged(surplus=1),
    "an unknown tier": _damaged(tier="guessed"),
    "an unknown on_cpu": _damaged(cpu=True),
    "a reason that is a number": _damaged(why=3),
    "a way that there is not": _damaged(way=7),
    "a way before the first": _damaged(way=-1),
    "a way in a circle": _damaged(ways=[["f", 1]]),
    "a way from nowhere": _damaged(ways=[["g", 1]]),
    "a way that is too long": _damaged(ways=[["Runner.run", 1, 0, 0]]),
    "a way without a line": _damaged(ways=[["Runner.run", "1"]]),
    "rows that are a number": _damaged(rows=3),
    "a row twice": _damaged(rows=[[3, "torch.cuda.Event", "call"]] * 2),
    "a row that is a text": _damaged(row="abc"),
    "a row that is short": _damaged(row=[3]),
    "a row that is long": _damaged(row=[3, "torch.cuda.Event", "call", {}, {}]),
    "a line that is a text": _damaged(row=["3", "torch.cuda.Event", "call"]),
    "a line that is true": _damaged(row=[True, "torch.cuda.Event", "call"]),
    "an attribute that is a number": _damaged(row=[3, 3, "call"]),
    "an unknown kind": _damaged(row=[3, "torch.cuda.Event", "wish"]),
    "an unknown key of a row": _damaged(own={"surplus": 1}),
    "guards that are a text": _damaged(own={"if": "guard"}),
    "guards that the row above has not": _damaged(own={"if": [1]}),
    "arguments that are numbers": _damaged(own={"args": [3]}),
    "keywords that are a text": _damaged(own={"args": [], "kw": "a=b"}),
    "a chain that is a text": _damaged(own={"chain": "vllm.a:f:3"}),
}


@pytest.mark.parametrize("text", NONE_OF_OURS.values(), ids=NONE_OF_OURS)
def test_what_is_no_inventory_is_refused_with_its_path_and_what_to_do(text: str):
    with pytest.raises(WrongUse) as caught:
        loads(text, _PATH)
    sentence = str(caught.value)
    assert str(_PATH) in sentence and "\n" not in sentence
    assert "vllm-conformance surface --source 0.99.0 --write somewhere`" in sentence


def test_the_small_inventory_is_one():
    assert loads(_damaged(), _PATH) == _SMALL


def junked(seed: int) -> str:
    """The text of an inventory in which one to three places hold something else."""
    chance = random.Random(seed)
    data = json.loads(dumps(generated(seed, 6)))
    for _ in range(chance.randint(1, 3)):
        place: Any = data
        while isinstance(place, dict | list) and place:
            key = chance.choice([*place] if isinstance(place, dict) else range(len(place)))
            if not isinstance(place[key], dict | list) or chance.random() < 0.1:
                junk = [None, True, -1, 10**30, 1.5, "", "f", [], [[]], {}, {"a": 1}]
                place[key] = chance.choice(junk)
                break
            place = place[key]
    return json.dumps(data)


def test_a_file_with_anything_in_it_is_read_or_refused():
    refused = 0
    for seed in range(1000):
        try:
            assert isinstance(loads(junked(seed), _PATH), Inventory)
        except WrongUse as error:
            refused += 1
            assert str(_PATH) in str(error)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    assert refused > 500


def test_a_file_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(WrongUse, match=r"There is no inventory .*--source 0\.98\.0 --write"):
        load(tmp_path / "0.98.0.json")


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.write_bytes(b"\xff")])
def test_a_file_that_cannot_be_read_is_refused(make: Any, tmp_path: Path):
    path = tmp_path / "0.98.0.json"
    make(path)
    with pytest.raises(WrongUse, match=r"cannot be read"):
        load(path)


def test_what_is_written_has_its_versions_name(tmp_path: Path):
    path = write(_SMALL, tmp_path / "new")
    assert path == tmp_path / "new" / "0.99.0.json"
    assert load(path) == _SMALL
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize("version", ["unknown", "", "../0.1", "a/b"])
def test_a_vllm_without_a_version_is_not_written(version: str, tmp_path: Path):
    with pytest.raises(WrongUse, match="is no version"):
        write(replace(_SMALL, vllm=version), tmp_path)
    assert not [*tmp_path.iterdir()]


def test_nothing_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = write(_SMALL, tmp_path).read_text()

    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(WrongUse, match="No space left on device"):
        write(replace(_SMALL, rows=()), tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.read_text() == before


def test_a_file_where_the_directory_should_be_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WrongUse, match="--write DIR"):
        write(_SMALL, tmp_path / "file")


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The trees that get walked while the test runs."""
    from conformance.surface import walker

    walked: list[str] = []
    walk = walker.walk

    def counting(tree: SourceTree) -> Inventory:
        walked.append(tree.digest)
        return walk(tree)

    monkeypatch.setattr(walker, "walk", counting)
    return walked


def test_a_tree_is_walked_once(tmp_path: Path, walks: list[str]):
    first = inventory_of(tree(), tmp_path)
    assert inventory_of(tree(), tmp_path) == first
    assert len(walks) == 1
    inventory_of(tree("changed"), tmp_path)
    assert len(walks) == 2


def test_without_a_cache_nothing_is_kept(tmp_path: Path, walks: list[str]):
    inventory_of(tree(), None)
    inventory_of(tree(), None)
    assert len(walks) == 2


def test_another_walker_walks_again(
    tmp_path: Path, walks: list[str], monkeypatch: pytest.MonkeyPatch
):
    inventory_of(tree(), tmp_path)
    code = tmp_path / "code"
    code.mkdir()
    (code / "walker.py").write_text("another")
    monkeypatch.setattr(files, "__file__", str(code / "inventory.py"))
    inventory_of(tree(), tmp_path)
    assert len(walks) == 2


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'{"schema": 1}'])
def test_a_broken_cache_is_made_anew(content: bytes, tmp_path: Path, walks: list[str]):
    first = inventory_of(tree(), tmp_path)
    (path,) = (tmp_path / "inventories").iterdir()
    path.write_bytes(content)
    assert inventory_of(tree(), tmp_path) == first
    assert inventory_of(tree(), tmp_path) == first
    assert len(walks) == 2


def test_a_cache_that_cannot_be_used_is_no_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert inventory_of(tree(), tmp_path / "file").rows


def test_equal_inventories_do_not_differ():
    assert differences(_SMALL, _SMALL) == ()


_OTHER = replace(_SMALL.rows[0], attribute="torch.Event", line=7, end_line=7, chain=("vllm.a:f:7",))


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ((), "removed: torch.cuda.Event (call) at vllm.a:3, f"),
        ((*_SMALL.rows, _OTHER), "added: torch.Event (call) at vllm.a:7, f"),
        (
            (replace(_SMALL.rows[0], on_cpu="unknown", contexts=(), chain=("vllm.a:f:3",)),),
            "changed: torch.cuda.Event (call) at vllm.a:3, f: contexts execute -> none; "
            "another chain; on_cpu true -> unknown",
        ),
        (
            (replace(_SMALL.rows[0], call=Call(("1",), ("a=2",))),),
            "changed: torch.cuda.Event (call) at vllm.a:3, f: call () -> (1, a=2)",
        ),
    ],
)
def test_each_difference_is_a_line(rows: tuple[Row, ...], line: str):
    assert differences(_SMALL, Inventory.of("0.99.0", rows)) == (line,)


def test_every_known_inventory_is_as_this_walker_writes_it():
    for path in INVENTORIES.glob("*"):
        inventory = load(path)
        assert known_path(inventory.vllm) == path
        assert dumps(inventory) == path.read_text(encoding="utf-8"), path.name
