"""References of the V2 kernels that prepare a step's inputs, and take in what it gave."""

from __future__ import annotations

import numpy as np

from conformance.kernels.example import Example, Value
from conformance.kernels.generators.generator import Draw, boundaries
from conformance.kernels.references.reference import Arrays, Reference, column

_INPUTS = "vllm.v1.worker.gpu.input_batch"
_TABLES = "vllm.v1.worker.gpu.block_table"


def _requests(draw: Draw, least: int = 1) -> tuple[int, np.ndarray]:
    """How many request states there are, and the state of each request of the batch."""
    requests = draw.integer(least, 5)
    states = requests + draw.integer(0, 3)
    return states, draw.rng.permutation(states)[:requests]


def _prefill(draw: Draw) -> Example:
    memory = draw.memory
    states, mapping = _requests(draw)
    longest, ahead = draw.among(4, 9, 40), draw.integer(1, 3)
    prefill = draw.rng.integers(1, longest + 1, states)
    computed = draw.rng.integers(0, longest + 1, states)
    left = np.maximum(prefill - computed, 1)[mapping]
    lengths = [draw.integer(1, int(most)) for most in left]
    start = boundaries(lengths)
    tokens = draw.ids(states * longest, 128_256).reshape(states, longest)
    return memory.example(
        {
            "input_ids_ptr": memory.output("input_ids_ptr", int(start[-1]), "int32"),
            "next_prefill_tokens_ptr": memory.output(
                "next_prefill_tokens_ptr", (ahead, states), "int32"
            ),
            "next_prefill_tokens_stride": states,
            "num_lookahead": ahead,
            "idx_mapping_ptr": column(memory, "idx_mapping_ptr", mapping),
            "query_start_loc_ptr": column(memory, "query_start_loc_ptr", start),
            "all_token_ids_ptr": memory.tensor("all_token_ids_ptr", tokens, "int32"),
            "all_token_ids_stride": longest,
            "prefill_lens_ptr": column(memory, "prefill_lens_ptr", prefill),
            "num_computed_tokens_ptr": column(memory, "num_computed_tokens_ptr", computed),
            "BLOCK_SIZE": draw.among(4, 1024),
            "LOOKAHEAD_BLOCK": 1 << (ahead - 1).bit_length(),
        },
        (len(mapping),),
    )


def _prefilled(a: Arrays) -> None:
    starts = a["query_start_loc_ptr"]
    for request, state in enumerate(a["idx_mapping_ptr"]):
        done, total = int(a["num_computed_tokens_ptr"][state]), int(a["prefill_lens_ptr"][state])
        if done >= total:
            continue
        known = a["all_token_ids_ptr"][state]
        length = int(starts[request + 1] - starts[request])
        for at in range(length):
            a["input_ids_ptr"][starts[request] + at] = known[done + at]
        for ahead in range(a["num_lookahead"]):
            place = done + length + ahead
            a["next_prefill_tokens_ptr"][ahead, state] = known[place] if place < total else 0


def _positions(draw: Draw) -> Example:
    memory = draw.memory
    states, mapping = _requests(draw, 0)
    lengths = [draw.among(0, 1, 2, 17) for _ in mapping]
    start = boundaries(lengths)
    computed = draw.rng.integers(0, draw.among(5, 2**30), states)
    places = len(mapping) + draw.integer(0, 4)
    return memory.example(
        {
            "pos_ptr": memory.output("pos_ptr", int(start[-1]), "int64"),
            "seq_lens_ptr": memory.output("seq_lens_ptr", places, "int32"),
            "idx_mapping_ptr": column(memory, "idx_mapping_ptr", mapping),
            "query_start_loc_ptr": column(memory, "query_start_loc_ptr", start),
            "num_computed_tokens_ptr": column(memory, "num_computed_tokens_ptr", computed),
            "max_num_reqs": places,
            "BLOCK_SIZE": draw.among(4, 1024),
        },
        (len(mapping) + 1,),
    )


def _positioned(a: Arrays) -> None:
    a["seq_lens_ptr"][:] = 0
    starts = a["query_start_loc_ptr"]
    for request, state in enumerate(a["idx_mapping_ptr"]):
        done = int(a["num_computed_tokens_ptr"][state])
        for at in range(starts[request + 1] - starts[request]):
            a["pos_ptr"][starts[request] + at] = done + at
        a["seq_lens_ptr"][request] = done + starts[request + 1] - starts[request]


