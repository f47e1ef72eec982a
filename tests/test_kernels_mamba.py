"""The kernels that move Mamba states, against vLLM's own in Triton's interpreter.

The comparison runs in a child process in which vLLM has Triton; its cases are made from seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from conformance.scenarios.host import Host

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.xdist_group("host")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs the package triton")

SEEDS = range(16)
COLUMNS, MAX_BIAS = 6, 3


@dataclass
class Case:
    """The arguments of a launch, and the memory that it reads and writes behind addresses."""

    arguments: dict[str, Any]
    caches: list[np.ndarray]
    tables: torch.Tensor

    @property
    def counts(self) -> torch.Tensor | None:
        """What a launch says about accepted tokens, if it says anything."""
        return self.arguments.get("num_accepted_tokens_out_ptr")


def int32(values: Any) -> Any:
    import torch

    return torch.tensor(np.asarray(values), dtype=torch.int32)


def int64(values: Any) -> Any:
    import torch

    return torch.tensor(np.asarray(values), dtype=torch.int64)


def base_case(rng: np.random.Generator, requests: int, dim_first: bool) -> Case:
    """Groups of layers with states of all kinds; each request has blocks of its own."""
    groups, layers = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    blocks = requests * COLUMNS * groups + 1
    order = rng.permutation(blocks - 1) + 1
    tables = int32(order.reshape(groups, requests, COLUMNS))
    caches, rows = [], []
    for group in np.repeat(np.arange(groups), layers):
        for window in (int(rng.integers(1, 6)), 0):
            element = int(rng.choice([1, 2, 4, 8]))
            # A few are longer than what all programs copy at once.
            longest = 40 if window else int(rng.choice([60, 60, 3000, 20_000]))
            inner = int(rng.integers(1, longest))
            dims, row_stride = 0, 0
            length = inner * element * max(window, 1)
            if window and dim_first:
                dims, inner = inner, 1
                row_stride = (window + int(rng.integers(0, 3))) * element
                length = dims * row_stride
            stride = length + int(rng.choice([0, 8, 8, element * 3]))
            first = int(rng.choice([0, 8, element * 3]))
            cache = rng.integers(0, 256, first + blocks * stride + 9).astype(np.uint8)
            caches.append(cache)
            base = cache.ctypes.data + first
            rows.append((base, stride, element, inner, window, int(group), dims, row_stride))
    columns = list(zip(*rows, strict=True))
    arguments = {
        "block_table_ptrs_ptr": int64([table.data_ptr() for table in tables]),
        "block_table_stride_req": COLUMNS,
        "state_base_addrs_ptr": int64(columns[0]),
        "state_block_strides_ptr": int64(columns[1]),
        "state_elem_sizes_ptr": int32(columns[2]),
        "state_inner_sizes_ptr": int64(columns[3]),
        "state_conv_widths_ptr": int32(columns[4]),
        "state_group_indices_ptr": int32(columns[5]),
        "state_dim_row_count_ptr": int32(columns[6]),
        "state_dim_row_stride_ptr": int64(columns[7]),
        "idx_mapping_ptr": None,
        # What follows in the arrays is no request's.
        "num_reqs": requests - 1,
        "COPY_BLOCK_SIZE": int(rng.choice([64, 1024])),
        "CONV_STATE_DIM_FIRST": dim_first,
        "HAS_IDX_MAPPING": False,
        "TEMPORAL_TILES": int(rng.choice([1, 3, 16])),
    }
    return Case(arguments, caches, tables)


def precopy_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    requests = int(rng.integers(2, 5))
    case = base_case(rng, requests, dim_first=seed % 2 == 1)
    sources = rng.integers(-1, COLUMNS - MAX_BIAS, requests)
    targets = rng.integers(0, COLUMNS, requests)
    for request in np.flatnonzero(rng.random(requests) < 0.3):
        # Two columns of one block: a window then moves within it.
        blocks = case.tables[:, request]
        blocks[:, targets[request]] = blocks[:, max(sources[request], 0)]
    case.arguments |= {
        "mamba_state_idx_ptr": int32(targets),
        "src_col_ptr": int32(sources),
        "token_bias_ptr": int32(rng.integers(0, MAX_BIAS + 1, requests)),
    }
    return case


def postprocess_case(seed: int) -> Case:
    rng = np.random.default_rng(seed + 1000)
    requests = int(rng.integers(2, 6))
    case = base_case(rng, requests, dim_first=seed % 2 == 1)
    block_size = int(rng.choice([4, 6]))
    drafts = rng.integers(0, MAX_BIAS + 1, requests)
    scheduled = drafts + 1
    computed = rng.integers(0, 2 * block_size, requests)
    columns = (computed + scheduled - 1) // block_size
    # All of them, or any number: none, where a request's tokens are discarded.
    some = np.array([rng.integers(0, n + 2) for n in drafts])
    accepted = np.where(rng.random(requests) < 0.5, drafts + 1, some)
    case.arguments |= {
        "num_accepted_tokens_ptr": int32(accepted),
        "mamba_state_idx_ptr": int32(columns),
        "num_scheduled_tokens_ptr": int32(scheduled),
        "num_computed_tokens_ptr": int32(computed),
        "num_draft_tokens_ptr": int32(drafts),
        "num_accepted_tokens_out_ptr": int32(accepted + 50),
        "block_size": block_size,
        "PRECOMPUTED_NEW_COMPUTED": False,
    }
    return case


def kernels() -> dict[str, tuple[Any, Callable[..., None], Callable[[int], Case]]]:
    """By kernel: vLLM's, ours, and what makes a case."""
    from vllm.v1.worker import mamba_utils

    from runner_under_test.kernels import mamba

    return {
        "precopy": (
            mamba_utils.precopy_mamba_align_fused_kernel,
            mamba.precopy_mamba_align_fused,
            precopy_case,
        ),
        "postprocess": (
            mamba_utils.postprocess_mamba_fused_kernel,
            mamba.postprocess_mamba_fused,
            postprocess_case,
        ),
    }


