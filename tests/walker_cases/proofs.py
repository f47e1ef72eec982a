"""Proofs: what shows that a CPU gets to a site, and what only looks like it."""

from __future__ import annotations

from tests.walker_cases.case import RUNNER, RUNNER_V2, case, in_execute, runner

_CONFIG = {
    "vllm/config/__init__.py": "",
    "vllm/config/vllm.py": """
    from vllm.platforms import current_platform

    class SpeculativeConfig:
        method: str

        def use_dspark(self):
            return self.method == "dspark"

        def use_eagle(self):
            return self.method == "eagle"

    class VllmConfig:
        def check(self):
            if self.speculative_config.enable_adaptive and current_platform.is_cpu():
                raise ValueError("only on a GPU")

        def _get_v1_model_runner_unsupported_features(self):
            unsupported = []
            if self.speculative_config is not None:
                if self.speculative_config.method == "dspark":
                    unsupported.append("dspark")
            if self.model_config is not None and self.model_config.is_diffusion:
                unsupported.append("diffusion")
            if self.speculative_config.enable_adaptive:
                unsupported.append("adaptive")
            if self.flag and self.other:
                unsupported.append("two things that matter together only")
            return unsupported
    """,
}

_PLATFORM_TABLE = {
    "vllm/kernels.py": """
    import torch
    from vllm.platforms import PlatformEnum

    class OnCuda:
        def apply(self):
            torch.cuda.init()  #! torch.cuda.init call execute cpu=false

    class OnCpu:
        def apply(self):
            torch.cuda.synchronize()  #! torch.cuda.synchronize call execute cpu=true

    class Anywhere:
        def apply(self):
            torch.cuda.empty_cache()  #! torch.cuda.empty_cache call execute cpu=true

    KERNELS = {
        PlatformEnum.CUDA: [OnCuda, Anywhere],
        PlatformEnum.CPU: [OnCpu, Anywhere],
    }
    """
}