def _combine(draw: Draw) -> Example:
    memory = draw.memory
    states, mapping = _requests(draw)
    most, new = draw.integer(1, 4), draw.among(1, 1, 0)
    drafts = [draw.integer(1 - new, most) for _ in mapping]
    logits = [count + new for count in drafts]
    lengths = [count + draw.integer(0, 3) for count in logits]
    start, counts = boundaries(lengths), boundaries(logits)
    # A request that has still to be filled in, one at the end of its prompt, one beyond it.
    seq_lens = [length + draw.integer(0, 6) for length in lengths]
    prefill = draw.rng.integers(1, 12, states)
    tokens = draw.ids(states * most, 128_256).reshape(states, most)
    arguments: dict[str, Value] = {
        "input_ids_ptr": memory.output("input_ids_ptr", int(start[-1]), "int32"),
        "idx_mapping_ptr": column(memory, "idx_mapping_ptr", mapping),
        "last_sampled_tokens_ptr": column(
            memory, "last_sampled_tokens_ptr", draw.ids(states, 128_256), "int64"
        ),
        "query_start_loc_ptr": column(memory, "query_start_loc_ptr", start),
        "seq_lens_ptr": column(memory, "seq_lens_ptr", seq_lens),
        "prefill_len_ptr": column(memory, "prefill_len_ptr", prefill),
        "draft_tokens_ptr": memory.tensor("draft_tokens_ptr", tokens, "int64"),
        "draft_tokens_stride": most,
        "cu_num_logits_ptr": column(memory, "cu_num_logits_ptr", counts),
        "logits_indices_ptr": memory.output("logits_indices_ptr", int(counts[-1]), "int64"),
        "BLOCK_SIZE": 1 << (most + new - 1).bit_length(),
        "NUM_NEW_SAMPLED_TOKENS": new,
    }
    return memory.example({name: arguments[name] for name in draw.names}, (len(mapping),))


def _combined(a: Arrays) -> None:
    new = a.get("NUM_NEW_SAMPLED_TOKENS", 1)
    for request, state in enumerate(a["idx_mapping_ptr"]):
        first, after = a["cu_num_logits_ptr"][request : request + 2]
        end = int(a["query_start_loc_ptr"][request + 1])
        count = int(after - first)
        places = list(range(end - count, end))
        a["logits_indices_ptr"][first:after] = places
        length, prompt = int(a["seq_lens_ptr"][request]), int(a["prefill_len_ptr"][state])
        if length <= prompt:
            continue
        if new and length - count >= prompt:
            a["input_ids_ptr"][places[0]] = a["last_sampled_tokens_ptr"][state]
        for at, place in enumerate(places[new:]):
            a["input_ids_ptr"][place] = a["draft_tokens_ptr"][state, at]


def _rejected(draw: Draw) -> Example:
    memory = draw.memory
    states, mapping = _requests(draw)
    logits = [draw.integer(1, 5) for _ in mapping]
    sampled = [draw.integer(1, count) for count in logits]
    return memory.example(
        {
            "num_sampled_ptr": column(memory, "num_sampled_ptr", sampled),
            "num_rejected_ptr": memory.output("num_rejected_ptr", len(mapping), "int32"),
            "seq_lens_ptr": column(memory, "seq_lens_ptr", draw.rng.integers(1, 8, len(mapping))),
            "cu_num_logits_ptr": column(memory, "cu_num_logits_ptr", boundaries(logits)),
            "idx_mapping_ptr": column(memory, "idx_mapping_ptr", mapping),
            "prefill_len_ptr": column(memory, "prefill_len_ptr", draw.rng.integers(1, 8, states)),
        },
        (len(mapping),),
    )


def _counted_rejected(a: Arrays) -> None:
    for request, state in enumerate(a["idx_mapping_ptr"]):
        if a["seq_lens_ptr"][request] < a["prefill_len_ptr"][state]:
            a["num_sampled_ptr"][request] = a["num_rejected_ptr"][request] = 0
            continue
        first, after = a["cu_num_logits_ptr"][request : request + 2]
        a["num_rejected_ptr"][request] = after - first - a["num_sampled_ptr"][request]


