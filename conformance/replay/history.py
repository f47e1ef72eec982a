"""The faults of the past, as a file of tables: what happened, where, and how it is shown.

    [[fault]]
    id = "vllm#41033"
    link = "https://github.com/vllm-project/vllm/issues/41033"
    what = "at exit the worker dies on an accelerator call"
    kind = "an inherited call that needs an accelerator"
    reported = "0.20.0 to 0.20.2"

    [[fault.shown]]
    by = "drift"
    of = "fault"
    old = "0.19.1"
    rule = "CONTEXT"
    attribute = "torch.accelerator.synchronize"
    had = ["0.20.0", "0.20.1", "0.20.2"]
    fixed = "0.21.0"
    says = "is reached in shutdown"

A look, ``[[fault.shown]]``, asks one part of the harness about versions: it must be red for each
that is in ``had``, and say ``says`` there; and green for ``fixed``. Of what nobody has mended yet
``unfixed`` says so, and ``before`` may name a version that had not got it, which is green too.
``of`` is ``fault`` where the look is at the fault itself, ``kind`` where it is at another of its
kind, because the fault cannot be seen here: ``not_here`` says why.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from packaging.version import InvalidVersion, Version

from conformance.cache import FIXTURES
from conformance.drift.model import SEVERITIES
from conformance.drift.rules import BY_ID
from conformance.drift.side import State
from conformance.surface.model import CONTEXTS, GENERATIONS, OnCpu
from conformance.target import WrongUse

HISTORY = FIXTURES / "history.toml"

Of = Literal["fault", "kind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftLook:
    """The step from ``old`` to a version has a finding with these fields; "" stands for any."""

    old: str
    rule: str
    attribute: str
    severity: str = "error"
    generation: str = ""
    function: str = ""
    """A function that one of its sites is in."""
    context: str = ""
    upstream: str = ""
    """What vLLM's own CPU runner does about it, `conformance.drift.side.State`."""

    @property
    def text(self) -> str:
        """What is asked, in a line."""
        return f"drift {self.old} ..: {self.severity} {self.rule} {self.attribute}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceLook:
    """The kept inventory of a version has a site with these fields; "" stands for any."""

    attribute: str
    module: str = ""
    function: str = ""
    generation: str = ""
    context: str = ""
    on_cpu: str = ""
    upstream: str = ""

    @property
    def text(self) -> str:
        """What is asked, in a line."""
        return f"surface: {self.attribute}{_at(self.module, self.function)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverLook:
    """The kept facts of a version say that its CPU side does no more than ``cover`` at a site."""

    attribute: str
    cover: str
    """The state that is the fault: none, incomplete, refused, unread, ..."""
    module: str = ""
    function: str = ""
    generation: str = ""
    context: str = ""
    on_cpu: str = "true"

    @property
    def text(self) -> str:
        """What is asked, in a line."""
        return f"facts: {self.attribute}{_at(self.module, self.function)} is {self.cover}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingLook:
    """The kept facts of a version say that a name is bound, and never put back."""

    stand_in: str

    @property
    def text(self) -> str:
        """What is asked, in a line."""
        return f"facts: {self.stand_in} is bound for good"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteLook:
    """A check of the suite is red for vLLM's own CPU runner; needs that vLLM to be installed."""

    check: str
    """Its id, ``contract::behaviour[streams/streams-compare-by-identity@execute]``."""

    @property
    def text(self) -> str:
        """What is asked, in a line."""
        return f"run upstream: {self.check}"


Look = DriftLook | SurfaceLook | CoverLook | BindingLook | SuiteLook

_BY: dict[str, tuple[type[Any], ...]] = {
    "drift": (DriftLook,),
    "surface": (SurfaceLook,),
    "facts": (CoverLook, BindingLook),
    "contract": (SuiteLook,),
    "scenario": (SuiteLook,),
}
BY = tuple(_BY)
"""How a fault can be shown."""

_CHOICES: dict[str, tuple[str, ...]] = {
    "rule": tuple(BY_ID),
    "severity": SEVERITIES,
    "generation": (*GENERATIONS, "both"),
    "context": CONTEXTS,
    "on_cpu": get_args(OnCpu),
    "cover": get_args(State),
}


@dataclass(frozen=True, slots=True)
class Shown:
    """A look, at which versions, and what must come of it."""

    by: str
    of: Of
    look: Look
    had: tuple[str, ...]
    fixed: str
    before: str
    unfixed: str
    says: str

    @property
    def green(self) -> str:
        """The version that has to be green, "" if there is none."""
        return self.fixed or self.before


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of the past."""

    id: str
    link: str
    what: str
    kind: str
    reported: str
    """Where it was reported, in words: versions, or a platform."""
    not_here: str
    """Why the fault itself cannot be seen here; "" if it can."""
    shown: tuple[Shown, ...]


_SHOWN = {"by", "of", "had", "fixed", "before", "unfixed", "says"}
_FAULT = {"id", "link", "what", "kind", "reported"}


def load(path: Path = HISTORY) -> tuple[Fault, ...]:
    """Read the file.

    Raises:
        WrongUse: it cannot be read, or is not what the module says; unknown keys count.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise WrongUse(f"{path} cannot be read as TOML: {error}.") from error
    items = data.get("fault", [])
    if set(data) - {"fault"} or not isinstance(items, list) or not items:
        raise WrongUse(f"{path} holds tables [[fault]], and nothing else.")
    found = tuple(_fault(path, number, item) for number, item in enumerate(items, 1))
    ids = [fault.id for fault in found]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise WrongUse(f"{path} has more than one entry for {', '.join(twice)}.")
    return found


