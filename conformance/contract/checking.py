"""Checks one row of the contract in the process that it is about. Runs in child processes."""

from __future__ import annotations

import importlib
import inspect
import linecache
import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from conformance.contract.attributes import ATTRIBUTE, Attribute, resolve
from conformance.contract.clause import Diverges, require
from conformance.contract.platforms import SAMPLES
from conformance.contract.reached import COMPILER_OPTIONS, Shape
from conformance.contract.rows import ContractRow
from conformance.surface.model import Row

_WRITTEN = re.compile(r"(?:return\s+)?([A-Za-z_][\w.]*)\s*[\[(]")
"""How a launch is written: a name, and then its grid or its arguments."""


class Refuses(RuntimeError):
    """Nothing stands in for a kernel, so its launch cannot work here."""


def outcome_of(row: ContractRow) -> dict[str, str] | None:
    """Check a row; None if it holds, else what happened.

    ``kind`` is ``wrong`` where something answered as no GPU does, and ``raises`` where the
    attribute itself raised.
    """
    try:
        _check(row)
    except Exception as error:
        return {
            "kind": "wrong" if isinstance(error, Diverges) else "raises",
            "type": type(error).__name__,
            "message": str(error),
            "traceback": traceback.format_exc()[-3000:],
        }
    return None


def _check(row: ContractRow) -> None:
    if row.clause is not None:
        row.clause.check()
    elif row.tier == "behaviour":
        _is_never_silent(row)
    elif row.name.startswith("triton:"):
        _kernel(row)
    elif row.tier == "presence":
        _is_there(row)
    else:
        assert row.shape is not None
        _takes(attribute_of(row.name), row.shape, row)


def attribute_of(name: str) -> Attribute:
    """How an attribute is found and asked; a predicate is a member of vLLM's platform."""
    if name in ATTRIBUTE:
        return ATTRIBUTE[name]
    samples: dict[int | str, Callable[[], Any]] = {
        0: lambda: SAMPLES[name.removeprefix("platform.")]
    }
    return Attribute(
        name,
        "vllm/platforms/interface.py",
        receiver=lambda: resolve("vllm.platforms.current_platform"),
        samples=samples,
    )


def _is_there(row: ContractRow) -> None:
    found = attribute_of(row.name).find()
    kinds = {kind for use in row.uses for kind in use.kinds}
    if "call" in kinds:
        require(callable(found), f"sites call it, and it is {found!r}")
    if "annotation" in kinds:
        # An unquoted annotation is evaluated when the module is imported.
        require((found | None) is not None, f"annotations name it, and it is {found!r}")


def _takes(attribute: Attribute, shape: Shape, row: ContractRow) -> None:
    try:
        positional, keywords = attribute.arguments(shape)
    except LookupError as error:
        raise Diverges(
            f"sites call {attribute.name}{shape} ({row.uses[0].where}), and the contract has no "
            "sample for one of these arguments: add it in conformance/contract/attributes.py"
        ) from error
    found = attribute.find()
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        pass  # written in C: calling it will tell
    else:
        try:
            signature.bind(*positional, **keywords)
        except TypeError as error:
            raise Diverges(f"it does not take {shape}: {error}") from error
    try:
        found(*positional, **keywords)
    except TypeError as error:
        raise Diverges(f"it does not take {shape}: {error}") from error


@dataclass(frozen=True)
class _Launch:
    """What a site launches: the kernel, and the helper of vLLM's through which it does, if any."""

    module: str
    kernel: Any
    helper: Any = None
    unpacks: bool = False
    """Whether it unpacks arguments (``*args``), so that its shape does not show all of them."""


def _launches(row: ContractRow) -> Iterator[_Launch]:
    """What the sites of a kernel really launch, in the modules that they are in.

    Raises Refuses where none of these modules can be imported, or none has the name.
    """
    problems: list[str] = []
    found = False
    for site in (site for use in row.uses for site in use.sites):
        if row.shape is not None and (site.call is None or Shape.of(site.call) != row.shape):
            continue
        try:
            module = importlib.import_module(site.module)
            launch = replace(_launch(module, site), unpacks=_unpacks(site))
        except Exception as error:
            problems.append(f"{site.module}: {type(error).__name__}: {error}")
            continue
        found = True
        yield launch
    if not found:
        raise Refuses(f"no module that launches it has it: {'; '.join(problems)}")


