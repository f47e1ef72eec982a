"""The contract speaks of what is reached, of all of it, and of nothing else."""

from __future__ import annotations

import dataclasses

import pytest

from conformance.contract import CLAUSES
from conformance.contract.attributes import ATTRIBUTE
from conformance.contract.reached import NO_ATTRIBUTES, Shape, Use, uses
from conformance.contract.rows import TIERS, Contract
from conformance.surface.inventory import known_path, load
from conformance.surface.model import Call, Inventory, Row

_VERSIONS = ("0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0")
_OTHERS = ("0.20.2", "0.21.0", "0.24.0", "0.26.0", "0.33.0")

_SITE = Row(
    attribute="torch.cuda.Event",
    kind="call",
    module="vllm.x",
    function="X.run",
    line=3,
    end_line=3,
    contexts=("execute",),
    tier="direct",
    chain=("vllm.w:Worker.execute_model:1", "vllm.x:X.run:3"),
    guards=(),
    generation="v1",
    on_cpu="true",
    reason="",
    call=Call(("stream", "*rest"), ("blocking=True", "**options")),
)


@pytest.fixture(scope="module")
def inventories() -> dict[str, Inventory]:
    return {version: load(known_path(version)) for version in (*_VERSIONS, *_OTHERS)}


@pytest.mark.parametrize("version", _VERSIONS)
def test_all_that_is_reached_has_a_contract(
    version: str, inventories: dict[str, Inventory]
) -> None:
    assert not {use.attribute for use in Contract.of(inventories[version], "v1").uncovered}


def test_a_contract_is_for_what_some_release_reaches(inventories: dict[str, Inventory]) -> None:
    reached = {
        use.attribute
        for inventory in inventories.values()
        for generation in ("v1", "v2")
        for use in uses(inventory, generation)
    }
    spoken_of = {name for clause in CLAUSES for name in clause.attributes} | set(ATTRIBUTE)
    assert {name for name in spoken_of if not name.startswith("vllm.")} <= reached


@pytest.mark.parametrize("version", _VERSIONS)
def test_every_use_has_presence_and_every_call_shape_a_signature(
    version: str, inventories: dict[str, Inventory]
) -> None:
    rows = Contract.of(inventories[version], "v1").rows
    ids = {(row.tier, row.id) for row in rows}
    assert len(ids) == len(rows)
    assert {row.tier for row in rows} == set(TIERS)
    for use in uses(inventories[version], "v1"):
        if use.attribute not in NO_ATTRIBUTES:
            assert ("presence", f"{use.attribute}@{use.context}") in ids
            for shape in use.shapes:
                assert ("signature", f"{use.attribute}{shape}@{use.context}") in ids


@pytest.mark.parametrize("version", _VERSIONS)
def test_every_attribute_that_is_asked_something_has_behaviour_in_its_context(
    version: str, inventories: dict[str, Inventory]
) -> None:
    rows = Contract.of(inventories[version], "v1").rows
    behaviour = {(name, r.context) for r in rows if r.tier == "behaviour" for name in r.attributes}
    asked = {
        (use.attribute, use.context)
        for use in uses(inventories[version], "v1")
        if use.kinds & {"call", "launch", "argument"}
    }
    assert not asked - behaviour


def test_a_reached_attribute_without_a_clause_is_said_to_have_no_contract() -> None:
    new = dataclasses.replace(_SITE, attribute="torch.cuda.new_in_this_release")
    (use,) = Contract.of(Inventory.of("0.99.0", [new]), "v1").uncovered
    assert (use.attribute, use.where) == ("torch.cuda.new_in_this_release", "vllm.x:3")


def test_a_kernel_that_a_cpu_surely_launches_needs_a_clause() -> None:
    launch = dataclasses.replace(_SITE, attribute="triton:new_kernel", kind="launch")
    guess = dataclasses.replace(launch, attribute="triton:other_kernel", on_cpu="unknown")
    uncovered = Contract.of(Inventory.of("0.99.0", [launch, guess]), "v1").uncovered
    assert [use.attribute for use in uncovered] == ["triton:new_kernel"]


def test_a_shape_counts_what_is_written_and_leaves_out_what_is_unpacked() -> None:
    assert _SITE.call is not None
    assert Shape.of(_SITE.call) == Shape(1, ("blocking",))
    assert str(Shape(1, ("blocking",))) == "(_, blocking=)"


def _use(**changes: object) -> Use:
    site = dataclasses.replace(_SITE, **changes)  # type: ignore[arg-type]
    return Use(site.attribute, site.contexts[0], (site,))


def test_only_a_proven_chain_makes_a_use_certain() -> None:
    assert _use().is_certain()
    assert not _use(on_cpu="unknown").is_certain()


@pytest.mark.parametrize("step", ["Worker.execute_model", "vllm.w:Worker.execute_model"])
def test_a_chain_that_the_subject_replaces_a_step_of_is_no_proof(step: str) -> None:
    assert not _use().is_certain(frozenset({step}))
    assert _use().is_certain(frozenset({"Worker.load_model"}))


def test_what_only_a_function_does_is_not_certain_while_a_module_is_imported() -> None:
    assert not _use(contexts=("import",)).is_certain()
    assert _use(contexts=("import",), function="<module>").is_certain()


def test_a_signature_is_certain_by_the_sites_of_its_own_shape() -> None:
    other = dataclasses.replace(_SITE, line=9, on_cpu="unknown", call=Call())
    use = Use(_SITE.attribute, "execute", (_SITE, other))
    assert use.is_certain(shape=Shape(1, ("blocking",)))
    assert not use.is_certain(shape=Shape())
