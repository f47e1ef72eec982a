"""Members of the objects that the namespaces give: events, streams, graphs."""

from __future__ import annotations

from tests.walker_cases.case import in_execute, runner

CASES = (
    in_execute(
        "through a local",
        """
        event = torch.cuda.Event()  #! torch.cuda.Event call execute
        event.record()  #! torch.cuda.Event.record call execute tier=direct cpu=true
        """,
    ),
    in_execute(
        "on the call itself",
        """
        torch.cuda.Event().record()  #! torch.cuda.Event call; torch.cuda.Event.record call
        """,
    ),
    in_execute(
        "of the object that a function gives",
        """
        #! torch.cuda.current_stream call execute; torch.cuda.Stream.synchronize call execute
        torch.cuda.current_stream().synchronize()
        #! torch.accelerator.current_stream call; torch.Stream.synchronize call
        torch.accelerator.current_stream().synchronize()
        """,
    ),
    in_execute(
        "of torch.Event and torch.Stream",
        """
        event = torch.Event()  #! torch.Event call execute
        stream = torch.Stream(device)  #! torch.Stream call execute
        event.record(stream)  #! torch.Event.record call execute positional=stream
        stream.wait_event(event)  #! torch.Stream.wait_event call execute positional=event
        """,
    ),
    in_execute(
        "a member that is read",
        """
        stream = torch.cuda.Stream()  #! torch.cuda.Stream call execute
        return stream.cuda_stream  #! torch.cuda.Stream.cuda_stream read execute
        """,
    ),
    in_execute(
        "getattr on the object",
        """
        event = torch.cuda.Event()  #! torch.cuda.Event call execute
        query = getattr(event, "query")  #! torch.cuda.Event.query read execute
        """,
    ),
    in_execute(
        "a bound member under a local name",
        """
        event = torch.cuda.Event()  #! torch.cuda.Event call execute
        wait = event.synchronize  #! torch.cuda.Event.synchronize read execute
        """,
    ),
    in_execute(
        "the event that record_event gives",
        """
        stream = torch.cuda.Stream()  #! torch.cuda.Stream call execute
        done = stream.record_event()  #! torch.cuda.Stream.record_event call execute
        done.synchronize()  #! torch.cuda.Event.synchronize call execute
        """,
    ),
    runner(
        "through a field",
        """
        import torch

        class GPUModelRunner:
            def __init__(self):
                self.event = torch.cuda.Event()  #! torch.cuda.Event call init

            def execute_model(self, start):
                self.event.record()  #! torch.cuda.Event.record call execute tier=direct
        """,
    ),
    runner(
        "through a field of which only the class-level annotation tells",
        """
        import torch
        from outside import make_event

        class GPUModelRunner:
            event: torch.cuda.Event  #! torch.cuda.Event annotation import

            def __init__(self):
                self.event = make_event()

            def execute_model(self):
                self.event.record()  #! torch.cuda.Event.record call execute
        """,
    ),
    runner(
        "through an optional field",
        """
        import torch

        class GPUModelRunner:
            def __init__(self, event: torch.cuda.Event | None):  #! torch.cuda.Event annotation
                self.event = event

            def execute_model(self):
                if self.event is not None:
                    self.event.record()  #! torch.cuda.Event.record call execute
        """,
    ),
    runner(
        "through a field annotated where it is assigned",
        """
        import torch
        from typing import Optional

        class GPUModelRunner:
            def __init__(self):
                #! torch.cuda.Stream annotation
                self.stream: Optional[torch.cuda.Stream] = None

            def execute_model(self):
                self.stream.synchronize()  #! torch.cuda.Stream.synchronize call execute
        """,
    ),
    runner(
        "through a list",
        """
        import torch

        class GPUModelRunner:
            def __init__(self):
                self.events = [torch.cuda.Event() for _ in range(2)]  #! torch.cuda.Event call init

            def execute_model(self):
                self.events[0].record()  #! torch.cuda.Event.record call execute
                for event in self.events:
                    event.synchronize()  #! torch.cuda.Event.synchronize call execute
                for i, event in enumerate(self.events):
                    event.query()  #! torch.cuda.Event.query call execute
        """,
    ),
    runner(
        "through a list that is filled later",
        """
        import torch

        class GPUModelRunner:
            def __init__(self):
                self.events = []
                self.events.append(torch.cuda.Event())  #! torch.cuda.Event call init

            def execute_model(self):
                self.events[-1].record()  #! torch.cuda.Event.record call execute
        """,
    ),
    runner(
        "through a dict",
        """
        import torch

        class GPUModelRunner:
            def __init__(self):
                self.graphs = {}
                self.events = {"a": torch.cuda.Event()}  #! torch.cuda.Event call init

            def capture_model(self, size):
                self.graphs[size] = torch.cuda.CUDAGraph()  #! torch.cuda.CUDAGraph call profile

            def execute_model(self, size):
                self.graphs[size].replay()  #! torch.cuda.CUDAGraph.replay call execute
                self.events["a"].record()  #! torch.cuda.Event.record call execute
                for event in self.events.values():
                    event.synchronize()  #! torch.cuda.Event.synchronize call execute
        """,
    ),
    runner(
        "through an annotated container",
        """
        import torch

        class GPUModelRunner:
            def __init__(self):
                #! torch.cuda.CUDAGraph annotation
                self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

            def execute_model(self, size):
                self.graphs[size].replay()  #! torch.cuda.CUDAGraph.replay call execute
        """,
    ),
    in_execute(
        "through tuple unpacking",
        """
        #! torch.cuda.Event call; torch.cuda.Stream call
        event, stream = torch.cuda.Event(), torch.cuda.Stream()
        event.record()  #! torch.cuda.Event.record call execute
        stream.synchronize()  #! torch.cuda.Stream.synchronize call execute
        """,
    ),
    runner(
        "through an annotated parameter",
        """
        import torch

        class GPUModelRunner:
            def execute_model(self, items):
                self._wait(items[0])

            def _wait(self, event: torch.cuda.Event):  #! torch.cuda.Event annotation
                event.synchronize()  #! torch.cuda.Event.synchronize call execute tier=direct
        """,
    ),
    runner(
        "through a parameter that the caller tells",
        """
        import torch

        class GPUModelRunner:
            def execute_model(self):
                self._wait(torch.cuda.Event())  #! torch.cuda.Event call execute

            def _wait(self, event):
                event.synchronize()  #! torch.cuda.Event.synchronize call execute
        """,
    ),
    runner(
        "through a return value",
        """
        import torch

        class GPUModelRunner:
            def execute_model(self):
                event = self._make()
                event.record()  #! torch.cuda.Event.record call execute

            def _make(self):
                return torch.cuda.Event()  #! torch.cuda.Event call execute
        """,
    ),
    runner(
        "through a returned tuple",
        """
        import torch

        class GPUModelRunner:
            def execute_model(self):
                count, event = self._make()
                event.record()  #! torch.cuda.Event.record call execute

            def _make(self):
                return 1, torch.cuda.Event()  #! torch.cuda.Event call execute
        """,
    ),
    runner(
        "through a property",
        """
        import torch

        class GPUModelRunner:
            @property
            def _stream(self):
                return torch.cuda.current_stream()  #! torch.cuda.current_stream call execute

            def execute_model(self):
                self._stream.synchronize()  #! torch.cuda.Stream.synchronize call execute
        """,
    ),
    runner(
        "through a dataclass field",
        """
        import torch
        from dataclasses import dataclass

        @dataclass
        class Pending:
            event: torch.cuda.Event  #! torch.cuda.Event annotation import

        class GPUModelRunner:
            def execute_model(self, items):
                pending = Pending(items[0])
                pending.event.record()  #! torch.cuda.Event.record call execute
        """,
    ),
    runner(
        "through a named tuple's field",
        """
        import torch
        from typing import NamedTuple

        class Pending(NamedTuple):
            event: torch.cuda.Event  #! torch.cuda.Event annotation import

        class GPUModelRunner:
            def execute_model(self, items):
                Pending(items[0]).event.record()  #! torch.cuda.Event.record call execute
        """,
    ),
    runner(
        "through the object's field of another class",
        """
        import torch

        class Buffer:
            def __init__(self):
                self.event = torch.cuda.Event()  #! torch.cuda.Event call init

        class GPUModelRunner:
            def __init__(self):
                self.buffer = Buffer()

            def execute_model(self):
                self.buffer.event.record()  #! torch.cuda.Event.record call execute
        """,
    ),
    runner(
        "a stream entered, and an event recorded on it",
        """
        import torch

        class GPUModelRunner:
            def __init__(self):
                self.stream = torch.cuda.Stream()  #! torch.cuda.Stream call init
                self.event = torch.cuda.Event()  #! torch.cuda.Event call init

            def execute_model(self):
                with torch.cuda.stream(self.stream):  #! torch.cuda.stream call
                    #! torch.cuda.Event.record call execute,stream positional=self.stream
                    self.event.record(self.stream)
        """,
    ),
    in_execute(
        "a graph captured and replayed",
        """
        graph = torch.cuda.CUDAGraph()  #! torch.cuda.CUDAGraph call execute
        with torch.cuda.graph(graph):  #! torch.cuda.graph call execute positional=graph
            items()
        graph.replay()  #! torch.cuda.CUDAGraph.replay call execute
        """,
    ),
    in_execute(
        "a timing between two events",
        """
        #! torch.cuda.Event call execute
        start = torch.cuda.Event()
        #! torch.cuda.Event call execute
        end = torch.cuda.Event()
        #! torch.cuda.Event.elapsed_time call execute positional=end
        return start.elapsed_time(end)
        """,
    ),
    in_execute(
        "through a conditional expression",
        """
        event = torch.cuda.Event() if flag else None  #! torch.cuda.Event call execute
        if event is not None:
            event.record()  #! torch.cuda.Event.record call execute
        """,
    ),
    in_execute(
        "of an alias of the class",
        """
        event = Event()  #! torch.cuda.Event call execute
        event.record()  #! torch.cuda.Event.record call execute
        """,
        "from torch.cuda import Event  #! torch.cuda.Event import import",
    ),
)
