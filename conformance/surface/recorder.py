"""The dynamic recorder: who reads which device attribute, when, and what came of it.

It runs in the process of the engine. While `Recorder.recording` is open it sees

- every read of an attribute of ``torch.cuda``, ``torch.accelerator`` and their submodules, from
  attribute expressions, ``getattr``, ``hasattr`` and ``from torch.cuda import X`` alike, the reads
  of names that do not exist among them: the module's class is exchanged for a subclass of it. Of
  ``torch.cuda.nvtx.range_push`` that is the last read, not the step to the submodule;
- every read of ``torch.Event`` and ``torch.Stream``, by a data descriptor for these two names.
  A ``__getattribute__`` for all of torch would cost each ``torch.x`` four times what it costs;
- reads of members of the objects that the classes among these give (``Event.record``), whether
  torch's, vLLM's placeholders or a runner's stand-ins: the class gets a ``__getattribute__``;
- calls of the tensor methods in `TENSOR_METHODS`: a function on ``torch.Tensor`` that passes on.

Nothing that a read gives is wrapped or replaced: classes stay what ``isinstance`` knows, functions
stay the objects that Dynamo has handlers for and that runners look for when they rebind copies.

What is not seen:

- calls through a copy that was taken earlier (``from torch.cuda import X``, ``f = torch.cuda.f``).
  Taking the copy is a read, and is seen where the recorder was there first (`import_run`); copies
  that vLLM's modules hold are listed by `held_copies`. They are not exchanged for recording
  functions, because a runner that rebinds copies finds them by identity;
- members of torch's own ``torch.Event`` and ``torch.Stream``, immutable types of C, where nothing
  stands in for them; members read from a class instead of an instance; protocol methods
  (``__enter__``), which Python looks up on the type;
- the arguments of a call (``pin_memory=True``, ``device="cuda"``), Triton launches, reads from C++;
- other processes than this one.

The outcome is known of reads, of tensor methods, and of calls whose exception ends the recording,
from its traceback; an exception that vLLM catches leaves its site a read.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

_NOT_REACHING = (
    "torch.",
    "conformance.",
    "runner_under_test.",
    # vLLM's own CPU runner is a subject, and no part of the GPU runner.
    "vllm.v1.worker.cpu.",
    "vllm.v1.worker.cpu_model_runner.",
    "vllm.v1.worker.cpu_worker.",
    # ``from torch.cuda import X`` lets it look for a submodule of that name first.
    "importlib.",
)
"""Callers whose reads are no reach of a runner: torch's own, the harness's, the subjects'."""

RECORDED_PACKAGES = ("torch.cuda", "torch.accelerator")
RECORDED_TORCH_NAMES = ("Event", "Stream")
TENSOR_METHODS = ("cuda", "pin_memory", "record_stream")

_DEVICE_CLASSES = ("CUDAGraph", "Event", "ExternalStream", "MemPool", "Stream", "StreamContext")
"""Classes of torch.cuda that somebody's stand-in may have replaced before; other classes from
elsewhere under its names are what torch.cuda itself imported."""

RUNNER_CLASSES = frozenset({"GPUModelRunner", "WorkerBase", "AsyncModelRunnerOutput"})
"""Names of the classes whose methods, and whose subclasses' methods, are the runner at work. The
last is what a runner gives the engine to wait for, in a thread of the engine's."""

_RECORDED = tuple(f"{package}." for package in RECORDED_PACKAGES)
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Touch:
    """Reads of one attribute by one expression in one phase.

    ``line`` to ``end_line`` is the expression that reads, or for a tensor method calls.
    ``under_runner`` says that a method of a runner or worker was on the stack at one of these reads
    at least, ``importing`` that the reader is the body of a module or class. ``outcome`` is
    ``read``, or the type and message of what the read or the call raised.
    """

    attribute: str
    phase: str
    module: str
    function: str
    line: int
    end_line: int
    under_runner: bool
    importing: bool
    count: int
    outcome: str = "read"

    @property
    def by_vllm(self) -> bool:
        """Whether vLLM reads it, and not a library that vLLM uses."""
        return self.module == "vllm" or self.module.startswith("vllm.")


