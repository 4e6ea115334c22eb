# SPDX-License-Identifier: MIT
"""The C interface of libattn as ctypes sees it. Made from include/attn.h by tools/make_python_abi.py: do not edit."""
import ctypes
from typing import Any

I32, I64, U32, U64 = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint64
F64, SIZE, INT, CHAR = ctypes.c_double, ctypes.c_size_t, ctypes.c_int, ctypes.c_char
PTR, TEXT, P = ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER

ATTN_OK = 0
ATTN_E_ABI = 100
ATTN_E_ARGUMENT = 101
ATTN_E_ENUM = 102
ATTN_E_EXTENT = 103
ATTN_E_HEADS = 104
ATTN_E_SCALE = 105
ATTN_E_SOFTCAP = 106
ATTN_E_SPARSE = 107
ATTN_E_FEATURE = 108
ATTN_E_TEXT = 109
ATTN_E_SHAPE = 120
ATTN_E_DTYPE = 121
ATTN_E_STRIDE = 122
ATTN_E_ALIGNMENT = 123
ATTN_E_BUFFER = 124
ATTN_E_TENSOR_DEVICE = 125
ATTN_E_OVERLAP = 126
ATTN_E_WORKSPACE = 130
ATTN_E_NO_KERNEL = 200
ATTN_E_NO_DEVICE = 201
ATTN_E_NO_DRIVER = 202
ATTN_E_MEMORY = 300
ATTN_E_THREAD = 301
ATTN_E_IO = 302
ATTN_E_LAUNCH = 400
ATTN_E_DEVICE_FAULT = 401
ATTN_E_INTERNAL = 500
ATTN_OP_NONE = 0
ATTN_OP_SDPA_FWD = 1
ATTN_OP_SDPA_BWD = 2
ATTN_OP_MLA_FWD = 3
ATTN_OP_MLA_BWD = 4
ATTN_OP_DIST = 5
ATTN_OP_MLA_JOIN = 6
ATTN_DTYPE_NONE = 0
ATTN_F32 = 1
ATTN_F16 = 2
ATTN_BF16 = 3
ATTN_F64 = 4
ATTN_I32 = 5
ATTN_I64 = 6
ATTN_BOOL = 7
ATTN_E4M3 = 8
ATTN_ALIBI_NONE = 0
ATTN_ALIBI_LINEAR = 1
ATTN_ALIBI_DISTANCE = 2
ATTN_DIST_SUM = 0
ATTN_DIST_MEAN = 1
ATTN_DIST_L1 = 2
ATTN_DEVICE_TYPE_CPU = 0
ATTN_DEVICE_TYPE_CUDA = 1
ATTN_ROLE_Q = 0
ATTN_ROLE_K = 1
ATTN_ROLE_V = 2
ATTN_ROLE_KV = 3
ATTN_ROLE_MASK = 4
ATTN_ROLE_ALIBI = 5
ATTN_ROLE_SINK = 6
ATTN_ROLE_SEQLENS_Q = 7
ATTN_ROLE_SEQLENS_K = 8
ATTN_ROLE_CU_SEQLENS_Q = 9
ATTN_ROLE_CU_SEQLENS_K = 10
ATTN_ROLE_BLOCK_TABLE = 11
ATTN_ROLE_INDICES = 12
ATTN_ROLE_TOPK_LENGTH = 13
ATTN_ROLE_OUT = 14
ATTN_ROLE_LSE = 15
ATTN_ROLE_LSE_ROUNDED = 16
ATTN_ROLE_MAX_LOGITS = 17
ATTN_ROLE_DIST = 18
ATTN_ROLE_DOUT = 19
ATTN_ROLE_DLSE = 20
ATTN_ROLE_DQ = 21
ATTN_ROLE_DK = 22
ATTN_ROLE_DV = 23
ATTN_ROLE_DKV = 24
ATTN_ROLE_DMASK = 25
ATTN_ROLE_DALIBI = 26
ATTN_ROLE_DSINK = 27
ATTN_ROLE_JOINED = 28
ATTN_ROLE_Q_SCALE = 29
ATTN_ROLE_K_SCALE = 30
ATTN_ROLE_V_SCALE = 31
ATTN_USE_NONE = 0
ATTN_USE_IN = 1
ATTN_USE_OUT = 2
ATTN_USE_OUT_OPTIONAL = 3
ATTN_USE_INOUT_OPTIONAL = 4
ATTN_LOG_OFF = 0
ATTN_LOG_WARN = 1
ATTN_LOG_INFO = 2
ATTN_LOG_DEBUG = 3
ATTN_BACKEND_ANY = 0
ATTN_BACKEND_REF = 1
ATTN_BACKEND_CPU = 2
ATTN_BACKEND_CUDA = 3
ATTN_EFFORT_ESTIMATE = 0
ATTN_EFFORT_MEASURE = 1
ATTN_STRUCT_ERROR = 1
ATTN_STRUCT_TENSOR = 2
ATTN_STRUCT_PROBLEM = 3
ATTN_STRUCT_ARGS = 4
ATTN_STRUCT_CTX_OPTIONS = 5
ATTN_STRUCT_DEVICE_INFO = 6
ATTN_STRUCT_PLAN_OPTIONS = 7
ATTN_STRUCT_PLAN_INFO = 8
ATTN_STRUCT_MERGE_ARGS = 9
ATTN_STRUCT_KERNEL_INFO = 10
ATTN_STRUCT_ENV_INFO = 11
ATTN_CAUSAL = 1
ATTN_BOTTOM_RIGHT = 2
ATTN_SCALE = 4
ATTN_WINDOW_LEFT = 8
ATTN_WINDOW_RIGHT = 16
ATTN_SINK = 32
ATTN_LSE_WITH_SINK = 64
ATTN_LSE_BASE_2 = 128
ATTN_LSE_EMPTY_PLUS_INF = 256
ATTN_DETERMINISTIC = 512
ATTN_SEQLENS_Q = 1024
ATTN_SEQLENS_K = 2048
ATTN_PACKED = 4096
ATTN_PAGED = 8192
ATTN_TOPK_LENGTH = 16384
ATTN_ACCUMULATE = 32768
ATTN_DLSE = 65536
ATTN_GRAD_MASK = 131072
ATTN_GRAD_ALIBI = 262144
ATTN_GRAD_SINK = 524288
ATTN_WITH_DIST = 1048576
ATTN_FILL_PADDING = 2097152
ATTN_MAX_LOGITS = 4194304
ATTN_MAX_RANK = 4
ATTN_PLAN_STRICT = 1
ATTN_PLAN_WORKSPACE_LIMIT = 2
ATTN_PLAN_NO_TUNING = 4
ATTN_PLAN_QUERIES_APART = 8


