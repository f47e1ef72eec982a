"""References of the V2 sampler's kernels."""

from __future__ import annotations

import numpy as np

from conformance.kernels.example import Example, Value
from conformance.kernels.generators.generator import Draw
from conformance.kernels.references.reference import (
    Arrays,
    Reference,
    column,
    logits_of,
    states_of,
)

_SAMPLE = "vllm.v1.worker.gpu.sample"
_VOCABULARIES = (1, 5, 33, 64)


def _temperature(draw: Draw) -> Example:
    memory, rows, states = draw.memory, draw.integer(1, 5), draw.integer(1, 4)
    vocabulary = draw.among(*_VOCABULARIES)
    logits = logits_of(draw, rows, vocabulary)
    block = draw.among(16, 8192)
    temperatures = draw.rng.choice([0.0, 1.0, 0.5, 0.7, 1.9, 0.01], states)
    return memory.example(
        {
            "logits_ptr": logits,
            "logits_stride": logits.stride[0],
            "expanded_idx_mapping_ptr": column(
                memory, "expanded_idx_mapping_ptr", states_of(draw, rows, states)
            ),
            "temperature_ptr": column(memory, "temperature_ptr", temperatures, "float32"),
            "vocab_size": vocabulary,
            "BLOCK_SIZE": block,
        },
        (rows, -(-vocabulary // block)),
    )


def _divided(a: Arrays) -> None:
    for row, state in enumerate(a["expanded_idx_mapping_ptr"]):
        temperature = float(a["temperature_ptr"][state])
        if temperature not in (0.0, 1.0):
            a["logits_ptr"][row] = a["logits_ptr"][row].astype(np.float64) / temperature


def _min_p(draw: Draw) -> Example:
    memory, rows, states = draw.memory, draw.integer(1, 5), draw.integer(1, 4)
    vocabulary = draw.among(*_VOCABULARIES)
    logits = logits_of(draw, rows, vocabulary)
    shares = draw.rng.choice([0.0, 0.05, 0.3, 1.0], states)
    return memory.example(
        {
            "logits_ptr": logits,
            "logits_stride": logits.stride[0],
            "expanded_idx_mapping_ptr": column(
                memory, "expanded_idx_mapping_ptr", states_of(draw, rows, states)
            ),
            "min_p_ptr": column(memory, "min_p_ptr", shares, "float32"),
            "vocab_size": vocabulary,
            "BLOCK_SIZE": draw.among(16, 1024),
        },
        (rows,),
    )


def _cut_off(a: Arrays) -> None:
    for row, state in enumerate(a["expanded_idx_mapping_ptr"]):
        share = float(a["min_p_ptr"][state])
        if share == 0.0:
            continue
        line = a["logits_ptr"][row]
        # A token stays if its probability is at least that share of the likeliest one's.
        with np.errstate(invalid="ignore"):
            relative = np.exp(line.astype(np.float64) - float(line.max()))
        line[relative < share * (1 - 1e-7)] = -np.inf


def _penalties(draw: Draw) -> Example:
    memory, states = draw.memory, draw.integer(1, 3)
    vocabulary = draw.among(*_VOCABULARIES)
    lengths = [draw.integer(1, 4) for _ in range(draw.integer(1, 3))]
    requests = [draw.integer(0, states - 1) for _ in lengths]
    rows = sum(lengths)
    logits = logits_of(draw, rows, vocabulary)
    block = draw.among(32, 8192)
    words = -(-vocabulary // 32)
    mask = draw.rng.integers(-(2**31), 2**31, (states, words))
    counts = draw.rng.integers(0, 3, (states, vocabulary))
    gaps = draw.integer(0, 2), draw.integer(0, 2)
    return memory.example(
        {
            "logits_ptr": logits,
            "logits_stride": logits.stride[0],
            "expanded_idx_mapping_ptr": column(
                memory, "expanded_idx_mapping_ptr", np.repeat(requests, lengths)
            ),
            "token_ids_ptr": column(memory, "token_ids_ptr", draw.ids(rows, vocabulary)),
            "expanded_local_pos_ptr": column(
                memory, "expanded_local_pos_ptr", [at for n in lengths for at in range(n)]
            ),
            "repetition_penalty_ptr": column(
                memory,
                "repetition_penalty_ptr",
                draw.rng.choice([1.0, 1.3, 0.5], states),
                "float32",
            ),
            "frequency_penalty_ptr": column(
                memory,
                "frequency_penalty_ptr",
                draw.rng.choice([0.0, 0.5, -1.5], states),
                "float32",
            ),
            "presence_penalty_ptr": column(
                memory,
                "presence_penalty_ptr",
                draw.rng.choice([0.0, 0.25, -2.0], states),
                "float32",
            ),
            "prompt_bin_mask_ptr": memory.tensor("prompt_bin_mask_ptr", mask, "int32", gap=gaps[0]),
            "prompt_bin_mask_stride": words + gaps[0],
            "output_bin_counts_ptr": memory.tensor(
                "output_bin_counts_ptr", counts, "int32", gap=gaps[1]
            ),
            "output_bin_counts_stride": vocabulary + gaps[1],
            "vocab_size": vocabulary,
            "BLOCK_SIZE": block,
        },
        (rows, -(-vocabulary // block)),
    )


def _penalized(a: Arrays) -> None:
    for row, state in enumerate(a["expanded_idx_mapping_ptr"]):
        repetition = float(a["repetition_penalty_ptr"][state])
        frequency = float(a["frequency_penalty_ptr"][state])
        presence = float(a["presence_penalty_ptr"][state])
        if (repetition, frequency, presence) == (1.0, 0.0, 0.0):
            continue
        place = int(a["expanded_local_pos_ptr"][row])
        # The drafts that come before this row's place count as if they had been generated.
        drafts = [int(a["token_ids_ptr"][row - place + at + 1]) for at in range(place)]
        for token in range(a["vocab_size"]):
            count = int(a["output_bin_counts_ptr"][state, token]) + drafts.count(token)
            word = int(a["prompt_bin_mask_ptr"][state, token // 32])
            logit = float(a["logits_ptr"][row, token])
            if count or word >> (token % 32) & 1:
                logit = logit / repetition if logit > 0 else logit * repetition
            logit -= frequency * count + (presence if count else 0.0)
            a["logits_ptr"][row, token] = logit


def _bincount(draw: Draw) -> Example:
    memory, states = draw.memory, draw.integer(1, 4)
    vocabulary, longest = draw.among(*_VOCABULARIES), draw.among(1, 7, 40)
    prefill = draw.rng.integers(1, longest + 1, states)
    prompt = draw.rng.integers(1, prefill + 1)
    words = -(-vocabulary // 32)
    # No request is counted twice in a launch.
    rows = draw.rng.permutation(states)[: draw.integer(1, states)]
    block = draw.among(16, 1024)
    mask = draw.rng.integers(0, 2, (states, words))
    counts = draw.rng.integers(0, 3, (states, vocabulary))
    tokens = draw.ids(states * longest, vocabulary).reshape(states, longest)
    return memory.example(
        {
            "expanded_idx_mapping_ptr": column(memory, "expanded_idx_mapping_ptr", rows, "int64"),
            "all_token_ids_ptr": memory.tensor("all_token_ids_ptr", tokens, "int32"),
            "all_token_ids_stride": longest,
            "prompt_len_ptr": column(memory, "prompt_len_ptr", prompt),
            "prefill_len_ptr": column(memory, "prefill_len_ptr", prefill),
            "prompt_bin_mask_ptr": memory.tensor("prompt_bin_mask_ptr", mask, "int32"),
            "prompt_bin_mask_stride": words,
            "output_bin_counts_ptr": memory.tensor("output_bin_counts_ptr", counts, "int32"),
            "output_bin_counts_stride": vocabulary,
            "BLOCK_SIZE": block,
        },
        (len(rows), -(-int(prefill.max()) // block)),
    )


def _counted(a: Arrays) -> None:
    for state in a["expanded_idx_mapping_ptr"]:
        prompt, prefill = int(a["prompt_len_ptr"][state]), int(a["prefill_len_ptr"][state])
        for at, token in enumerate(a["all_token_ids_ptr"][state, :prefill]):
            if at < prompt:
                mask = a["prompt_bin_mask_ptr"].view(np.uint32)
                mask[state, token // 32] |= np.uint32(1 << int(token) % 32)
            else:
                a["output_bin_counts_ptr"][state, token] += 1


def _bias(draw: Draw) -> Example:
    memory, rows, states = draw.memory, draw.integer(1, 4), draw.integer(1, 3)
    vocabulary = draw.among(5, 33, 64)
    width = 8
    most = min(width, vocabulary)

    def different() -> np.ndarray:
        picked = [draw.rng.permutation(vocabulary)[:most] for _ in range(states)]
        ids = np.zeros((states, width), dtype=np.int64)
        ids[:, :most] = picked
        return ids

    mapping, stops = states_of(draw, rows, states), different()
    values = draw.rng.normal(size=(rows, vocabulary)) * 3
    for row, state in enumerate(mapping):
        if draw.flag():  # a grammar has left nothing but one of the tokens that stop
            values[row] = -np.inf
            values[row, stops[state, 0]] = 1.5
    gap = draw.integer(0, 3)
    logits = memory.tensor("logits_ptr", values, "float32", gap=gap)

    def numbers(name: str) -> Value:
        values = draw.rng.integers(0, most + 1, states) * draw.rng.integers(0, 2, states)
        return column(memory, name, values)

    arguments: dict[str, Value] = {
        "logits_ptr": logits,
        "logits_stride": logits.stride[0],
        "vocab_size": vocabulary,
        "expanded_idx_mapping_ptr": column(memory, "expanded_idx_mapping_ptr", mapping),
        "num_allowed_token_ids_ptr": numbers("num_allowed_token_ids_ptr"),
        "allowed_token_ids_ptr": memory.tensor("allowed_token_ids_ptr", different(), "int32"),
        "allowed_token_ids_stride": width,
        "num_logit_bias_ptr": numbers("num_logit_bias_ptr"),
        "bias_token_ids_ptr": memory.tensor("bias_token_ids_ptr", different(), "int32"),
        "bias_token_ids_stride": width,
        "bias_ptr": memory.tensor(
            "bias_ptr", draw.rng.choice([-100.0, -0.5, 0.25, 100.0], (states, width)), "float32"
        ),
        "bias_stride": width,
        "pos_ptr": column(memory, "pos_ptr", draw.rng.integers(0, 12, rows), "int64"),
        "min_lens_ptr": column(memory, "min_lens_ptr", draw.rng.integers(0, 12, states)),
        "num_stop_token_ids_ptr": numbers("num_stop_token_ids_ptr"),
        "restore_when_all_masked_ptr": column(
            memory, "restore_when_all_masked_ptr", draw.rng.integers(0, 2, states)
        ),
        "stop_token_ids_ptr": memory.tensor("stop_token_ids_ptr", stops, "int32"),
        "stop_token_ids_stride": width,
        "BLOCK_SIZE": width,
        "LOGITS_BLOCK_SIZE": draw.among(16, 8192),
        "CHECK_ALL_MASKED_ROWS": draw.flag(),
    }
    return memory.example({name: arguments[name] for name in draw.names}, (rows,))


def _biased(a: Arrays) -> None:
    for row, state in enumerate(a["expanded_idx_mapping_ptr"]):
        line = a["logits_ptr"][row]
        allowed = a["allowed_token_ids_ptr"][state, : a["num_allowed_token_ids_ptr"][state]]
        if len(allowed):
            line[[token for token in range(len(line)) if token not in set(allowed)]] = -np.inf
        for at in range(a["num_logit_bias_ptr"][state]):
            line[a["bias_token_ids_ptr"][state, at]] += a["bias_ptr"][state, at]
        stops = a["stop_token_ids_ptr"][state, : a["num_stop_token_ids_ptr"][state]]
        if len(stops) and a["pos_ptr"][row] + 1 < a["min_lens_ptr"][state]:
            before = line[stops].copy()
            line[stops] = -np.inf
            restore = a.get("CHECK_ALL_MASKED_ROWS") and a["restore_when_all_masked_ptr"][state]
            if restore and np.all(line == -np.inf):
                # A grammar that allows nothing but the stop is obeyed.
                finite = np.isfinite(before)
                line[stops[finite]] = before[finite]


def _bad_words(draw: Draw) -> Example:
    memory, states = draw.memory, draw.integer(1, 3)
    vocabulary, longest = 4, 12
    lengths = [draw.integer(1, 3) for _ in range(draw.integer(1, 3))]
    requests = [draw.integer(0, states - 1) for _ in lengths]
    rows = sum(lengths)
    logits = logits_of(draw, rows, vocabulary)
    words = draw.integer(1, 3)
    sizes = draw.rng.integers(1, 4, (states, words))
    offsets = np.concatenate([np.zeros((states, 1), dtype=np.int64), sizes.cumsum(1)], axis=1)
    ids = draw.rng.integers(0, vocabulary, (states, 3 * words))
    total = draw.rng.integers(1, longest + 1, states)
    prompt = draw.rng.integers(0, total + 1)
    tokens = draw.rng.integers(0, vocabulary, (states, longest))
    return memory.example(
        {
            "logits_ptr": logits,
            "logits_stride": logits.stride[0],
            "expanded_idx_mapping_ptr": column(
                memory, "expanded_idx_mapping_ptr", np.repeat(requests, lengths)
            ),
            "bad_word_token_ids_ptr": memory.tensor("bad_word_token_ids_ptr", ids, "int32"),
            "bad_word_token_ids_stride": 3 * words,
            "bad_word_offsets_ptr": memory.tensor("bad_word_offsets_ptr", offsets, "int32"),
            "bad_word_offsets_stride": words + 1,
            "num_bad_words_ptr": column(
                memory, "num_bad_words_ptr", draw.rng.integers(0, words + 1, states)
            ),
            "all_token_ids_ptr": memory.tensor("all_token_ids_ptr", tokens, "int32"),
            "all_token_ids_stride": longest,
            "prompt_len_ptr": column(memory, "prompt_len_ptr", prompt),
            "total_len_ptr": column(memory, "total_len_ptr", total),
            "input_ids_ptr": column(memory, "input_ids_ptr", draw.ids(rows + 1, vocabulary)),
            "expanded_local_pos_ptr": column(
                memory, "expanded_local_pos_ptr", [at for n in lengths for at in range(n)]
            ),
        },
        (rows, words),
    )


def _forbidden(a: Arrays) -> None:
    for row, state in enumerate(a["expanded_idx_mapping_ptr"]):
        place = int(a["expanded_local_pos_ptr"][row])
        first, after = int(a["prompt_len_ptr"][state]), int(a["total_len_ptr"][state])
        # What was generated, and the drafts before this row; the row's first id is in the former.
        written = list(a["all_token_ids_ptr"][state, first:after])
        written += list(a["input_ids_ptr"][row - place + 1 : row + 1])
        for word in range(a["num_bad_words_ptr"][state]):
            begin, end = a["bad_word_offsets_ptr"][state, word : word + 2]
            *prefix, last = a["bad_word_token_ids_ptr"][state, begin:end]
            if len(prefix) <= len(written) and written[len(written) - len(prefix) :] == prefix:
                a["logits_ptr"][row, last] = -np.inf


def _ranks(draw: Draw) -> Example:
    memory, rows = draw.memory, draw.integer(1, 5)
    vocabulary = draw.among(*_VOCABULARIES)
    values = np.round(draw.rng.normal(size=(rows, vocabulary)) * 2)  # with ties
    gap = draw.integer(0, 3)
    return memory.example(
        {
            "output_ptr": memory.output("output_ptr", rows, "int64"),
            "logits_ptr": memory.tensor("logits_ptr", values, "float32", gap=gap),
            "logits_stride": vocabulary + gap,
            "token_ids_ptr": column(memory, "token_ids_ptr", draw.ids(rows, vocabulary), "int64"),
            "vocab_size": vocabulary,
            "BLOCK_SIZE": draw.among(16, 8192),
        },
        (rows,),
    )


def _ranked(a: Arrays) -> None:
    for row, token in enumerate(a["token_ids_ptr"]):
        line = a["logits_ptr"][row]
        a["output_ptr"][row] = sum(1 for logit in line if logit >= line[token])


def _log_softmax(draw: Draw) -> Example:
    memory, rows = draw.memory, draw.integer(1, 4)
    vocabulary = draw.among(*_VOCABULARIES)
    logits = logits_of(draw, rows, vocabulary)
    top = draw.among(1, 3, 9)
    ids = draw.ids(rows * top, vocabulary).reshape(rows, top)
    arguments: dict[str, Value] = {
        "output_ptr": memory.output("output_ptr", (rows, top), "float32"),
        "logits_ptr": logits,
        "logits_stride": logits.stride[0],
        "topk_ids_ptr": memory.tensor("topk_ids_ptr", ids, "int64"),
        "topk_ids_stride": top,
        "topk": top,
        "vocab_size": vocabulary,
        "BLOCK_SIZE": draw.among(16, 1024),
        "TOPK_BLOCK_SIZE": draw.among(2, 16),
    }
    # Up to vLLM 0.30 the ids have no stride.
    return memory.example({name: arguments[name] for name in draw.names}, (rows,))


def _normalized(a: Arrays) -> None:
    for row, ids in enumerate(a["topk_ids_ptr"]):
        line = a["logits_ptr"][row].astype(np.float64)
        with np.errstate(all="ignore"):
            total = np.log(np.exp(line - line.max()).sum())
            a["output_ptr"][row] = line[ids] - line.max() - total


def _hash(seed: int, position: int, token: int, domain: int = 0) -> int:
    """MurmurHash3, 32 bits, of four 32-bit words: the seed's two, the position's, the token."""
    state = domain
    for word in (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, position & 0xFFFFFFFF, token):
        word = word * 0xCC9E2D51 & 0xFFFFFFFF
        word = (word << 15 | word >> 17) & 0xFFFFFFFF
        state ^= word * 0x1B873593 & 0xFFFFFFFF
        state = (state << 13 | state >> 19) & 0xFFFFFFFF
        state = state * 5 + 0xE6546B64 & 0xFFFFFFFF
    state ^= 16
    state = (state ^ state >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    state = (state ^ state >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return state ^ state >> 16


def _gumbel(draw: Draw) -> Example:
    memory, rows, states = draw.memory, draw.integer(1, 4), draw.integer(1, 3)
    vocabulary, block = draw.among(5, 33, 64), draw.among(16, 1024)
    logits = logits_of(draw, rows, vocabulary)
    blocks = -(-vocabulary // block)
    wide = draw.flag()
    mapping = states_of(draw, rows, states)
    temperatures = draw.rng.choice([0.0, 1.0, 0.5, 1.9], states)
    arguments: dict[str, Value] = {
        "local_argmax_ptr": memory.output("local_argmax_ptr", (rows, blocks), "int64"),
        "local_argmax_stride": blocks,
        "local_max_ptr": memory.output(
            "local_max_ptr", (rows, blocks), "float64" if wide else "float32"
        ),
        "local_max_stride": blocks,
        "logits_cache_ptr": None,
        "logits_cache_stride_0": 0,
        "logits_cache_stride_1": 0,
        "logits_cache_col_ptr": None,
        "logits_cache_source_ptr": None,
        "logits_cache_source_stride": 0,
        "logits_ptr": logits,
        "logits_stride": logits.stride[0],
        "expanded_idx_mapping_ptr": column(memory, "expanded_idx_mapping_ptr", mapping),
        "seeds_ptr": column(
            memory, "seeds_ptr", draw.rng.integers(-(2**63), 2**63 - 1, states), "int64"
        ),
        "pos_ptr": column(memory, "pos_ptr", draw.rng.integers(0, 2**20, rows), "int64"),
        "temp_ptr": column(memory, "temp_ptr", temperatures, "float32"),
        "vocab_size": vocabulary,
        "BLOCK_SIZE": block,
        "IS_DRAFTING": draw.flag(),
        "APPLY_TEMPERATURE": draw.flag(),
        "USE_FP64": wide,
        "PER_TOKEN_COL": False,
    }
    return memory.example({name: arguments[name] for name in draw.names}, (rows, blocks))


def _noised(a: Arrays) -> None:
    size = a["BLOCK_SIZE"]
    for row, state in enumerate(a["expanded_idx_mapping_ptr"]):
        temperature = float(a["temp_ptr"][state])
        position = int(a["pos_ptr"][row]) + (2**30 if a["IS_DRAFTING"] else 0)
        scores = a["logits_ptr"][row].astype(np.float64)
        if temperature:
            if a["APPLY_TEMPERATURE"]:
                scores = scores / temperature
            scores = scores + [
                _noise(int(a["seeds_ptr"][state]), position, token, wide=a["USE_FP64"])
                for token in range(a["vocab_size"])
            ]
        for block in range(a["local_max_ptr"].shape[1]):
            part = scores[block * size : (block + 1) * size]
            a["local_argmax_ptr"][row, block] = block * size + int(part.argmax())
            a["local_max_ptr"][row, block] = part.max()


def _noise(seed: int, position: int, token: int, *, wide: bool) -> float:
    """Gumbel noise, from a number in (0, 1): of 53 bits, or of 32 and mirrored."""
    low = _hash(seed, position, token)
    if wide:
        bits = (_hash(seed, position, token, 0x9E3779B9) << 32 | low) >> 11
        return float(-np.log(-np.log((bits + 0.5) * 2.0**-53)))
    return float(-np.log(-np.log1p(-(low + 0.5) * 2.0**-32)))


REFERENCES = (
    Reference(
        "triton:_temperature_kernel",
        f"{_SAMPLE}.gumbel:_temperature_kernel",
        _temperature,
        _divided,
        tolerance=1e-6,
    ),
    Reference(
        "triton:_min_p_kernel", f"{_SAMPLE}.min_p:_min_p_kernel", _min_p, _cut_off, tolerance=0.0
    ),
    Reference(
        "triton:_penalties_kernel",
        f"{_SAMPLE}.penalties:_penalties_kernel",
        _penalties,
        _penalized,
        tolerance=1e-5,
    ),
    Reference(
        "triton:_bincount_kernel", f"{_SAMPLE}.penalties:_bincount_kernel", _bincount, _counted
    ),
    Reference("triton:_bias_kernel", f"{_SAMPLE}.logit_bias:_bias_kernel", _bias, _biased),
    Reference(
        "triton:_bad_words_kernel", f"{_SAMPLE}.bad_words:_bad_words_kernel", _bad_words, _forbidden
    ),
    Reference(
        "triton:_ranks_kernel",
        f"{_SAMPLE}.logprob:_ranks_kernel",
        _ranks,
        _ranked,
        left_out=("tokens without any probability, among which the kernel counts its padding",),
    ),
    Reference(
        "triton:_topk_log_softmax_kernel",
        f"{_SAMPLE}.logprob:_topk_log_softmax_kernel",
        _log_softmax,
        _normalized,
        tolerance=1e-5,
    ),
    Reference(
        "triton:_gumbel_sample_kernel",
        f"{_SAMPLE}.gumbel:_gumbel_sample_kernel",
        _gumbel,
        _noised,
        tolerance=1e-4,
        left_out=("a cache of the draft model's logits",),
        versions=">=0.31",
    ),
)