def states_written(case: Case, launch: Callable[[dict[str, Any]], None]) -> list[list[int]]:
    """Launch, and return all of the memory that the launch may have changed."""
    launch(case.arguments)
    written = [cache.tolist() for cache in case.caches]
    return [*written, [] if case.counts is None else case.counts.tolist()]


def in_triton(kernel: Any) -> Callable[[dict[str, Any]], None]:
    def launch(arguments: dict[str, Any]) -> None:
        states = arguments["state_base_addrs_ptr"].shape[0]
        grid = (arguments["num_reqs"], states, arguments["TEMPORAL_TILES"])
        kernel[grid](**arguments)

    return launch


FAULTS: dict[str, dict[str, Callable[[dict[str, Any]], Any]]] = {
    # By kernel and by argument: what the implementation gets in its place.
    "precopy": {
        "token_bias_ptr": lambda a: a["token_bias_ptr"] * 0,
        "src_col_ptr": lambda a: a["src_col_ptr"].clamp(min=0),
        "mamba_state_idx_ptr": lambda a: a["mamba_state_idx_ptr"].roll(1),
        "num_reqs": lambda a: a["num_reqs"] + 1,
        "state_group_indices_ptr": lambda a: a["state_group_indices_ptr"] * 0,
        "state_inner_sizes_ptr": lambda a: a["state_inner_sizes_ptr"] - 1,
        "state_dim_row_count_ptr": lambda a: a["state_dim_row_count_ptr"] - 1,
        "CONV_STATE_DIM_FIRST": lambda a: not a["CONV_STATE_DIM_FIRST"],
    },
    "postprocess": {
        "num_accepted_tokens_ptr": lambda a: a["num_accepted_tokens_ptr"].clamp(max=1),
        "mamba_state_idx_ptr": lambda a: a["mamba_state_idx_ptr"] * 0,
        "num_draft_tokens_ptr": lambda a: a["num_draft_tokens_ptr"] * 0,
        "block_size": lambda a: a["block_size"] + 1,
        "num_accepted_tokens_out_ptr": lambda a: a["num_accepted_tokens_out_ptr"].clone(),
        "num_reqs": lambda a: a["num_reqs"] + 1,
        "state_group_indices_ptr": lambda a: a["state_group_indices_ptr"] * 0,
        "state_dim_row_stride_ptr": lambda a: a["state_dim_row_stride_ptr"] - 1,
    },
}


def compare(journal: Any, name: str) -> None:
    """Report the seeds at which ours differs from Triton's, and for each fault those that show it.

    Also the seeds at which the kernel changes anything: a comparison of nothing shows nothing.
    """
    kernel, implementation, case = kernels()[name]
    want = {seed: states_written(case(seed), in_triton(kernel)) for seed in SEEDS}
    before = {seed: states_written(case(seed), lambda arguments: None) for seed in SEEDS}

    def seeds_that_differ(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[int]:
        for seed in SEEDS:
            got = states_written(case(seed), lambda a: implementation(**change(a)))
            if got != want[seed]:
                yield seed

    journal.result("moved", [seed for seed in SEEDS if want[seed] != before[seed]])
    journal.result("different", list(seeds_that_differ(lambda arguments: arguments)))
    for argument, fault in FAULTS[name].items():
        changed = seeds_that_differ(lambda a, n=argument, f=fault: {**a, n: f(a)})  # type: ignore[misc]
        journal.result(f"fault: {argument}", next(changed, None))


@needs_triton
@pytest.mark.parametrize("name", FAULTS)
def test_states_are_moved_as_tritons_interpreter_moves_them(host: Host, name: str) -> None:
    run = host.of("v2").run("tests.test_kernels_mamba:compare", {"name": name}, label=name)
    assert run.failure is None, run.failure
    assert len(run.results["moved"]) > len(SEEDS) / 2
    assert run.results["different"] == []
    assert [key for key, shown in run.results.items() if shown is None] == []


@pytest.mark.parametrize("option", ["HAS_IDX_MAPPING", "PRECOMPUTED_NEW_COMPUTED"])
def test_launches_of_the_v2_runner_are_refused(option: str) -> None:
    from runner_under_test.kernels.mamba import (
        postprocess_mamba_fused,
        precopy_mamba_align_fused,
    )

    after = postprocess_case(0)
    with pytest.raises(NotImplementedError, match="V2 runner"):
        postprocess_mamba_fused(**{**after.arguments, option: True})
    if option == "HAS_IDX_MAPPING":
        before = precopy_case(0)
        with pytest.raises(NotImplementedError, match="V2 runner"):
            precopy_mamba_align_fused(**{**before.arguments, option: True})
