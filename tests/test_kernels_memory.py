"""The kernels that work on addresses, on memory that the test owns."""

from __future__ import annotations

import numpy as np
import pytest


def addresses(base: int, offsets: list[int], dtype_name: str):
    import torch

    return torch.tensor([base + o for o in offsets], dtype=getattr(torch, dtype_name))


@pytest.mark.parametrize("dtype_name", ["int64", "uint64"])
@pytest.mark.parametrize("seed", range(8))
def test_batch_memcpy_copies_exactly_the_regions(seed: int, dtype_name: str) -> None:
    import torch

    from runner_under_test.kernels.memory import batch_memcpy

    rng = np.random.default_rng(seed)
    memory = rng.integers(0, 256, 9000).astype(np.uint8)
    regions = int(rng.integers(0, 5))
    sizes = [int(rng.choice([0, 1, 7, 400, 1024, 1500])) for _ in range(regions)]
    sources = [int(rng.integers(0, 4000 - s)) for s in sizes]
    targets, place = [], 4000
    for size in sizes:
        place += int(rng.integers(0, 50))
        targets.append(place)
        place += size
    want = memory.copy()
    for source, target, size in zip(sources, targets, sizes, strict=True):
        for i in range(size):
            want[target + i] = memory[source + i]

    base = memory.ctypes.data
    batch_memcpy(
        src_ptrs=addresses(base, sources, dtype_name),
        dst_ptrs=addresses(base, targets, dtype_name),
        sizes=torch.tensor(sizes, dtype=torch.int32),
        BLOCK_SIZE=1024,
    )
    assert memory.tolist() == want.tolist()


@pytest.mark.parametrize("distance", [-1500, -3, 3, 1500])
def test_batch_memcpy_moves_a_region_that_overlaps_itself(distance: int) -> None:
    import torch

    from runner_under_test.kernels.memory import batch_memcpy

    memory = (np.arange(8000) % 251).astype(np.uint8)
    want = memory.copy()
    want[2000 + distance : 5000 + distance] = memory[2000:5000]
    base = memory.ctypes.data
    batch_memcpy(
        src_ptrs=addresses(base, [2000], "int64"),
        dst_ptrs=addresses(base, [2000 + distance], "int64"),
        sizes=torch.tensor([3000]),
    )
    assert memory.tolist() == want.tolist()


@pytest.mark.parametrize("dtype_name", ["int64", "uint64"])
@pytest.mark.parametrize("seed", range(8))
def test_zeroing_clears_the_pages_of_the_blocks_and_no_other_word(
    seed: int, dtype_name: str
) -> None:
    import torch

    from runner_under_test.kernels.memory import zero_kv_blocks

    rng = np.random.default_rng(seed)
    num_blocks, segments = 9, int(rng.integers(1, 4))
    strides = [int(rng.integers(1, 40)) for _ in range(segments)]
    pages = [int(rng.integers(1, stride + 1)) for stride in strides]
    buffers = [rng.integers(1, 2**31, num_blocks * s).astype(np.int32) for s in strides]
    want = [buffer.copy() for buffer in buffers]
    blocks = rng.choice(num_blocks, int(rng.integers(0, 5)), replace=False).tolist()
    for buffer, stride, page in zip(want, strides, pages, strict=True):
        for block in blocks:
            for word in range(page):
                buffer[block * stride + word] = 0

    zero_kv_blocks(
        seg_addrs_ptr=torch.tensor(
            [b.ctypes.data for b in buffers], dtype=getattr(torch, dtype_name)
        ),
        seg_block_strides_ptr=torch.tensor(strides),
        seg_page_sizes_ptr=torch.tensor(pages),
        block_ids_ptr=torch.tensor(blocks, dtype=torch.int64),
        BLOCK_SIZE=1024,
    )
    assert [b.tolist() for b in buffers] == [w.tolist() for w in want]


def test_zeroing_as_0_27_launches_it_clears_the_first_blocks_of_the_first_segments() -> None:
    import torch

    from runner_under_test.kernels.memory import zero_kv_blocks

    buffers = [np.full(5 * page, 7, np.int32) for page in (4, 6, 8)]
    zero_kv_blocks(
        seg_addrs_ptr=torch.tensor([b.ctypes.data for b in buffers], dtype=torch.uint64),
        seg_page_sizes_ptr=torch.tensor([4, 6, 8]),
        block_ids_ptr=torch.tensor([3, 0, 1]),
        n_blocks=2,
        N_SEGS=2,
        MAX_CHUNKS=3,
        BLOCK_SIZE=2,
    )
    # A block is its page; block 1 and the third segment are beyond what the launch counts.
    assert buffers[0].tolist() == [0] * 4 + [7] * 8 + [0] * 4 + [7] * 4
    assert buffers[1].tolist() == [0] * 6 + [7] * 12 + [0] * 6 + [7] * 6
    assert buffers[2].tolist() == [7] * 40