def _post_update(draw: Draw) -> Example:
    memory = draw.memory
    states, mapping = _requests(draw)
    mapping[draw.rng.random(len(mapping)) < 0.2] = -1
    most, longest, vocabulary = draw.integer(1, 4), 20, draw.among(3, 33)
    total = draw.rng.integers(1, longest - most + 1, states)
    sampled = [draw.integer(0, most) for _ in mapping]
    rejected = [draw.integer(0, most - count) for count in sampled]
    start = boundaries([count + draw.integer(0, 3) for count in rejected])
    tokens = draw.ids(len(mapping) * most, vocabulary).reshape(len(mapping), most)
    counts = draw.rng.integers(0, 3, (states, vocabulary))
    has_counts, has_queries = draw.flag(), draw.flag()
    return memory.example(
        {
            "idx_mapping_ptr": column(memory, "idx_mapping_ptr", mapping),
            "num_computed_tokens_ptr": column(
                memory, "num_computed_tokens_ptr", draw.rng.integers(0, 99, states)
            ),
            "last_sampled_tokens_ptr": memory.output("last_sampled_tokens_ptr", states, "int64"),
            "output_bin_counts_ptr": memory.tensor("output_bin_counts_ptr", counts, "int32")
            if has_counts
            else None,
            "output_bin_counts_stride": vocabulary if has_counts else 0,
            "sampled_tokens_ptr": memory.tensor("sampled_tokens_ptr", tokens, "int64"),
            "sampled_tokens_stride": most,
            "num_sampled_ptr": column(memory, "num_sampled_ptr", sampled),
            "num_rejected_ptr": column(memory, "num_rejected_ptr", rejected),
            "query_start_loc_ptr": column(memory, "query_start_loc_ptr", start)
            if has_queries
            else None,
            "all_token_ids_ptr": memory.output("all_token_ids_ptr", (states, longest), "int32"),
            "all_token_ids_stride": longest,
            "total_len_ptr": column(memory, "total_len_ptr", total),
        },
        (len(mapping),),
    )


def _post_updated(a: Arrays) -> None:
    for request, state in enumerate(a["idx_mapping_ptr"]):
        if state < 0:
            continue
        new = a["sampled_tokens_ptr"][request, : a["num_sampled_ptr"][request]]
        total = int(a["total_len_ptr"][state])
        for at, token in enumerate(new):
            a["all_token_ids_ptr"][state, total + at] = token
            a["last_sampled_tokens_ptr"][state] = token
            if a["output_bin_counts_ptr"] is not None:
                a["output_bin_counts_ptr"][state, token] += 1
        a["total_len_ptr"][state] = total + len(new)
        starts = a["query_start_loc_ptr"]
        length = 0 if starts is None else int(starts[request + 1] - starts[request])
        a["num_computed_tokens_ptr"][state] += length - int(a["num_rejected_ptr"][request])


def _post_computed(draw: Draw) -> Example:
    memory = draw.memory
    states, mapping = _requests(draw)
    start = boundaries([draw.among(0, 1, 5) for _ in mapping])
    return memory.example(
        {
            "idx_mapping_ptr": column(memory, "idx_mapping_ptr", mapping),
            "num_computed_tokens_ptr": column(
                memory, "num_computed_tokens_ptr", draw.rng.integers(0, 99, states)
            ),
            "query_start_loc_ptr": column(memory, "query_start_loc_ptr", start),
        },
        (len(mapping),),
    )


def _post_computed_here(a: Arrays) -> None:
    lengths = np.diff(a["query_start_loc_ptr"])
    for state, length in zip(a["idx_mapping_ptr"], lengths, strict=True):
        a["num_computed_tokens_ptr"][state] += length


def _expand(draw: Draw) -> Example:
    memory = draw.memory
    _, mapping = _requests(draw)
    most = draw.integer(1, 5)
    counts = boundaries([draw.integer(0, most) for _ in mapping])
    return memory.example(
        {
            "idx_mapping_ptr": column(memory, "idx_mapping_ptr", mapping),
            "expanded_idx_mapping_ptr": memory.output(
                "expanded_idx_mapping_ptr", int(counts[-1]), "int32"
            ),
            "expanded_local_pos_ptr": memory.output(
                "expanded_local_pos_ptr", int(counts[-1]), "int32"
            ),
            "cu_num_logits_ptr": column(memory, "cu_num_logits_ptr", counts),
            "BLOCK_SIZE": 1 << (most - 1).bit_length(),
        },
        (len(mapping),),
    )


def _expanded(a: Arrays) -> None:
    counts = np.diff(a["cu_num_logits_ptr"])
    a["expanded_idx_mapping_ptr"][:] = np.repeat(a["idx_mapping_ptr"], counts)
    a["expanded_local_pos_ptr"][:] = [at for count in counts for at in range(count)]


