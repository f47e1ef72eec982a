"""The kernel that looks tokens up in a packed embedding, against vLLM's own in the interpreter.

The comparison runs in a child process in which vLLM has Triton; its cases are made from seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from conformance.scenarios.host import Host
from tests.kernel_checks import POISONS, copied, poisoned

pytestmark = pytest.mark.xdist_group("host")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs the package triton")

SEEDS = range(40)
VOCABULARY = 7


def case(seed: int) -> dict[str, Any]:
    """The arguments of a launch; the output has room for more than is to be written."""
    import torch

    rng = np.random.default_rng(seed)
    bits = int(rng.integers(2, 9))
    factor = 32 // bits
    groups = int(rng.choice([1, 1, 2, 3]))
    # Whole words in each group; a few rows are longer than a block.
    hidden = groups * factor * int(rng.choice([1, 3, 8, 70]))
    tokens = int(rng.integers(0, 6))
    dtype = [torch.float32, torch.float16, torch.bfloat16][seed % 3]
    words = rng.integers(-(2**31), 2**31, (VOCABULARY, hidden // factor))
    ids = rng.integers(0, VOCABULARY, tokens)
    return {
        "ids_ptr": torch.tensor(ids, dtype=[torch.int32, torch.int64][seed % 2]),
        "packed_ptr": torch.tensor(words, dtype=torch.int32),
        "scale_ptr": torch.tensor(rng.normal(size=(VOCABULARY, groups)), dtype=dtype),
        "out_ptr": poisoned(tokens * hidden + 5, dtype, POISONS[seed % 2]),
        "hidden": hidden,
        "packed_cols": hidden // factor,
        "num_groups": groups,
        "NUM_BITS": bits,
        "PACK_FACTOR": factor,
        "GROUP_SIZE": 0 if groups == 1 else hidden // groups,
        "BLOCK": int(rng.choice([16, 1024])),
    }


FAULTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    # What the implementation gets in place of an argument.
    "ids_ptr": lambda a: (a["ids_ptr"] + 1) % VOCABULARY,
    "scale_ptr": lambda a: a["scale_ptr"] * 1.01,
    "out_ptr": lambda a: a["out_ptr"].clone(),
    "hidden": lambda a: a["hidden"] - 1,
    "GROUP_SIZE": lambda a: 0,
    "packed_ptr": lambda a: a["packed_ptr"] & 2**31 - 1,
}


def compare(journal: Any) -> None:
    """Report how ours differs from Triton's by seed, and for each fault a seed that shows it."""
    import torch
    from vllm.model_executor.layers.quantization.compressed_tensors import (
        compressed_tensors_embedding as vllms,
    )

    from runner_under_test.kernels.embedding import dequant_gather
    from runner_under_test.patches.embedding import PATCHES

    def written(launch: Callable[..., Any], arguments: dict[str, Any]) -> torch.Tensor:
        arguments = copied(arguments)
        launch(arguments)
        output: torch.Tensor = arguments["out_ptr"]
        return output

    def in_triton(a: dict[str, Any]) -> None:
        grid = (a["ids_ptr"].shape[0], -(-a["hidden"] // a["BLOCK"]))
        # To bfloat16 the interpreter cuts float32 off, where a GPU rounds it, as torch does.
        output = a["out_ptr"].float() if a["out_ptr"].dtype == torch.bfloat16 else a["out_ptr"]
        if grid[0]:  # the interpreter has no empty grids
            vllms._dequant_gather_kernel[grid](**{**a, "out_ptr": output})
        a["out_ptr"].copy_(output)

    want = {seed: written(in_triton, case(seed)) for seed in SEEDS}
    different, fault_shown = {}, dict.fromkeys(FAULTS, -1)
    for seed in SEEDS:
        got = written(lambda a: dequant_gather(**a), case(seed))
        if not torch.equal(got, want[seed]):
            at = int((got != want[seed]).nonzero()[0])
            different[seed] = f"[{at}] is {got[at]}, not {want[seed][at]} ({got.dtype})"
        for name, fault in FAULTS.items():
            got = written(lambda a, n=name, f=fault: dequant_gather(**{**a, n: f(a)}), case(seed))
            if not torch.equal(got, want[seed]):
                fault_shown[name] = seed
    journal.result("different", different)
    journal.result("faults not shown", [name for name, seed in fault_shown.items() if seed < 0])

    # The function that launches it, and what stands in for that: both launch Triton's kernel here.
    (patch,) = PATCHES
    stand_in, launched = patch.build(None), []
    for seed in SEEDS:
        a = case(seed)
        given = a["ids_ptr"], a["packed_ptr"], a["scale_ptr"], a["hidden"], a["NUM_BITS"]
        if a["ids_ptr"].shape[0] and not torch.equal(
            stand_in(*given), vllms._dequant_gather_triton(*given)
        ):
            launched.append(seed)
    journal.result("launched differently", launched)


@needs_triton
def test_tokens_are_looked_up_as_tritons_interpreter_does(host: Host) -> None:
    run = host.of("v2").run("tests.test_kernels_embedding:compare", {}, label="embeddings")
    assert run.failure is None, run.failure
    assert run.results == {"different": {}, "faults not shown": [], "launched differently": []}
