"""Faults in how a subject's stand-ins are put in force and taken back, planted on ours in a child.

Nothing is imported at module level that a test process must not import.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

from tests.faults.fault import Fault


def _build(target: str, build: Callable[[Any], Any]) -> None:
    """Let the register of ours build something else for a target."""
    from runner_under_test.patches import REGISTER

    assert any(patch.target == target for patch in REGISTER.patches)
    REGISTER.patches = tuple(
        dataclasses.replace(patch, build=build) if patch.target == target else patch
        for patch in REGISTER.patches
    )


def _add(target: str, build: Callable[[Any], Any]) -> None:
    """Let the register of ours patch one more name."""
    from runner_under_test.patches import REGISTER, Patch

    patch = Patch(target=target, build=build, why="planted", remove_when="never")
    REGISTER.patches = (*REGISTER.patches, patch)


def one_no_op_for_two_names() -> None:
    def stand_in_synchronize_empty_cache(*args: Any, **kwargs: Any) -> None:
        return None

    _build("torch.accelerator.synchronize", lambda _: stand_in_synchronize_empty_cache)
    _build("torch.accelerator.empty_cache", lambda _: stand_in_synchronize_empty_cache)


def an_event_that_cannot_block() -> None:
    class CudaEvent:
        def __init__(self, enable_timing: bool = False) -> None:
            return None

    _build("torch.cuda.Event", lambda _: CudaEvent)


def a_stream_that_waits_for_nothing() -> None:
    from runner_under_test.patches.streams import Stream

    def wait_stream(self: Any) -> None:
        return None

    Stream.wait_stream = wait_stream


def events_that_cannot_be_recorded() -> None:
    from runner_under_test.patches.events import Event

    del Event.record


def a_synchronize_that_takes_no_device() -> None:
    def stand_in_synchronize() -> None:
        return None

    _build("torch.accelerator.synchronize", lambda _: stand_in_synchronize)


def a_current_stream_that_needs_its_device() -> None:
    def stand_in_current_stream(device: Any) -> Any:
        return None

    _build("torch.cuda.current_stream", lambda _: stand_in_current_stream)


def a_second_worker_wraps_again() -> None:
    from runner_under_test.patches.register import Register, _apply, is_needed

    def apply(self: Any, without: Any = ()) -> None:
        self._applied += [_apply(patch) for patch in self.patches if is_needed(patch)]

    Register.apply = apply


def a_second_workers_kernels_stay() -> None:
    from runner_under_test.patches.register import Register

    Register._reassert = lambda self: None


def nothing_is_restored() -> None:
    from runner_under_test.patches.register import Register

    Register.release = lambda self: None


def one_name_is_not_restored() -> None:
    from runner_under_test.patches import register

    whole = register._restore

    def restore(applied: Any) -> None:
        if applied.patch.target != "torch.cuda.Stream":
            whole(applied)

    register._restore = restore


def an_inherited_name_becomes_the_classes_own() -> None:
    from runner_under_test.patches import register

    whole = register._restore

    def restore(applied: Any) -> None:
        whole(applied)
        setattr(applied.holder, applied.attribute, applied.original)

    register._restore = restore


def the_last_user_is_not_counted() -> None:
    from runner_under_test.patches.register import Register

    whole = Register.hold

    def hold(self: Any, without: Any = ()) -> None:
        whole(self, without)
        self._users += 1

    Register.hold = hold


def a_failed_construction_keeps_the_patches() -> None:
    from runner_under_test.worker import CPUWorker

    CPUWorker._release_patches = lambda self: None


def a_name_that_nobody_reads() -> None:
    def stand_in_ipc_collect() -> None:
        return None

    _add("torch.cuda.ipc_collect", lambda _: stand_in_ipc_collect)


def a_factory_that_nobody_pins() -> None:
    def build(original: Any) -> Any:
        return functools.wraps(original)(lambda *args, **kwargs: original(*args, **kwargs))

    _add("torch.eye", build)


def a_class_that_keeps_the_original() -> None:
    import torch
    from vllm.v1.utils import CpuGpuBuffer

    CpuGpuBuffer.stream_class = torch.cuda.Stream


def a_default_that_keeps_the_original() -> None:
    import torch
    import vllm.v1.utils as module

    def wait(synchronize: Any = torch.accelerator.synchronize) -> None:
        synchronize()

    wait.__module__ = module.__name__
    module.planted_wait = wait


def a_closure_that_keeps_the_original() -> None:
    import torch
    import vllm.v1.utils as module

    kept = torch.accelerator.empty_cache

    def clear() -> None:
        kept()

    clear.__module__ = module.__name__
    module.planted_clear = clear


def a_partial_that_keeps_the_original() -> None:
    import torch
    import vllm.v1.utils as module

    module.PLANTED = [functools.partial(print), torch.cuda.current_stream]


def a_field_that_keeps_the_original() -> None:
    import torch
    import vllm.v1.utils as module

    @dataclasses.dataclass
    class Planted:
        event: Any = dataclasses.field(default_factory=torch.Event)

    Planted.__module__ = module.__name__
    module.Planted = Planted


def a_copied_name_is_not_looked_for() -> None:
    import torch
    import vllm.v1.utils as module

    from runner_under_test.patches import register

    module.Stream = torch.cuda.Stream
    register._SEARCHED_PACKAGES = ()


def a_stand_in_without_a_name() -> None:
    _build("torch.accelerator.empty_cache", lambda _: lambda: None)


def a_stand_in_named_noop() -> None:
    def noop(device: Any = None, /) -> None:
        return None

    _build("torch.accelerator.synchronize", lambda _: noop)


def a_class_that_became_a_function() -> None:
    from runner_under_test.patches.events import Event

    def stand_in_event(*args: Any, **kwargs: Any) -> Any:
        return Event(*args, **kwargs)

    _build("torch.Event", lambda _: stand_in_event)


def an_accelerator_is_not_looked_for() -> None:
    from runner_under_test.patches import register

    register.refuse_on_accelerator = lambda: None


def an_accelerator_is_seen_too_late() -> None:
    from runner_under_test.patches import register
    from runner_under_test.patches.register import Register

    refuse, whole = register.refuse_on_accelerator, Register.apply

    def apply(self: Any, without: Any = ()) -> None:
        whole(self, without)
        refuse()

    register.refuse_on_accelerator = lambda: None
    Register.apply = apply


def torch_says_that_there_is_an_accelerator() -> None:
    def stand_in_is_available() -> bool:
        return True

    _add("torch.accelerator.is_available", lambda _: stand_in_is_available)


def the_cpus_stream_is_gone() -> None:
    from runner_under_test.patches.streams import Stream

    _add("torch.Stream", lambda _: type("Stream", (Stream,), {"device": None}))


def events_of_the_cpu_have_no_device() -> None:
    from runner_under_test.patches.events import Event

    class Deviceless(Event):
        @property
        def device(self) -> Any:
            return None

        @device.setter
        def device(self, value: Any) -> None:
            return None

    Deviceless.__name__ = "Event"
    _build("torch.Event", lambda _: Deviceless)


def a_factory_that_loses_a_flag() -> None:
    def build(original: Any) -> Any:
        @functools.wraps(original)
        def ones(*args: Any, **kwargs: Any) -> Any:
            kwargs.pop("requires_grad", None)
            return original(*args, **kwargs)

        return ones

    _build("torch.ones", build)


def a_factory_that_ignores_out() -> None:
    def build(original: Any) -> Any:
        @functools.wraps(original)
        def zeros(*args: Any, **kwargs: Any) -> Any:
            return original(*args, dtype=kwargs.get("dtype"))

        return zeros

    _build("torch.zeros", build)


def dynamos_table_is_made_too_late() -> None:
    from runner_under_test.patches import register

    register._let_dynamo_find_the_originals = lambda: None


def a_stand_in_that_dynamo_cannot_trace() -> None:
    import torch

    @torch.compiler.assume_constant_result
    def stand_in_synchronize(device: Any = None, /) -> None:
        frame = sys._getframe(1)  # who calls it; where it is compiled, Dynamo does
        if "torch/_dynamo" in frame.f_code.co_filename:
            raise RuntimeError("planted where it is compiled")

    _build("torch.accelerator.synchronize", lambda _: stand_in_synchronize)


def dynamo_finds_the_stand_ins() -> None:
    from conformance.contract.rebinding import compiling

    late = "from runner_under_test.patches.register import _apply\n"
    chosen = "[p for p in REGISTER.patches if p.target.startswith('torch.') and not p.versions]"
    lines = compiling.BEFORE_DYNAMO.splitlines()
    compiling.BEFORE_DYNAMO = "\n".join(
        f"{late}for p in {chosen}: _apply(p)" if line.startswith("Register(") else line
        for line in lines
    )


def another_process_is_patched() -> None:
    import torch

    torch.cuda.current_stream = lambda device=None: None


def _kills(name: str, claim: str, says: str) -> Fault:
    return Fault(name.replace("_", " "), f"{__name__}:{name}", f"rebinding::patches[{claim}]", says)


_TWICE = "applied-twice-is-applied-once"
_END = "restored-at-the-end"
_OWN = "every-name-has-an-object-of-its-own"
_SITES = "stand-ins-take-what-vllm-passes"
_ORIGINALS = "stand-ins-take-what-the-originals-take"
_SAY = "stand-ins-say-what-they-stand-for"
_READ = "what-is-rebound-is-read"
_HELD = "no-module-holds-the-original"
_ACCELERATOR = "a-host-with-an-accelerator-is-left-alone"
_CPU = "the-cpus-own-stream-and-event-work"
_FACTORIES = "factories-give-what-they-gave"

FAULTS: tuple[Fault, ...] = (
    _kills("one_no_op_for_two_names", _OWN, "torch.accelerator.empty_cache and"),
    _kills("an_event_that_cannot_block", _ORIGINALS, "blocking"),
    _kills("a_stream_that_waits_for_nothing", _SITES, "wait_stream"),
    _kills("events_that_cannot_be_recorded", _SITES, "the stand-in has no record"),
    _kills("a_synchronize_that_takes_no_device", _ORIGINALS, "does not take 'device'"),
    _kills("a_current_stream_that_needs_its_device", _ORIGINALS, "may be left out"),
    _kills("a_second_worker_wraps_again", _TWICE, "torch.accelerator.synchronize"),
    _kills("a_second_workers_kernels_stay", _TWICE, "expand_kernel"),
    _kills("nothing_is_restored", _END, "torch.accelerator.synchronize"),
    _kills("one_name_is_not_restored", _END, "torch.cuda.Stream"),
    _kills("an_inherited_name_becomes_the_classes_own", _END, "where it was inherited"),
    _kills("the_last_user_is_not_counted", _END, "torch.accelerator.synchronize"),
    _kills(
        "a_failed_construction_keeps_the_patches",
        "restored-after-an-exception",
        "torch.accelerator.synchronize",
    ),
    _kills("a_name_that_nobody_reads", _READ, "torch.cuda.ipc_collect"),
    _kills("a_factory_that_nobody_pins", _READ, "torch.eye"),
    _kills("a_class_that_keeps_the_original", _HELD, "CpuGpuBuffer.stream_class"),
    _kills("a_default_that_keeps_the_original", _HELD, "planted_wait (a default)"),
    _kills("a_closure_that_keeps_the_original", _HELD, "planted_clear (its closure)"),
    _kills("a_partial_that_keeps_the_original", _HELD, "PLANTED (an item)"),
    _kills("a_field_that_keeps_the_original", _HELD, "Planted.event (a field's default)"),
    _kills("a_copied_name_is_not_looked_for", _HELD, "vllm.v1.utils.Stream"),
    _kills("a_stand_in_without_a_name", _SAY, "<lambda>"),
    _kills("a_stand_in_named_noop", _SAY, "noop"),
    _kills("a_class_that_became_a_function", "a-class-stays-a-class", "torch.Event was a class"),
    _kills("an_accelerator_is_not_looked_for", _ACCELERATOR, "rebound all the same"),
    _kills("an_accelerator_is_seen_too_late", _ACCELERATOR, "rebound all the same"),
    _kills(
        "torch_says_that_there_is_an_accelerator",
        "torch-still-says-that-there-is-no-accelerator",
        "torch.accelerator.is_available() is True",
    ),
    _kills("the_cpus_stream_is_gone", _CPU, "torch.Stream"),
    _kills("events_of_the_cpu_have_no_device", _CPU, "device None"),
    _kills("a_factory_that_loses_a_flag", _FACTORIES, "torch.ones gave"),
    _kills("a_factory_that_ignores_out", _FACTORIES, "torch.zeros"),
    _kills(
        "dynamos_table_is_made_too_late",
        "code-compiles-when-patched-before-the-first-trace",
        "No accelerator available",
    ),
    _kills(
        "a_stand_in_that_dynamo_cannot_trace",
        "code-compiles-when-patched-after-a-trace",
        "planted where it is compiled",
    ),
    _kills(
        "dynamo_finds_the_stand_ins",
        "code-compiles-when-patched-before-dynamo-is-imported",
        "No accelerator available",
    ),
    _kills(
        "another_process_is_patched",
        "other-processes-see-torch-unpatched",
        "torch.cuda.current_stream",
    ),
)
