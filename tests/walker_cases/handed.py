"""What is handed on: parameters that no call fills, options that are refused late, registries.

A call can be missed, so what no known call leads to is ``unknown`` and not ``false``.
"""

from __future__ import annotations

from tests.walker_cases.case import in_execute, runner

_CONTEXT_REGISTRY = {
    "vllm/warmup.py": """
    from contextvars import ContextVar

    class Kernel:
        def compile(self):
            raise NotImplementedError

        def register(self):
            Registry.register(self)

    class Registry:
        _active: ContextVar["Registry | None"] = ContextVar("active", default=None)

        def __init__(self):
            self._kernels = {}

        def activate(self):
            self._active.set(self)

        @classmethod
        def register(cls, kernel: Kernel):
            registry = cls._active.get()
            if registry is not None:
                registry._add(kernel)

        def _add(self, kernel: Kernel):
            self._kernels.setdefault(kernel, [])

        def warmup(self):
            kernels = []
            for kernel in self._kernels:
                kernels.append(kernel)
            for kernel in kernels:
                kernel.compile()
    """,
    "vllm/kernels.py": """
    import torch
    from vllm.warmup import Kernel

    class Registered(Kernel):
        def compile(self):
            torch.cuda.init()  #! torch.cuda.init call execute cpu=true

    class RegisteredOnCuda(Kernel):
        def compile(self):
            torch.cuda.synchronize()  #! torch.cuda.synchronize call execute cpu=false

    class NotRegistered(Kernel):
        def compile(self):
            torch.cuda.empty_cache()  #! ?torch.cuda.empty_cache call cpu=false|unknown

    REGISTERED = Registered()
    ON_CUDA = RegisteredOnCuda()
    NOT_REGISTERED = NotRegistered()
    """,
}

_LAYERS = {
    "vllm/layers.py": """
    class Layer:
        can_share: bool = False
        must_share: bool = False

        def load(self, size):
            self.must_share = size > 1 and self.can_share

    class CudaLayer(Layer):
        def load(self, size):
            self.must_share = True

    class OtherLayer:
        can_split: bool = False

        def load(self, size):
            self.can_split = True
    """
}

_VENDOR = {
    "vllm/models/sparse/nvidia/layer.py": "class SparseLayer:\n    pass\n",
    "vllm/models/sparse/common.py": "class PlainLayer:\n    pass\n",
}

_EMPTY_HANDED = {
    "vllm/managers.py": """
    from vllm.platforms import current_platform

    class Manager:
        def __init__(self):
            self.tolerates = False

    class CudaManager(Manager):
        def __init__(self):
            super().__init__()
            self.tolerates = True

    def get_manager():
        if current_platform.is_cuda():  #! platform.is_cuda predicate
            return CudaManager()
        return Manager()
    """
}

