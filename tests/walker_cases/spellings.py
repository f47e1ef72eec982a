"""How an attribute can be spelt: imports, aliases, and the places an expression can stand in."""

from __future__ import annotations

from tests.walker_cases.case import in_execute, runner

CASES = (
    in_execute(
        "the plain call",
        """
        torch.cuda.synchronize()  #! torch.cuda.synchronize call execute tier=direct cpu=true
        """,
    ),
    in_execute(
        "the call's arguments",
        """
        torch.cuda.set_device(0)  #! torch.cuda.set_device call positional=0 keywords=
        #! torch.cuda.Event call keywords=enable_timing=True,blocking=flag positional=
        torch.cuda.Event(enable_timing=True, blocking=flag)
        """,
    ),
    in_execute(
        "a name on a later line than its namespace",
        """
        (
            torch.cuda
            .synchronize()  #! torch.cuda.synchronize call execute
        )
        """,
    ),
    in_execute(
        "torch.accelerator",
        """
        torch.accelerator.synchronize()  #! torch.accelerator.synchronize call execute
        torch.accelerator.empty_cache()  #! torch.accelerator.empty_cache call execute
        """,
    ),
    in_execute(
        "torch.Event and torch.Stream",
        """
        torch.Event()  #! torch.Event call execute tier=direct cpu=true
        torch.Stream(device)  #! torch.Stream call execute tier=direct cpu=true
        """,
    ),
    in_execute(
        "a value taken and not called",
        """
        return torch.cuda.synchronize  #! torch.cuda.synchronize read execute
        """,
    ),
    in_execute(
        "a deeper namespace",
        """
        torch.cuda.nvtx.range_push("x")  #! torch.cuda.nvtx.range_push call execute
        """,
    ),
    in_execute(
        "import torch.cuda as c",
        """
        c.synchronize()  #! torch.cuda.synchronize call execute tier=direct
        """,
        "import torch.cuda as c",
    ),
    in_execute(
        "import torch.cuda",
        """
        torch.cuda.synchronize()  #! torch.cuda.synchronize call execute
        """,
        "import torch.cuda",
    ),
    in_execute(
        "import torch as t",
        """
        t.cuda.synchronize()  #! torch.cuda.synchronize call execute
        """,
        "import torch as t",
    ),
    in_execute(
        "from torch import cuda",
        """
        cuda.synchronize()  #! torch.cuda.synchronize call execute
        """,
        "from torch import cuda",
    ),
    in_execute(
        "from torch import accelerator as a",
        """
        a.synchronize()  #! torch.accelerator.synchronize call execute
        """,
        "from torch import accelerator as a",
    ),
    in_execute(
        "from torch.cuda import Stream",
        """
        Stream()  #! torch.cuda.Stream call execute
        """,
        "from torch.cuda import Stream  #! torch.cuda.Stream import import function=<module>",
    ),
    in_execute(
        "from torch.cuda import Stream as S",
        """
        S()  #! torch.cuda.Stream call execute as=S
        """,
        "from torch.cuda import Stream as S  #! torch.cuda.Stream import import",
    ),
    in_execute(
        "an import inside the function",
        """
        from torch.cuda import synchronize  #! torch.cuda.synchronize import
        synchronize()  #! torch.cuda.synchronize call execute
        """,
    ),
    in_execute(
        "getattr with a constant name",
        """
        cls = getattr(torch.cuda, "Event")  #! torch.cuda.Event read execute
        """,
    ),
    in_execute(
        "getattr with a default",
        """
        #! torch.accelerator.empty_cache read execute
        empty = getattr(torch.accelerator, "empty_cache", None)
        """,
    ),
    in_execute(
        "hasattr",
        """
        if hasattr(torch.accelerator, "memory"):  #! torch.accelerator.memory read execute
            return 1
        """,
    ),
    in_execute(
        "a local alias of the namespace",
        """
        cuda = torch.cuda
        cuda.synchronize()  #! torch.cuda.synchronize call execute
        """,
    ),
    in_execute(
        "an alias of an alias",
        """
        a = torch.cuda
        b = a
        b.synchronize()  #! torch.cuda.synchronize call execute
        """,
    ),
    in_execute(
        "an alias at module level",
        """
        cuda.synchronize()  #! torch.cuda.synchronize call execute
        """,
        "cuda = torch.cuda",
    ),
    in_execute(
        "an alias from another module",
        """
        accel.synchronize()  #! torch.accelerator.synchronize call execute
        """,
        "from vllm.utils.device import accel",
        {"vllm/utils/device.py": "import torch\naccel = torch.accelerator\n"},
    ),
    in_execute(
        "a class imported from another module",
        """
        DeviceEvent()  #! torch.cuda.Event call execute as=DeviceEvent
        """,
        "from vllm.utils.device import DeviceEvent",
        {
            "vllm/utils/device.py": """
            import torch
            DeviceEvent = torch.cuda.Event  #! torch.cuda.Event read import
            """
        },
    ),
    in_execute(
        "a name that another module re-exports",
        """
        Event()  #! torch.cuda.Event call execute
        """,
        "from vllm.utils.device import Event",
        {"vllm/utils/device.py": "from torch.cuda import Event  #! torch.cuda.Event import import"},
    ),
    in_execute(
        "a function under a local name",
        """
        sync = torch.cuda.synchronize  #! torch.cuda.synchronize read execute
        sync()  #! torch.cuda.synchronize call execute as=sync
        """,
    ),
    in_execute(
        "a namespace that depends on a condition",
        """
        api = torch.cuda if flag else torch.accelerator
        #! torch.cuda.synchronize call execute; torch.accelerator.synchronize call execute
        api.synchronize()
        """,
    ),
    in_execute(
        "a namespace assigned in two branches",
        """
        if flag:
            api = torch.cuda
        else:
            api = torch.accelerator
        #! torch.cuda.synchronize call execute; torch.accelerator.synchronize call execute
        api.synchronize()
        """,
    ),
    runner(
        "a class attribute",
        """
        import torch

        class GPUModelRunner:
            event_cls = torch.cuda.Event  #! torch.cuda.Event read import

            def execute_model(self):
                self.event_cls()  #! torch.cuda.Event call execute as=event_cls
        """,
    ),
    runner(
        "a class body and a module body",
        """
        import torch

        torch.cuda.init()  #! torch.cuda.init call import cpu=true function=<module>

        class GPUModelRunner:
            count = torch.cuda.device_count()  #! torch.cuda.device_count call import cpu=true
        """,
    ),
    runner(
        "a default argument",
        """
        import torch

        class GPUModelRunner:
            #! torch.cuda.current_stream call import cpu=true
            def execute_model(self, stream=torch.cuda.current_stream()):
                pass
        """,
    ),
    runner(
        "a decorator",
        """
        import torch

        class GPUModelRunner:
            @torch.cuda.nvtx.range("execute")  #! torch.cuda.nvtx.range call import
            def execute_model(self):
                torch.cuda.synchronize()  #! torch.cuda.synchronize call execute
        """,
    ),
    runner(
        "a base class",
        """
        import torch

        class Marker(torch.cuda.Event):  #! torch.cuda.Event class import
            pass

        class GPUModelRunner:
            def execute_model(self):
                self.marker = Marker()  #! ?torch.cuda.Event call execute as=Marker
        """,
    ),
    runner(
        "annotations, evaluated at import",
        """
        import torch

        class GPUModelRunner:
            event: torch.cuda.Event  #! torch.cuda.Event annotation import cpu=true

            #! torch.cuda.Stream annotation import cpu=true
            def execute_model(self, stream: torch.cuda.Stream):
                pass

            #! torch.cuda.CUDAGraph annotation import cpu=true
            def sample_tokens(self) -> torch.cuda.CUDAGraph:
                pass
        """,
    ),
    runner(
        "annotations under the future import",
        """
        from __future__ import annotations

        import torch

        class GPUModelRunner:
            event: torch.cuda.Event  #! torch.cuda.Event annotation cpu=false

            #! torch.cuda.Stream annotation cpu=false
            def execute_model(self, stream: torch.cuda.Stream):
                pass

            #! torch.cuda.CUDAGraph annotation cpu=false
            def sample_tokens(self) -> torch.cuda.CUDAGraph:
                pass
        """,
    ),
    in_execute(
        "an annotation of a local variable",
        """
        event: torch.cuda.Event = items[0]  #! torch.cuda.Event annotation cpu=false
        """,
    ),
    runner(
        "an annotation that is a union",
        """
        import torch

        class GPUModelRunner:
            event: torch.cuda.Event | None = None  #! torch.cuda.Event annotation import
        """,
    ),
    runner(
        "an annotation that is a string",
        """
        import torch

        class GPUModelRunner:
            event: "torch.cuda.Event"  #! torch.cuda.Event annotation
        """,
    ),
    in_execute(
        "isinstance",
        """
        return isinstance(items, torch.cuda.Event)  #! torch.cuda.Event read execute
        """,
    ),
    in_execute(
        "an except clause",
        """
        try:
            return items()
        except torch.cuda.OutOfMemoryError:  #! torch.cuda.OutOfMemoryError read execute
            pass
        """,
    ),
    in_execute(
        "an assignment",
        """
        torch.cuda.caching = items  #! torch.cuda.caching write execute
        """,
    ),
    in_execute(
        "a lambda",
        """
        sync = lambda: torch.cuda.synchronize()  #! torch.cuda.synchronize call execute
        sync()
        """,
    ),
    in_execute(
        "a comprehension",
        """
        return [torch.cuda.Event() for _ in items]  #! torch.cuda.Event call execute
        """,
    ),
    in_execute(
        "an assignment expression",
        """
        if (stream := torch.cuda.current_stream()):  #! torch.cuda.current_stream call execute
            stream.synchronize()  #! torch.cuda.Stream.synchronize call execute
        """,
    ),
    in_execute(
        "an f-string",
        """
        return f"{torch.cuda.memory_allocated()} B"  #! torch.cuda.memory_allocated call execute
        """,
    ),
    in_execute(
        "functools.partial of a class",
        """
        #! torch.cuda.Event read execute; ?torch.cuda.Event call execute
        make = functools.partial(torch.cuda.Event, blocking=True)
        #! torch.cuda.Event.record call execute; ?torch.cuda.Event call execute as=make
        make().record()
        """,
        "import functools",
    ),
    in_execute(
        "a dict of classes",
        """
        #! torch.cuda.Event read execute; ?torch.cuda.Event call execute
        event = {"e": torch.cuda.Event}["e"]()
        event.record()  #! torch.cuda.Event.record call execute
        """,
    ),
)