class attn_error(ctypes.Structure):
    _fields_ = [
        ("size", U32),
        ("status", I32),
        ("expected", I64),
        ("given", I64),
        ("argument", CHAR * 32),
    ]


class attn_device(ctypes.Structure):
    _fields_ = [
        ("type", I32),
        ("index", I32),
    ]


class attn_tensor(ctypes.Structure):
    _fields_ = [
        ("data", PTR),
        ("bytes", U64),
        ("device", attn_device),
        ("dtype", I32),
        ("rank", I32),
        ("shape", I64 * 4),
        ("strides", I64 * 4),
    ]


class attn_problem(ctypes.Structure):
    _fields_ = [
        ("size", U32),
        ("op", I32),
        ("flags", U64),
        ("dtype", I32),
        ("mask_dtype", I32),
        ("batch", I64),
        ("heads_q", I64),
        ("heads_k", I64),
        ("seq_q", I64),
        ("seq_k", I64),
        ("dim_qk", I64),
        ("dim_v", I64),
        ("topk", I64),
        ("scale", F64),
        ("softcap", F64),
        ("window_left", I64),
        ("window_right", I64),
        ("alibi", I32),
        ("dkv_dtype", I32),
        ("dist_norm", I32),
        ("out_dtype", I32),
        ("total_q", I64),
        ("total_k", I64),
        ("page_size", I64),
        ("n_pages", I64),
        ("max_pages", I64),
        ("q_start", I64),
        ("k_stride", I64),
        ("align_bytes", U32),
        ("reserved1", U32),
        ("group", I64),
        ("union_limit", I64),
    ]


