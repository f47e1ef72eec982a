"""What must hold of a subject's rebindings; each claim has a process of its own."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conformance.contract.clause import require
from conformance.contract.overrides.signatures import narrower, signature_of
from conformance.contract.rebinding import accelerator, captured, compiling, sites
from conformance.contract.rebinding.force import Force, NotApplicable
from conformance.contract.rebinding.snapshot import Rebound, changed, snapshot


@dataclass(frozen=True)
class Claim:
    """A claim about a subject's patches, and the function that raises if it does not hold.

    ``before`` is what has to be seen before the stand-ins are in force; ``check`` gets it. Claims
    of one ``group`` are checked in one process, in their order; one without has a process of its
    own, as it spoils the process's names. One may be about the subject
    ``only``, for the reason ``why_only``.
    """

    name: str
    check: Callable[[Force, Any], None]
    group: str = ""
    before: Callable[[], Any] = lambda: None
    only: str = ""
    why_only: str = ""


IN_FORCE = "in force"
"""The claims that look at the stand-ins, and leave them as they are."""

_claims: list[Claim] = []


def _claim(
    group: str = "",
    *,
    before: Callable[[], Any] = lambda: None,
    only: str = "",
    why_only: str = "",
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a claim of a function, whose name it is."""

    def make(check: Callable[..., None]) -> Callable[..., None]:
        name = check.__name__.replace("_", "-")
        takes_before = len(inspect.signature(check).parameters) == 2
        call = check if takes_before else lambda force, _: check(force)
        _claims.append(Claim(name, call, group, before, only, why_only))
        return check

    return make


def _list(items: list[str], limit: int = 12) -> str:
    more = f", and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(items[:limit]) + more


@_claim("life")
def applied_twice_is_applied_once(force: Force) -> None:
    """A second worker of the process finds the stand-ins there, and puts none over them."""
    first = {label: item.stand_in for item in force.in_force() for label in item.labels}
    again = {label: item.stand_in for item in force.put_again() for label in item.labels}
    other = sorted(label for label in first if again.get(label) is not first[label])
    require(
        not other,
        f"a second worker binds other objects to {_list(other)}: what compiled code or a module "
        "took from the first is not what is in force. Bind a name only if it is not bound yet",
    )


@_claim("life")
def restored_at_the_end(force: Force) -> None:
    """Every name is bound to what it was bound to, and no module keeps a stand-in."""
    stand_ins = {id(item.stand_in): item.label for item in force.in_force()}
    force.put_again()
    force.end()
    _require_restored(force, stand_ins)


@_claim()
def restored_after_an_exception(force: Force) -> None:
    """A worker whose construction fails leaves nothing rebound: nobody will shut it down."""
    force.prepare()
    force.fail_to_construct()
    _require_restored(force, {id(item.stand_in): item.label for item in force.rebound()})


def _require_restored(force: Force, stand_ins: dict[int, str]) -> None:
    after = snapshot()
    left = changed(force.before, after)
    require(not left, f"still bound to stand-ins afterwards: {_list(left)}. Put them back")
    kept = sorted(p.label for p in after.values() if id(p.value) in stand_ins)
    require(not kept, f"a stand-in was copied meanwhile and is still in {_list(kept)}")


@_claim(IN_FORCE)
def every_name_has_an_object_of_its_own(force: Force) -> None:
    """Dynamo keys its handlers on the function object, and a name is told by its object."""
    by_object: dict[int, list[Rebound]] = {}
    for item in force.in_force():
        by_object.setdefault(id(item.stand_in), []).append(item)
    shared = [
        f"{' and '.join(item.label for item in group)} are both "
        f"{getattr(group[0].stand_in, '__name__', group[0].stand_in)!r}"
        for group in by_object.values()
        if len(group) > 1
    ]
    require(not shared, f"{_list(shared)}. Give each name an object of its own")


@_claim(IN_FORCE)
def stand_ins_say_what_they_stand_for(force: Force) -> None:
    """A traceback, a profile or a repr shows a name that leads to the one that is rebound."""
    silent = []
    for item in force.in_force():
        name = str(getattr(item.stand_in, "__name__", ""))
        last = {label.rpartition(".")[2] for label in item.labels}
        last.add(str(getattr(item.original, "__name__", "")) or "?")
        if not any(_alike(part, name) for part in last):
            silent.append(f"{item.label} is {name or repr(item.stand_in)!r}")
    require(not silent, f"{_list(silent)}. Name each stand-in after what it stands for")


