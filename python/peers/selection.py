# SPDX-License-Identifier: MIT
"""Which cases of others' test suites run on libattn.compat, and why these: a list of facts, without their code.

A suite is one test file of a checkout. Its cases are chosen function by function: `values` names the values of a parameter
that stay (all of the others' stay), and of the combinations left one of `every` runs, chosen by a hash of its name. Functions
that take their sizes as arguments run with those of `calls`.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Cases(NamedTuple):
    """Cases of one test function."""

    function: str
    reason: str
    values: dict[str, list[Any]] = {}
    every: int = 1
    calls: tuple[dict[str, Any], ...] = ()


class Suite(NamedTuple):
    """One test file."""

    name: str
    checkout: str  # option that names the checkout
    file: str
    published: tuple[str, ...]  # names that libattn.compat installs, or its modules
    cases: tuple[Cases, ...]
    left_out: dict[str, str]  # function: why none of its cases runs
    form: str = "pytest"  # or "script": a list of cases under __main__; "calls": functions that are called
    paths: tuple[str, ...] = ()  # folders of the checkout in which the file finds its own helpers
    changes: dict[str, Any] = {}  # script: fields of a case that are set
    environment: dict[str, str] = {}
    constants: dict[str, Any] = {}  # names of the extension that the file reads
    stubs: dict[
        str, tuple[str, ...]
    ] = {}  # modules that need the originals' compiler, and names that the file takes of them
    served: dict[str, str] = {}  # modules of the checkout whose functions are ours: module of libattn.compat
    tilelang: bool = False  # imports the compiler of its kernels, which no case that runs here calls


_PAIRS = "seqlen_q,seqlen_k"
_WIDTHS = "multiples of 8 and of 16, an odd width, the widths that have kernels of their own"
_EVERY_OPTION = "each option with each other, at lengths that no tile divides"
_NO_DROPOUT = {"dropout_p": [0.0]}
_INSIDE = "calls functions inside the extension, which no drop-in has"

FLASH_ATTN_2 = Suite(
    "flash-attn 2",
    "flash_attention",
    "tests/test_flash_attn.py",
    ("flash_attn",),
    (
        Cases(
            "test_flash_attn_qkvpacked",
            _EVERY_OPTION,
            _NO_DROPOUT | {"d": [32, 59, 64, 111, 128, 192, 256], "seqlen": [97, 200, 1024]},
            3,
        ),
        Cases("test_flash_attn_qkvpacked", "dropout is refused", {"dropout_p": [0.17], "d": [64], "seqlen": [97]}, 4),
        Cases(
            "test_flash_attn_varlen_qkvpacked",
            _EVERY_OPTION,
            _NO_DROPOUT | {"d": [32, 59, 64, 128, 192, 256], "seqlen": [97, 257, 1025]},
            3,
        ),
        Cases(
            "test_flash_attn_output",
            _EVERY_OPTION + "; " + _WIDTHS,
            _NO_DROPOUT
            | {"d": [40, 59, 64, 96, 128, 192, 256], _PAIRS: [(113, 203), (108, 256), (512, 256), (1024, 1023)]},
            24,
        ),
        Cases(
            "test_flash_attn_varlen_output",
            _EVERY_OPTION + "; " + _WIDTHS,
            _NO_DROPOUT
            | {
                "d": [32, 59, 64, 96, 128, 192, 256],
                _PAIRS: [(1, 147), (113, 203), (108, 256), (512, 256), (1024, 1024)],
            },
            30,
        ),
        Cases("test_flash_attn_causal", "queries fewer and more than keys, with and without a window", {}, 4),
        Cases("test_flash_attn_varlen_causal", "the same on packed sequences, and on pages", {}, 10),
        Cases(
            "test_flash_attn_splitkv",
            "few queries on many keys",
            {_PAIRS: [(3, 1024), (1, 339), (64, 800), (64, 2048), (16, 20000), (256, 256)]},
            30,
        ),
        Cases(
            "test_flash_attn_kvcache",
            "appended rows, rotary embedding, pages, left padding; the number of splits is the library's",
            {"num_splits": [1], "d": [59, 64, 128, 256], _PAIRS: [(1, 128), (3, 1024), (64, 800), (128, 128)]},
            60,
        ),
        Cases(
            "test_flash_attn_race_condition",
            "250 runs with the same bits: a few, since each takes seconds",
            _NO_DROPOUT | {"d": [64, 128], _PAIRS: [(239, 1), (97, 97), (512, 512)]},
        ),
        Cases("test_flash_attn_bwd_overflow", "all"),
        Cases("test_flash_attn_bwd_transpose", "all"),
        Cases("test_flash_attn_bwd_varlen_overflow", "all"),
        Cases(
            "test_flash_attn_deterministic",
            "50 runs with the same bits",
            {"d": [59, 128], _PAIRS: [(3, 799), (256, 512)]},
            4,
        ),
        Cases(
            "test_flash_attn_varlen_deterministic",
            "50 runs with the same bits",
            {"d": [59, 128], _PAIRS: [(3, 799), (256, 512)]},
            4,
        ),
    ),
    {
        "test_flash_attn_varlen_paged_kv_num_splits": _INSIDE,
        "test_flash_attn_generator_arg_must_be_none": _INSIDE,
        "test_flash_attn_kvcache_paged_block_table_bounds": "expects a check of lengths on the host; libattn clamps them to the pages on the device and never waits for it",
    },
    constants={"USE_TRITON_ROCM": False},
)

_WIDE = {"dtype": ["torch.bfloat16", "torch.float16"]}
_E4M3 = {"dtype": ["torch.float8_e4m3fn"], "has_qv": [False]}
_E4M3_CACHE = {
    "dtype": ["torch.float8_e4m3fn"],
    "varlen_q": [False],
    "has_batch_idx": [False],
    "has_leftpad": [False],
    "rotary_fraction": [0.0],
    "rotary_interleaved": [False],
}
FLASH_ATTN_3 = Suite(
    "flash-attn 3",
    "flash_attention",
    "hopper/test_flash_attn.py",
    ("flash_attn", "flash_attn_interface"),
    (
        Cases("test_flash_attn_output", _EVERY_OPTION + "; values wider than keys", _WIDE | {"has_qv": [False]}, 14),
        Cases("test_flash_attn_output", "qv is refused", _WIDE | {"has_qv": [True], "d": [64], _PAIRS: [(113, 203)]}, 4),
        Cases(
            "test_flash_attn_output",
            "e4m3, at lengths whose chunk, which each case draws, holds all keys",
            _E4M3
            | {"d": [64, 96, 128], "softcap": [0.0], _PAIRS: [(64, 128), (113, 203), (256, 512), (1024, 1024)]},
            6,
        ),
        Cases(
            "test_flash_attn_output",
            "e4m3: softcap, chunks and wide heads, which are refused",
            _E4M3 | {"d": [64, 192], "mha_type": ["gqa"], _PAIRS: [(113, 203), (128, 192)]},
            4,
        ),
        Cases("test_flash_attn_varlen_output", _EVERY_OPTION + "; rows in use", _WIDE | {"has_qv": [False]}, 32),
        Cases(
            "test_flash_attn_varlen_output",
            "e4m3, at lengths for which no case draws a chunk",
            _E4M3 | {"d": [64, 128], "softcap": [0.0], _PAIRS: [(512, 256), (640, 128), (1024, 1023)]},
            12,
        ),
        Cases(
            "test_flash_attn_kvcache",
            "appended rows, rotary embedding, pages of 1, 4 and 128 rows, packed queries",
            _WIDE | {_PAIRS: [(1, 128), (3, 1024), (64, 800), (64, 256), (256, 512)]},
            120,
        ),
        Cases(
            "test_flash_attn_kvcache",
            "e4m3 with appended rows",
            _E4M3_CACHE | {"page_size": [None], _PAIRS: [(1, 128), (64, 256), (256, 512)]},
            12,
        ),
        Cases(
            "test_flash_attn_kvcache",
            "e4m3 on pages, which are refused",
            _E4M3_CACHE | {"page_size": [128], "mha_type": ["gqa"], _PAIRS: [(1, 128), (256, 512)]},
            3,
        ),
        Cases("test_flash_attn_cluster", "all"),
    ),
    {
        "test_flash_attn_race_condition": "takes 70 GiB of the GPU's memory for itself; version 2's has the same runs",
        "test_flash_attn_combine": "its merge of splits takes them in its kernels' own layout; libattn.merge is another call",
        "test_flash_attn_varlen_combine_linearize": "as test_flash_attn_combine",
        "test_flash3_bw_compatibility": "reads the schemas of the extension",
    },
    paths=("hopper",),
)

_COMPILER = "about the originals' compiler or its cache"
_BLACKWELL = "for kernels of the originals that only a B200 runs"
_ABSORBED = "qv, or indices beside dense keys: libattn.mla is another call"
FLASH_ATTN_4 = Suite(
    "flash-attn 4",
    "flash_attention",
    "tests/cute/test_flash_attn.py",
    ("flash_attn", "flash_attn.cute"),
    (
        Cases(
            "test_flash_attn_output",
            _EVERY_OPTION + "; windows that end before the diagonal, sinks",
            {
                _PAIRS: [
                    (1, 1),
                    (3, 3),
                    (64, 32),
                    (128, 192),
                    (239, 1),
                    (799, 3),
                    (113, 203),
                    (108, 256),
                    (384, 256),
                    (640, 128),
                    (1024, 1023),
                    (2048, 2048),
                ]
            },
            20,
        ),
        Cases(
            "test_flash_attn_varlen_output",
            _EVERY_OPTION + "; packed, and by rows in use; lengths of 0",
            {
                "unpad_q,unpad_kv": [(True, True), (False, False)],
                "d": [64, 128, 192],
                _PAIRS: [(511, 1), (3, 513), (113, 203), (108, 256), (307, 256), (1023, 1024)],
            },
            80,
        ),
        Cases(
            "test_flash_attn_varlen_output",
            "packed and padded sequences mixed have no gradients",
            {
                "unpad_q,unpad_kv": [(True, False), (False, True)],
                "d": [64],
                "varlen_mode": ["random"],
                _PAIRS: [(113, 203)],
            },
            80,
        ),
        Cases("test_flash_attn_kvcache", "pages of 1, 4 and 128 rows, packed queries, sinks", {}, 14),
        Cases("test_flash_attn_small_head_dim", "all"),
        Cases("test_flash_attn_learnable_sink_backward_dtype", "all"),
        Cases("test_flash_attn_varlen_learnable_sink_backward_with_lse", "all"),
        Cases("test_flash_attn_lse_grad", "all"),
        Cases("test_flash_attn_lse_grad_unused", "all"),
        Cases("test_flash_attn_seqlen_k_zero", "all"),
        Cases("test_flash_attn_empty_q_dense", "all"),
        Cases("test_flash_attn_empty_q_varlen", "all"),
    ),
    {
        "test_flash_attn_sm120_rejects_splitkv": _COMPILER,
        "test_flash_attn_cache_separates_broadcast_layouts": _COMPILER,
        "test_flash_attn_canonicalizes_unaligned_inputs": _BLACKWELL,
        "test_flash_attn_value_dim_larger_than_query_dim": _BLACKWELL,
        "test_flash_attn_paged_non_tma_partial_loader_tile": _BLACKWELL,
        "test_flash_attn_hd256_sm100_noncontiguous_transpose": _BLACKWELL,
        "test_flash_attn_varlen_cumsum_metadata_paths": "about the originals' schedules",
        "test_flash_attn_bwd_preallocated_outputs": _INSIDE,
        "test_flash_attn_fp8_paged_decode_tile_boundary": _INSIDE,
        "test_flash_attn_fp8_paged_decode_preserves_tail_mass": _INSIDE,
        "test_flash_attn_paged_deepseek": "demands the same bits of two memory orders of the keys, whose kernels differ here",
        "test_flash_attn_paged_hd256_sm100_tma": _BLACKWELL,
        "test_flash_attn_paged_hd256_sm100_tma_gqa": _BLACKWELL,
        "test_flash_attn_paged_hd256_sm100_tma_shuffled": _BLACKWELL,
        "test_flash_attn_invalid_head_dim": "demands a refusal of widths that libattn serves",
        "test_flash_attn_mla_absorbed": _ABSORBED,
        "test_flash_attn_mla_absorbed_varlen": _ABSORBED,
        "test_flash_attn_mla_sparse_bwd_sentinel": _ABSORBED,
        "test_flash_attn_mla_sparse_bwd_sentinel_varlen": _ABSORBED,
        "test_flash_attn_mla_paged": _BLACKWELL,
        "test_flash_attn_ex2_emu_decode_prefill_consistency": _BLACKWELL,
        "test_flash_attn_varlen_seqlen_k_per_split": "about the originals' splits",
    },
    stubs={"flash_attn.cute.cache_utils": ("JITCache",)},
)

FLASH_MLA_PREFILL = Suite(
    "FlashMLA prefill",
    "flash_mla",
    "tests/test_flash_mla_sparse_prefill.py",
    ("flash_mla",),
    (Cases("run_test", "all; times, which it looks up by its kernels' names, are not taken"),),
    {},
    "script",
    ("tests",),
    {"num_runs": 0},
)
FLASH_MLA_DENSE_DECODING = Suite(
    "FlashMLA dense decoding",
    "flash_mla",
    "tests/test_flash_mla_dense_decoding.py",
    ("flash_mla",),
    (
        Cases(
            "test_flash_mla",
            "every number of heads and queries on pages, lengths of 0 included; not those made for timing",
            {"test_performance": [False]},
            3,
        ),
    ),
    {},
    "script",
    ("tests",),
    {"test_performance": False},
)
FLASH_MLA_SPARSE_DECODING = Suite(
    "FlashMLA sparse decoding",
    "flash_mla",
    "tests/test_flash_mla_sparse_decoding.py",
    ("flash_mla",),
    (Cases("test_flash_mla", "one of many: caches of fp8 are refused", {"num_runs": [0]}, 400),),
    {},
    "script",
    ("tests",),
    {"num_runs": 0},
)

_HEADS = (8, 16, 32, 64, 128)
_SIZES = "every number of heads, one batch entry and two; slots that name no key"
TILELANG_V32 = Suite(
    "TileLang DeepSeek-V3.2",
    "tilelang",
    "examples/deepseek_v32/sparse_mla_bwd.py",
    ("libattn.compat.tilelang_v32",),
    (
        Cases(
            "sparse_mla_fwd.test_sparse_mla_fwd",
            _SIZES,
            calls=tuple(
                {"B": b, "S": s, "SKV": skv, "H": h, "topk": topk}
                for h in _HEADS
                for b, s, skv, topk in ((1, 256, 1024, 256), (2, 128, 256, 64))
            )
            + ({"S": 1024, "SKV": 2048, "H": 64, "topk": 512},),
        ),
        Cases(
            "sparse_mla_bwd.test_sparse_mla_bwd",
            _SIZES,
            calls=tuple(
                {"B": b, "S": s, "SKV": skv, "H": h, "topk": topk}
                for h in _HEADS
                for b, s, skv, topk in ((1, 256, 512, 256), (2, 128, 256, 64))
            ),
        ),
    ),
    {"sparse_mla_fwd_pipelined.test_sparse_mla_fwd_pipelined": "takes the compiled kernel itself, which no drop-in has"},
    "calls",
    ("examples/deepseek_v32",),
    served={"sparse_mla_fwd": "tilelang_v32", "sparse_mla_bwd": "tilelang_v32"},
    tilelang=True,
)
TILELANG_PACKED = Suite(
    "TileLang packed",
    "tilelang",
    "examples/dsa_sparse_finetune/sparse_mla_bwd.py",
    ("libattn.compat.tilelang_packed",),
    (
        Cases(
            "sparse_mla_fwd.test_sparse_mla_fwd",
            "every number of heads, two sequences",
            calls=tuple({"S": s, "H": h, "topk": topk} for h in _HEADS for s, topk in ((514, 128), (1024, 256))),
        ),
        Cases(
            "sparse_mla_bwd.test_sparse_mla_bwd",
            "every number of heads",
            calls=tuple({"S": 512, "H": h, "topk": 128} for h in _HEADS),
        ),
    ),
    {"sparse_mla_topk_reducesum.test_kernel": "prints its differences and judges none"},
    "calls",
    ("examples/dsa_sparse_finetune",),
    served={"sparse_mla_fwd": "tilelang_packed", "sparse_mla_bwd": "tilelang_packed"},
    tilelang=True,
)
_V4 = "miles_plugins.models.deepseek_v4.ops.kernel"
DEEPSEEK_V4 = Suite(
    "DeepSeek-V4",
    "miles",
    "tests/manual/models/deepseek_v4/test_v4_tilelang_sparse_mla.py",
    ("libattn.compat.deepseek_v4",),
    (
        Cases("test_sparse_mla_forward", "all"),
        Cases("test_attn_sink_modes", "all"),
        Cases("test_attn_sink_effect", "all"),
        Cases("test_sparse_mla_backward", "all"),
        Cases("test_partial_invalid_indices", "all"),
        Cases("test_diff_summary", "all"),
    ),
    {},
    served={f"{_V4}.{name}": "deepseek_v4" for name in ("tilelang_sparse_mla", "tilelang_sparse_mla_fwd")},
    tilelang=True,
)
SUITES = {
    suite.name: suite
    for suite in (
        FLASH_MLA_PREFILL,
        FLASH_MLA_DENSE_DECODING,
        FLASH_MLA_SPARSE_DECODING,
        FLASH_ATTN_2,
        FLASH_ATTN_3,
        FLASH_ATTN_4,
        TILELANG_V32,
        TILELANG_PACKED,
        DEEPSEEK_V4,
    )
}