def _gather(draw: Draw) -> Example:
    memory = draw.memory
    states, mapping = _requests(draw, 0)
    groups = draw.integer(1, 2)
    widths = [draw.among(1, 3, 20) for _ in range(groups)]
    padded = len(mapping) + draw.integer(0 if len(mapping) else 1, 2)
    sources, targets = [], []
    for group, width in enumerate(widths):
        table = draw.rng.integers(1, 2**31, (states, width))
        source = memory.tensor(f"table of group {group}", table, "int32")
        target = memory.output(f"batch's table of group {group}", (padded, width), "int32")
        sources.append((source.region, 4 * source.offset))
        targets.append((target.region, 4 * target.offset))
    counts = np.array([draw.rng.integers(0, width + 1, states) for width in widths])
    return memory.example(
        {
            "batch_idx_to_req_idx": column(memory, "batch_idx_to_req_idx", mapping),
            "src_block_table_ptrs": memory.addresses("src_block_table_ptrs", sources, "uint64"),
            "dst_block_table_ptrs": memory.addresses("dst_block_table_ptrs", targets, "uint64"),
            "block_table_strides": column(memory, "block_table_strides", widths, "int64"),
            "num_blocks_ptr": memory.tensor("num_blocks_ptr", counts, "int32"),
            "num_blocks_stride": states,
            "num_reqs": len(mapping),
            "BLOCK_SIZE": draw.among(4, 1024),
        },
        (groups, padded),
        extra={"padded": padded},
    )


def _table(address: int, rows: int, width: int) -> np.ndarray:
    """Block numbers at an address, ``[rows, width]`` int32."""
    import ctypes

    memory = (ctypes.c_int32 * (rows * width)).from_address(int(address))
    return np.ctypeslib.as_array(memory).reshape(rows, width)


def _gathered(a: Arrays) -> None:
    states, padded = a["num_blocks_ptr"].shape[1], a["_extra"]["padded"]
    for group, width in enumerate(a["block_table_strides"]):
        source = _table(a["src_block_table_ptrs"][group], states, int(width))
        target = _table(a["dst_block_table_ptrs"][group], padded, int(width))
        target[a["num_reqs"] :] = 0
        for row, state in enumerate(a["batch_idx_to_req_idx"]):
            count = a["num_blocks_ptr"][group, state]
            target[row, :count] = source[state, :count]


