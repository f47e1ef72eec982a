"""The recurrence of Mamba 1 against a loop over its definition, number by number, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    import torch

SEEDS = range(8)
SLOTS, NULL = 9, 0


@dataclass
class Case:
    """The arguments of a scan, and how each of its requests begins: its tokens and its slot."""

    arguments: dict[str, Any]
    requests: list[tuple[range, int, bool]]

    @property
    def output(self) -> torch.Tensor:
        """The memory that the scan writes over."""
        gate, delta = self.arguments["z_"], self.arguments["delta"]
        found: torch.Tensor = delta if gate is None else gate
        return found


def case(seed: int, dtype_name: str = "float32") -> Case:
    """A ragged batch: requests of no token too, in the null block, with a state or without."""
    import torch

    rng = np.random.default_rng(seed)
    dtype = getattr(torch, dtype_name)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.standard_normal(shape)).to(dtype)

    groups, d_state = int(rng.integers(1, 4)), int(rng.integers(1, 9))
    dim = groups * int(rng.integers(1, 6))
    lengths = [0, *rng.integers(1, 12, 4).tolist(), 1]
    starts = np.cumsum([0, *lengths]).tolist()
    tokens = starts[-1]
    slots = [*(rng.permutation(SLOTS - 1) + 1)[: len(lengths) - 2].tolist(), NULL, 8]
    slots[-1] = next(slot for slot in range(1, SLOTS) if slot not in slots[:-1])
    begun = rng.random(len(lengths)) < 0.5
    begun[:3] = [True, True, False]
    arguments = {
        "u": drawn(dim, tokens),
        "delta": drawn(dim, tokens),
        "A": -torch.from_numpy(rng.uniform(0.1, 4, (dim, d_state))).float(),
        "B": drawn(groups, d_state, tokens),
        "C": drawn(groups, d_state, tokens),
        "D_": torch.from_numpy(rng.standard_normal(dim)).float() if seed % 3 else None,
        "z_": drawn(dim, tokens) if seed % 4 else None,
        "delta_bias_": torch.from_numpy(rng.standard_normal(dim) * 12).float()
        if seed % 5
        else None,
        "delta_softplus": seed % 5 > 0,
        "query_start_loc": torch.tensor(starts, dtype=torch.int32),
        "cache_indices": torch.tensor(slots, dtype=torch.int32),
        "has_initial_state": torch.from_numpy(begun),
        "ssm_states": torch.from_numpy(rng.standard_normal((SLOTS, dim, d_state))).to(dtype),
        "null_block_id": NULL,
    }
    ranges = [range(start, start + length) for start, length in zip(starts, lengths, strict=False)]
    return Case(arguments, list(zip(ranges, slots, begun.tolist(), strict=True)))


def softplus(x: float) -> float:
    return x if x > 20 else math.log1p(math.exp(x))


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def by_definition(case: Case) -> tuple[Any, Any]:
    """What a scan leaves in its output and in the states, as arrays of float64."""
    a = {k: v.double().numpy() if hasattr(v, "double") else v for k, v in case.arguments.items()}
    output, states = case.output.double().numpy().copy(), a["ssm_states"].copy()
    dim, d_state = a["A"].shape
    per_group = dim // len(a["B"])
    for tokens, slot, begun in case.requests:
        if slot == NULL or not tokens:
            continue
        for d in range(dim):
            h = [states[slot, d, n] if begun else 0.0 for n in range(d_state)]
            for t in tokens:
                x, step = a["u"][d, t], a["delta"][d, t]
                step += 0.0 if a["delta_bias_"] is None else a["delta_bias_"][d]
                step = softplus(step) if a["delta_softplus"] else step
                y = 0.0 if a["D_"] is None else a["D_"][d] * x
                for n in range(d_state):
                    h[n] = math.exp(step * a["A"][d, n]) * h[n]
                    h[n] += step * a["B"][d // per_group, n, t] * x
                    y += a["C"][d // per_group, n, t] * h[n]
                output[d, t] = y if a["z_"] is None else y * silu(a["z_"][d, t])
            states[slot, d] = h
    return output, states


def scanned(case: Case) -> tuple[Any, Any]:
    from runner_under_test.kernels.selective_scan import selective_scan

    selective_scan(**case.arguments)
    return case.output.double().numpy(), case.arguments["ssm_states"].double().numpy()


def are_close(got: tuple[Any, Any], want: tuple[Any, Any], tolerance: float) -> bool:
    return all(
        np.allclose(g, w, rtol=tolerance, atol=tolerance) for g, w in zip(got, want, strict=True)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_scan_is_its_definition(seed: int) -> None:
    # Without a softplus steps may be negative, and what decays may grow.
    want = by_definition(case(seed))
    assert are_close(scanned(case(seed)), want, 3e-4 if seed % 5 == 0 else 2e-5)


@pytest.mark.parametrize("dtype_name", ["bfloat16", "float16"])
@pytest.mark.parametrize("seed", [1, 2, 4])
def test_outputs_and_states_are_rounded_once(seed: int, dtype_name: str) -> None:
    want = by_definition(case(seed, dtype_name))
    half_a_step = {"bfloat16": 2**-8, "float16": 2**-10}[dtype_name]
    assert are_close(scanned(case(seed, dtype_name)), want, half_a_step)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_no_requests_stays(seed: int) -> None:
    before, after = case(seed), case(seed)
    scanned(after)
    used = [slot for tokens, slot, _ in after.requests if slot != NULL and tokens]
    rest = [slot for slot in range(SLOTS) if slot not in used]
    states = "ssm_states"
    assert after.arguments[states][rest].equal(before.arguments[states][rest])
    (padding,) = (tokens for tokens, slot, _ in after.requests if slot == NULL)
    columns = slice(padding.start, padding.stop)
    assert after.output[:, columns].equal(before.output[:, columns])


FAULTS: dict[str, Any] = {
    "no-initial-state": lambda a: {"has_initial_state": a["has_initial_state"] & False},
    "always-an-initial-state": lambda a: {"has_initial_state": a["has_initial_state"] | True},
    "no-null-block": lambda a: {"null_block_id": -1},
    "another-slot": lambda a: {"cache_indices": a["cache_indices"].flip(0)},
    "no-softplus": lambda a: {"delta_softplus": not a["delta_softplus"]},
    "one-A-for-a-channel": lambda a: {"A": a["A"][:, :1].expand_as(a["A"])},
    "other-groups": lambda a: {"B": a["B"].roll(1, 0)},
    "tokens-of-another": lambda a: {"query_start_loc": (a["query_start_loc"] - 1).clamp(min=0)},
    "no-D": lambda a: {"D_": None},
    "a-copy-of-the-states": lambda a: {"ssm_states": a["ssm_states"].clone()},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    from runner_under_test.kernels.selective_scan import selective_scan

    found = []
    for seed in SEEDS:
        faulty, want = case(seed), by_definition(case(seed))
        selective_scan(**{**faulty.arguments, **FAULTS[fault](faulty.arguments)})
        states = faulty.arguments["ssm_states"].double().numpy()
        found.append(not are_close((faulty.output.double().numpy(), states), want, 3e-4))
    assert any(found)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_update_is_a_scan_of_one_token(seed: int) -> None:
    import torch

    from runner_under_test.kernels.selective_scan import selective_scan, selective_state_update

    a = case(seed).arguments
    requests, dim = len(a["cache_indices"]), len(a["u"])
    first = {name: a[name][..., :requests] for name in ("u", "delta", "B", "C")}
    first["B"], first["C"] = first["B"][:1], first["C"][:1]
    gate = None if a["z_"] is None else a["z_"][:, :requests]
    state, out = a["ssm_states"].clone(), torch.full((requests, dim), math.nan)
    selective_state_update(
        state,
        first["u"].t(),
        first["delta"].t(),
        a["A"],
        first["B"][0].t(),
        first["C"][0].t(),
        a["D_"],
        None if gate is None else gate.t(),
        a["delta_bias_"],
        a["delta_softplus"],
        a["cache_indices"],
        a["cache_indices"],
        NULL,
        out,
    )
    scan = {**a, **{name: value.clone() for name, value in first.items()}}
    scan["z_"] = None if gate is None else gate.clone()
    scan["has_initial_state"] = torch.ones(requests, dtype=torch.bool)
    scan["query_start_loc"] = torch.arange(requests + 1, dtype=torch.int32)
    selective_scan(**scan)
    want = scan["delta"] if gate is None else scan["z_"]
    kept = a["cache_indices"] != NULL
    assert torch.allclose(out[kept], want.t()[kept], rtol=1e-5, atol=1e-5)
    assert not out.isnan().any()
    assert torch.allclose(state, a["ssm_states"], rtol=1e-5, atol=1e-5)


def test_an_update_leaves_the_state_where_it_is_told() -> None:
    import torch

    from runner_under_test.kernels.selective_scan import selective_state_update

    state = torch.tensor([[[5.0]], [[2.0]], [[0.0]], [[0.0]]])
    one, out = torch.ones(2, 1), torch.empty(2, 1)
    slots, targets = torch.tensor([1, 0]), torch.tensor([3, 0])
    A = torch.zeros(1, 1)
    selective_state_update(
        state, one, one, A, one, one, None, None, None, False, slots, targets, 0, out
    )
    # 2 + 1; the other begins with 0.
    assert out.tolist() == [[3.0], [1.0]]
    assert state.flatten().tolist() == [5.0, 2.0, 0.0, 3.0]


@pytest.mark.parametrize(
    "argument",
    [
        "query_start_loc",
        "block_idx_first_scheduled_token",
        "block_idx_last_scheduled_token",
        "initial_state_idx",
    ],
)
def test_what_the_scan_does_not_have_it_refuses(argument: str) -> None:
    from runner_under_test.kernels.selective_scan import selective_scan

    a = case(1).arguments
    a[argument] = None if argument == "query_start_loc" else a["cache_indices"]
    with pytest.raises(NotImplementedError):
        selective_scan(**a)


@pytest.mark.parametrize("argument", ["num_accepted_tokens", "cu_seqlens"])
def test_what_the_update_does_not_have_it_refuses(argument: str) -> None:
    import torch

    from runner_under_test.kernels.selective_scan import selective_state_update

    one = torch.ones(1, 1)
    with pytest.raises(NotImplementedError):
        selective_state_update(
            one[None],
            *(one,) * 5,
            *(None,) * 3,
            False,
            None,
            None,
            NULL,
            one,
            **{argument: torch.tensor([1])},
        )
