"""Entry points, and the phases that a site is reached in."""

from __future__ import annotations

from tests.walker_cases.case import RUNNER, RUNNER_V2, WORKER, case, runner

_ENTRIES = {
    "__init__": "init",
    "init_device": "init",
    "load_model": "load",
    "reload_weights": "load",
    "update_config": "load",
    "profile_run": "profile",
    "determine_available_memory": "profile",
    "initialize_from_config": "profile",
    "initialize_kv_cache": "profile",
    "compile_or_warm_up_model": "profile",
    "capture_model": "profile",
    "execute_model": "execute",
    "sample_tokens": "sample",
    "take_draft_token_ids": "spec-decode",
    "propose_draft_token_ids": "spec-decode",
    "shutdown": "shutdown",
}


def _class(name: str, generation: str) -> str:
    lines = ["import torch", f"class {name}:"]
    for method, context in _ENTRIES.items():
        mark = f"torch.cuda.synchronize call {context} generation={generation}"
        lines += [f"    def {method}(self):", f"        torch.cuda.synchronize()  #! {mark}"]
    return "\n".join(lines) + "\n"


CASES = (
    case("each entry point of the V1 runner", {RUNNER: _class("GPUModelRunner", "v1")}),
    case("each entry point of the V2 runner", {RUNNER_V2: _class("GPUModelRunner", "v2")}),
    case("each entry point of the worker", {WORKER: _class("Worker", "v1|v2|both")}),
    runner(
        "any public method is an entry point, and no private one",
        """
        import torch

        class GPUModelRunner:
            def wake_up(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call tier=direct

            def _sleep(self):
                torch.cuda.synchronize()
        """,
    ),
    runner(
        "a helper that two phases share",
        """
        import torch

        class GPUModelRunner:
            def load_model(self):
                self._sync()

            def execute_model(self):
                self._sync()

            def _sync(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call load,execute tier=direct
        """,
    ),
    case(
        "a helper that both generations share",
        {
            RUNNER: """
            from vllm.v1.shared import sync

            class GPUModelRunner:
                def execute_model(self):
                    sync()
            """,
            RUNNER_V2: """
            from vllm.v1.shared import sync

            class GPUModelRunner:
                def sample_tokens(self):
                    sync()
            """,
            "vllm/v1/shared.py": """
            import torch

            def sync():
                #! torch.cuda.synchronize call execute,sample generation=both
                torch.cuda.synchronize()
            """,
        },
    ),
    runner(
        "a module imported lazily runs its body at import",
        """
        class GPUModelRunner:
            def execute_model(self):
                from vllm.v1.lazy import sync
                sync()
        """,
        {
            "vllm/v1/lazy.py": """
            import torch

            COUNT = torch.cuda.device_count()  #! torch.cuda.device_count call import

            def sync():
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute tier=resolved
            """
        },
    ),
    runner(
        "stream, lexically",
        """
        import torch

        class GPUModelRunner:
            def execute_model(self, s):
                with torch.cuda.stream(s):  #! torch.cuda.stream call execute
                    torch.cuda.synchronize()  #! torch.cuda.synchronize call execute,stream
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute
        """,
    ),
    runner(
        "stream, among other context managers",
        """
        import torch

        class GPUModelRunner:
            def sample_tokens(self, s):
                with torch.inference_mode(), torch.cuda.stream(s):  #! torch.cuda.stream call sample
                    torch.cuda.synchronize()  #! torch.cuda.synchronize call sample,stream
        """,
    ),
    runner(
        "stream, through a callee",
        """
        import torch

        def copy():
            torch.cuda.synchronize()  #! torch.cuda.synchronize call execute,stream

        class GPUModelRunner:
            def execute_model(self, s):
                with torch.cuda.stream(s):  #! torch.cuda.stream call execute
                    self._copy()

            def _copy(self):
                torch.cuda.empty_cache()  #! torch.cuda.empty_cache call execute,stream
                copy()
        """,
    ),
    runner(
        "async, in the output's constructor and methods",
        """
        import torch

        class AsyncGPUModelRunnerOutput:
            def __init__(self):
                self.event = torch.cuda.Event()  #! torch.cuda.Event call sample,async
                self.event.record()  #! torch.cuda.Event.record call sample,async

            def get_output(self):
                self.event.synchronize()  #! torch.cuda.Event.synchronize call +async

        class GPUModelRunner:
            def sample_tokens(self):
                return AsyncGPUModelRunnerOutput()
        """,
    ),
    runner(
        "async, in an output with a base class and a callee",
        """
        import torch
        from vllm.v1.outputs import AsyncModelRunnerOutput

        def wait():
            torch.cuda.synchronize()  #! torch.cuda.synchronize call +async

        class AsyncOutput(AsyncModelRunnerOutput):
            def get_output(self):
                wait()

        class GPUModelRunner:
            def execute_model(self):
                return AsyncOutput()
        """,
        {
            "vllm/v1/outputs.py": """
            from abc import ABC, abstractmethod

            class AsyncModelRunnerOutput(ABC):
                @abstractmethod
                def get_output(self):
                    pass
            """
        },
    ),
    runner(
        "spec-decode, in addition to the caller's phase",
        """
        import torch

        class GPUModelRunner:
            def sample_tokens(self):
                self.propose_draft_token_ids()

            def propose_draft_token_ids(self):
                self._draft()

            def _draft(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call sample,spec-decode
        """,
    ),
    runner(
        "spec-decode, in its modules",
        """
        from vllm.v1.spec_decode.eagle import EagleProposer

        class GPUModelRunner:
            def __init__(self):
                self.drafter = EagleProposer()

            def execute_model(self):
                self.drafter.warm()
        """,
        {
            "vllm/v1/spec_decode/eagle.py": """
            import torch

            class EagleProposer:
                def __init__(self):
                    self.event = torch.cuda.Event()  #! torch.cuda.Event call init,spec-decode

                def warm(self):
                    #! torch.cuda.Event.record call execute,spec-decode tier=resolved
                    self.event.record()
            """
        },
    ),
    runner(
        "entry points that a decorator wraps",
        """
        import functools

        import torch

        def checked(function):
            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                torch.cuda.init()  #! torch.cuda.init call init,execute,sample
                return function(*args, **kwargs)

            return wrapper

        class GPUModelRunner:
            @checked
            def __init__(self):
                torch.cuda.current_stream()  #! torch.cuda.current_stream call init

            @checked
            def execute_model(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute

            @checked
            def sample_tokens(self):
                torch.cuda.empty_cache()  #! torch.cuda.empty_cache call sample
        """,
    ),
    runner(
        "an operator runs where it is called, and not where it is registered",
        """
        import torch
        import vllm.ops

        class GPUModelRunner:
            def execute_model(self, x):
                torch.ops.vllm.first(x)

            def sample_tokens(self, x):
                torch.ops.vllm.second.default(x)
        """,
        {
            "vllm/utils/torch_utils.py": """
            def direct_register_custom_op(op_name, op_func, mutates_args=None, fake_impl=None):
                library.impl(op_name, op_func)
            """,
            "vllm/ops.py": """
            import torch
            from vllm.utils.torch_utils import direct_register_custom_op

            def _first(x):
                torch.cuda.init()  #! torch.cuda.init call execute cpu=true tier=resolved

            def _second(x):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call sample cpu=true

            def _uncalled(x):
                torch.cuda.empty_cache()  #! torch.cuda.empty_cache call execute cpu=unknown

            direct_register_custom_op(op_name="first", op_func=_first)
            direct_register_custom_op("second", _second)
            direct_register_custom_op("uncalled", _uncalled)
            """,
        },
    ),
)