def _slots(draw: Draw) -> Example:
    memory = draw.memory
    states, mapping = _requests(draw)
    mapping[draw.rng.random(len(mapping)) < 0.15] = -1
    lengths = [draw.among(0, 1, 3, 9) for _ in mapping]
    start = boundaries(lengths)
    tokens = int(start[-1])
    groups = draw.integer(1, 2)
    size, width = draw.among(1, 4, 16), draw.integer(1, 5)
    sizes = [size] * groups
    enabled = [draw.flag() for _ in range(groups)]
    tables = []
    for group in range(groups):
        table = memory.tensor(
            f"table of group {group}",
            draw.rng.integers(0, (2**31 - 1) // size, (states, width)),
            "int32",
        )
        tables.append((table.region, 4 * table.offset))
    positions = draw.rng.integers(0, size * width, tokens)
    places = tokens + draw.integer(0, 4)
    arguments: dict[str, Value] = {
        "max_num_tokens": places,
        "idx_mapping": column(memory, "idx_mapping", mapping),
        "query_start_loc": column(memory, "query_start_loc", start),
        "pos": column(memory, "pos", positions, "int64"),
        "block_table_ptrs": memory.addresses("block_table_ptrs", tables, "uint64"),
        "block_table_strides": column(memory, "block_table_strides", [width] * groups, "int64"),
        "block_sizes": column(memory, "block_sizes", sizes),
        "slot_mapping_enabled": column(memory, "slot_mapping_enabled", enabled, "bool"),
        "dcp_sharded": column(memory, "dcp_sharded", [False] * groups, "bool"),
        "slot_mappings_ptr": memory.output("slot_mappings_ptr", (groups, places), "int64"),
        "slot_mappings_stride": places,
        "cp_rank": 0,
        "CP_SIZE": 1,
        "CP_INTERLEAVE": 1,
        "PAD_ID": -1,
        "TRITON_BLOCK_SIZE": draw.among(4, 1024),
    }
    return memory.example(
        {name: arguments[name] for name in draw.names},
        (groups, len(mapping) + 1),
        extra={"states": states},
    )


def _mapped(a: Arrays) -> None:
    slots = a["slot_mappings_ptr"]
    slots[:, a["query_start_loc"][-1] :] = a["PAD_ID"]
    for group in range(slots.shape[0]):
        size = int(a["block_sizes"][group])
        width = int(a["block_table_strides"][group])
        table = _table(a["block_table_ptrs"][group], a["_extra"]["states"], width)
        has_slots = "slot_mapping_enabled" not in a or a["slot_mapping_enabled"][group]
        for request, state in enumerate(a["idx_mapping"]):
            for token in range(*a["query_start_loc"][request : request + 2]):
                position = int(a["pos"][token])
                # Requests below 0 pad the batch.
                slot = a["PAD_ID"]
                if state >= 0 and has_slots:
                    slot = int(table[state, position // size]) * size + position % size
                slots[group, token] = slot


def _align(draw: Draw) -> Example:
    memory = draw.memory
    states, mapping = _requests(draw)
    block = draw.among(2, 4, 16)
    start = boundaries([draw.among(1, 2, block) for _ in mapping])
    computed = draw.rng.integers(0, 3 * block, states)
    current = np.where(draw.rng.random(states) < 0.2, -1, (computed - 1) // block)
    arguments: dict[str, Value] = {
        "idx_mapping_ptr": column(memory, "idx_mapping_ptr", mapping),
        "state_idx_ptr": column(memory, "state_idx_ptr", current),
        "num_computed_tokens_ptr": column(memory, "num_computed_tokens_ptr", computed),
        "query_start_loc_ptr": column(memory, "query_start_loc_ptr", start),
        "num_accepted_tokens_ptr": column(
            memory, "num_accepted_tokens_ptr", draw.rng.integers(0, 4, states)
        ),
        "src_col_ptr": memory.output("src_col_ptr", states, "int32"),
        "src_off_ptr": memory.output("src_off_ptr", states, "int32"),
        "num_reqs": len(mapping),
        "BLOCK_SIZE": 4,
        "MAMBA_BLOCK_SIZE": block,
    }
    return memory.example(arguments, (-(-len(mapping) // 4),))


def _aligned(a: Arrays) -> None:
    lengths = np.diff(a["query_start_loc_ptr"])
    for state, length in zip(a["idx_mapping_ptr"], lengths, strict=True):
        before = int(a["state_idx_ptr"][state])
        a["src_col_ptr"][state] = before
        a["src_off_ptr"][state] = max(int(a["num_accepted_tokens_ptr"][state]) - 1, 0)
        # The block in which the step's last token lies.
        tokens = int(a["num_computed_tokens_ptr"][state]) + int(length)
        after = (tokens - 1) // a["MAMBA_BLOCK_SIZE"]
        a["state_idx_ptr"][state] = after
        if before not in (-1, after):
            a["num_accepted_tokens_ptr"][state] = 1


REFERENCES = (
    Reference(
        "triton:_prepare_prefill_inputs_kernel",
        f"{_INPUTS}:_prepare_prefill_inputs_kernel",
        _prefill,
        _prefilled,
    ),
    Reference(
        "triton:_prepare_pos_seq_lens_kernel",
        f"{_INPUTS}:_prepare_pos_seq_lens_kernel",
        _positions,
        _positioned,
    ),
    Reference(
        "triton:_combine_sampled_and_draft_tokens_kernel",
        f"{_INPUTS}:_combine_sampled_and_draft_tokens_kernel",
        _combine,
        _combined,
    ),
    Reference(
        "triton:_get_num_sampled_and_rejected_kernel",
        f"{_INPUTS}:_get_num_sampled_and_rejected_kernel",
        _rejected,
        _counted_rejected,
    ),
    Reference(
        "triton:_post_update_kernel",
        f"{_INPUTS}:_post_update_kernel",
        _post_update,
        _post_updated,
    ),
    Reference(
        "triton:_post_update_num_computed_tokens_kernel",
        f"{_INPUTS}:_post_update_num_computed_tokens_kernel",
        _post_computed,
        _post_computed_here,
    ),
    Reference(
        "triton:_expand_idx_mapping_kernel",
        f"{_INPUTS}:_expand_idx_mapping_kernel",
        _expand,
        _expanded,
    ),
    Reference(
        "triton:_gather_block_tables_kernel",
        f"{_TABLES}:_gather_block_tables_kernel",
        _gather,
        _gathered,
    ),
    Reference(
        "triton:_compute_slot_mappings_kernel",
        f"{_TABLES}:_compute_slot_mappings_kernel",
        _slots,
        _mapped,
        left_out=(
            "context parallelism: the interpreter refuses the kernel's mask for it",
            "slots of 2**31 and more: the kernel multiplies block numbers in int32",
        ),
        versions=">=0.32",
    ),
    Reference(
        "triton:preprocess_mamba_align_fused_kernel",
        "vllm.v1.worker.mamba_utils:preprocess_mamba_align_fused_kernel",
        _align,
        _aligned,
    ),
)
