"""Triton kernels of vLLM's runners, held against what runs in their place on a CPU.

The kernels come from the inventory of the installed vLLM (`rows`). Their inputs are drawn
(`generators`), their own source is run by Triton's interpreter and what it leaves in memory is
kept (`recording`, `store`), and every subject's counterpart is run on the same memory and compared
with it in full (`replaying`, `outcomes`). Kernels of the V2 runner, which a CPU runs itself, are
held against references in float64 (`references`).
"""
