"""What the patch register promises, tried in a child process against real torch and real vLLM."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from runner_under_test.patches import REGISTER
from runner_under_test.patches.patch import (
    AcceleratorPresent,
    Patch,
    PatchError,
    PatchTargetMissing,
)
from runner_under_test.patches.register import Register, is_needed, resolve


def report(journal: Any) -> None:
    """Report None or the error for each promise."""
    for name, promise in list(globals().items()):
        if name.startswith("promise_"):
            try:
                promise()
                outcome = None
            except Exception as error:
                outcome = f"{type(error).__name__}: {error}"
            finally:
                REGISTER.restore()
            journal.result(name.removeprefix("promise_"), outcome)


def _bound() -> dict[str, Any]:
    """What is bound to each target, in its holder's own namespace and as it is read."""
    bound = {}
    for patch in REGISTER.patches:
        if not is_needed(patch):
            continue  # its target may belong to other versions only
        holder, attribute = resolve(patch.target)
        bound[patch.target] = (vars(holder).get(attribute), getattr(holder, attribute))
    return bound


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(
        a is c and b is d for (a, b), (c, d) in zip(one.values(), other.values(), strict=True)
    )


def _raises(kind: type[Exception], call: Callable[[], Any]) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} was not raised")


def _patch(target: str, **changes: Any) -> Patch:
    build = changes.pop("build", lambda original: object())
    return Patch(target=target, build=build, why="a test", remove_when="never", **changes)


def promise_applied_and_restored_leaves_every_name_as_it_was() -> None:
    before = _bound()
    REGISTER.apply()
    assert not _same(before, _bound())
    REGISTER.restore()
    assert _same(before, _bound())
    assert "pin_memory" not in vars(torch.Tensor)


def promise_applied_twice_is_applied_once() -> None:
    before = _bound()
    REGISTER.apply()
    once = _bound()
    REGISTER.apply()
    assert _same(once, _bound())
    REGISTER.restore()
    assert _same(before, _bound())


def promise_the_last_user_takes_the_patches_along() -> None:
    before = _bound()
    REGISTER.hold()
    REGISTER.hold()
    REGISTER.release()
    assert REGISTER.is_applied
    REGISTER.release()
    assert not REGISTER.is_applied
    assert _same(before, _bound())
    REGISTER.release()


def promise_every_name_has_an_object_of_its_own() -> None:
    REGISTER.apply()
    replacements = [id(applied.replacement) for applied in REGISTER.applied]
    assert len(set(replacements)) == len(replacements)


def promise_every_replacement_is_in_force_at_its_target() -> None:
    REGISTER.apply()
    states = {row.name: row.state for row in REGISTER.report()}
    wrong = {name: s for name, s in states.items() if s not in ("applied", "not needed here")}
    assert not wrong, wrong


def promise_a_patch_that_somebody_overwrote_is_reported() -> None:
    REGISTER.apply()
    torch.accelerator.synchronize = lambda: None
    (state,) = [r.state for r in REGISTER.report() if r.name == "torch.accelerator.synchronize"]
    assert state == "overwritten", state


def promise_holding_again_binds_what_was_overwritten() -> None:
    REGISTER.hold()
    stand_in = torch.accelerator.synchronize
    torch.accelerator.synchronize = lambda: None
    REGISTER.hold()
    assert torch.accelerator.synchronize is stand_in


def promise_a_left_out_patch_leaves_its_name_alone() -> None:
    before = torch.accelerator.synchronize
    REGISTER.apply(["torch.accelerator.synchronize"])
    assert torch.accelerator.synchronize is before
    (state,) = [r.state for r in REGISTER.report() if r.name == "torch.accelerator.synchronize"]
    assert state == "left out", state


def promise_an_unknown_name_to_leave_out_is_refused() -> None:
    assert "no-such-name" in _raises(PatchError, lambda: REGISTER.apply(["no-such-name"]))
    assert not REGISTER.is_applied


def promise_a_missing_target_is_named_and_nothing_stays_applied() -> None:
    register = Register([_patch("torch.cuda.Stream"), _patch("torch.cuda.NoSuchName")])
    before = torch.cuda.Stream
    assert "torch.cuda.NoSuchName" in _raises(PatchTargetMissing, register.apply)
    assert torch.cuda.Stream is before


def promise_an_exception_while_applying_leaves_nothing_applied() -> None:
    def build(original: Any) -> Any:
        raise KeyError("planted")

    register = Register([_patch("torch.cuda.Stream"), _patch("torch.cuda.Event", build=build)])
    before = torch.cuda.Stream
    _raises(KeyError, register.apply)
    assert torch.cuda.Stream is before


def promise_the_same_target_twice_is_refused() -> None:
    _raises(PatchError, lambda: Register([_patch("torch.Event"), _patch("torch.Event")]))


def promise_a_host_with_an_accelerator_is_refused_and_unchanged() -> None:
    before = _bound()
    available, current = torch.accelerator.is_available, torch.accelerator.current_accelerator
    torch.accelerator.is_available = lambda: True
    torch.accelerator.current_accelerator = lambda check_available=False: torch.device("cuda")
    try:
        message = _raises(AcceleratorPresent, REGISTER.apply)
    finally:
        torch.accelerator.is_available = available
        torch.accelerator.current_accelerator = current
    assert "accelerator" in message
    assert _same(before, _bound())


def promise_copies_in_vllms_modules_are_rebound_and_put_back() -> None:
    original = torch.cuda.Stream
    module = types.ModuleType("vllm.a_test_module")
    module.Copied = original  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    try:
        REGISTER.apply()
        assert module.Copied is torch.cuda.Stream  # type: ignore[attr-defined]
        module.Later = torch.cuda.Event  # type: ignore[attr-defined]
        REGISTER.restore()
        assert module.Copied is original  # type: ignore[attr-defined]
        assert module.Later is torch.cuda.Event  # type: ignore[attr-defined]
    finally:
        del sys.modules[module.__name__]


def promise_rightful_use_of_the_cpus_own_stream_and_event_goes_on() -> None:
    REGISTER.apply()
    assert torch.Stream("cpu").device == torch.device("cpu")
    assert torch.Event("cpu").query() is True
    assert torch.zeros(2, 2).sum() == 0
    assert torch.tensor([1.0], requires_grad=True).requires_grad
    assert torch.empty((2,), dtype=torch.int8).dtype is torch.int8