class _Site:
    """The reads of one instruction, while they are being counted."""

    def __init__(self, attribute: str, phase: str, frame: types.FrameType) -> None:
        code = frame.f_code
        self.attribute = attribute
        self.phase = phase
        self.code = code
        self.module = str(frame.f_globals.get("__name__", "?"))
        line, end_line, column, end_column = _position(code, frame.f_lasti)
        self.line = line or frame.f_lineno or 0
        self.end_line = end_line or self.line
        self.begin = (self.line, column or 0)
        self.end = (self.end_line, end_column or 0)
        self.under_runner = False
        self.count = 0
        self.outcome = "read"

    def touch(self) -> Touch:
        return Touch(
            attribute=self.attribute,
            phase=self.phase,
            module=self.module,
            function=self.code.co_qualname,
            line=self.line,
            end_line=self.end_line,
            under_runner=self.under_runner,
            importing=not self.code.co_flags & inspect.CO_OPTIMIZED,
            count=self.count,
            outcome=self.outcome,
        )


class Recorder:
    """Counts reads by attribute, phase and reading expression.

    Counts are of one thread's making: where threads race for one expression, a few may be lost.
    """

    def __init__(self) -> None:
        self._phase = "import"
        # A code object's identity is its key, as hashing one hashes all its constants.
        self._sites: dict[tuple[int, int, str, str], _Site] = {}
        self._methods: dict[int, tuple[types.CodeType, bool]] = {}
        self._classes: set[type] = set()
        self._wrappers: dict[str, list[tuple[Any, Any]]] = {}
        self._tensor: Any = None
        self._undo = ExitStack()

    @property
    def phase(self) -> str:
        """The phase that reads are counted in."""
        return self._phase

    @phase.setter
    def phase(self, name: str) -> None:
        self._phase = name
        self._wrap_tensor_methods()

    @property
    def touches(self) -> tuple[Touch, ...]:
        """All reads so far, in a stable order."""
        touches = (site.touch() for site in self._sites.values())
        return tuple(sorted(touches, key=lambda t: (t.attribute, t.phase, t.module, t.line)))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record while the context is open; its end puts back exactly what was there.

        torch has to be imported. What is patched over ``torch.Tensor`` while it is open has to be
        restored while it is open too: it may have kept a function of the recorder as its original.

        Raises:
            RuntimeError: a recorder is at work in this process already.
        """
        import torch

        if _recording:
            raise RuntimeError("a recorder is recording already: there is one at a time")
        with ExitStack() as undo:
            _recording.append(self)
            undo.callback(_recording.clear)
            self._undo = undo
            undo.callback(self._forget_objects)
            self._tensor = torch.Tensor
            self._wrappers = {name: [] for name in TENSOR_METHODS}
            undo.callback(self._unwrap_tensor_methods)
            self._wrap_tensor_methods()
            self._record_torch(torch)
            # Packages before what is in them: a class's public name comes first.
            for name, module in sorted(sys.modules.items(), key=lambda item: item[0].count(".")):
                if _is_recorded(name) and isinstance(module, types.ModuleType):
                    self._record_module(module)
            try:
                yield
            except BaseException as error:
                self._attribute(error)
                raise

    def _forget_objects(self) -> None:
        self._tensor = None
        self._classes.clear()

    # What is seen.

    def _seen(self, attribute: str, frame: types.FrameType) -> _Site | None:
        """Count a read from a frame; None if it is no reach, or nothing is recorded any more."""
        if self._tensor is None:
            return None
        self._wrap_tensor_methods()
        if f"{frame.f_globals.get('__name__', '?')}.".startswith(_NOT_REACHING):
            return None
        key = (id(frame.f_code), frame.f_lasti, attribute, self._phase)
        site = self._sites.get(key)
        if site is None:
            site = self._sites[key] = _Site(attribute, self._phase, frame)
        site.count += 1
        if not site.under_runner:
            site.under_runner = self._is_under_runner(frame)
        return site

    def _read(
        self,
        attribute: str,
        frame: types.FrameType,
        read: Callable[[Any, str], Any],
        owner: Any,
        name: str,
    ) -> Any:
        site = self._seen(attribute, frame)
        try:
            return read(owner, name)
        except AttributeError as error:
            if site is not None:
                site.outcome = _describe(error)
            raise

    def _is_under_runner(self, frame: types.FrameType | None) -> bool:
        while frame is not None:
            known = self._methods.get(id(frame.f_code))
            if known is None:
                known = self._methods[id(frame.f_code)] = (frame.f_code, _is_runner_method(frame))
            if known[1]:
                return True
            frame = frame.f_back
        return False

    def _attribute(self, error: BaseException) -> None:
        """Give the sites whose calls raised an error, or what led to it, that outcome."""
        seen: set[int] = set()
        chained: BaseException | None = error
        while chained is not None and id(chained) not in seen:
            seen.add(id(chained))
            steps = []
            trace = chained.__traceback__
            while trace is not None:
                steps.append((trace.tb_frame.f_code, trace.tb_lasti))
                trace = trace.tb_next
            for code, instruction in reversed(steps):
                site = self._called(code, instruction)
                if site is not None:
                    site.outcome = _describe(chained)
                    break
            chained = chained.__cause__ or chained.__context__

    def _called(self, code: types.CodeType, instruction: int) -> _Site | None:
        """The site whose value an instruction calls: it begins where the call does, and is long."""
        line, end_line, column, end_column = _position(code, instruction)
        begin, end = (line or 0, column or 0), (end_line or 0, end_column or 0)
        candidates = [
            site
            for site in self._sites.values()
            if site.code is code and site.begin == begin and site.end <= end
        ]
        # Of several phases the last one is that of the exception.
        return max(reversed(candidates), key=lambda site: site.end, default=None)

    # How it is seen.

    def _record_module(self, module: types.ModuleType) -> None:
        prefix, base, recorder = module.__name__, module.__class__, self
        read, write = base.__getattribute__, base.__setattr__

        class RecordedModule(base):  # type: ignore[valid-type,misc]
            def __getattribute__(self, name: str) -> Any:
                if name[:2] == "__":
                    return read(self, name)
                value = read(self, "__dict__").get(name)
                if isinstance(value, types.ModuleType) and _is_recorded(value.__name__):
                    if type(value) is types.ModuleType:  # one that was imported meanwhile
                        recorder._record_module(value)
                    return value
                return recorder._read(f"{prefix}.{name}", sys._getframe(1), read, self, name)

            def __setattr__(self, name: str, value: Any) -> None:
                write(self, name, value)
                recorder._bound(f"{prefix}.{name}", value)

        self._undo.callback(setattr, module, "__class__", base)
        for name, value in list(vars(module).items()):
            if name in _DEVICE_CLASSES or _is_recorded(getattr(value, "__module__", None) or ""):
                self._record_members(f"{prefix}.{name}", value)
        module.__class__ = RecordedModule

    def _record_torch(self, torch: types.ModuleType) -> None:
        base, recorder = torch.__class__, self

        class RecordedTorch(base):  # type: ignore[valid-type,misc]
            def __setattr__(self, name: str, value: Any) -> None:
                super().__setattr__(name, value)
                recorder._wrap_tensor_methods()

        for name in RECORDED_TORCH_NAMES:
            setattr(RecordedTorch, name, _RecordedName(self, name))
            self._record_members(f"torch.{name}", vars(torch).get(name))
        self._undo.callback(setattr, torch, "__class__", base)
        torch.__class__ = RecordedTorch

    def _bound(self, attribute: str, value: Any) -> None:
        """Something was bound to a recorded name: a stand-in, mostly."""
        self._record_members(attribute, value)
        self._wrap_tensor_methods()

    def _record_members(self, attribute: str, cls: Any) -> None:
        """See the reads of a class's instances, under the first name that the class has here."""
        if (
            not isinstance(cls, type)
            or cls in self._classes
            or issubclass(cls, BaseException)
            or attribute.rpartition(".")[2].startswith("_")
            # Such a class is used for much else than to stand in for a device's.
            or cls.__module__.partition(".")[0] in sys.stdlib_module_names
        ):
            return
        self._classes.add(cls)
        recorder, read = self, cls.__getattribute__
        own = vars(cls).get("__getattribute__", _ABSENT)

        def recorded(instance: Any, name: str) -> Any:
            if name[:2] == "__":
                return read(instance, name)
            # A recorded base, read from here, sees a caller that does not count.
            return recorder._read(f"{attribute}.{name}", sys._getframe(1), read, instance, name)

        try:
            type.__setattr__(cls, "__getattribute__", recorded)
        except TypeError:
            return  # a type of C
        self._undo.callback(_put_back, cls, "__getattribute__", own)

    def _wrap_tensor_methods(self) -> None:
        """See calls of tensor methods, whoever patched them since this was last done."""
        if self._tensor is None:
            return
        own = vars(self._tensor)
        for name, wrappers in self._wrappers.items():
            bound = own.get(name, _ABSENT)
            if wrappers and bound is wrappers[-1][0]:
                continue  # the short way, as every read comes here
            if not any(wrapper is bound for wrapper, _ in wrappers):
                wrapper = self._recorded_method(name, getattr(self._tensor, name))
                wrappers.append((wrapper, bound))
                setattr(self._tensor, name, wrapper)

    def _recorded_method(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        attribute = f"torch.Tensor.{name}"

        @functools.wraps(method)
        def recorded(tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
            site = self._seen(attribute, sys._getframe(1))
            try:
                return method(tensor, *args, **kwargs)
            except Exception as error:
                if site is not None:
                    site.outcome = _describe(error)
                raise

        return recorded

    def _unwrap_tensor_methods(self) -> None:
        tensor, self._tensor = self._tensor, None
        for name, wrappers in self._wrappers.items():
            for wrapper, original in reversed(wrappers):
                if vars(tensor).get(name) is wrapper:
                    _put_back(tensor, name, original)


_recording: list[Recorder] = []
"""The recorder at work in this process, or none."""


class _RecordedName:
    """A name of torch whose reads are seen. Being a data descriptor, it comes before the module's
    own dictionary, and costs the module's other names nothing but a fruitless look at the type."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder = recorder
        self._name = name

    def __get__(self, module: Any, owner: type) -> Any:
        if module is None:
            return self
        return self._recorder._read(
            f"torch.{self._name}", sys._getframe(1), _own_attribute, module, self._name
        )

    def __set__(self, module: Any, value: Any) -> None:
        vars(module)[self._name] = value
        self._recorder._bound(f"torch.{self._name}", value)

    def __delete__(self, module: Any) -> None:
        del vars(module)[self._name]


def held_copies() -> tuple[str, ...]:
    """Names of loaded vLLM modules and classes that hold a function or class of a recorded module.

    Each is ``place: what it holds``. Calls through these are not seen.
    """
    found = set()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "vllm" or not isinstance(module, types.ModuleType):
            continue
        places: list[tuple[str, Any]] = [(name, module)]
        places += [
            (f"{name}.{key}", value)
            for key, value in list(vars(module).items())
            if isinstance(value, type) and value.__module__ == name
        ]
        for place, holder in places:
            for key, value in list(vars(holder).items()):
                if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
                    origin = value.__module__
                    if isinstance(origin, str) and _is_recorded(origin):
                        found.add(f"{place}.{key}: {origin}.{value.__qualname__}")
    return tuple(sorted(found))


def _is_recorded(module: str) -> bool:
    return f"{module}.".startswith(_RECORDED)


def _is_runner_method(frame: types.FrameType) -> bool:
    """Whether a frame runs a method of a runner's or worker's class, by its code's own name."""
    head, _, rest = frame.f_code.co_qualname.partition(".")
    cls = frame.f_globals.get(head) if rest else None
    return isinstance(cls, type) and any(base.__name__ in RUNNER_CLASSES for base in cls.__mro__)


def _position(
    code: types.CodeType, instruction: int
) -> tuple[int | None, int | None, int | None, int | None]:
    """First line, last line, first column, last column of the expression of an instruction."""
    for index, position in enumerate(code.co_positions()):
        if 2 * index == instruction:
            return position
    return (None, None, None, None)


def _own_attribute(module: Any, name: str) -> Any:
    try:
        return vars(module)[name]
    except KeyError:
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}") from None


def _put_back(holder: Any, name: str, value: Any) -> None:
    if value is _ABSENT:
        delattr(holder, name)
    else:
        setattr(holder, name, value)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