CASES = (
    in_execute(
        "a parameter that no call passes",
        """
        without(items)
        passed(items, device)
        by_name(items, window=device)
        """,
        """
        def without(batch, window=None, flag=False):
            if window is not None:
                torch.cuda.init()  #! torch.cuda.init call execute cpu=unknown
            if flag:
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute cpu=unknown
            if window is None:
                torch.cuda.empty_cache()  #! torch.cuda.empty_cache call execute cpu=true

        def passed(batch, window=None):
            if window is not None:
                torch.cuda.mem_get_info()  #! torch.cuda.mem_get_info call execute cpu=true

        def by_name(batch, window=None):
            if window is None:
                return
            torch.cuda.current_device()  #! torch.cuda.current_device call execute cpu=true
        """,
    ),
    in_execute(
        "a parameter for which each call passes what is nothing",
        """
        first(None, False)
        first(window=None)
        second(current_platform.is_cuda())  #! platform.is_cuda predicate
        """,
        """
        def first(window=None, flag=False):
            if window is None:
                inner(window)
            if flag:
                torch.cuda.init()  #! torch.cuda.init call execute cpu=unknown

        def inner(window):
            if window:
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute cpu=unknown

        def second(flag):
            if flag:
                torch.cuda.empty_cache()  #! torch.cuda.empty_cache call execute cpu=true
        """,
    ),
    in_execute(
        "a parameter that is assigned before it is asked for",
        """
        assigned(items)
        in_a_loop(items)
        """,
        """
        def assigned(batch, window=None):
            if window is None:
                window = batch.window
            if window is not None:
                torch.cuda.init()  #! torch.cuda.init call execute cpu=true

        def in_a_loop(batch, window=None):
            for one in batch:
                if window is not None:
                    torch.cuda.synchronize()  #! torch.cuda.synchronize call execute cpu=true
                window = one
        """,
    ),
    in_execute(
        "a parameter that calls can pass out of sight",
        """
        starred(*items)
        named(**items)
        partial(halved, window=device)()
        items.each(handed_over)
        """,
        """
        from functools import partial

        def starred(batch, window=None):
            if window is not None:
                torch.cuda.init()  #! torch.cuda.init call execute cpu=true

        def named(batch=None, window=None):
            if window is not None:
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute cpu=true

        def halved(batch=None, window=None):
            if window is not None:
                torch.cuda.empty_cache()  #! torch.cuda.empty_cache call execute cpu=true

        def handed_over(batch=None, window=None):
            if window is not None:
                torch.cuda.mem_get_info()  #! torch.cuda.mem_get_info call execute cpu=unknown
        """,
    ),
    runner(
        "a parameter of an entry point",
        """
        import torch

        class GPUModelRunner:
            def execute_model(self, batch=None):
                if batch is not None:
                    torch.cuda.init()  #! torch.cuda.init call execute cpu=true
        """,
    ),
    in_execute(
        "a parameter that is never None",
        """
        method(Config())
        """,
        """
        from dataclasses import dataclass

        @dataclass
        class Config:
            always: torch.dtype
            sometimes: torch.dtype | None = None

        def method(config: Config):
            of_always(config.always)
            of_sometimes(config.sometimes)
            of_both(config.always)
            of_both()

        def of_always(kind=None):
            if kind is None:
                torch.cuda.init()  #! torch.cuda.init call execute cpu=unknown

        def of_sometimes(kind=None):
            if kind is None:
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute cpu=true

        def of_both(kind=None):
            if kind is None:
                torch.cuda.empty_cache()  #! torch.cuda.empty_cache call execute cpu=true
        """,
    ),
    runner(
        "an attribute of another object that is false, handed on",
        """
        import torch
        from vllm.managers import get_manager

        class Output:
            def __init__(self, check):
                if check:
                    torch.cuda.init()  #! torch.cuda.init call execute cpu=unknown

        class GPUModelRunner:
            def __init__(self, config):
                self.check = False
                self.other = False
                if config.experts:
                    self.check = get_manager().tolerates
                    self.other = config.tolerates

            def execute_model(self):
                Output(self.check)
                if self.check:
                    torch.cuda.synchronize()  #! torch.cuda.synchronize call execute cpu=unknown
                if self.other:
                    torch.cuda.empty_cache()  #! torch.cuda.empty_cache call execute cpu=true
        """,
        _EMPTY_HANDED,
    ),
    in_execute(
        "a registry that a context variable holds",
        """
        registry = Registry()
        registry.activate()
        REGISTERED.register()
        if current_platform.is_cuda():  #! platform.is_cuda predicate
            ON_CUDA.register()
        registry.warmup()
        """,
        """
        from vllm.kernels import NOT_REGISTERED, ON_CUDA, REGISTERED
        from vllm.warmup import Registry
        """,
        _CONTEXT_REGISTRY,
    ),
    in_execute(
        "a decorator's wrapper calls what it decorates and no other",
        """
        plain(items)
        if current_platform.is_cuda():  #! platform.is_cuda predicate
            of_cuda(items)
        """,
        """
        from functools import wraps

        def traced(function):
            @wraps(function)
            def wrapper(*args, **kwargs):
                return function(*args, **kwargs)
            return wrapper

        @traced
        def plain(batch):
            torch.cuda.init()  #! torch.cuda.init call execute cpu=true

        @traced
        def of_cuda(batch):
            torch.cuda.synchronize()  #! torch.cuda.synchronize call execute cpu=false

        @traced
        def never(batch):
            torch.cuda.empty_cache()  #! ?torch.cuda.empty_cache call cpu=false
        """,
    ),
    in_execute(
        "a function whose source is read, and one that is handed over",
        """
        inspect.getsource(read)
        signal.signal(1, handed_over)
        """,
        """
        import inspect
        import signal

        def read():
            torch.cuda.init()  #! ?torch.cuda.init call cpu=false

        def handed_over(*_):
            torch.cuda.synchronize()  #! torch.cuda.synchronize call execute cpu=true
        """,
    ),
    in_execute(
        "an object of a class that is in a package for one vendor",
        """
        sparse = next((one for one in items if isinstance(one, SparseLayer)), None)
        if sparse is None:
            return
        torch.cuda.init()  #! torch.cuda.init call execute cpu=unknown
        """,
        "from vllm.models.sparse.nvidia.layer import SparseLayer",
        _VENDOR,
    ),
    in_execute(
        "an object of a class that is in a package for all",
        """
        plain = next((one for one in items if isinstance(one, PlainLayer)), None)
        if isinstance(items, PlainLayer):
            torch.cuda.synchronize()  #! torch.cuda.synchronize call execute cpu=true
        if plain is None:
            return
        torch.cuda.init()  #! torch.cuda.init call execute cpu=true
        """,
        "from vllm.models.sparse.common import PlainLayer",
        _VENDOR,
    ),
    runner(
        "an option with which an assertion about each layer holds on a GPU only",
        """
        import torch
        from vllm.layers import CudaLayer, Layer, OtherLayer
        from vllm.platforms import current_platform

        def check(config, layers):
            share_size = config.parallel.share_size
            split_size = config.parallel.split_size
            for layer in layers:
                if share_size > 1:
                    assert layer.must_share
                if split_size > 1:
                    assert layer.can_split

        class GPUModelRunner:
            def load_model(self):
                Layer().load(self.config.parallel.share_size)
                OtherLayer().load(1)
                if current_platform.is_cuda():  #! platform.is_cuda predicate
                    CudaLayer().load(1)
                check(self.config, self.layers)

            def execute_model(self):
                if self.config.parallel.share_size > 1:
                    torch.cuda.init()  #! torch.cuda.init call execute cpu=unknown
                if self.config.parallel.split_size > 1:
                    torch.cuda.synchronize()  #! torch.cuda.synchronize call execute cpu=true
        """,
        _LAYERS,
    ),
)
