"""Guards: whether a site is reached on a CPU platform."""

from __future__ import annotations

from tests.walker_cases.case import RUNNER, RUNNER_V2, case, in_execute, runner

_CONSTANTS = {
    "vllm/utils/constants.py": """
    from vllm.platforms import current_platform

    ON_CUDA = current_platform.is_cuda()  #! platform.is_cuda predicate import
    """
}

CASES = (
    in_execute(
        "each platform predicate",
        """
        if current_platform.is_cuda():  #! platform.is_cuda predicate execute cpu=true tier=direct
            torch.cuda.init()  #! torch.cuda.init call cpu=false guard=current_platform.is_cuda()
        if current_platform.is_rocm():  #! platform.is_rocm predicate execute cpu=true
            torch.cuda.init()  #! torch.cuda.init call cpu=false
        if current_platform.is_cuda_alike():  #! platform.is_cuda_alike predicate execute cpu=true
            torch.cuda.init()  #! torch.cuda.init call cpu=false
        if current_platform.is_cpu():  #! platform.is_cpu predicate execute cpu=true
            torch.cuda.init()  #! torch.cuda.init call cpu=true
        if not current_platform.is_cpu():  #! platform.is_cpu predicate execute cpu=true
            torch.cuda.init()  #! torch.cuda.init call cpu=false
        """,
    ),
    in_execute(
        "ordinary configuration",
        """
        if flag and items:
            torch.cuda.init()  #! torch.cuda.init call cpu=true guard=flag
        """,
    ),
    in_execute(
        "the other branch",
        """
        if current_platform.is_cuda():  #! platform.is_cuda predicate
            torch.cuda.init()  #! torch.cuda.init call cpu=false
        else:
            torch.cuda.synchronize()  #! torch.cuda.synchronize call cpu=true
        torch.cuda.empty_cache()  #! torch.cuda.empty_cache call cpu=true
        """,
    ),
    in_execute(
        "a chain of elif",
        """
        if current_platform.is_cuda():  #! platform.is_cuda predicate
            torch.cuda.init()  #! torch.cuda.init call cpu=false
        elif current_platform.is_rocm():  #! platform.is_rocm predicate
            torch.cuda.init()  #! torch.cuda.init call cpu=false
        elif flag:
            torch.cuda.synchronize()  #! torch.cuda.synchronize call cpu=true
        else:
            torch.cuda.empty_cache()  #! torch.cuda.empty_cache call cpu=true
        """,
    ),
    in_execute(
        "a chain of elif that the CPU ends",
        """
        if current_platform.is_cpu():  #! platform.is_cpu predicate
            pass
        elif flag:
            torch.cuda.synchronize()  #! torch.cuda.synchronize call cpu=false
        else:
            torch.cuda.empty_cache()  #! torch.cuda.empty_cache call cpu=false
        """,
    ),
    in_execute(
        "an early return",
        """
        torch.cuda.init()  #! torch.cuda.init call cpu=true
        if current_platform.is_cpu():  #! platform.is_cpu predicate
            return torch.cuda.synchronize()  #! torch.cuda.synchronize call cpu=true
        torch.cuda.empty_cache()  #! torch.cuda.empty_cache call cpu=false
        """,
    ),
    in_execute(
        "an early return that the CPU does not take",
        """
        if current_platform.is_cuda():  #! platform.is_cuda predicate
            return 1
        torch.cuda.empty_cache()  #! torch.cuda.empty_cache call cpu=true
        """,
    ),
    in_execute(
        "an early return by configuration",
        """
        if flag:
            return 1
        torch.cuda.empty_cache()  #! torch.cuda.empty_cache call cpu=true
        """,
    ),
    in_execute(
        "an early raise",
        """
        if not current_platform.is_cuda():  #! platform.is_cuda predicate
            raise RuntimeError("CUDA only")
        torch.cuda.empty_cache()  #! torch.cuda.empty_cache call cpu=false
        """,
    ),
    in_execute(
        "a return in both branches",
        """
        if flag:
            if current_platform.is_cpu():  #! platform.is_cpu predicate
                return 1
            torch.cuda.init()  #! torch.cuda.init call cpu=false
        torch.cuda.empty_cache()  #! torch.cuda.empty_cache call cpu=true
        """,
    ),
    in_execute(
        "nested guards",
        """
        if flag:
            if current_platform.is_cuda():  #! platform.is_cuda predicate
                if items:
                    torch.cuda.init()  #! torch.cuda.init call cpu=false
            else:
                torch.cuda.synchronize()  #! torch.cuda.synchronize call cpu=true
        """,
    ),
    in_execute(
        "a conditional expression",
        """
        #! platform.is_cuda predicate; torch.cuda.Event call cpu=false
        event = torch.cuda.Event() if current_platform.is_cuda() else None
        #! platform.is_cpu predicate; torch.cuda.Stream call cpu=false
        stream = None if current_platform.is_cpu() else torch.cuda.Stream()
        """,
    ),
    in_execute(
        "and, or",
        """
        #! platform.is_cuda predicate; torch.cuda.init call cpu=false
        current_platform.is_cuda() and torch.cuda.init()
        #! platform.is_cpu predicate; torch.cuda.init call cpu=false
        current_platform.is_cpu() or torch.cuda.init()
        flag and torch.cuda.init()  #! torch.cuda.init call cpu=true
        flag or torch.cuda.init()  #! torch.cuda.init call cpu=true
        """,
    ),
    in_execute(
        "conditions of several parts",
        """
        if flag and current_platform.is_cuda():  #! platform.is_cuda predicate
            torch.cuda.init()  #! torch.cuda.init call cpu=false
        if flag or current_platform.is_cuda():  #! platform.is_cuda predicate
            torch.cuda.init()  #! torch.cuda.init call cpu=true
        if flag or current_platform.is_cpu():  #! platform.is_cpu predicate
            torch.cuda.init()  #! torch.cuda.init call cpu=true
        else:
            torch.cuda.init()  #! torch.cuda.init call cpu=false
        #! platform.is_cuda predicate; platform.is_rocm predicate
        if not (current_platform.is_cuda() or current_platform.is_rocm()):
            torch.cuda.init()  #! torch.cuda.init call cpu=true
        """,
    ),
    in_execute(
        "assert",
        """
        torch.cuda.init()  #! torch.cuda.init call cpu=true
        assert current_platform.is_cuda()  #! platform.is_cuda predicate cpu=true
        torch.cuda.synchronize()  #! torch.cuda.synchronize call cpu=false
        """,
    ),
    in_execute(
        "continue in a loop",
        """
        for _ in items:
            if current_platform.is_cpu():  #! platform.is_cpu predicate
                continue
            torch.cuda.synchronize()  #! torch.cuda.synchronize call cpu=false
        torch.cuda.empty_cache()  #! torch.cuda.empty_cache call cpu=true
        """,
    ),
    in_execute(
        "while",
        """
        while current_platform.is_cuda():  #! platform.is_cuda predicate
            torch.cuda.synchronize()  #! torch.cuda.synchronize call cpu=false
        torch.cuda.empty_cache()  #! torch.cuda.empty_cache call cpu=true
        """,
    ),
    in_execute(
        "a condition in a comprehension",
        """
        #! platform.is_cuda predicate; torch.cuda.Event call cpu=false
        return [torch.cuda.Event() for _ in items if current_platform.is_cuda()]
        """,
    ),
    in_execute(
        "try and except",
        """
        try:
            torch.cuda.init()  #! torch.cuda.init call cpu=true
        except RuntimeError:
            torch.cuda.synchronize()  #! torch.cuda.synchronize call cpu=true
        finally:
            torch.cuda.empty_cache()  #! torch.cuda.empty_cache call cpu=true
        """,
    ),
    in_execute(
        "a local variable",
        """
        on_cuda = current_platform.is_cuda()  #! platform.is_cuda predicate
        if on_cuda and flag:
            torch.cuda.init()  #! torch.cuda.init call cpu=false
        if not on_cuda:
            torch.cuda.synchronize()  #! torch.cuda.synchronize call cpu=true
        """,
    ),
    in_execute(
        "a constant of the module",
        """
        if ON_CUDA:
            torch.cuda.init()  #! torch.cuda.init call cpu=false
        """,
        "ON_CUDA = current_platform.is_cuda()  #! platform.is_cuda predicate import",
    ),
    in_execute(
        "a constant of another module",
        """
        if ON_CUDA:
            torch.cuda.init()  #! torch.cuda.init call cpu=false
        if constants.ON_CUDA:
            torch.cuda.init()  #! torch.cuda.init call cpu=false
        """,
        "from vllm.utils import constants\nfrom vllm.utils.constants import ON_CUDA",
        _CONSTANTS,
    ),
    runner(
        "a field that is assigned once",
        """
        import torch
        from vllm.platforms import current_platform

        class GPUModelRunner:
            def __init__(self):
                self.on_cuda = current_platform.is_cuda()  #! platform.is_cuda predicate init

            def execute_model(self):
                if self.on_cuda:
                    torch.cuda.init()  #! torch.cuda.init call cpu=false guard=self.on_cuda
                else:
                    torch.cuda.synchronize()  #! torch.cuda.synchronize call cpu=true
        """,
    ),
    runner(
        "a field that is assigned twice",
        """
        import torch
        from vllm.platforms import current_platform

        class GPUModelRunner:
            def __init__(self):
                self.fast = current_platform.is_cuda()  #! platform.is_cuda predicate init

            def load_model(self):
                self.fast = True

            def execute_model(self):
                if self.fast:
                    torch.cuda.init()  #! torch.cuda.init call cpu=true|unknown
        """,
    ),
    in_execute(
        "a variable that is assigned twice",
        """
        fast = current_platform.is_cuda()  #! platform.is_cuda predicate
        if flag:
            fast = True
        if fast:
            torch.cuda.init()  #! torch.cuda.init call cpu=true|unknown
        """,
    ),
    in_execute(
        "a predicate in a helper that returns it",
        """
        if is_fast():
            torch.cuda.init()  #! torch.cuda.init call cpu=false
        """,
        """
        def is_fast():
            return current_platform.is_cuda()  #! platform.is_cuda predicate execute
        """,
    ),
    runner(
        "a predicate in a property that returns it",
        """
        import torch
        from vllm.platforms import current_platform

        class GPUModelRunner:
            @property
            def _fast(self):
                return current_platform.is_cuda()  #! platform.is_cuda predicate execute

            def execute_model(self):
                if self._fast:
                    torch.cuda.init()  #! torch.cuda.init call cpu=false|unknown
        """,
    ),
    in_execute(
        "a guarded call of a function",
        """
        if current_platform.is_cuda():  #! platform.is_cuda predicate
            guarded()
            both()
        both()
        """,
        """
        def guarded():
            torch.cuda.init()  #! torch.cuda.init call cpu=false
            deeper()

        def deeper():
            torch.cuda.synchronize()  #! torch.cuda.synchronize call cpu=false

        def both():
            torch.cuda.empty_cache()  #! torch.cuda.empty_cache call cpu=true
        """,
    ),
    in_execute(
        "a function guarded inside and outside",
        """
        if current_platform.is_cuda():  #! platform.is_cuda predicate
            go()
        go()
        """,
        """
        def go():
            if current_platform.is_rocm():  #! platform.is_rocm predicate cpu=true
                torch.cuda.init()  #! torch.cuda.init call cpu=false
            torch.cuda.synchronize()  #! torch.cuda.synchronize call cpu=true
        """,
    ),
    in_execute(
        "a guarded import",
        """
        pass
        """,
        """
        if current_platform.is_cuda():  #! platform.is_cuda predicate import cpu=true
            import vllm.v1.guarded
            import vllm.v1.both
        import vllm.v1.both
        """,
        {
            "vllm/v1/guarded.py": """
            import torch
            torch.cuda.init()  #! torch.cuda.init call cpu=false
            """,
            "vllm/v1/both.py": """
            import torch
            torch.cuda.init()  #! torch.cuda.init call cpu=true
            """,
        },
    ),
    in_execute(
        "a guard at module level",
        """
        pass
        """,
        """
        if current_platform.is_cuda():  #! platform.is_cuda predicate import
            torch.cuda.init()  #! torch.cuda.init call import cpu=false
        """,
    ),
    in_execute(
        "the platform imported inside the function, under another name",
        """
        from vllm.platforms import current_platform as platform
        if platform.is_cuda():  #! platform.is_cuda predicate
            torch.cuda.init()  #! torch.cuda.init call cpu=false
        """,
    ),
    in_execute(
        "device.type",
        """
        if device.type == "cuda":
            torch.cuda.init()  #! torch.cuda.init call cpu=false
        else:
            torch.cuda.synchronize()  #! torch.cuda.synchronize call cpu=true
        if device.type == "cpu":
            torch.cuda.init()  #! torch.cuda.init call cpu=true
        else:
            torch.cuda.synchronize()  #! torch.cuda.synchronize call cpu=false
        """,
    ),
    runner(
        "device_type",
        """
        import torch

        class GPUModelRunner:
            def __init__(self, config):
                if config.device_config.device_type == "cuda":
                    torch.cuda.init()  #! torch.cuda.init call cpu=false
                elif config.device_config.device_type == "cpu":
                    torch.cuda.synchronize()  #! torch.cuda.synchronize call cpu=true
        """,
    ),
    runner(
        "self.use_cuda_graph",
        """
        import torch

        class GPUModelRunner:
            def __init__(self, config):
                self.use_cuda_graph = config.use_cuda_graph

            def execute_model(self):
                if self.use_cuda_graph:
                    torch.cuda.CUDAGraph()  #! torch.cuda.CUDAGraph call cpu=false

            def capture_model(self):
                if not self.use_cuda_graph:
                    return
                torch.cuda.graph_pool_handle()  #! torch.cuda.graph_pool_handle call cpu=false
        """,
    ),
    case(
        "HAS_TRITON at the head of a function, in both generations",
        {
            RUNNER: """
            import torch
            from vllm.triton_utils import HAS_TRITON

            class GPUModelRunner:
                def execute_model(self):
                    if not HAS_TRITON:
                        return
                    torch.cuda.init()  #! torch.cuda.init call cpu=false generation=v1
            """,
            RUNNER_V2: """
            import torch
            from vllm.triton_utils import HAS_TRITON

            class GPUModelRunner:
                def execute_model(self):
                    if not HAS_TRITON:
                        torch.cuda.init()  #! torch.cuda.init call cpu=false generation=v2
                        return
                    torch.cuda.synchronize()  #! torch.cuda.synchronize call cpu=true generation=v2
            """,
        },
    ),
    in_execute(
        "TYPE_CHECKING",
        """
        pass
        """,
        """
        import typing
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            from torch.cuda import Event  #! ?torch.cuda.Event import cpu=false
        else:
            torch.cuda.init()  #! torch.cuda.init call import cpu=true
        if not typing.TYPE_CHECKING:
            torch.cuda.init()  #! torch.cuda.init call import cpu=true
        """,
    ),
    in_execute(
        "hardware that cannot be decided",
        """
        if has_flashinfer():
            torch.cuda.init()  #! torch.cuda.init call cpu=unknown guard=has_flashinfer()
        """,
        "from vllm.utils.flashinfer import has_flashinfer",
        {
            "vllm/utils/flashinfer.py": """
            import importlib.util

            def has_flashinfer() -> bool:
                return importlib.util.find_spec("flashinfer") is not None
            """
        },
    ),
    in_execute(
        "hardware that cannot be decided, under a guard that can",
        """
        if has_flashinfer() and current_platform.is_cuda():  #! platform.is_cuda predicate
            torch.cuda.init()  #! torch.cuda.init call cpu=false
        """,
        "from vllm.utils.flashinfer import has_flashinfer",
        {
            "vllm/utils/flashinfer.py": """
            import importlib.util

            def has_flashinfer() -> bool:
                return importlib.util.find_spec("flashinfer") is not None
            """
        },
    ),
    in_execute(
        "torch's own question",
        """
        if torch.cuda.is_available():  #! torch.cuda.is_available call execute cpu=true
            torch.cuda.init()  #! torch.cuda.init call cpu=false|unknown
        """,
    ),
    runner(
        "a field of a guarded construction",
        """
        import torch
        from vllm.platforms import current_platform

        class Buffer:
            def __init__(self):
                torch.cuda.Event()  #! torch.cuda.Event call init cpu=false

        class GPUModelRunner:
            def __init__(self):
                if current_platform.is_cuda():  #! platform.is_cuda predicate
                    self.buffer = Buffer()
        """,
    ),
    runner(
        "a name that its module computes",
        """
        import torch
        from vllm.utils.torch_utils import PIN_MEMORY

        class GPUModelRunner:
            def execute_model(self):
                #! pin_memory=True argument cpu=false as=PIN_MEMORY
                torch.zeros(1, pin_memory=PIN_MEMORY)
        """,
        {
            "vllm/utils/torch_utils.py": """
            from vllm.platforms import current_platform

            def is_pin_memory_available():
                return not current_platform.is_cpu()

            def __getattr__(name):
                if name == "PIN_MEMORY":
                    return is_pin_memory_available()
                raise AttributeError(name)
            """
        },
    ),
    runner(
        "an argument that a parameter decides",
        """
        import torch

        class GPUModelRunner:
            def execute_model(self, pin):
                torch.zeros(1, pin_memory=pin)  #! pin_memory=True argument cpu=unknown as=pin
        """,
    ),
    runner(
        "an option that the configuration refuses on a CPU",
        """
        import torch
        from vllm.config.parallel import ParallelConfig

        class GPUModelRunner:
            def __init__(self, parallel_config: ParallelConfig):
                self.parallel_config = parallel_config

            def execute_model(self):
                if self.parallel_config.enable_eplb:
                    torch.cuda.init()  #! torch.cuda.init call execute cpu=false
                if self.parallel_config.enable_other:
                    torch.cuda.synchronize()  #! torch.cuda.synchronize call execute cpu=true
                if self.parallel_config.sparse_config is not None:
                    torch.cuda.init()  #! torch.cuda.init call execute cpu=false
                if self.parallel_config.sparse_config is None:
                    torch.cuda.init()  #! torch.cuda.init call execute cpu=true
        """,
        {
            "vllm/config/__init__.py": "",
            "vllm/config/parallel.py": """
            from dataclasses import dataclass

            from vllm.platforms import current_platform

            @dataclass
            class ParallelConfig:
                enable_eplb: bool = False
                enable_other: bool = False
                sparse_config: object = None

                def check(self):
                    if self.sparse_config is not None:
                        if not current_platform.is_cuda():
                            raise ValueError("only on a GPU")
                    if self.enable_eplb:
                        if not current_platform.is_cuda_alike():
                            raise ValueError("only on a GPU")
                    if self.enable_other and self.enable_eplb:
                        raise ValueError("one of them")
            """,
        },
    ),
    runner(
        "a call that never returns on a CPU",
        """
        import torch
        from vllm.platforms import current_platform

        def allocator():
            if not current_platform.is_cuda():  #! platform.is_cuda predicate
                raise RuntimeError("only on a GPU")
            return object()

        class GPUModelRunner:
            def execute_model(self):
                torch.cuda.init()  #! torch.cuda.init call execute cpu=true
                allocator()
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute cpu=false
        """,
    ),
    runner(
        "a keyword that only one of two methods takes",
        """
        import torch

        class One:
            def go(self):
                torch.cuda.init()

        class Two:
            def go(self, extra):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute cpu=true

        class GPUModelRunner:
            def execute_model(self, flag):
                one = One() if flag else Two()
                one.go(extra=1)
        """,
    ),
)