CASES = (
    in_execute(
        "a function that its module binds anew for a CPU",
        """
        causal_conv()
        plain_conv()
        """,
        """
        from vllm.ops import causal_conv, plain_conv
        """,
        {
            "vllm/ops.py": """
            import torch
            from vllm.platforms import current_platform

            def causal_conv():
                torch.cuda.init()  #! torch.cuda.init call execute cpu=false

            def plain_conv():
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute cpu=true

            def conv_of_cpu():
                torch.cuda.empty_cache()  #! torch.cuda.empty_cache call execute cpu=true

            def conv_of_cuda():
                torch.cuda.mem_get_info()  #! torch.cuda.mem_get_info call execute cpu=false

            if current_platform.is_cpu():  #! platform.is_cpu predicate
                causal_conv = conv_of_cpu
            if current_platform.is_cuda():  #! platform.is_cuda predicate
                plain_conv = conv_of_cuda
            """
        },
    ),
    in_execute(
        "a function that its module perhaps binds anew",
        """
        first()
        second()
        """,
        """
        from vllm.ops import first, second
        """,
        {
            "vllm/ops.py": """
            import os

            import torch
            from vllm.platforms import current_platform

            def first():
                torch.cuda.init()  #! torch.cuda.init call execute cpu=true

            def other():
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute cpu=true

            if os.environ.get("OTHER"):
                first = other
            if current_platform.is_cpu() and os.environ.get("OTHER"):  #! platform.is_cpu predicate
                first = other

            second = other
            if current_platform.is_cpu():  #! platform.is_cpu predicate
                def second():
                    torch.cuda.empty_cache()  #! torch.cuda.empty_cache call execute cpu=true
            """
        },
    ),
    in_execute(
        "a table of platforms",
        """
        from vllm.kernels import KERNELS

        for kernel in KERNELS[current_platform._enum]:
            kernel().apply()
        """,
        other=_PLATFORM_TABLE,
    ),
    in_execute(
        "what a module does as a program",
        """
        import vllm.tool
        """,
        other={
            "vllm/tool.py": """
            import torch

            if __name__ == "__main__":
                torch.cuda.init()  #! torch.cuda.init call import cpu=false
            torch.cuda.synchronize()  #! torch.cuda.synchronize call import cpu=true
            """
        },
    ),
    runner(
        "a method that never returns on a CPU, of what a property gives",
        """
        import torch
        from vllm.sleep import Backend, make

        class GPUModelRunner:
            @property
            def backend(self) -> "Backend":
                return make()

            def sleep(self):
                torch.cuda.init()  #! torch.cuda.init call load cpu=true
                self.backend.resume()
                torch.cuda.synchronize()  #! torch.cuda.synchronize call load cpu=true
                self.backend.suspend()
                torch.cuda.empty_cache()  #! torch.cuda.empty_cache call load cpu=false
        """,
        {
            "vllm/sleep.py": """
            from abc import ABC, abstractmethod

            from vllm.platforms import current_platform

            def allocator():
                if current_platform.is_cuda_alike():  #! platform.is_cuda_alike predicate
                    return object()
                raise RuntimeError("only on a GPU")

            class Backend(ABC):
                @abstractmethod
                def suspend(self): ...

                @abstractmethod
                def resume(self): ...

            class OnlyBackend(Backend):
                def suspend(self):
                    self.state = "SUSPENDED"
                    found = allocator()
                    found.sleep()

                def resume(self):
                    self.state = "RUNNING"

            def make() -> Backend:
                return OnlyBackend()
            """
        },
    ),
    runner(
        "a method of which one implementation returns",
        """
        import torch
        from vllm.sleep import Backend, make

        class GPUModelRunner:
            @property
            def backend(self) -> Backend:
                return make()

            def sleep(self):
                self.backend.suspend()
                torch.cuda.synchronize()  #! torch.cuda.synchronize call load cpu=true
        """,
        {
            "vllm/sleep.py": """
            from vllm.platforms import current_platform

            def allocator():
                if current_platform.is_cuda_alike():  #! ?platform.is_cuda_alike predicate
                    return object()
                raise RuntimeError("only on a GPU")

            class Backend:
                def suspend(self):
                    allocator()

            class OtherBackend(Backend):
                def suspend(self):
                    pass

            def make() -> Backend:
                return OtherBackend()
            """
        },
    ),
    case(
        "what one generation of the runner does not support",
        {
            RUNNER: """
            import torch
            from vllm.drafts import draft

            class GPUModelRunner:
                def execute_model(self, config):
                    draft(config)
                    if config.method == "eagle":
                        torch.cuda.init()  #! torch.cuda.init call cpu=true generation=v1
                    if config.method == "dspark":
                        torch.cuda.init()  #! torch.cuda.init call cpu=false generation=v1
                    if config.is_diffusion:
                        torch.cuda.init()  #! torch.cuda.init call cpu=false generation=v1
                    if config.flag:
                        torch.cuda.init()  #! torch.cuda.init call cpu=true generation=v1
            """,
            RUNNER_V2: """
            import torch
            from vllm.drafts import draft

            class GPUModelRunner:
                def execute_model(self, config):
                    draft(config)
                    if config.is_diffusion:
                        torch.cuda.init()  #! torch.cuda.init call cpu=true generation=v2
                    if config.enable_adaptive:
                        torch.cuda.init()  #! torch.cuda.init call cpu=false generation=v2
            """,
            "vllm/drafts.py": """
            import torch

            def draft(config):
                if config.use_dspark():
                    torch.cuda.init()  #! torch.cuda.init call cpu=true generation=v2
                if config.use_eagle():
                    #! torch.cuda.synchronize call cpu=true generation=both
                    torch.cuda.synchronize()
            """,
            **_CONFIG,
        },
    ),
    runner(
        "a class that an annotation speaks of, and only a GPU makes",
        """
        import torch
        from vllm.platforms import current_platform

        class Kernel:
            def apply(self):
                torch.cuda.init()  #! torch.cuda.init call execute cpu=true

        class GpuKernel(Kernel):
            def apply(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute cpu=false|unknown

        def choose(forced: type[Kernel] | None = None) -> type[Kernel]:
            if forced is not None:
                return forced
            if current_platform.is_cuda():  #! platform.is_cuda predicate
                return GpuKernel
            return Kernel

        class GPUModelRunner:
            def execute_model(self):
                choose()().apply()
        """,
    ),
    runner(
        "a registry of what was registered, annotated with all",
        """
        import torch
        from vllm.platforms import current_platform

        class Kernel:
            def register(self, registry):
                registry.add(self)

        class Everywhere(Kernel):
            def warm_up(self):
                torch.cuda.init()  #! torch.cuda.init call execute cpu=true

        class OnGpu(Kernel):
            def warm_up(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute cpu=false

        class Registry:
            def __init__(self):
                self.kernels: dict[Kernel, list[int]] = {}

            def add(self, kernel):
                self.kernels.setdefault(kernel, [])

            def warm_up(self):
                for kernel in self.kernels:
                    kernel.warm_up()

        EVERYWHERE = Everywhere()
        ON_GPU = OnGpu()

        class GPUModelRunner:
            def __init__(self):
                self.registry = Registry()
                EVERYWHERE.register(self.registry)
                if current_platform.is_cuda():  #! platform.is_cuda predicate
                    ON_GPU.register(self.registry)

            def execute_model(self):
                self.registry.warm_up()
        """,
    ),
    runner(
        "names that are bound empty, and filled",
        """
        import torch

        _agent = None

        def connect():
            global _agent
            _agent = object()

        class GPUModelRunner:
            def __init__(self):
                self.count = 0
                self.first, self.second = None, None
                self.pending = []
                connect()

            def execute_model(self, items):
                self.count += 1
                if self.count:
                    torch.cuda.init()  #! torch.cuda.init call cpu=true
                if self.pending:
                    torch.cuda.init()  #! torch.cuda.init call cpu=true
                if _agent is not None:
                    torch.cuda.init()  #! torch.cuda.init call cpu=true
                self.first, self.second = items
                if self.second is not None:
                    torch.cuda.init()  #! torch.cuda.init call cpu=true
                found = []
                for item in items:
                    found.append(item)
                if not found:
                    return
                torch.cuda.synchronize()  #! torch.cuda.synchronize call cpu=true
        """,
    ),
    runner(
        "an attribute that only a GPU sets",
        """
        import torch
        from vllm.platforms import current_platform

        class Batch:
            def __init__(self):
                self.previous = None
                self.given = None
                self.flag = False

        class GPUModelRunner:
            def __init__(self):
                self.batch = Batch()
                self.event = None
                self.copied = None
                if current_platform.is_cuda():  #! platform.is_cuda predicate
                    self.event = object()

            def execute_model(self, ids):
                if self.event is not None:
                    torch.cuda.init()  #! torch.cuda.init call execute cpu=false
                self._copy(ids)
                self.batch.given = ids
                if self.batch.previous is None:
                    torch.cuda.synchronize()  #! torch.cuda.synchronize call execute cpu=true
                    return
                torch.cuda.empty_cache()  #! torch.cuda.empty_cache call execute cpu=false

            def _copy(self, ids):
                event = self.event
                if event is None:
                    return
                self.batch.previous = ids
                helper()

            def sample_tokens(self):
                update(self.batch)
                if self.batch.given is not None:
                    torch.cuda.init()  #! torch.cuda.init call sample cpu=true
                if self.batch.flag:
                    torch.cuda.synchronize()  #! torch.cuda.synchronize call sample cpu=false

        def helper():
            torch.cuda.mem_get_info()  #! torch.cuda.mem_get_info call execute cpu=false

        def update(batch: Batch):
            previous = batch.previous
            if previous is None:
                torch.cuda.synchronize()  #! torch.cuda.synchronize call sample cpu=true
                return
            torch.cuda.empty_cache()  #! torch.cuda.empty_cache call sample cpu=false
        """,
    ),
    runner(
        "attributes that something else may set",
        """
        from dataclasses import dataclass

        import torch

        @dataclass
        class Request:
            draft: object = None

        class Base:
            hint = None

        class Helper(Base):
            hint = "given"

        class GPUModelRunner:
            def __init__(self, config):
                self.config = config
                self.extra = None
                self.helper = Helper()

            def execute_model(self, drafts):
                self.request = Request(draft=drafts)
                if self.request.draft is not None:
                    torch.cuda.init()  #! torch.cuda.init call cpu=true
                if self.config.extra is not None:
                    torch.cuda.init()  #! torch.cuda.init call cpu=true
                if self.helper.hint is not None:
                    torch.cuda.init()  #! torch.cuda.init call cpu=true
        """,
    ),
    runner(
        "a global that only a GPU sets",
        """
        import torch
        from vllm.platforms import current_platform

        _checks = False
        _other = False

        def enable():
            global _checks, _other
            _other = True
            if not current_platform.is_cuda():  #! platform.is_cuda predicate
                return
            _checks = True

        class GPUModelRunner:
            def __init__(self):
                enable()

            def execute_model(self):
                if _other:
                    torch.cuda.synchronize()  #! torch.cuda.synchronize call cpu=true
                if not _checks:
                    return
                torch.cuda.init()  #! torch.cuda.init call cpu=false
        """,
    ),
    in_execute(
        "a name with gpu in it that says nothing of the hardware",
        """
        assert items.backup_gpu.dtype == torch.int32
        torch.cuda.init()  #! torch.cuda.init call cpu=true
        if flag.use_ngram_gpu():
            torch.cuda.synchronize()  #! torch.cuda.synchronize call cpu=true
        """,
    ),
    in_execute(
        "what follows a chain of elif that all return",
        """
        if current_platform.is_rocm():  #! platform.is_rocm predicate
            return 1
        elif current_platform.is_cpu():  #! platform.is_cpu predicate
            return 2
        elif flag:
            return 3
        torch.cuda.init()  #! torch.cuda.init call cpu=false
        """,
    ),
    in_execute(
        "what follows a chain of elif of which one goes on",
        """
        if current_platform.is_rocm():  #! platform.is_rocm predicate
            return 1
        elif current_platform.is_cpu():  #! platform.is_cpu predicate
            flag.go()
        elif flag:
            return 3
        torch.cuda.init()  #! torch.cuda.init call cpu=true
        """,
    ),
    runner(
        "an attribute that is given nothing on a CPU",
        """
        import torch
        from vllm.platforms import current_platform

        class Manager:
            pass

        def make(flag):
            if not current_platform.is_cuda():  #! platform.is_cuda predicate
                return None
            return Manager()

        def find(flag):
            if flag:
                return None
            return flag.found

        class GPUModelRunner:
            def __init__(self):
                self.manager = None
                self.other = None

            def execute_model(self, flag):
                self.manager = make(flag)
                self.other = find(flag)
                if self.manager is not None:
                    torch.cuda.init()  #! torch.cuda.init call cpu=false
                if self.other is not None:
                    torch.cuda.synchronize()  #! torch.cuda.synchronize call cpu=true
        """,
    ),
    runner(
        "fields that a constructor is not given",
        """
        from dataclasses import dataclass

        import torch

        @dataclass
        class Config:
            fuse: bool = None
            given: bool = False
            level: int = 1

            def __post_init__(self):
                if self.fuse:
                    torch.cuda.init()  #! torch.cuda.init call init cpu=false
                if self.given:
                    torch.cuda.synchronize()  #! torch.cuda.synchronize call init cpu=true
                if self.level:
                    torch.cuda.empty_cache()  #! torch.cuda.empty_cache call init cpu=true

            def check(self):
                if self.fuse:
                    torch.cuda.init()  #! torch.cuda.init call execute cpu=true

        class GPUModelRunner:
            def __init__(self):
                self.config = Config()
                self.config.given = True

            def execute_model(self, config: Config):
                config.check()
        """,
    ),
)