class attn_args(ctypes.Structure):
    _fields_ = [
        ("size", U32),
        ("reserved0", U32),
        ("q", PTR),
        ("k", PTR),
        ("v", PTR),
        ("kv", PTR),
        ("mask", PTR),
        ("alibi", PTR),
        ("sink", PTR),
        ("seqlens_q", PTR),
        ("seqlens_k", PTR),
        ("cu_seqlens_q", PTR),
        ("cu_seqlens_k", PTR),
        ("block_table", PTR),
        ("indices", PTR),
        ("topk_length", PTR),
        ("out", PTR),
        ("lse", PTR),
        ("lse_rounded", PTR),
        ("max_logits", PTR),
        ("dist", PTR),
        ("dout", PTR),
        ("dlse", PTR),
        ("dq", PTR),
        ("dk", PTR),
        ("dv", PTR),
        ("dkv", PTR),
        ("dmask", PTR),
        ("dalibi", PTR),
        ("dsink", PTR),
        ("workspace", PTR),
        ("workspace_bytes", U64),
        ("stream", PTR),
        ("joined", PTR),
        ("q_scale", PTR),
        ("k_scale", PTR),
        ("v_scale", PTR),
    ]


class attn_ctx_options(ctypes.Structure):
    _fields_ = [
        ("size", U32),
        ("threads", I32),
        ("alloc", PTR),
        ("free", PTR),
        ("alloc_user", PTR),
        ("log", PTR),
        ("log_user", PTR),
        ("log_level", I32),
        ("reserved0", U32),
        ("cpu_isa", TEXT),
        ("cuda_driver", TEXT),
        ("tuning_file", TEXT),
        ("submit", PTR),
        ("wait", PTR),
        ("executor_user", PTR),
    ]


class attn_device_info(ctypes.Structure):
    _fields_ = [
        ("size", U32),
        ("device", attn_device),
        ("arch", I32),
        ("memory_bytes", U64),
        ("name", CHAR * 96),
        ("features", CHAR * 160),
    ]


class attn_plan_options(ctypes.Structure):
    _fields_ = [
        ("size", U32),
        ("flags", U32),
        ("backend", I32),
        ("effort", I32),
        ("kernel", TEXT),
        ("max_workspace_bytes", U64),
        ("threads", I32),
        ("reserved0", U32),
    ]


class attn_plan_info(ctypes.Structure):
    _fields_ = [
        ("size", U32),
        ("backend", I32),
        ("device", attn_device),
        ("op", I32),
        ("dtype", I32),
        ("math_dtype", I32),
        ("accumulator_dtype", I32),
        ("deterministic", I32),
        ("bit_stable", I32),
        ("tuned", I32),
        ("alignment_bytes", U32),
        ("workspace_bytes", U64),
        ("workspace_alignment", U64),
        ("flops", F64),
        ("estimate_seconds", F64),
        ("kernel", CHAR * 96),
        ("kernel_unaligned", CHAR * 96),
        ("arch", CHAR * 16),
        ("joins", I32),
        ("threads", I32),
        ("group", I64),
        ("union_limit", I64),
    ]


class attn_merge_args(ctypes.Structure):
    _fields_ = [
        ("size", U32),
        ("n_parts", I32),
        ("out_parts", PTR),
        ("lse_parts", PTR),
        ("out", PTR),
        ("lse", PTR),
        ("flags", U64),
        ("stream", PTR),
    ]


class attn_kernel_info(ctypes.Structure):
    _fields_ = [
        ("size", U32),
        ("op", I32),
        ("backend", I32),
        ("dtype", I32),
        ("math_dtype", I32),
        ("accumulator_dtype", I32),
        ("deterministic", I32),
        ("bit_stable", I32),
        ("alignment_bytes", U32),
        ("usable", I32),
        ("arch", CHAR * 16),
        ("name", CHAR * 96),
        ("summary", CHAR * 160),
    ]


class attn_env_info(ctypes.Structure):
    _fields_ = [
        ("size", U32),
        ("name", CHAR * 32),
        ("type", CHAR * 16),
        ("value", CHAR * 128),
        ("help", CHAR * 224),
    ]


# Members of attn_args that name tensors.
ROLES = (
    "q",
    "k",
    "v",
    "kv",
    "mask",
    "alibi",
    "sink",
    "seqlens_q",
    "seqlens_k",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "block_table",
    "indices",
    "topk_length",
    "out",
    "lse",
    "lse_rounded",
    "max_logits",
    "dist",
    "dout",
    "dlse",
    "dq",
    "dk",
    "dv",
    "dkv",
    "dmask",
    "dalibi",
    "dsink",
    "joined",
    "q_scale",
    "k_scale",
    "v_scale",
)

