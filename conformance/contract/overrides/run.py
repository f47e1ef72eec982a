"""Overrides in a child process: compare each with its base, and report one by one."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from conformance.contract.batch import put_in_place
from conformance.contract.overrides.bench import Bench
from conformance.contract.overrides.delegation import wrapper
from conformance.contract.overrides.drivers import DRIVERS, PURPOSE, Driver
from conformance.contract.overrides.found import Override, classes_of, overrides_of
from conformance.contract.overrides.signatures import kind_of, narrower, signature_of
from conformance.scenarios.child import Journal


def run(
    journal: Journal,
    subject: str,
    worker_cls: str | None,
    model: str,
    done: list[str],
    only: list[str] | None = None,
    fault: str | None = None,
) -> None:
    """Check every override of a subject in both tiers, or ``only`` some, but not what is done.

    A result's name is ``tier/role.method``; its value None, or a dictionary with ``wrong`` or
    ``not_applicable``. ``found`` lists what the classes override.
    """
    import torch

    torch.set_num_threads(1)
    with journal.phase_of("patch"):
        if ":" not in subject:
            put_in_place(subject)
        if fault is not None:
            _plant(fault)
    with journal.phase_of("find"):
        found = overrides_of(classes_of(subject, worker_cls))
        journal.result("found", [override.method.name for override in found])
    bench = Bench(subject, worker_cls, model)
    # Shutting down comes last: what it leaves is no worker to look at.
    found = tuple(sorted(found, key=lambda override: override.method.method == "shutdown"))
    checks: list[tuple[str, Callable[[], Any], Override]] = [
        (f"signature/{override.method.name}", partial(_check_signature, override), override)
        for override in found
    ]
    for override in found:
        for part, driver in DRIVERS.get(override.method.name, {"": None}).items():
            name = f"equivalence/{override.method.name}" + (f"/{part}" if part else "")
            checks.append((name, partial(_check_equivalence, override, driver, bench), override))
    for name, check, override in checks:
        if name not in done and (only is None or name in only):
            with journal.phase_of(name):
                journal.result(name, _outcome(check, override))


def _plant(fault: str) -> None:
    module, _, function = fault.partition(":")
    getattr(importlib.import_module(module), function)()


def _outcome(check: Callable[[], Any], override: Override) -> dict[str, str] | None:
    try:
        skipped = check()
    except AssertionError as error:
        return {"wrong": f"{override.title} ({override.place}): {error}"}
    except Exception as error:
        return {
            "wrong": f"{override.title} ({override.place}): {type(error).__name__}: {error}\n"
            + traceback.format_exc()[-3000:]
        }
    return None if skipped is None else {"not_applicable": skipped}


def _check_signature(override: Override) -> None:
    if override.is_new:
        _require_called(override)
        return
    name = override.method.method
    mine, theirs = kind_of(override.value), kind_of(override.original)
    if mine != theirs:
        raise AssertionError(f"the base's {name} is a {theirs}, and it is a {mine}")
    if mine == "property":
        return
    here, there = (
        signature_of(override.value, bound=True),
        signature_of(override.original, bound=True),
    )
    if here is None or there is None:
        raise AssertionError(f"what {name} takes cannot be read")
    faults = narrower(there, here)
    if faults:
        raise AssertionError(
            f"the base takes {name}{there}, and it takes {name}{here}: {'; '.join(faults)}. Give "
            "it the base's parameters"
        )


def _check_equivalence(override: Override, driver: Driver | None, bench: Bench) -> str | None:
    name = override.method.name
    if override.is_new:
        return "the base has no such method: there is nothing to compare it with"
    if override.is_wrapper:
        wrapper(override)
        return None
    if driver is None:
        raise AssertionError(
            "nothing compares it with its base: add a driver for it to "
            "conformance/contract/overrides/drivers.py, or remove the override"
        )
    try:
        driver(override, bench)
    except AssertionError as error:
        purpose = PURPOSE.get(name)
        note = f" (it may differ, as {purpose}, but not in this)" if purpose else ""
        raise AssertionError(f"{error}{note}") from error
    return None


def _require_called(override: Override) -> None:
    """A method that the base does not have is a helper that somebody calls, or it is stale."""
    name = override.method.method
    if isinstance(override.value, property):
        return
    if not any(_mentions(path, name) for path in _sources(override)):
        raise AssertionError(
            f"{override.base.__qualname__} has no method {name}, and nothing calls it: it overrides"
            " what the base no longer has. Remove it, or follow what the base does instead"
        )


def _sources(override: Override) -> Iterable[Path]:
    """The files of the subject's own classes first, then vLLM's, those of V1 before the others."""
    seen = set()
    for cls in override.cls.__mro__[: override.cls.__mro__.index(override.base) + 1]:
        path = getattr(sys.modules.get(cls.__module__), "__file__", None)
        if path:
            seen.add(Path(path))
    yield from seen
    root = Path(sys.modules["vllm"].__file__ or "").parent
    for folder in (root / "v1", root):
        for path in folder.rglob("*.py"):
            if path not in seen:
                seen.add(path)
                yield path


def _mentions(path: Path, name: str) -> bool:
    """Whether a source reads the attribute, or has its name as a string, as remote calls do."""
    text = path.read_text(errors="replace")
    return name in text and bool(
        re.search(rf"\.{re.escape(name)}\b|[\"']{re.escape(name)}[\"']", text)
    )