def _alike(part: str, name: str) -> bool:
    """Whether one contains the other, or they share a word that is not in every name."""
    plain, other = part.strip("_").lower(), name.strip("_").lower()
    if not other or other == "<lambda>":
        return False
    words = {word for word in plain.split("_") if len(word) > 3} - {"kernel"}
    return plain in other or other in plain or bool(words & set(other.split("_")))


@_claim(IN_FORCE)
def a_class_stays_a_class(force: Force) -> None:
    """isinstance and annotations go on working: a class is replaced by a class, a function not."""
    wrong = [
        f"{item.label} was {_kind(item.original)} and is {_kind(item.stand_in)}"
        for item in force.in_force()
        if isinstance(item.original, type) != isinstance(item.stand_in, type)
    ]
    require(not wrong, _list(wrong))


def _kind(value: Any) -> str:
    return "a class" if isinstance(value, type) else f"a {type(value).__name__}"


@_claim(IN_FORCE)
def stand_ins_take_what_the_originals_take(force: Force) -> None:
    """As far as inspect can say what a name takes, its stand-in takes that too."""
    faults, compared = [], 0
    for item in force.in_force():
        theirs, mine = signature_of(item.original), signature_of(item.stand_in)
        if theirs is None or mine is None:
            continue
        compared += 1
        faults += [
            f"{item.label} takes {theirs}, and its stand-in {mine}: {fault}"
            for fault in narrower(theirs, mine)
            if not fault.startswith("it does not take **")  # documented ones have names
        ]
    require(compared, "no original and its stand-in could be compared")
    require(not faults, "; ".join(faults))


@_claim(IN_FORCE)
def stand_ins_take_what_vllm_passes(force: Force) -> None:
    """The arguments of every site of the inventory that a CPU reaches can be bound."""
    faults, bound = [], 0
    for item in force.in_force():
        for row, what, problem in _misfits(force, item):
            bound += 1
            if problem is not None:
                faults.append(f"{sites.place(row)} calls {what}({row.call.text}): {problem}")
    require(bound, "no call of any rebound name was found in the inventory")
    require(not faults, "; ".join(dict.fromkeys(faults)))


def _misfits(force: Force, item: Rebound) -> Any:
    if not item.label.startswith("torch."):
        for row in sites.launches_of(force.vllm, item.labels):
            yield row, row.attribute, _launch_misfit(item.stand_in, row)
        return
    made: Any = None
    for row, member in sites.calls_of(force.vllm, item.label):
        if not member:
            # A tensor's method is called with the tensor.
            leading = int(item.label.startswith("torch.Tensor."))
            signature = signature_of(item.stand_in)
            problem = None if signature is None else sites.misfit(signature, row, leading=leading)
            yield row, item.label, problem
            continue
        made = made if made is not None else item.stand_in()
        target = getattr(made, member, None)
        if target is None:
            yield row, row.attribute, f"the stand-in has no {member}"
            continue
        signature = signature_of(target)
        yield row, row.attribute, None if signature is None else sites.misfit(signature, row)


def _launch_misfit(kernel: Any, row: Any) -> str | None:
    """A launch is bound by the kernel's own parameters, and then given to what stands in."""
    names = getattr(kernel, "arg_names", None)
    if names is None:
        signature = signature_of(kernel)
        return None if signature is None else sites.misfit(signature, row)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind, default=None) for name in names]
    return sites.misfit(inspect.Signature(parameters), row)


_ELSEWHERE = (
    "vLLM passes pin_memory to it where a platform with pinned memory leads, and code outside of "
    "its tree writes pin_memory=True out"
)
_UNREAD = {
    f"torch.{name}": _ELSEWHERE
    for name in ("empty", "empty_like", "empty_strided", "full", "ones", "tensor")
}
"""Names that no site on a CPU reads, and why they are rebound all the same.

A reason holds only while vLLM has such a site for other platforms.
"""


