"""The object that stands where a Triton kernel stood, and the list of kernels."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

LaunchLog = list[dict[str, Any]]


def scale_kernel(output_ptr, input_ptr, factor, BLOCK_SIZE):
    """The original, as the decorator leaves it without Triton."""


def make(original: Any = scale_kernel) -> tuple[Any, LaunchLog]:
    from runner_under_test.kernels import KernelStandIn

    launches: LaunchLog = []

    def scale(*, output_ptr: Any, input_ptr: Any, factor: float = 1.0, BLOCK_SIZE: int = 1) -> None:
        launches.append(locals() | {})

    return KernelStandIn(original, scale), launches


WANT = {"output_ptr": "o", "input_ptr": "i", "factor": 2.0, "BLOCK_SIZE": 8}


def logged(launches: LaunchLog) -> LaunchLog:
    return [{n: launch[n] for n in WANT} for launch in launches]


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), WANT),
        (("o", "i", 2.0, 8), {}),
        (("o", "i", 2.0), {"BLOCK_SIZE": 8}),
        (("o",), {"BLOCK_SIZE": 8, "input_ptr": "i", "factor": 2.0}),
    ],
)
def test_positional_and_keyword_launches_bind_alike(args: tuple, kwargs: dict) -> None:
    stand_in, launches = make()
    stand_in[(3,)](*args, **kwargs)
    stand_in.run(*args, grid=(3,), warmup=False, **kwargs)
    assert logged(launches) == [WANT, WANT]


def test_positional_arguments_go_by_the_order_of_the_original_kernel() -> None:
    def reordered(BLOCK_SIZE, factor, input_ptr, output_ptr):
        pass

    stand_in, launches = make(reordered)
    stand_in[(1,)](8, 2.0, "i", "o")
    assert logged(launches) == [WANT]


@pytest.mark.parametrize("form", ["function", "jit", "override", "wrapper"])
def test_names_come_from_whatever_form_the_original_has(form: str) -> None:
    names = ("output_ptr", "input_ptr", "factor", "BLOCK_SIZE")
    original = {
        "function": scale_kernel,
        # A Triton function and vLLM's override both list their names, the latter beside an
        # implementation whose own parameters are called differently.
        "jit": SimpleNamespace(arg_names=list(names), constexprs=[3], fn=scale_kernel),
        "override": SimpleNamespace(
            arg_names=names, constexprs=None, func=lambda out, inp, f, block=None: None
        ),
        "wrapper": SimpleNamespace(func=scale_kernel),
    }[form]
    stand_in, launches = make(original)
    assert stand_in.arg_names == names
    assert stand_in.constexprs == getattr(original, "constexprs", None)
    stand_in[(1,)](*WANT.values())
    assert logged(launches) == [WANT]


def test_the_stand_in_is_named_after_the_original() -> None:
    stand_in, _ = make()
    assert (stand_in.__name__, stand_in.__module__) == ("scale_kernel", __name__)
    assert callable(stand_in.func)


def test_the_target_names_a_stand_in_whose_original_is_named_otherwise() -> None:
    from runner_under_test.kernels import KernelStandIn

    def copy(*, output_ptr: Any) -> None: ...

    original = SimpleNamespace(arg_names=["output_ptr"], __name__="_copy_impl", __module__="m")
    stand_in = KernelStandIn(original, copy, "package.module.copy_kernel")
    assert (stand_in.__name__, stand_in.__module__) == ("copy_kernel", "m")
    with pytest.raises(TypeError, match=r"package\.module\.copy_kernel lacks output_ptr"):
        stand_in[(1,)]()


def test_a_stand_in_can_stand_in_for_a_stand_in() -> None:
    first, _ = make()
    second, launches = make(first)
    second[(1,)](**WANT)
    assert second.arg_names == first.arg_names
    assert logged(launches) == [WANT]


def test_an_unknown_launch_argument_is_refused_by_name() -> None:
    stand_in, launches = make()
    with pytest.raises(TypeError) as error:
        stand_in[(1,)](**WANT, GROUP_SIZE=4)
    for part in ("scale_kernel", "'GROUP_SIZE'", "output_ptr, input_ptr, factor, BLOCK_SIZE"):
        assert part in str(error.value)
    assert launches == []


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        (("o", "i", 2.0, 8, 9), {}, "5 positional arguments for 4 parameters"),
        (("o", "i"), {"input_ptr": "i"}, "'input_ptr' given twice"),
        (("o",), {}, "lacks input_ptr"),
    ],
)
def test_a_launch_that_does_not_bind_is_refused(args: tuple, kwargs: dict, said: str) -> None:
    stand_in, launches = make()
    with pytest.raises(TypeError, match=said) as error:
        stand_in[(1,)](*args, **kwargs)
    assert "scale_kernel" in str(error.value)
    assert launches == []


def test_compiler_options_do_not_reach_the_implementation() -> None:
    stand_in, launches = make()
    stand_in[(1,)](**WANT, num_warps=4, launch_pdl=True)
    assert logged(launches) == [WANT]


def test_warming_up_checks_the_arguments_and_runs_nothing() -> None:
    stand_in, launches = make()
    stand_in.warmup(grid=(1,), **WANT)
    stand_in.run(grid=(1,), warmup=True, **WANT)
    with pytest.raises(TypeError, match="'GROUP_SIZE'"):
        stand_in.warmup(grid=(1,), **WANT, GROUP_SIZE=4)
    assert launches == []


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["output_ptr", "input_ptr", "factor", "BLOCK_SIZE", "bias_ptr"], "'bias_ptr' is not han"),
        (["output_ptr", "factor", "BLOCK_SIZE"], "'input_ptr' is gone"),
    ],
)
def test_a_kernel_whose_parameters_changed_is_refused(names: list[str], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        make(SimpleNamespace(arg_names=names, __name__="scale_kernel"))


def test_errors_of_the_implementation_come_through() -> None:
    from runner_under_test.kernels import KernelStandIn

    def broken(*, output_ptr: Any, input_ptr: Any, factor: Any, BLOCK_SIZE: Any) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        KernelStandIn(scale_kernel, broken)[(1,)](**WANT)


def test_every_kernel_has_one_target_and_a_reason() -> None:
    from packaging.specifiers import SpecifierSet

    from runner_under_test.kernels import KERNELS

    targets = [kernel.target for kernel in KERNELS]
    assert targets and len(set(targets)) == len(targets)
    for kernel in KERNELS:
        assert kernel.target.startswith("vllm.")
        assert kernel.why.endswith(".")
        assert kernel.implementation.__doc__
        assert any(version in SpecifierSet(kernel.versions) for version in ("0.28.0", "0.32.0"))


def test_the_kernels_are_importable_without_vllm() -> None:
    program = (
        "import sys; sys.modules['vllm'] = None\n"
        "import runner_under_test.kernels as k\n"
        "print(bool(k.KERNELS), sorted(m for m in sys.modules if m.startswith('vllm.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "[]"]


SIGNATURES = {
    "compute_slot_mapping 0.30, 0.31": (
        "num_tokens max_num_tokens query_start_loc_ptr positions_ptr block_table_ptr "
        "block_table_stride block_size slot_mapping_ptr KV_CACHE_BLOCK_SIZE BLOCKS_PER_KV_BLOCK "
        "TOTAL_CP_WORLD_SIZE TOTAL_CP_RANK CP_KV_CACHE_INTERLEAVE_SIZE PAD_ID BLOCK_SIZE"
    ),
    "compute_slot_mapping 0.32": (
        "num_tokens max_num_tokens query_start_loc_ptr positions_ptr block_table_ptr "
        "block_table_stride slot_mapping_ptr KV_CACHE_BLOCK_SIZE "
        "TOTAL_CP_WORLD_SIZE TOTAL_CP_RANK CP_KV_CACHE_INTERLEAVE_SIZE PAD_ID BLOCK_SIZE"
    ),
}


@pytest.mark.parametrize("version", SIGNATURES)
def test_both_signatures_of_the_slot_mapping_kernel_are_taken(version: str) -> None:
    import torch

    from runner_under_test.kernels import KERNELS, KernelStandIn

    names = SIGNATURES[version].split()
    kernel = next(k for k in KERNELS if k.target.endswith("ComputeSlotMappingKernel.kernel"))
    stand_in = KernelStandIn(SimpleNamespace(arg_names=names), kernel.implementation)
    slots = torch.full((4,), 99)
    values = {
        "num_tokens": 3,
        "max_num_tokens": 4,
        "query_start_loc_ptr": torch.tensor([0, 2, 3], dtype=torch.int32),
        "positions_ptr": torch.tensor([7, 8, 0]),
        "block_table_ptr": torch.tensor([[5, 6, 7], [9, 9, 9]], dtype=torch.int32),
        "block_table_stride": 3,
        "slot_mapping_ptr": slots,
        "KV_CACHE_BLOCK_SIZE": 4,
        "TOTAL_CP_WORLD_SIZE": 1,
        "TOTAL_CP_RANK": 0,
        "CP_KV_CACHE_INTERLEAVE_SIZE": 1,
        "PAD_ID": -1,
        "BLOCK_SIZE": 1024,
        "block_size": 4,
        "BLOCKS_PER_KV_BLOCK": 1,
    }
    stand_in[(3,)](*(values[name] for name in names))
    assert slots.tolist() == [27, 28, 36, -1]