def chosen(faults: Iterable[Fault], ids: Iterable[str]) -> tuple[Fault, ...]:
    """The faults that are asked for by id, all if none is.

    Raises:
        WrongUse: there is none of that id.
    """
    by_id = {fault.id: fault for fault in faults}
    wanted = list(dict.fromkeys(ids)) or list(by_id)
    unknown = [name for name in wanted if name not in by_id]
    if unknown:
        raise WrongUse(f"The history has no entry {', '.join(unknown)}; it has {', '.join(by_id)}.")
    return tuple(by_id[name] for name in wanted)


def _fault(path: Path, number: int, item: object) -> Fault:
    where = f"{path}, fault {number}"
    if not isinstance(item, dict):
        raise WrongUse(f"{where}: it is no table.")
    where = f"{path}, {item.get('id', f'fault {number}')}"
    _keys(where, item, required=_FAULT, optional={"not_here", "shown"})
    looks = item.get("shown", [])
    if not isinstance(looks, list):
        raise WrongUse(f"{where}: shown is a list of tables, [[fault.shown]].")
    texts = {key: _text(where, key, item[key]) for key in _FAULT}
    if not texts["link"].startswith("https://"):
        raise WrongUse(f"{where}: link is the address of the public report.")
    shown = tuple(_shown(f"{where}, look {n}", look) for n, look in enumerate(looks, 1))
    not_here = _text(where, "not_here", item["not_here"]) if "not_here" in item else ""
    if not not_here and not any(look.of == "fault" for look in shown):
        raise WrongUse(
            f"{where}: no look is at the fault itself, so not_here has to say why it is not seen."
        )
    return Fault(**texts, not_here=not_here, shown=shown)


def _shown(where: str, item: object) -> Shown:
    if not isinstance(item, dict) or item.get("by") not in _BY:
        raise WrongUse(f"{where}: by is one of {', '.join(BY)}.")
    types = _BY[item["by"]]
    cls = next((t for t in types if {f.name for f in _required(t)} <= set(item)), types[0])
    own = {field.name for field in fields(cls)}
    needed = {field.name for field in _required(cls)}
    _keys(
        where,
        item,
        required={"by", "of", "had", "says"} | needed,
        optional=(_SHOWN | own) - {"by", "of", "had", "says"} - needed,
    )
    if item["of"] not in get_args(Of):
        raise WrongUse(f"{where}: of is fault or kind, and not {item['of']!r}.")
    if ("fixed" in item) == ("unfixed" in item):
        raise WrongUse(f"{where}: it names the version that fixed it, or says why it is unfixed.")
    if "before" in item and "fixed" in item:
        raise WrongUse(f"{where}: before is for what is unfixed.")
    had = item["had"]
    if not isinstance(had, list) or not had:
        raise WrongUse(f"{where}: had is a list of the versions that had it.")
    for version in (*had, *(item[key] for key in ("fixed", "before", "old") if key in item)):
        _version(where, version)
    values = {key: _text(where, key, item[key]) for key in own & set(item)}
    for key, value in values.items():
        choices = _CHOICES.get(key)
        if choices is not None and value not in choices:
            raise WrongUse(f"{where}: {key} is one of {', '.join(choices)}, and not {value!r}.")
    return Shown(
        by=item["by"],
        of=item["of"],
        look=cls(**values),
        had=tuple(had),
        fixed=item.get("fixed", ""),
        before=item.get("before", ""),
        unfixed=_text(where, "unfixed", item["unfixed"]) if "unfixed" in item else "",
        says=_text(where, "says", item["says"]),
    )


def _required(cls: type[Any]) -> list[Field[Any]]:
    assert all(hint is str for hint in get_type_hints(cls).values()), "looks are made of texts"
    return [field for field in fields(cls) if field.default is MISSING]


def _keys(where: str, item: Mapping[str, Any], *, required: set[str], optional: set[str]) -> None:
    unknown = sorted(set(item) - required - optional)
    missing = sorted(required - set(item))
    if unknown or missing:
        parts = [f"unknown: {', '.join(unknown)}"] if unknown else []
        parts += [f"missing: {', '.join(missing)}"] if missing else []
        raise WrongUse(f"{where}: it has other keys than it should; {'; '.join(parts)}.")


def _text(where: str, key: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise WrongUse(f"{where}: {key} is a text that says something.")
    return value.strip()


def _version(where: str, value: object) -> None:
    try:
        Version(str(value))
    except InvalidVersion as error:
        raise WrongUse(f"{where}: {value!r} is no version.") from error


def _at(module: str, function: str) -> str:
    place = function or module
    return f" in {place}" if place else ""
