"""Ways from an entry point to a site: what calls, constructs, enters or holds what."""

from __future__ import annotations

from tests.walker_cases.case import in_execute, runner

# A class whose method has a site, in a module of its own.
_HELPER = {
    "vllm/v1/helper.py": """
    import torch

    class Helper:
        def __init__(self):
            self.count = 0

        def go(self):
            torch.cuda.synchronize()  #! torch.cuda.synchronize call execute tier=resolved cpu=true
    """
}

# Two classes with the same method, each with a site of its own.
_TWO = {
    "vllm/v1/two.py": """
    import torch

    class One:
        def go(self):
            torch.cuda.synchronize()  #! torch.cuda.synchronize call execute

    class Two:
        def go(self):
            torch.cuda.empty_cache()  #! torch.cuda.empty_cache call execute
    """
}

CASES = (
    runner(
        "a method of self",
        """
        import torch

        class GPUModelRunner:
            def execute_model(self):
                self._a()

            def _a(self):
                self._b()

            def _b(self):
                #! torch.cuda.synchronize call execute tier=direct function=GPUModelRunner._b
                torch.cuda.synchronize()
        """,
    ),
    runner(
        "inherited methods, along the MRO",
        """
        import torch
        from vllm.v1.mixins import First, Second

        class GPUModelRunner(First, Second):
            def execute_model(self):
                self._both()
                self._second()
                self._own()

            def _own(self):
                torch.cuda.init()  #! torch.cuda.init call execute tier=direct
        """,
        {
            "vllm/v1/mixins.py": """
            import torch

            class First:
                def _both(self):
                    #! torch.cuda.synchronize call execute tier=direct function=First._both
                    torch.cuda.synchronize()

            class Second:
                def _both(self):
                    torch.cuda.empty_cache()

                def _second(self):
                    torch.cuda.ipc_collect()  #! torch.cuda.ipc_collect call execute tier=direct

                def _own(self):
                    torch.cuda.device_count()
            """
        },
    ),
    runner(
        "a mixin that calls the runner's own method",
        """
        import torch
        from vllm.v1.mixins import Mixin

        class GPUModelRunner(Mixin):
            def _own(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute tier=direct
        """,
        {
            "vllm/v1/mixins.py": """
            class Mixin:
                def execute_model(self):
                    self._own()

                def _own(self):
                    raise NotImplementedError
            """
        },
    ),
    runner(
        "super",
        """
        import torch

        class Base:
            def _warm(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute

        class GPUModelRunner(Base):
            def execute_model(self):
                self._warm()

            def _warm(self):
                super()._warm()
        """,
    ),
    runner(
        "the base class's constructor",
        """
        import torch

        class Base:
            def __init__(self):
                torch.cuda.init()  #! torch.cuda.init call init

        class GPUModelRunner(Base):
            def __init__(self):
                super().__init__()
        """,
    ),
    runner(
        "an inherited method through the base's name",
        """
        import torch

        class Base:
            def _warm(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute

        class GPUModelRunner(Base):
            def execute_model(self):
                Base._warm(self)
        """,
    ),
    in_execute(
        "a function of the module",
        """
        sync()
        """,
        """
        def sync():
            #! torch.cuda.synchronize call execute tier=resolved function=sync
            torch.cuda.synchronize()
        """,
    ),
    in_execute(
        "a function of another module, through the module",
        """
        device_utils.sync()
        """,
        "from vllm.utils import device_utils",
        {
            "vllm/utils/device_utils.py": """
            import torch

            def sync():
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute tier=resolved
            """
        },
    ),
    in_execute(
        "a function that a package re-exports by a relative import",
        """
        sync()
        """,
        "from vllm.v1.devices import sync",
        {
            "vllm/v1/devices/__init__.py": "from .impl import sync\n",
            "vllm/v1/devices/impl.py": """
            import torch

            def sync():
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute tier=resolved
            """,
        },
    ),
    in_execute(
        "an import inside the function",
        """
        from vllm.v1.helper import Helper
        Helper().go()
        """,
        other=_HELPER,
    ),
    in_execute(
        "a class that is constructed",
        """
        Buffer()
        """,
        """
        class Buffer:
            def __init__(self):
                #! torch.cuda.Event call execute tier=resolved function=Buffer.__init__
                torch.cuda.Event()
        """,
    ),
    in_execute(
        "the constructor that a class inherits",
        """
        Buffer()
        """,
        """
        class Base:
            def __init__(self):
                torch.cuda.Event()  #! torch.cuda.Event call execute

        class Buffer(Base):
            pass
        """,
    ),
    in_execute(
        "__post_init__ of a dataclass",
        """
        Buffer(1)
        """,
        """
        from dataclasses import dataclass

        @dataclass
        class Buffer:
            size: int

            def __post_init__(self):
                torch.cuda.Event()  #! torch.cuda.Event call execute
        """,
    ),
    in_execute(
        "a class method and a static method",
        """
        Buffer.make()
        Buffer.check()
        """,
        """
        class Buffer:
            @classmethod
            def make(cls):
                torch.cuda.Event()  #! torch.cuda.Event call execute tier=resolved
                return cls()

            @staticmethod
            def check():
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute tier=resolved
        """,
    ),
    in_execute(
        "what a class method makes",
        """
        Buffer.make().go()
        """,
        """
        class Buffer:
            @classmethod
            def make(cls):
                return cls()

            def go(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute
        """,
    ),
    runner(
        "a field whose class the constructor tells",
        """
        from vllm.v1.helper import Helper

        class GPUModelRunner:
            def __init__(self):
                self.helper = Helper()

            def execute_model(self):
                self.helper.go()
        """,
        _HELPER,
    ),
    runner(
        "a field whose class an annotation tells",
        """
        from outside import make
        from vllm.v1.helper import Helper

        class GPUModelRunner:
            def __init__(self):
                self.helper: Helper | None = make()

            def execute_model(self):
                self.helper.go()
        """,
        _HELPER,
    ),
    runner(
        "a parameter whose class an annotation tells, imported for type checking only",
        """
        from __future__ import annotations
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            from vllm.v1.helper import Helper

        class GPUModelRunner:
            def execute_model(self, helper: Helper):
                helper.go()
        """,
        {
            "vllm/v1/helper.py": """
            import torch

            class Helper:
                def go(self):
                    torch.cuda.synchronize()  #! torch.cuda.synchronize call execute
            """
        },
    ),
    in_execute(
        "a return type",
        """
        make().go()
        """,
        """
        from outside import build
        from vllm.v1.helper import Helper

        def make() -> Helper:
            return build()
        """,
        _HELPER,
    ),
    in_execute(
        "a factory function",
        """
        helper = make()
        helper.go()
        """,
        """
        from vllm.v1.helper import Helper

        def make():
            return Helper()
        """,
        _HELPER,
    ),
    in_execute(
        "a dataclass field",
        """
        Pair(items[0]).helper.go()
        """,
        """
        from dataclasses import dataclass
        from vllm.v1.helper import Helper

        @dataclass
        class Pair:
            helper: Helper
        """,
        _HELPER,
    ),
    in_execute(
        "a table of classes",
        """
        TABLE[flag]().go()
        """,
        """
        from vllm.v1.two import One, Two

        TABLE = {"one": One, "two": Two}
        """,
        _TWO,
    ),
    runner(
        "a field of one of two classes",
        """
        from vllm.v1.two import One, Two

        class GPUModelRunner:
            def __init__(self, flag):
                if flag:
                    self.helper = One()
                else:
                    self.helper = Two()

            def execute_model(self):
                self.helper.go()
        """,
        _TWO,
    ),
    in_execute(
        "a list of objects",
        """
        helpers = [One(), Two()]
        for helper in helpers:
            helper.go()
        """,
        "from vllm.v1.two import One, Two",
        _TWO,
    ),
    runner(
        "a property and a cached property",
        """
        import torch
        from functools import cached_property

        class GPUModelRunner:
            @property
            def _free(self):
                return torch.cuda.mem_get_info()  #! torch.cuda.mem_get_info call execute

            @cached_property
            def _count(self):
                return torch.cuda.device_count()  #! torch.cuda.device_count call execute

            def execute_model(self):
                return self._free, self._count
        """,
    ),
    in_execute(
        "a property of another object",
        """
        Memory().free
        """,
        """
        class Memory:
            @property
            def free(self):
                return torch.cuda.mem_get_info()  #! torch.cuda.mem_get_info call execute
        """,
    ),
    in_execute(
        "a generator used as a context manager",
        """
        with scope():
            pass
        """,
        """
        from contextlib import contextmanager

        @contextmanager
        def scope():
            torch.cuda.synchronize()  #! torch.cuda.synchronize call execute
            yield
            torch.cuda.empty_cache()  #! torch.cuda.empty_cache call execute
        """,
    ),
    in_execute(
        "a class used as a context manager",
        """
        with Scope():
            pass
        """,
        """
        class Scope:
            def __enter__(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute

            def __exit__(self, *error):
                torch.cuda.empty_cache()  #! torch.cuda.empty_cache call execute
        """,
    ),
    runner(
        "a decorator that wraps a method",
        """
        import torch
        from vllm.utils.wrap import synced

        class GPUModelRunner:
            @synced
            def execute_model(self):
                torch.cuda.empty_cache()  #! torch.cuda.empty_cache call execute
        """,
        {
            "vllm/utils/wrap.py": """
            import functools
            import torch

            def synced(fn):
                torch.cuda.init()  #! torch.cuda.init call import

                @functools.wraps(fn)
                def wrapper(*args, **kwargs):
                    torch.cuda.synchronize()  #! torch.cuda.synchronize call execute
                    return fn(*args, **kwargs)

                return wrapper
            """
        },
    ),
    runner(
        "a decorator with arguments",
        """
        from vllm.utils.wrap import synced

        class GPUModelRunner:
            def execute_model(self):
                self._go()

            @synced(times=2)
            def _go(self):
                pass
        """,
        {
            "vllm/utils/wrap.py": """
            import torch

            def synced(times):
                def decorator(fn):
                    def wrapper(*args):
                        torch.cuda.synchronize()  #! torch.cuda.synchronize call execute
                        return fn(*args)

                    return wrapper

                return decorator
            """
        },
    ),
    in_execute(
        "a nested function",
        """
        def inner():
            #! torch.cuda.synchronize call function=GPUModelRunner.execute_model.<locals>.inner
            torch.cuda.synchronize()

        inner()
        """,
    ),
    runner(
        "a callback handed to a function of vLLM",
        """
        import torch

        def retry(action):
            action()

        class GPUModelRunner:
            def execute_model(self):
                retry(self._go)

            def _go(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute
        """,
    ),
    in_execute(
        "callbacks handed to functions outside",
        """
        atexit.register(at_end)
        threading.Thread(target=beside).start()
        """,
        """
        import atexit
        import threading

        def at_end():
            torch.cuda.synchronize()  #! torch.cuda.synchronize call

        def beside():
            torch.cuda.empty_cache()  #! torch.cuda.empty_cache call
        """,
    ),
    runner(
        "a bound method handed to an executor",
        """
        import torch
        from concurrent.futures import ThreadPoolExecutor

        class GPUModelRunner:
            def __init__(self):
                self.pool = ThreadPoolExecutor(1)

            def execute_model(self):
                self.pool.submit(self._go, 1)

            def _go(self, number):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call +execute
        """,
    ),
    runner(
        "functools.partial of a method",
        """
        import functools
        import torch

        class GPUModelRunner:
            def execute_model(self):
                go = functools.partial(self._go, 1)
                go()

            def _go(self, number):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute
        """,
    ),
    runner(
        "bound methods in a list",
        """
        import torch

        class GPUModelRunner:
            def execute_model(self):
                for step in [self._a, self._b]:
                    step()

            def _a(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute

            def _b(self):
                torch.cuda.empty_cache()  #! torch.cuda.empty_cache call execute
        """,
    ),
    runner(
        "callables in a dict",
        """
        import torch

        class GPUModelRunner:
            def __init__(self):
                self.steps = {"a": self._a, "b": self._b}

            def execute_model(self, name):
                self.steps[name]()

            def _a(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call +execute

            def _b(self):
                torch.cuda.empty_cache()  #! torch.cuda.empty_cache call +execute
        """,
    ),
    runner(
        "a bound method under another name",
        """
        import torch

        class GPUModelRunner:
            def execute_model(self, flag):
                go = self._a if flag else self._b
                go()

            def _a(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute

            def _b(self):
                torch.cuda.empty_cache()  #! torch.cuda.empty_cache call execute
        """,
    ),
    runner(
        "a method looked up by a constant name",
        """
        import torch

        class GPUModelRunner:
            def execute_model(self):
                getattr(self, "_go")()

            def _go(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute
        """,
    ),
    in_execute(
        "a class named by a string",
        """
        cls = resolve_obj_by_qualname("vllm.v1.named.Named")
        cls().go()
        """,
        "from vllm.utils.import_utils import resolve_obj_by_qualname",
        {
            "vllm/v1/named.py": """
            import torch

            COUNT = torch.cuda.device_count()  #! torch.cuda.device_count call import

            class Named:
                def go(self):
                    torch.cuda.synchronize()  #! torch.cuda.synchronize call +execute
            """
        },
    ),
    in_execute(
        "classes named by an enum",
        """
        Backend[flag].get_class()().go()
        """,
        "from vllm.v1.registry import Backend",
        {
            "vllm/v1/registry.py": """
            from enum import Enum
            from vllm.utils.import_utils import resolve_obj_by_qualname

            class Backend(Enum):
                ONE = "vllm.v1.two.One"
                TWO = "vllm.v1.two.Two"

                def get_class(self):
                    return resolve_obj_by_qualname(self.value)
            """,
            "vllm/v1/two.py": """
            import torch

            class One:
                def go(self):
                    torch.cuda.synchronize()  #! torch.cuda.synchronize call +execute

            class Two:
                def go(self):
                    torch.cuda.empty_cache()  #! torch.cuda.empty_cache call +execute
            """,
        },
    ),
    in_execute(
        "default factories",
        """
        state = State()
        state.event.record()  #! torch.cuda.Event.record call execute
        """,
        """
        from dataclasses import dataclass, field

        class Buffer:
            def __init__(self):
                torch.cuda.Event()  #! torch.cuda.Event call +execute

        @dataclass
        class State:
            #! torch.cuda.Event annotation import
            event: torch.cuda.Event = field(
                default_factory=torch.cuda.Event  #! torch.cuda.Event read; ?torch.cuda.Event call
            )
            buffer: Buffer = field(default_factory=Buffer)
            #! torch.cuda.device_count call +execute
            count: int = field(default_factory=lambda: torch.cuda.device_count())
        """,
    ),
    runner(
        "an object that is called",
        """
        import torch

        class Pool:
            def __call__(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute

        class GPUModelRunner:
            def __init__(self):
                self.pool = Pool()

            def execute_model(self):
                self.pool()
        """,
    ),
    runner(
        "a generator",
        """
        import torch

        class GPUModelRunner:
            def execute_model(self):
                for _ in self._steps():
                    pass

            def _steps(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute tier=direct
                yield 1
        """,
    ),
    runner(
        "an async function",
        """
        import torch

        class GPUModelRunner:
            async def execute_model(self):
                await self._go()

            async def _go(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute tier=direct
        """,
    ),
    runner(
        "a lambda in a field",
        """
        import torch

        class GPUModelRunner:
            def __init__(self):
                #! torch.cuda.synchronize call +execute
                self.sync = lambda: torch.cuda.synchronize()

            def execute_model(self):
                self.sync()
        """,
    ),
    runner(
        "a lambda that calls a method",
        """
        import torch

        class GPUModelRunner:
            def execute_model(self, items):
                items.sort(key=lambda item: self._go(item))

            def _go(self, item):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call +execute
        """,
    ),
    runner(
        "one of two drafters",
        """
        from vllm.v1.spec_decode.eagle import EagleProposer
        from vllm.v1.spec_decode.ngram import NgramProposer

        class GPUModelRunner:
            def __init__(self, method):
                self.drafter: NgramProposer | EagleProposer
                if method == "ngram":
                    self.drafter = NgramProposer()
                else:
                    self.drafter = EagleProposer()

            def sample_tokens(self):
                self.propose_draft_token_ids()

            def propose_draft_token_ids(self):
                assert isinstance(self.drafter, EagleProposer)
                self.drafter.propose()
        """,
        {
            "vllm/v1/spec_decode/eagle.py": """
            import torch

            class EagleProposer:
                def propose(self):
                    #! torch.cuda.synchronize call sample,spec-decode tier=resolved
                    torch.cuda.synchronize()
            """,
            "vllm/v1/spec_decode/ngram.py": """
            import torch

            class NgramProposer:
                def __init__(self):
                    torch.cuda.init()  #! torch.cuda.init call init,spec-decode
            """,
        },
    ),
    in_execute(
        "an object of an unknown type, by the method's name",
        """
        one, two = One(), Two()
        for hook in hooks():
            hook.ping()
        """,
        """
        from outside import hooks

        class One:
            def ping(self):
                #! torch.cuda.synchronize call execute tier=by-name cpu=unknown
                torch.cuda.synchronize()

        class Two:
            def ping(self):
                #! torch.cuda.empty_cache call execute tier=by-name cpu=unknown
                torch.cuda.empty_cache()
        """,
    ),
    in_execute(
        "a site reached by name and for certain",
        """
        One().ping()
        for hook in hooks():
            hook.ping()
        """,
        """
        from outside import hooks

        class One:
            def ping(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call tier=resolved cpu=true
        """,
    ),
    in_execute(
        "functions that call each other",
        """
        even(2)
        """,
        """
        def even(n):
            torch.cuda.synchronize()  #! torch.cuda.synchronize call execute
            return n == 0 or odd(n - 1)

        def odd(n):
            torch.cuda.empty_cache()  #! torch.cuda.empty_cache call execute
            return n != 0 and even(n - 1)
        """,
    ),
    in_execute(
        "modules that import each other",
        """
        from vllm.v1.a import go
        go()
        """,
        other={
            "vllm/v1/a.py": """
            from vllm.v1 import b

            def go():
                b.sync()
            """,
            "vllm/v1/b.py": """
            import torch
            from vllm.v1 import a

            def sync():
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute
            """,
        },
    ),
    in_execute(
        "operators and protocols",
        """
        table = Table()
        table[0]
        len(table)
        for _ in table:
            pass
        """,
        """
        class Table:
            def __getitem__(self, key):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute

            def __len__(self):
                return torch.cuda.device_count()  #! torch.cuda.device_count call execute

            def __iter__(self):
                torch.cuda.empty_cache()  #! torch.cuda.empty_cache call execute
                return iter(())
        """,
    ),
    in_execute(
        "a function of torch's autograd",
        """
        Scaled.apply(items, device)
        Plain.apply(items)
        """,
        """
        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, device):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute tier=resolved
                device.notify()

            @staticmethod
            def backward(ctx, grad):
                torch.cuda.empty_cache()

        class Plain:
            def forward(self):
                torch.cuda.init()
        """,
    ),
)
