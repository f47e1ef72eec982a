"""The rows of the kernel checks: kernels that a CPU surely launches, times how they are reached.

They come from the inventory of a vLLM, and from nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from conformance.contract.installed import contract_of_installed
from conformance.contract.rows import Contract
from conformance.surface.model import Inventory, Row

PREFIX = "triton:"
LAUNCHED, CALLED, OPERATOR = "launched", "called", "operator"
WAYS = (LAUNCHED, CALLED)
"""How a counterpart is reached: by a launch, and through the function that vLLM calls. An operator
that a CPU runs elsewhere in a kernel's stead has a row apart."""
OPERATORS = ("triton:fused_sigmoid_gating_delta_rule_update_kernel",)
"""Kernels in whose stead vLLM's CPU layers call an operator of their own."""


@dataclass(frozen=True)
class KernelRow:
    """One check: a kernel, and the way to what runs in its place."""

    kernel: str
    """As on the surface: ``triton:expand_kernel``."""
    way: str
    sites: tuple[Row, ...]

    @property
    def id(self) -> str:
        """Its name among the checks: ``expand_kernel/launched``."""
        return f"{self.kernel.removeprefix(PREFIX)}/{self.way}"

    @property
    def where(self) -> str:
        """The sites that launch it."""
        return ", ".join(f"{site.module}:{site.line} ({site.function})" for site in self.sites)


def launched(
    inventory: Inventory, generation: str = "v1", *, surely: bool = True
) -> dict[str, tuple[Row, ...]]:
    """The kernels that a runner generation launches on a CPU, with the sites that do.

    Where not ``surely``, those too of which the walker does not know whether it does.
    """
    wanted = {"true"} if surely else {"true", "unknown"}
    found: dict[str, list[Row]] = {}
    for row in inventory.generation(generation):
        if row.attribute.startswith(PREFIX) and row.kind == "launch" and row.on_cpu in wanted:
            found.setdefault(row.attribute, []).append(row)
    return {kernel: tuple(sites) for kernel, sites in sorted(found.items())}


def kernel_rows(inventory: Inventory) -> tuple[KernelRow, ...]:
    """All rows of the V1 runner's kernels."""
    return tuple(
        KernelRow(kernel, way, sites)
        for kernel, sites in launched(inventory).items()
        for way in (*WAYS, *((OPERATOR,) if kernel in OPERATORS else ()))
    )


def without_generator(
    inventory: Inventory, generated: Iterable[str], generation: str = "v1"
) -> dict[str, str]:
    """Kernels of a runner generation that are not among these, each with where it is launched."""
    known = set(generated)
    return {
        kernel: ", ".join(f"{site.module}:{site.line}" for site in sites)
        for kernel, sites in launched(inventory, generation).items()
        if kernel not in known
    }


def sites_of(contract: Contract) -> tuple[Row, ...]:
    """The sites that a contract speaks of, each once."""
    sites = {site.key: site for row in contract.rows for use in row.uses for site in use.sites}
    return tuple(sites.values())


@functools.cache
def rows_of_installed() -> tuple[KernelRow, ...]:
    """The rows of the vLLM that is installed: of the sites that its contract is made of.

    Raises:
        WrongUse: none is installed, or its sources cannot be read.
    """
    return kernel_rows(Inventory.of("", sites_of(contract_of_installed("v1"))))


V2_KERNELS = (
    "_bad_words_kernel",
    "_bias_kernel",
    "_bincount_kernel",
    "_combine_sampled_and_draft_tokens_kernel",
    "_compute_slot_mappings_kernel",
    "_expand_idx_mapping_kernel",
    "_gather_block_tables_kernel",
    "_get_num_sampled_and_rejected_kernel",
    "_gumbel_sample_kernel",
    "_min_p_kernel",
    "_penalties_kernel",
    "_post_update_kernel",
    "_post_update_num_computed_tokens_kernel",
    "_prepare_pos_seq_lens_kernel",
    "_prepare_prefill_inputs_kernel",
    "_ranks_kernel",
    "_temperature_kernel",
    "_topk_log_softmax_kernel",
    "preprocess_mamba_align_fused_kernel",
)
"""V2 kernels that have a reference, by their names without the prefix."""


@functools.cache
def v2_kernels_of_installed() -> tuple[str, ...]:
    """Those of the V2 kernels with a reference that the vLLM that is installed launches."""
    reached = launched(Inventory.of("", sites_of(contract_of_installed("v2"))), "v2")
    return tuple(name for name in V2_KERNELS if f"{PREFIX}{name}" in reached)