# Function: type of the result, types of the arguments.
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "attn_status_name": (TEXT, [I32]),
    "attn_status_text": (TEXT, [I32]),
    "attn_last_error": (TEXT, []),
    "attn_last_error_detail": (I32, [P(attn_error)]),
    "attn_version": (U32, []),
    "attn_dtype_name": (TEXT, [I32]),
    "attn_dtype_bytes": (SIZE, [I32]),
    "attn_convert": (I32, [PTR, I32, PTR, I32, SIZE]),
    "attn_tensor_contiguous": (I32, [P(attn_tensor), PTR, I32, I32, P(I64)]),
    "attn_problem_check": (I32, [P(attn_problem)]),
    "attn_problem_parse": (I32, [TEXT, P(attn_problem)]),
    "attn_problem_format": (I32, [P(attn_problem), TEXT, SIZE, P(SIZE)]),
    "attn_problem_hash": (U64, [P(attn_problem)]),
    "attn_problem_equal": (INT, [P(attn_problem), P(attn_problem)]),
    "attn_problem_flops": (F64, [P(attn_problem)]),
    "attn_problem_bytes": (F64, [P(attn_problem)]),
    "attn_role_name": (TEXT, [I32]),
    "attn_args_set": (I32, [P(attn_args), I32, P(attn_tensor)]),
    "attn_args_at": (PTR, [P(attn_args), I32]),
    "attn_role_tensor": (I32, [P(attn_problem), I32, P(I32), P(attn_tensor)]),
    "attn_ctx_create": (I32, [P(attn_ctx_options), P(PTR)]),
    "attn_ctx_retain": (PTR, [PTR]),
    "attn_ctx_release": (None, [PTR]),
    "attn_device_count": (I32, [PTR]),
    "attn_device_get_info": (I32, [PTR, I32, P(attn_device_info)]),
    "attn_cuda_status": (I32, [PTR]),
    "attn_memory_alloc": (I32, [PTR, attn_device, SIZE, P(PTR)]),
    "attn_memory_free": (None, [PTR, attn_device, PTR, SIZE]),
    "attn_memory_copy": (I32, [PTR, attn_device, PTR, attn_device, PTR, SIZE]),
    "attn_device_synchronize": (I32, [PTR, attn_device]),
    "attn_plan_create": (I32, [PTR, attn_device, P(attn_problem), P(attn_plan_options), P(PTR)]),
    "attn_plan_retain": (PTR, [PTR]),
    "attn_plan_release": (None, [PTR]),
    "attn_plan_get_info": (I32, [PTR, P(attn_plan_info)]),
    "attn_plan_get_problem": (I32, [PTR, P(attn_problem)]),
    "attn_explain": (I32, [PTR, attn_device, P(attn_problem), P(attn_plan_options), TEXT, SIZE, P(SIZE)]),
    "attn_plan_check": (I32, [PTR, P(attn_args)]),
    "attn_execute": (I32, [PTR, P(attn_args)]),
    "attn_run": (I32, [PTR, attn_device, P(attn_problem), P(attn_args)]),
    "attn_merge": (I32, [PTR, attn_device, P(attn_merge_args)]),
    "attn_tuning_save": (I32, [PTR, TEXT]),
    "attn_kernel_count": (I32, [PTR]),
    "attn_kernel_get_info": (I32, [PTR, I32, P(attn_kernel_info)]),
    "attn_kernel_supports": (I32, [PTR, attn_device, I32, P(attn_problem)]),
    "attn_env_count": (I32, []),
    "attn_env_get_info": (I32, [I32, P(attn_env_info)]),
    "attn_sizeof": (SIZE, [I32]),
    "attn_struct_init": (I32, [I32, PTR, SIZE]),
    "attn_struct_set_int": (I32, [I32, PTR, TEXT, I64]),
    "attn_struct_set_real": (I32, [I32, PTR, TEXT, F64]),
    "attn_struct_set_pointer": (I32, [I32, PTR, TEXT, PTR]),
    "attn_struct_get_int": (I32, [I32, PTR, TEXT, P(I64)]),
    "attn_struct_get_real": (I32, [I32, PTR, TEXT, P(F64)]),
    "attn_struct_get_text": (I32, [I32, PTR, TEXT, P(PTR)]),
}

VERSION = (0, 1, 0)
