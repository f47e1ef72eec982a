"""``torch.accelerator``: waiting for the device, its cache, its memory.

GPU behaviour: torch's documentation of ``torch.accelerator``, and ``test/test_accelerator.py``.
"""

from __future__ import annotations

from conformance.contract.clause import clause, clauses_of, require, require_raises, the_device


@clause(
    "torch.accelerator.synchronize", gpu="synchronize(device=None) returns None when all is done"
)
def synchronize_returns() -> None:
    import torch

    require(torch.accelerator.synchronize() is None, "synchronize() returned something")
    require(torch.accelerator.synchronize(the_device()) is None, "with a device, it did")


@clause("torch.accelerator.synchronize", gpu="a device that is none, or too many arguments, raise")
def synchronize_refuses_wrong_arguments() -> None:
    import torch

    torch.accelerator.synchronize()
    require_raises(lambda: torch.accelerator.synchronize("no-such-device"), "no device")
    require_raises(lambda: torch.accelerator.synchronize(None, None), "two arguments")


@clause("torch.accelerator.empty_cache", gpu="empty_cache() returns None and takes no argument")
def empty_cache_returns() -> None:
    import torch

    require(torch.accelerator.empty_cache() is None, "empty_cache() returned something")
    require_raises(lambda: torch.accelerator.empty_cache(1), "empty_cache(1)")


@clause("torch.accelerator.get_memory_info", gpu="(free, total) in bytes, 0 < free <= total")
def memory_info_is_plausible() -> None:
    import psutil
    import torch

    free, total = torch.accelerator.get_memory_info()
    require(type(free) is int and type(total) is int, f"not two ints: {free!r}, {total!r}")
    require(0 < free <= total, f"free is {free} of {total}")
    if the_device().type == "cpu":
        host = psutil.virtual_memory().total
        require(total <= host * 1.01, f"total is {total}, and the host has {host}")
    named = torch.accelerator.get_memory_info(the_device())
    require(named[1] == total, "naming the device gives another total")


@clause("torch.accelerator.get_memory_info", gpu="a device that is none raises")
def memory_info_refuses_wrong_arguments() -> None:
    import torch

    torch.accelerator.get_memory_info()
    require_raises(lambda: torch.accelerator.get_memory_info("no-such-device"), "no device")


@clause(
    "torch.accelerator.synchronize",
    "torch.accelerator.empty_cache",
    gpu="two functions: torch.compile keys its handlers on the function object",
)
def no_two_names_share_a_function() -> None:
    import torch

    names = ("synchronize", "empty_cache", "get_memory_info")
    functions = {name: getattr(torch.accelerator, name) for name in names}
    for name, function in functions.items():
        if name != "get_memory_info":
            function()
    require(len(set(map(id, functions.values()))) == len(names), f"shared: {functions}")


@clause(
    "torch.accelerator.empty_cache",
    gpu="torch.compile traces a function that empties the cache, whatever breaks the graph",
)
def a_compiled_function_may_empty_the_cache() -> None:
    import torch

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch.accelerator.empty_cache()
        return y * 2

    compiled = torch.compile(step, backend="eager")
    require(bool((compiled(torch.ones(3)) == 4).all()), "it computes something else")


@clause(
    "torch.accelerator.memory_stats",
    "torch.accelerator.memory_reserved",
    "torch.accelerator.reset_peak_memory_stats",
    gpu="a dict of counters by name, bytes as an int from 0, and None",
)
def device_memory_is_counted() -> None:
    import torch

    device = the_device()
    require(torch.accelerator.reset_peak_memory_stats(device) is None, "it returned something")
    stats = torch.accelerator.memory_stats(device)
    require(isinstance(stats, dict), f"memory_stats() is {stats!r}")
    peak = stats.get("allocated_bytes.all.peak", 0)
    require(type(peak) is int and peak >= 0, f"the peak is {peak!r}")
    reserved = torch.accelerator.memory_reserved(device)
    require(type(reserved) is int and reserved >= 0, f"memory_reserved() is {reserved!r}")


@clause("torch.cuda.OutOfMemoryError", gpu="a class that can be caught", bare_holds=True)
def out_of_memory_can_be_caught() -> None:
    import torch

    try:
        raise torch.cuda.OutOfMemoryError("planted")
    except torch.cuda.OutOfMemoryError:
        pass


CLAUSES = clauses_of(globals())