def _launch(module: Any, site: Row) -> _Launch:
    text = " ".join(
        linecache.getline(module.__file__, line).strip()
        for line in range(site.line, site.end_line + 1)
    )
    path = site.attribute.removeprefix("triton:")
    written = _WRITTEN.match(text)
    if written is not None:
        try:
            value = _walk(module, written[1])
        except AttributeError:
            pass  # a local name, or a member of an object
        else:
            if hasattr(value, "kernel"):
                return _Launch(site.module, value.kernel, value)
            if written[1].rpartition(".")[2] == path.rpartition(".")[2]:
                return _Launch(site.module, value)
    return _Launch(site.module, _held(module, path))


def _held(module: Any, path: str) -> Any:
    """What a module has under a path; of a class that it has an object of, what the object has.

    A launch through ``self`` reads the object, and a stand-in may have been put there.
    """
    owner, _, name = path.rpartition(".")
    holder = _walk(module, owner) if owner else module
    objects = [value for value in vars(module).values() if type(value) is holder]
    return getattr(objects[0] if objects else holder, name)


def _unpacks(site: Row) -> bool:
    if site.call is None:
        return False
    return any(text.startswith("*") for text in (*site.call.positional, *site.call.keywords))


def _walk(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _kernel(row: ContractRow) -> None:
    for launch in _launches(row):
        if row.tier == "presence":
            if not hasattr(type(launch.kernel), "__getitem__"):
                raise Refuses(f"{launch.module} has a plain function for it, and cannot launch it")
            if _is_tritons(launch.kernel):
                raise Refuses(f"{launch.module} has Triton's, and no Triton compiles for the CPU")
        else:
            assert row.shape is not None
            _takes_launch(launch, row.shape)


def _is_tritons(kernel: Any) -> bool:
    from vllm.triton_utils import HAS_TRITON

    return not HAS_TRITON and type(kernel).__module__.partition(".")[0] == "triton"


def _takes_launch(launch: _Launch, shape: Shape) -> None:
    """Hold a launch against the kernel's parameters, and those of what runs in its place."""
    if launch.helper is not None:
        # The helper makes the launch of what it is given; the clauses go through it.
        dispatch = getattr(launch.helper, "_dispatch_fn", None) or launch.helper
        require(
            _binds(dispatch, [None] * shape.positional, dict.fromkeys(shape.keywords)),
            f"{launch.module} calls it as {shape}, and it takes {inspect.signature(dispatch)}",
        )
    kernel = launch.kernel
    function = getattr(kernel, "func", None) or getattr(kernel, "fn", None) or kernel
    while hasattr(function, "fn"):
        function = function.fn  # Triton's heuristics and autotuner wrap the kernel
    own = inspect.signature(function).parameters
    names = tuple(getattr(kernel, "arg_names", None) or own)
    if launch.helper is not None:
        require(
            _binds(function, [], dict.fromkeys(names)) or _binds(function, [None] * len(names), {}),
            f"the kernel takes {list(names)}, and what runs in its place {list(own)}",
        )
        return
    keywords = [name for name in shape.keywords if name not in COMPILER_OPTIONS]
    given = [*names[: shape.positional], *keywords]
    unknown = [name for name in keywords if name not in names]
    by = launch.module
    require(shape.positional <= len(names), f"{by} launches it with {shape.positional} values")
    require(not unknown, f"{by} launches it with {', '.join(unknown)}, which it does not take")
    require(len(set(given)) == len(given), f"{by} gives it a parameter twice: {given}")
    if function is not kernel:
        all_given = not launch.unpacks
        by_name = _binds(function, [], dict.fromkeys(given), all_given)
        as_launched = _binds(
            function, [None] * shape.positional, dict.fromkeys(keywords), all_given
        )
        require(
            by_name or as_launched,
            f"{by} launches it as {shape}, and what runs in its place takes {list(own)}",
        )


def _binds(
    function: Any, positional: list[Any], keywords: dict[str, Any], all_given: bool = True
) -> bool:
    signature = inspect.signature(function)
    try:
        (signature.bind if all_given else signature.bind_partial)(*positional, **keywords)
    except TypeError:
        return False
    return True


def _is_never_silent(row: ContractRow) -> None:
    for launch in _launches(row):
        try:
            launch.kernel[(1,)]()
        except Exception:
            continue
        raise Diverges(
            f"{launch.module}: a launch without any argument raised nothing, so it does nothing"
        )
