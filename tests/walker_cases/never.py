"""What is no row. Each case has a site beside it, so that none passes by giving nothing."""

from __future__ import annotations

from tests.walker_cases.case import in_execute, runner

# A site that must be found, next to what must not.
_SITE = "torch.cuda.init()  #! torch.cuda.init call execute\n"

CASES = (
    in_execute(
        "an unreached function and an unreached class",
        _SITE,
        """
        def unreached():
            torch.cuda.synchronize()

        class Unreached:
            def __init__(self):
                torch.cuda.Event()
        """,
    ),
    in_execute(
        "a method of a constructed class that nothing calls",
        """
        Buffer()
        torch.cuda.init()  #! torch.cuda.init call execute
        """,
        """
        class Buffer:
            def close(self):
                torch.cuda.synchronize()
        """,
    ),
    in_execute(
        "other attributes of torch",
        """
        torch.version.cuda
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.zeros(1)
        torch.cuda.init()  #! torch.cuda.init call execute
        """,
    ),
    in_execute(
        "names that look like it",
        """
        items.cuda_stuff
        items.torch.cuda.synchronize()
        cuda = items
        cuda.synchronize_all()
        torch.cuda.init()  #! torch.cuda.init call execute
        """,
    ),
    in_execute(
        "strings and comments",
        '''
        """torch.cuda.synchronize()"""
        # torch.cuda.synchronize()
        items("torch.cuda.synchronize", 'torch.cuda.Event()')
        torch.cuda.init()  #! torch.cuda.init call execute
        ''',
    ),
    in_execute(
        "a class of vLLM named Event",
        """
        Event().record()
        torch.cuda.init()  #! torch.cuda.init call execute
        """,
        """
        class Event:
            def record(self):
                pass
        """,
    ),
    in_execute(
        "another library's Event",
        """
        done = threading.Event()
        done.wait()
        torch.cuda.init()  #! torch.cuda.init call execute
        """,
        "import threading",
    ),
    runner(
        "a field named cuda",
        """
        import torch

        class GPUModelRunner:
            def __init__(self, config):
                self.cuda = config.name

            def execute_model(self):
                torch.cuda.init()  #! torch.cuda.init call execute
                return self.cuda
        """,
    ),
    in_execute(
        "arguments of the CPU",
        """
        torch.zeros(1, device="cpu", pin_memory=False)
        torch.zeros(1, device=device)
        torch.device("cpu")
        items.to("cpu", non_blocking=False)
        items.to(torch.float32)
        torch.cuda.init()  #! torch.cuda.init call execute
        """,
    ),
    runner(
        "an overridden method",
        """
        import torch

        class Base:
            def execute_model(self):
                torch.cuda.synchronize()

            def _go(self):
                torch.cuda.empty_cache()

        class GPUModelRunner(Base):
            def execute_model(self):
                self._go()

            def _go(self):
                torch.cuda.init()  #! torch.cuda.init call execute
        """,
    ),
    in_execute(
        "a module that is imported for type checking only",
        _SITE,
        """
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            from vllm.v1.typed import Typed
        """,
        {
            "vllm/v1/typed.py": """
            import torch

            torch.cuda.init()  #! ?torch.cuda.init call cpu=false

            class Typed:
                def go(self):
                    torch.cuda.synchronize()
            """
        },
    ),
    in_execute(
        "a module that nothing imports",
        _SITE,
        other={"vllm/v1/lonely.py": "import torch\ntorch.cuda.init()\n"},
    ),
    in_execute(
        "the CPU runner, which derives from the GPU runner",
        """
        self._go()
        torch.cuda.init()  #! torch.cuda.init call execute
        """,
        other={
            "vllm/v1/worker/cpu_model_runner.py": """
            import torch
            from vllm.v1.worker.gpu_model_runner import GPUModelRunner

            torch.cuda.Event = object

            class CPUModelRunner(GPUModelRunner):
                def _go(self):
                    torch.cuda.synchronize()
            """
        },
    ),
    in_execute(
        "a parameter named torch",
        """
        go(items)
        torch.cuda.init()  #! torch.cuda.init call execute
        """,
        """
        def go(torch):
            torch.cuda.synchronize()
        """,
    ),
    in_execute(
        "a local variable that hides an alias",
        """
        cuda = items
        cuda.synchronize_all(cuda.device_count)
        torch.cuda.init()  #! torch.cuda.init call execute
        """,
        "cuda = torch.cuda",
    ),
    in_execute(
        "a method of another class, where the type is known",
        """
        One().go()
        """,
        """
        class One:
            def go(self):
                torch.cuda.init()  #! torch.cuda.init call execute

        class Two:
            def go(self):
                torch.cuda.synchronize()
        """,
    ),
    runner(
        "a kernel that is not launched",
        """
        import torch
        from vllm.triton_utils import tl, triton

        @triton.jit
        def lonely_kernel(x, BLOCK: tl.constexpr):
            pass

        @triton.jit
        def inner(x):
            return x

        @triton.jit
        def add_kernel(x):
            inner(x)
            tl.load(x)

        class GPUModelRunner:
            def execute_model(self, x, table):
                table[0](x)
                add_kernel[(1,)](x)  #! triton:add_kernel launch execute
        """,
    ),
    runner(
        "a subscripted call that is no launch",
        """
        import torch

        class GPUModelRunner:
            def execute_model(self, x):
                {"a": print}["a"](x)
                list[int](x)
                torch.cuda.init()  #! torch.cuda.init call execute
        """,
    ),
)