@_claim(IN_FORCE)
def what_is_rebound_is_read(force: Force) -> None:
    """Each rebound name is read at a site of the inventory that a CPU reaches."""
    # Upstream's stand-ins serve both of its runners.
    generations = ("v1", "v2") if force.subject == "upstream" else ("v1",)
    reached, everywhere = sites.rows(force.vllm, generations), sites.all_rows(force.vllm)
    unread = []
    for item in force.in_force():
        if any(sites.read_at(label, reached) for label in item.labels):
            continue
        if any(label in _UNREAD and sites.read_at(label, everywhere) for label in item.labels):
            continue
        own = [label for label in item.labels if label.startswith("vllm.")]
        if own and any(sites.is_called_in_vllm(label) for label in own):
            continue
        unread.append(item.label)
    require(
        not unread,
        f"no site of vLLM {force.vllm} that a CPU reaches reads {_list(unread)}: remove the patch, "
        "or say why it is there",
    )


@_claim()
def no_module_holds_the_original(force: Force) -> None:
    """What a caller really gets: nothing was captured before the stand-ins came."""
    force.prepare()
    captured.import_all(sites.modules(force.vllm))
    force.before.update({k: v for k, v in snapshot().items() if k not in force.before})
    found = force.put()
    require(found, "nothing is rebound while its stand-ins are in force, so nothing was checked")
    originals = {id(item.original): item.label for item in found}
    stand_ins = {id(item.stand_in) for item in found}
    held = [
        f"{where} is still the original of {label}"
        for where, label in captured.captures(
            {key: label for key, label in originals.items() if key not in stand_ins}, stand_ins
        )
    ]
    require(not held, f"{_list(sorted(set(held)))}. Rebind these too")


@_claim(
    only="upstream", why_only="vLLM replaces kernels before it looks which worker it is to make"
)
def kernels_are_replaced_whatever_is_imported(force: Force) -> None:
    """A package that the process has imported already does not keep a worker from being made."""
    importlib.import_module("numba")  # as vLLM's own n-gram drafting does
    try:
        force.prepare()
    except Exception as error:
        raise AssertionError(
            "with numba imported, replacing the kernels for the CPU raises "
            f"{type(error).__name__}: {error}. No worker can be made in this process"
        ) from error


@_claim(only="ours", why_only="importing vLLM imports torch._dynamo before its stand-ins exist")
def code_compiles_when_patched_before_dynamo_is_imported(force: Force) -> None:
    """In a new process: torch, the stand-ins, then torch._dynamo, then a compiled function."""
    done = subprocess.run(
        [sys.executable, "-c", compiling.BEFORE_DYNAMO], capture_output=True, text=True, check=False
    )
    require(done.returncode == 0, f"it does not: {done.stderr.strip()[-1500:]}")


@_claim()
def code_compiles_when_patched_after_a_trace(force: Force) -> None:
    """Dynamo's table has the originals; the stand-ins come later."""
    compiling.trace_something()
    force.in_force()
    compiling.compile_and_compare()


@_claim()
def a_host_with_an_accelerator_is_left_alone(force: Force) -> None:
    """Where torch sees an accelerator, the stand-ins refuse, and nothing is rebound."""
    if force.is_class:
        raise NotApplicable("what a named class does for an accelerator is its own affair")
    force.prepare()
    accelerator.register()
    raised = None
    try:
        force.put()
    except Exception as error:
        raised = error
    left = [item.label for item in force.rebound()]
    require(
        not left,
        f"torch sees an accelerator ({accelerator.NAME}), and these are rebound all the same, for "
        f"every user of it in this process: {_list(left)}. Refuse before anything is changed",
    )
    require(raised is not None, "it neither refuses nor does anything")
    require(
        type(raised).__name__ == "AcceleratorPresent" and accelerator.NAME in str(raised),
        f"it raises {type(raised).__name__}, which does not say that there is one: {raised}",
    )


@_claim(IN_FORCE)
def torch_still_says_that_there_is_no_accelerator(force: Force) -> None:
    """Code that asks before it uses a device goes on using the CPU."""
    import torch

    force.in_force()
    answers = {
        "torch.cuda.is_available()": torch.cuda.is_available(),
        "torch.accelerator.is_available()": torch.accelerator.is_available(),
        "torch.accelerator.current_accelerator()": torch.accelerator.current_accelerator(),
        "torch.cuda.device_count()": torch.cuda.device_count(),
        "torch.accelerator.device_count()": torch.accelerator.device_count(),
    }
    wrong = [f"{call} is {value!r}" for call, value in answers.items() if value]
    require(not wrong, f"without an accelerator {_list(wrong)}")


