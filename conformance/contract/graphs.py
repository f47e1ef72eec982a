"""Captured graphs: on a host without an accelerator nothing is captured, and nothing says so.

GPU behaviour: torch's documentation of ``torch.cuda.CUDAGraph`` and ``torch.cuda.graph``.
"""

from __future__ import annotations

from conformance.contract.clause import clause, clauses_of, require, the_device

_CAPTURE = "kernels inside torch.cuda.graph(g) are recorded, and g.replay() runs them again"


@clause(
    "torch.cuda.is_current_stream_capturing",
    gpu="a bool, True only while a graph is captured",
    bare_holds=True,
)
def no_stream_is_capturing() -> None:
    import torch

    capturing = torch.cuda.is_current_stream_capturing()
    require(capturing is False, f"with no graph in the making it is {capturing!r}")


@clause("torch.Stream.is_capturing", gpu="a bool, True only while a graph is captured")
def a_stream_is_not_capturing() -> None:
    import torch

    capturing = torch.cuda.current_stream().is_capturing()
    require(capturing is False, f"with no graph in the making it is {capturing!r}")


@clause("torch.cuda.CUDAGraph", "torch.cuda.graph", "torch.cuda.CUDAGraph.replay", gpu=_CAPTURE)
def a_replayed_graph_computes_anew() -> None:
    import torch

    graph, x = torch.cuda.CUDAGraph(), torch.ones(3, device=the_device())
    with torch.cuda.graph(graph):
        y = x + 1
    x.fill_(5.0)
    graph.replay()
    require(y.tolist() == [6.0] * 3, f"replaying with other inputs left {y.tolist()}")


@clause("torch.cuda.CUDAGraph.capture_begin", "torch.cuda.CUDAGraph.capture_end", gpu=_CAPTURE)
def a_graph_is_captured_by_hand() -> None:
    import torch

    graph, x = torch.cuda.CUDAGraph(), torch.ones(3, device=the_device())
    graph.capture_begin()
    y = x + 1
    graph.capture_end()
    x.fill_(5.0)
    graph.replay()
    require(y.tolist() == [6.0] * 3, f"replaying with other inputs left {y.tolist()}")


@clause("torch.cuda.nvtx.range", gpu="a context manager that marks a range, and computes nothing")
def a_marked_range_runs_its_block() -> None:
    import torch

    ran = False
    with torch.cuda.nvtx.range("conformance"):
        ran = True
    require(ran, "the block was not run")


@clause("torch.cuda.profiler.start", "torch.cuda.profiler.stop", gpu="both return None")
def the_profiler_is_started_and_stopped() -> None:
    import torch

    require(torch.cuda.profiler.start() is None, "start() returned something")
    require(torch.cuda.profiler.stop() is None, "stop() returned something")


CLAUSES = clauses_of(globals())
