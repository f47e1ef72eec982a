"""Launches of Triton kernels."""

from __future__ import annotations

from tests.walker_cases.case import RUNNER_V2, case, in_execute, runner

_KERNELS = {
    "vllm/v1/ops.py": """
    from vllm.triton_utils import tl, triton

    @triton.jit
    def add_kernel(x, n, BLOCK: tl.constexpr):
        pass

    @triton.jit
    def mul_kernel(x, n, BLOCK: tl.constexpr):
        pass
    """
}

_GUARDED = """
from vllm.triton_utils import HAS_TRITON, tl, triton

if HAS_TRITON:

    @triton.jit
    def add_kernel(x, BLOCK: tl.constexpr):
        pass

class GPUModelRunner:
    def execute_model(self, x):
        if HAS_TRITON:
            add_kernel[(1,)](x, BLOCK=1)  #! triton:add_kernel launch execute cpu={cpu}
"""

CASES = (
    runner(
        "a kernel of the same module, with keywords",
        """
        from vllm.triton_utils import tl, triton

        @triton.jit
        def add_kernel(x, n, BLOCK: tl.constexpr):
            pass

        class GPUModelRunner:
            def execute_model(self, x, n):
                #! triton:add_kernel launch execute positional=x,n keywords=BLOCK=128,num_warps=4
                add_kernel[(1,)](x, n, BLOCK=128, num_warps=4)
        """,
    ),
    runner(
        "triton imported without vLLM's shim",
        """
        import triton

        @triton.jit
        def add_kernel(x):
            pass

        class GPUModelRunner:
            def execute_model(self, x):
                add_kernel[(1,)](x)  #! triton:add_kernel launch execute tier=direct cpu=true
        """,
    ),
    runner(
        "a decorator that is given the kernel, and launches it when the function is called",
        """
        from outside import dispatcher
        from vllm.triton_utils import triton

        @triton.jit
        def add_kernel(x, n):
            pass

        @dispatcher(kernel=add_kernel)
        def add(x, n):
            return (1,), {}

        class GPUModelRunner:
            def execute_model(self, x, n):
                add(x, n)  #! triton:add_kernel launch execute tier=direct cpu=true as=add
        """,
    ),
    runner(
        "an object that launches the kernel of its class when it is called",
        """
        from vllm.triton_utils import triton
        from vllm.v1.launcher import Launcher, launches

        class AddKernel(Launcher):
            @staticmethod
            @triton.jit
            def kernel(x, n):
                pass

            @launches
            def __call__(self, x, n):
                return (1,), {}

        ADD = AddKernel()

        class GPUModelRunner:
            def execute_model(self, x, n):
                ADD(x, n)  #! triton:AddKernel.kernel launch execute as=ADD
        """,
        {
            "vllm/v1/launcher.py": """
            class Launcher:
                pass

            def launches(method):
                return method
            """
        },
    ),
    runner(
        "an outside decorator does not call what it decorates",
        """
        import torch
        from outside import override

        class GPUModelRunner:
            @override
            def execute_model(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute
        """,
    ),
    runner(
        "jit with arguments",
        """
        from vllm.triton_utils import triton

        @triton.jit(do_not_specialize=["n"])
        def add_kernel(x, n):
            pass

        class GPUModelRunner:
            def execute_model(self, x):
                add_kernel[(1,)](x, 1)  #! triton:add_kernel launch execute
        """,
    ),
    runner(
        "an autotuned kernel",
        """
        from vllm.triton_utils import triton

        @triton.autotune(configs=[triton.Config({}, num_warps=4)], key=["n"])
        @triton.jit
        def add_kernel(x, n):
            pass

        class GPUModelRunner:
            def execute_model(self, x):
                add_kernel[(1,)](x, 1)  #! triton:add_kernel launch execute
        """,
    ),
    in_execute(
        "a kernel imported from another module",
        """
        add_kernel[(1,)](items, 1, BLOCK=64)  #! triton:add_kernel launch execute keywords=BLOCK=64
        """,
        "from vllm.v1.ops import add_kernel",
        _KERNELS,
    ),
    in_execute(
        "a kernel imported under another name",
        """
        _add[(1,)](items, 1, BLOCK=64)  #! triton:add_kernel launch execute as=_add
        """,
        "from vllm.v1.ops import add_kernel as _add",
        _KERNELS,
    ),
    in_execute(
        "a kernel of an imported module",
        """
        ops.add_kernel[(1,)](items, 1, BLOCK=64)  #! triton:add_kernel launch execute
        """,
        "import vllm.v1.ops as ops",
        _KERNELS,
    ),
    in_execute(
        "a kernel through an alias",
        """
        kernel = add_kernel
        kernel[(1,)](items, 1, BLOCK=64)  #! triton:add_kernel launch execute as=kernel
        """,
        "from vllm.v1.ops import add_kernel",
        _KERNELS,
    ),
    in_execute(
        "one of two kernels",
        """
        kernel = add_kernel if flag else mul_kernel
        #! triton:add_kernel launch execute as=kernel; triton:mul_kernel launch execute as=kernel
        kernel[(1,)](items, 1, BLOCK=64)
        """,
        "from vllm.v1.ops import add_kernel, mul_kernel",
        _KERNELS,
    ),
    in_execute(
        "a launch over several lines",
        """
        grid = lambda meta: (1,)
        add_kernel[grid](  #! triton:add_kernel launch execute keywords=BLOCK=flag
            items,
            1,
            BLOCK=flag,
        )
        """,
        "from vllm.v1.ops import add_kernel",
        _KERNELS,
    ),
    in_execute(
        "a launch in a function of another module",
        """
        add(items)
        """,
        "from vllm.v1.launch import add",
        {
            **_KERNELS,
            "vllm/v1/launch.py": """
            from vllm.v1.ops import add_kernel

            def add(x):
                #! triton:add_kernel launch execute tier=resolved function=add
                add_kernel[(1,)](x, 1, BLOCK=1)
            """,
        },
    ),
    runner("HAS_TRITON is false for V1", _GUARDED.format(cpu="false generation=v1")),
    case("HAS_TRITON is true for V2", {RUNNER_V2: _GUARDED.format(cpu="true generation=v2")}),
)