def _a_stream() -> Any:
    import torch

    return torch.Stream("cpu")


@_claim(IN_FORCE, before=_a_stream)
def the_cpus_own_stream_and_event_work(force: Force, unpatched: Any) -> None:
    """torch.Stream and torch.Event of the CPU are right, and unpatched they can be made."""
    import torch

    force.in_force()
    cpu = torch.device("cpu")
    streams: tuple[Any, ...] = (torch.Stream("cpu"), torch.Stream(device=cpu))
    for stream in streams:
        require(stream.device == cpu, f"torch.Stream of the CPU has device {stream.device}")
        require(isinstance(stream, torch.Stream), "torch.Stream('cpu') is no torch.Stream")
    require(isinstance(unpatched, torch.Stream), "a stream made before is no torch.Stream now")
    events: tuple[Any, ...] = (
        torch.Event("cpu"),
        torch.Event(device=cpu),
        torch.Event(cpu, enable_timing=True),
        torch.Event(),
    )
    for event in events:
        require(isinstance(event, torch.Event), f"{event!r} is no torch.Event")
        device = getattr(event, "device", None)
        require(device == cpu, f"torch.Event of the CPU has device {device}")


_FACTORY_CALLS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("empty", lambda t: t.empty((2, 3), dtype=t.int8).fill_(1)),
    ("empty(pin_memory=False)", lambda t: t.empty(3, pin_memory=False, dtype=t.long).fill_(2)),
    ("empty_like", lambda t: t.empty_like(t.ones(2, 2, dtype=t.int16)).fill_(3)),
    ("empty_strided", lambda t: t.empty_strided((2, 3), (1, 2)).fill_(4)),
    ("full", lambda t: t.full((2,), 7, dtype=t.bfloat16)),
    ("ones", lambda t: t.ones(2, 2, requires_grad=True)),
    ("tensor", lambda t: t.tensor([[1, 2]], dtype=t.uint8)),
    ("zeros(out)", lambda t: _given_out(t, t.ones(3))),
    ("zeros", lambda t: t.zeros(2, 3, dtype=t.complex64)),
    ("randn", lambda t: t.randn(4, generator=t.Generator().manual_seed(1))),
    ("to(non_blocking)", lambda t: t.arange(3).to("cpu", t.float64, non_blocking=True)),
    ("set_num_threads", lambda t: (t.set_num_threads(1), t.tensor(t.get_num_threads()))[1]),
)


def _given_out(torch: Any, out: Any) -> Any:
    torch.zeros(3, out=out)
    return out


def _factories() -> dict[str, Any]:
    import torch

    return {name: _facts(call(torch)) for name, call in _FACTORY_CALLS}


@_claim(IN_FORCE, before=_factories)
def factories_give_what_they_gave(force: Force, before: dict[str, Any]) -> None:
    """Calls that use the CPU rightly give the same values, types, shapes and flags."""
    force.in_force()
    after = _factories()
    wrong = [
        f"torch.{name} gave {was} and gives {after[name]}"
        for name, was in before.items()
        if after[name] != was
    ]
    require(not wrong, _list(wrong))


def _facts(tensor: Any) -> tuple[Any, ...]:
    return (
        type(tensor).__name__,
        tensor.tolist(),
        tensor.dtype,
        tensor.stride(),
        str(tensor.device),
        tensor.requires_grad,
        tensor.is_pinned(),
    )


@_claim(IN_FORCE)
def code_compiles_when_patched_before_the_first_trace(force: Force) -> None:
    """Dynamo builds its table of handlers at the first trace, and finds the stand-ins."""
    force.in_force()
    compiling.compile_and_compare()


CLAIMS = tuple(_claims)
"""Every claim that one process can check; the last of those in force lets Dynamo trace."""

CLAIM = {claim.name: claim for claim in CLAIMS}


def together_with(claim: str) -> tuple[str, ...]:
    """The claims that are checked in one process with a claim, itself among them."""
    group = CLAIM[claim].group
    return tuple(c.name for c in CLAIMS if c.group == group) if group else (claim,)


OTHER_PROCESSES = "other-processes-see-torch-unpatched"
"""The claim that needs several: what a subject's process rebinds stays in it."""

NAMES = (*CLAIM, OTHER_PROCESSES)
