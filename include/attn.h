/* SPDX-License-Identifier: MIT
 *
 * attn.h - the public interface of libattn: fused attention, forward and backward, on CPU and NVIDIA GPUs.
 *
 * Six operators, one way to call them: describe the PROBLEM (plain struct), make a PLAN (the library
 * validates, chooses a kernel and says why), EXECUTE it with tensors as often as you like.
 *
 *     attn_problem p = ATTN_PROBLEM_INIT;          // everything zero = default
 *     p.op = ATTN_OP_SDPA_FWD;  p.dtype = ATTN_BF16;  p.flags = ATTN_CAUSAL;
 *     p.batch = 2;  p.heads_q = 16;  p.heads_k = 4;
 *     p.seq_q = p.seq_k = 1024;  p.dim_qk = p.dim_v = 128;
 *
 *     attn_plan *plan;
 *     if (attn_plan_create(ctx, ATTN_DEVICE_CPU, &p, NULL, &plan))  puts(attn_last_error());
 *
 *     attn_args a = ATTN_ARGS_INIT;  a.q = &q;  a.k = &k;  a.v = &v;  a.out = &out;  a.lse = &lse;
 *     a.workspace = ws;  a.workspace_bytes = ws_bytes;      // size from attn_plan_get_info()
 *     attn_execute(plan, &a);
 *
 * LETTERS used in every comment: B batch, HQ and HK query and key-value heads, SQ and SK query and key
 * lengths, D width of a query or key row, DV width of a value row, TOPK index slots of a sparse query.
 *
 * RULES that hold for every function
 *  - Fallible functions return attn_status, 0 on success. On failure nothing was started, outputs are
 *    untouched, and attn_last_error() (per thread) names the argument, what was expected and what was given.
 *  - The library never prints (unless ATTN_LOG, ATTN_EXPLAIN or ATTN_CHECK asks for it), aborts, exits or throws.
 *  - Structs that start with `size` may grow at the end in later versions. Fill `size` with sizeof; the
 *    INIT macros do. A shorter struct reads as if its missing tail were zero; a longer one is accepted
 *    while its unknown tail is zero, else ATTN_E_ABI. Zero always means "the default".
 *  - Input tensors are never written. All addressing is 64-bit.
 *  - Threads: ctx and plan objects may be used by any number of threads at once. Two executions that
 *    overlap in time need different workspaces. problem, tensor and args structs belong to the caller.
 *    After fork() the child may only release objects.
 *  - Floating point: plans and results do not depend on the rounding, flushing and traps that the caller has set;
 *    these and the exception flags are as before when the call returns. On the CPU subnormal operands count, but
 *    for bf16 products of avx512bf16 and amx; results below the smallest normal number may be 0.
 *    ATTN_CPU_SUBNORMALS=exact keeps them (docs/numerics.md).
 */
#ifndef ATTN_H
#define ATTN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 1
#define ATTN_VERSION_PATCH 0

#if defined(_WIN32)
#error "libattn supports POSIX systems"
#elif defined(__GNUC__)
#define ATTN_API __attribute__((visibility("default")))
#else
#define ATTN_API
#endif

/* ------------------------------------------------------------------ status and error text ---------- */

/* Result of a call. Values are frozen; a new reason gets a new value.
 * The hundreds tell who can mend it: 1xx the caller, 2xx nothing can serve this problem here,
 * 3xx a resource ran out, 4xx the device failed, 5xx a defect in libattn (please report). */
typedef int32_t attn_status;
enum {
    ATTN_OK = 0,

    ATTN_E_ABI = 100,        /* struct size or unknown non-zero tail: header and library do not match    */
    ATTN_E_ARGUMENT = 101,   /* NULL where a pointer is needed; a tensor is missing or not expected      */
    ATTN_E_ENUM = 102,       /* op, dtype, flag or another enumerated field is outside its range         */
    ATTN_E_EXTENT = 103,     /* an extent is negative or beyond what the operator defines                */
    ATTN_E_HEADS = 104,      /* heads_k <= 0, heads_k > heads_q or heads_q % heads_k != 0                */
    ATTN_E_SCALE = 105,      /* scale is NaN or infinite                                                 */
    ATTN_E_SOFTCAP = 106,    /* softcap is negative, NaN or infinite                                     */
    ATTN_E_SPARSE = 107,     /* topk, k_stride or q_start outside their range                            */
    ATTN_E_FEATURE = 108,    /* the operator does not have this feature (softcap on mla_fwd, say)        */
    ATTN_E_TEXT = 109,       /* a problem text could not be parsed                                       */
    ATTN_E_SHAPE = 120,      /* rank or an extent of a tensor                                            */
    ATTN_E_DTYPE = 121,      /* dtype of a tensor                                                        */
    ATTN_E_STRIDE = 122,     /* innermost stride is not 1, or an output's elements overlap               */
    ATTN_E_ALIGNMENT = 123,  /* address is not a multiple of the element size, or a promise was broken   */
    ATTN_E_BUFFER = 124,     /* the stated bytes of a tensor are fewer than its shape and strides need   */
    ATTN_E_TENSOR_DEVICE = 125, /* tensor lives on another device than the plan                          */
    ATTN_E_OVERLAP = 126,    /* an output shares memory with an input or with another output             */
    ATTN_E_WORKSPACE = 130,  /* workspace missing, too small or misaligned                               */

    ATTN_E_NO_KERNEL = 200,  /* every kernel refused; the text has one reason per kernel                 */
    ATTN_E_NO_DEVICE = 201,  /* no such device                                                           */
    ATTN_E_NO_DRIVER = 202,  /* the device's driver is absent or too old                                 */

    ATTN_E_MEMORY = 300,     /* an allocation failed                                                     */
    ATTN_E_THREAD = 301,     /* a thread could not be started                                            */
    ATTN_E_IO = 302,         /* a file (tuning file) could not be read or written                        */

    ATTN_E_LAUNCH = 400,     /* the device refused a launch                                              */
    ATTN_E_DEVICE_FAULT = 401, /* the device reported a fault of earlier work                            */

    ATTN_E_INTERNAL = 500    /* a check inside the library failed                                        */
};

/* attn_status_name - the constant's name, e.g. "ATTN_E_SHAPE"; "ATTN_E_?" for an unknown value.
 * attn_status_text - one sentence in English. Both return static strings. */
ATTN_API const char *attn_status_name(attn_status status);
ATTN_API const char *attn_status_text(attn_status status);

/* attn_last_error - text of the calling thread's last failed call; "" before the first.
 * Valid until the next failing call of this thread. Successful calls leave it as it is. */
ATTN_API const char *attn_last_error(void);

/* The same failure for programs. `argument` is the name of the struct member or parameter ("q", "scale",
 * "workspace"); `expected` and `given` are the two numbers of the text where both are integers (bytes for
 * BUFFER and WORKSPACE), else 0. */
typedef struct attn_error {
    uint32_t size; /* sizeof(attn_error), set by the caller */
    attn_status status;
    int64_t expected;
    int64_t given;
    char argument[32];
} attn_error;
ATTN_API attn_status attn_last_error_detail(attn_error *out);

/* attn_version - (major << 16) | (minor << 8) | patch of the library that runs. */
ATTN_API uint32_t attn_version(void);

/* ------------------------------------------------------------------ enumerations ------------------- */

/* Operators. Formulas: SDPA below at attn_problem; the full contract is docs/semantics.md. */
enum {
    ATTN_OP_NONE = 0,
    ATTN_OP_SDPA_FWD = 1, /* out = softmax(scale * Q K^T + bias) V, lse                                   */
    ATTN_OP_SDPA_BWD = 2, /* dq, dk, dv (and dmask, dalibi, dsink) from q k v out lse dout               */
    ATTN_OP_MLA_FWD = 3,  /* sparse multi-head latent attention over TOPK gathered rows                   */
    ATTN_OP_MLA_BWD = 4,  /* dq, dkv (and dsink, dist)                                                    */
    ATTN_OP_DIST = 5,     /* attention distribution summed over heads, [SQ, TOPK]                         */
    ATTN_OP_MLA_JOIN = 6, /* joined index lists of neighbouring queries, for sparse attention on shared keys */
    ATTN_OP_COUNT_ = 7
};

/* Element types. ATTN_BOOL is one byte per element, nonzero = true. ATTN_E4M3 is the 8-bit float e4m3fn (OCP FP8, 2023):
 * 4 exponent bits, 3 mantissa bits, largest 448, least 2^-9, no infinity, NaN 0x7f and 0xff. */
enum {
    ATTN_DTYPE_NONE = 0,
    ATTN_F32 = 1,
    ATTN_F16 = 2,
    ATTN_BF16 = 3,
    ATTN_F64 = 4,
    ATTN_I32 = 5,
    ATTN_I64 = 6,
    ATTN_BOOL = 7,
    ATTN_E4M3 = 8, /* of q, k, v of sdpa_fwd, with the scales q_scale, k_scale, v_scale */
    ATTN_DTYPE_COUNT_ = 9
};

/* ALiBi forms (Press et al. 2021). off is the diagonal offset, see ATTN_BOTTOM_RIGHT. */
enum {
    ATTN_ALIBI_NONE = 0,
    ATTN_ALIBI_LINEAR = 1,   /* score += slope * (j - (i + off))    */
    ATTN_ALIBI_DISTANCE = 2, /* score -= slope * |j - (i + off)|    */
    ATTN_ALIBI_COUNT_ = 3
};

/* Normalisation of the `dist` output. */
enum {
    ATTN_DIST_SUM = 0,  /* sum over heads                                        */
    ATTN_DIST_MEAN = 1, /* divided by HQ                                         */
    ATTN_DIST_L1 = 2,   /* each row divided by its sum; an empty row stays 0     */
    ATTN_DIST_COUNT_ = 3
};

/* attn_problem.flags. A bit that an operator does not define is refused (ATTN_E_FEATURE), never ignored. */
#define ATTN_CAUSAL             (UINT64_C(1) << 0)  /* hide keys past the diagonal                          */
#define ATTN_BOTTOM_RIGHT       (UINT64_C(1) << 1)  /* sdpa: diagonal offset off = SK - SQ (per sequence); else 0 */
#define ATTN_SCALE              (UINT64_C(1) << 2)  /* `scale` is set; else 1/sqrt(D)                       */
#define ATTN_WINDOW_LEFT        (UINT64_C(1) << 3)  /* sdpa: `window_left` is set; else unbounded           */
#define ATTN_WINDOW_RIGHT       (UINT64_C(1) << 4)  /* sdpa: `window_right` is set; else unbounded          */
#define ATTN_SINK               (UINT64_C(1) << 5)  /* `sink` tensor: one extra logit per head              */
#define ATTN_LSE_WITH_SINK      (UINT64_C(1) << 6)  /* sdpa: lse (written or read) includes the sink        */
#define ATTN_LSE_BASE_2         (UINT64_C(1) << 7)  /* lse and dlse are in base 2; else natural             */
#define ATTN_LSE_EMPTY_PLUS_INF (UINT64_C(1) << 8)  /* lse of an empty row is written +inf; else -inf       */
#define ATTN_DETERMINISTIC      (UINT64_C(1) << 9)  /* only kernels that are bit-equal from run to run      */
#define ATTN_SEQLENS_Q          (UINT64_C(1) << 10) /* sdpa: `seqlens_q` tensor                             */
#define ATTN_SEQLENS_K          (UINT64_C(1) << 11) /* sdpa: `seqlens_k` tensor                             */
#define ATTN_PACKED             (UINT64_C(1) << 12) /* sdpa: packed sequences, `cu_seqlens_q` and, unless paged, `cu_seqlens_k` */
#define ATTN_PAGED              (UINT64_C(1) << 13) /* sdpa_fwd: k and v are pools of pages, `block_table`  */
#define ATTN_TOPK_LENGTH        (UINT64_C(1) << 14) /* mla, dist, mla_join: `topk_length` tensor            */
#define ATTN_ACCUMULATE         (UINT64_C(1) << 15) /* mla_bwd: add to dkv instead of overwriting it        */
#define ATTN_DLSE               (UINT64_C(1) << 16) /* sdpa_bwd, mla_bwd: `dlse` tensor                     */
#define ATTN_GRAD_MASK          (UINT64_C(1) << 17) /* sdpa_bwd: `dmask` output                             */
#define ATTN_GRAD_ALIBI         (UINT64_C(1) << 18) /* sdpa_bwd: `dalibi` output                            */
#define ATTN_GRAD_SINK          (UINT64_C(1) << 19) /* sdpa_bwd, mla_bwd: `dsink` output                    */
#define ATTN_WITH_DIST          (UINT64_C(1) << 20) /* mla_bwd: `dist` output                               */
#define ATTN_FILL_PADDING       (UINT64_C(1) << 21) /* sdpa, packed: rows of no sequence are written as empty rows */
#define ATTN_MAX_LOGITS         (UINT64_C(1) << 22) /* sdpa_fwd: `max_logits` output (mla_fwd takes it without a flag) */
#define ATTN_FLAGS_ALL_         ((UINT64_C(1) << 23) - 1)

/* ------------------------------------------------------------------ devices and tensors ------------ */
enum { ATTN_DEVICE_TYPE_CPU = 0, ATTN_DEVICE_TYPE_CUDA = 1 };
typedef struct attn_device {
    int32_t type;  /* ATTN_DEVICE_TYPE_*                    */
    int32_t index; /* CUDA ordinal; 0 for the CPU           */
} attn_device;
#ifdef __cplusplus
#define ATTN_DEVICE_CPU (attn_device{ATTN_DEVICE_TYPE_CPU, 0})
#define ATTN_DEVICE_CUDA(i) (attn_device{ATTN_DEVICE_TYPE_CUDA, (i)})
#else
#define ATTN_DEVICE_CPU ((attn_device){ATTN_DEVICE_TYPE_CPU, 0})
#define ATTN_DEVICE_CUDA(i) ((attn_device){ATTN_DEVICE_TYPE_CUDA, (i)})
#endif

#define ATTN_MAX_RANK 4

/* A view of caller memory. Frozen layout; no size field.
 * Extents and strides are in elements; only [0, rank) is read. The innermost stride must be 1 (a mask may have 0; DOUT
 * may have 0 on every axis, as the gradient of a sum; one-number-per-row tensors LSE, LSE_ROUNDED, DLSE, MAX_LOGITS are
 * and the scales of e4m3 are free); outer strides are free, may be negative, and on an input may be 0 (broadcast).
 * Strides of extent-1 axes are ignored. A tensor with a zero extent needs no storage: data may be NULL. */
typedef struct attn_tensor {
    void *data;
    uint64_t bytes;       /* bytes of storage behind `data`; 0 = unknown, no size check                     */
    attn_device device;   /* where `data` lives; zero = CPU                                                 */
    int32_t dtype;        /* ATTN_F32 ...                                                                   */
    int32_t rank;
    int64_t shape[ATTN_MAX_RANK];
    int64_t strides[ATTN_MAX_RANK];
} attn_tensor;

/* attn_dtype_name - "f32", "bf16", ...; "?" if unknown.   attn_dtype_bytes - size of an element, 0 if unknown. */
ATTN_API const char *attn_dtype_name(int32_t dtype);
ATTN_API size_t attn_dtype_bytes(int32_t dtype);

/* attn_convert - convert n contiguous elements between f32, f16, bf16, f64 and e4m3, rounding to nearest even.
 * NaN stays NaN, overflow gives infinity; in e4m3, which has none, NaN (beyond 464, as in PyTorch and ml_dtypes). src and dst may be the same address when dst's element is not wider. */
ATTN_API attn_status attn_convert(void *dst, int32_t dst_dtype, const void *src, int32_t src_dtype, size_t n);

/* attn_tensor_contiguous - fill *out as a row-major view of `data` on the CPU, bytes computed. */
ATTN_API attn_status attn_tensor_contiguous(attn_tensor *out, void *data, int32_t dtype, int32_t rank,
                                            const int64_t *shape);

/* ------------------------------------------------------------------ problem ------------------------ */

/* attn_problem - what is to be computed. No pointers: it can be stored, hashed, printed and parsed.
 * The backward of a problem is the same struct with another op, so that the two cannot disagree.
 *
 * DENSE (sdpa_fwd, sdpa_bwd). Score of query i and key j of one head; off = 0, or SK - SQ with ATTN_BOTTOM_RIGHT:
 *   1. s = scale * (q_i . k_j)             2. s = softcap * tanh(s / softcap)      if softcap > 0
 *   3. s += ALiBi                          4. s += mask[b,h,i,j]                   additive, or boolean: 0 = hide
 *   5. s = -inf if causal and j > i + off, or j < i + off - window_left, or j > i + off + window_right
 *      (ends inclusive, each side independent; causal sets the right side to 0)
 *   P = softmax(s);  out = P V;  lse = ln(sum_j exp s).  Query head h reads key head h / (HQ/HK).
 *   A row with no visible key gives out = 0, lse = -inf, and zero gradients. Hidden keys are never mixed in.
 *   B, HQ or SQ = 0 succeeds and writes nothing but the zero gradients of keys without queries; SK = 0 gives empty rows.
 *
 * SPARSE (mla_fwd, mla_bwd, dist). kv holds one latent row per key, V is its first DV columns. Slot t of query i is
 *   valid iff  t < topk_length[i] (if given, clamped to 0..TOPK)  and  0 <= idx < SK  and, with ATTN_CAUSAL,
 *   q_start + i + 1 >= k_stride * (idx + 1).  Invalid slots may stand anywhere; duplicates count each time.
 *   D is 576 or 512, DV is 512.
 *
 * JOINED LISTS (mla_join). The same slots of `group` neighbouring queries of a batch as one list of entries: an entry is
 *   a key and a bit for each query of the group, a query's n-th use of a key takes the key's n-th entry, and each valid
 *   slot is exactly one bit. dtype is I32; HQ, HK, D and DV are 0. The format is docs/joined_lists.md.
 *   mla_fwd, mla_bwd and dist with `group` take them as the input JOINED, so that the steps of a training step share one
 *   tensor. It restates the lists: results are the same within the bounds, and kernels that keep queries apart do not
 *   read it. Its words are trusted as those of mla_join of the same SQ, SK, TOPK, group, causal rule, indices and
 *   lengths (union_limit is free); if they are not, results are undefined, as may be any memory access of theirs. */
typedef struct attn_problem {
    uint32_t size;  /* sizeof(attn_problem)                                                              */
    int32_t op;     /* ATTN_OP_*                                                                         */
    uint64_t flags; /* ATTN_CAUSAL | ...                                                                 */
    int32_t dtype;  /* of q, k, v, kv, out, dout and the gradients dq, dk, dv: F32, F16, BF16, F64 (no F64 for MLA);
                     * sdpa_fwd: E4M3, of q, k and v; mla_join: I32, of the lists                         */
    int32_t mask_dtype; /* sdpa: 0 = no mask; F32, F16, BF16 = additive; BOOL = keep where nonzero         */

    int64_t batch;   /* B (packed: number of sequences; MLA: 1 unless the tensors have a batch axis)      */
    int64_t heads_q; /* HQ. MLA: 1..128, or a multiple of 64                                              */
    int64_t heads_k; /* HK, divides HQ. MLA: 1                                                            */
    int64_t seq_q;   /* SQ (packed: an upper bound of the sequences' query lengths)                       */
    int64_t seq_k;   /* SK (packed, paged: an upper bound of the key lengths; MLA: rows of kv)            */
    int64_t dim_qk;  /* D, 0..512 (MLA: 576 or 512). 0 makes every product 0                               */
    int64_t dim_v;   /* DV, 0..512 (MLA: 512). 0 computes lse only                                         */
    int64_t topk;    /* sparse: TOPK >= 1                                                                 */

    double scale;         /* finite; 0 and negative are allowed. Read only with ATTN_SCALE                 */
    double softcap;       /* sdpa: > 0 caps the scores; 0 = off                                           */
    int64_t window_left;  /* read only with ATTN_WINDOW_LEFT; any value                                   */
    int64_t window_right; /* read only with ATTN_WINDOW_RIGHT; any value                                  */
    int32_t alibi;        /* sdpa: ATTN_ALIBI_*; not NONE needs the `alibi` tensor                        */
    int32_t dkv_dtype;    /* mla_bwd: dtype of dkv: 0 = as `dtype`, or F32                                */
    int32_t dist_norm;    /* dist, mla_bwd with dist: ATTN_DIST_*                                         */
    int32_t out_dtype;    /* sdpa_fwd, mla_fwd: dtype of out: 0 = as `dtype`, or F32 from F16 and BF16 inputs;
                           * from E4M3 inputs 0 = BF16, or F32                                                */

    int64_t total_q;   /* packed: rows of q, the last axis-S extent of q, out, lse                        */
    int64_t total_k;   /* packed: rows of k and v; 0 if these are paged                                   */
    int64_t page_size; /* paged: keys per page, >= 1                                                      */
    int64_t n_pages;   /* paged: pages in the pool                                                        */
    int64_t max_pages; /* paged: columns of block_table                                                   */

    int64_t q_start;  /* sparse causal: position of query 0, >= 0                                         */
    int64_t k_stride; /* sparse causal: tokens per key row, >= 1; 0 = 1                                   */

    uint32_t align_bytes; /* promise: every data address and outer stride is a multiple of this many bytes.
                           * 0 = no promise: a plan whose fastest kernel needs alignment keeps a second kernel for
                           * tensors that lack it. 16 = keep only the first, refuse other tensors. A power of two; concerns the
                           * tensors with rows of D or DV elements (q k v kv out dout dq dk dv dkv).          */
    uint32_t reserved1;   /* 0 */

    int64_t group;       /* mla_join: neighbouring queries that share a list: 2, 4, 8 or 16; group * topk <= 32768.
                          * mla_fwd, mla_bwd, dist: the same, of the input `joined`; 0 = there is none            */
    int64_t union_limit; /* mla_join: a group with more entries is left apart, its header says so; 0 = no limit   */
} attn_problem;

#ifdef __cplusplus
#define ATTN_PROBLEM_INIT attn_problem_init_()
static inline attn_problem attn_problem_init_() { attn_problem p = attn_problem(); p.size = sizeof p; return p; }
#else
#define ATTN_PROBLEM_INIT {.size = sizeof(attn_problem)}
#endif

/* attn_problem_check - everything that can be said without a device: struct size, enums, extents, scale, softcap,
 * heads, feature and operator fit. Returns ATTN_OK or the first 1xx fault in the order of the struct. */
ATTN_API attn_status attn_problem_check(const attn_problem *problem);

/* attn_problem_parse - read the one-line form, as printed by attn_problem_format:
 *     sdpa_fwd b=2 hq=16 hk=4 sq=1024 sk=1024 d=128 dv=128 bf16 causal left=255 softcap=30
 *     mla_bwd sq=4096 sk=8192 hq=128 d=576 dv=512 topk=2048 bf16 causal k_stride=4 dkv=f32 accumulate
 * Words may stand in any order after the operator. Left out: b=1, hk=hq (mla: 1), sk=sq, dv=d (mla: d=576 dv=512).
 * docs/problem-text.md lists every word. Returns ATTN_E_TEXT naming the word; *out is written only on success.
 * The result is not checked: call attn_problem_check. */
ATTN_API attn_status attn_problem_parse(const char *text, attn_problem *out);

/* attn_problem_format - write the one-line form (always parses back to an equal problem) with a final NUL.
 * *needed (may be NULL) receives the bytes wanted, the NUL included; a shorter buffer gets a cut text and
 * ATTN_E_ARGUMENT. buf may be NULL when bytes is 0. */
ATTN_API attn_status attn_problem_format(const attn_problem *problem, char *buf, size_t bytes, size_t *needed);

/* attn_problem_hash - 64-bit hash of the meaning: unread fields (scale without ATTN_SCALE) do not count.
 * attn_problem_equal - nonzero if both mean the same. */
ATTN_API uint64_t attn_problem_hash(const attn_problem *problem);
ATTN_API int attn_problem_equal(const attn_problem *a, const attn_problem *b);

/* attn_problem_flops - useful floating-point operations, by the usual count: sdpa forward 2*SQ*SK*(D+DV) per head, of
 * which causal and windows count only visible pairs; backward 2.5 times as in the literature (2*(3D+2DV) per pair);
 * MLA per slot: forward 2*(D+DV), backward 2*(3D+2DV), dist 2*D. Lengths on the device count as their bounds.
 * attn_problem_bytes - least traffic: every input read once, every output written once. */
ATTN_API double attn_problem_flops(const attn_problem *problem);
ATTN_API double attn_problem_bytes(const attn_problem *problem);

/* ------------------------------------------------------------------ arguments ---------------------- */

/* Every tensor that an operator can take, by role. Axes are logical; strides give any memory order, so a [B,S,H,D]
 * buffer is passed as shape [B,H,S,D] with its strides exchanged. "f32*" is f32, or f64 when the problem is f64.
 *
 *  role          shape (logical axes)                       dtype    where
 *  Q             [B,HQ,SQ,D]    packed [HQ,TOTALQ,D]        dtype    sdpa          mla, dist: [B,SQ,HQ,D]
 *  K, V with DV  [B,HK,SK,D]    packed [HK,TOTALK,D]        dtype    sdpa          paged: [PAGES,HK,PAGE,D]
 *  KV            [B,SK,1,D]                                 dtype    mla, dist
 *  OUT           [B,HQ,SQ,DV]   packed [HQ,TOTALQ,DV]       out_dtype  forward     mla: [B,SQ,HQ,DV]; backward: dtype
 *  LSE           [B,HQ,SQ]      packed [HQ,TOTALQ]          f32*     sdpa          mla, dist: [B,SQ,HQ]
 *  LSE_ROUNDED   as LSE                                     dtype    sdpa_fwd, optional second copy of lse; e4m3: bf16
 *  MASK          [B,HQ,SQ,SK], any axis may have stride 0   mask_dtype  sdpa
 *  ALIBI         [HQ] or [1,HQ] or [B,HQ]                   f32      sdpa, slopes
 *  SINK          [HQ]                                       f32      sdpa, mla
 *  SEQLENS_Q/_K  [B], clamped to 0..SQ / 0..SK              i32      sdpa; packed: at most the offsets' difference
 *  CU_SEQLENS_Q/_K [B+1], clamped to 0..TOTAL and to at least those before    i32    sdpa, packed (paged: _Q alone)
 *  BLOCK_TABLE   [B,MAX_PAGES]                              i32      sdpa_fwd, paged
 *  INDICES       [B,SQ,1,TOPK]                              i32      mla, dist, mla_join
 *  TOPK_LENGTH   [B,SQ]                                     i32      mla, dist, mla_join
 *  MAX_LOGITS    mla [B,SQ,HQ], sdpa as LSE                 f32*     mla_fwd, optional; sdpa_fwd with ATTN_MAX_LOGITS:
 *                                                                    a row's largest visible score, -inf if it has none
 *  DIST          [B,SQ,TOPK]                                f32      dist, mla_bwd with ATTN_WITH_DIST
 *  DOUT DLSE     as OUT, as LSE                             as those backward inputs
 *  DQ DK DV      as Q, K, V; each may be left out           dtype    backward outputs (mla: DQ)
 *  DKV           as KV; may be left out                     dkv_dtype  mla_bwd
 *  DMASK         [B,HQ,SQ,SK]; an axis of stride 0 is summed over  f32*  sdpa_bwd with ATTN_GRAD_MASK
 *  DALIBI        as ALIBI; shapes without a batch axis are summed over B   f32*  sdpa_bwd with ATTN_GRAD_ALIBI
 *  DSINK         [HQ], summed over B and SQ                 f32*     backward with ATTN_GRAD_SINK
 *  JOINED        [B,ceil(SQ/group),WORDS]                   i32      mla_join; input of mla, dist with `group`. WORDS
 *                                                                    follows from group and TOPK: attn_role_tensor
 *  Q_SCALE       [B,HQ]                                     f32      sdpa_fwd with e4m3. An element of q is worth its
 *  K_SCALE V_SCALE [B,HK]                                   f32      number times the scale of its sequence and head;
 *                                                                    any number; strides of 0: one for all heads or tensors
 *
 * MLA and dist tensors may omit the leading B axis when B is 1.
 * Rows past seqlens_q count as empty rows (out 0, lse -inf, gradients 0); keys past seqlens_k get zero gradients.
 * With ATTN_LSE_WITH_SINK the lse of an empty row inside its sequence is the sink; a row past seqlens_q has no sink.
 * Packed rows of no sequence are not read, and not written without ATTN_FILL_PADDING. A key outside the pool is hidden.
 * ATTN_PACKED with ATTN_PAGED, packed queries on paged keys: sequence b has the n queries of cu_seqlens_q and the first
 * seqlens_k[b] keys of its row of block_table, no cu_seqlens_k; the offset of ATTN_BOTTOM_RIGHT is seqlens_k[b] - n.
 * Outputs LSE (forward), LSE_ROUNDED, MAX_LOGITS and each of DQ, DK, DV, DKV may be NULL; every other role that the
 * problem asks for must be given, and a role that it does not ask for must be NULL. Without LSE and LSE_ROUNDED a
 * kernel may take a shorter way to OUT: within the same bound, in other last bits (docs/numerics.md). */
enum {
    ATTN_ROLE_Q, ATTN_ROLE_K, ATTN_ROLE_V, ATTN_ROLE_KV,
    ATTN_ROLE_MASK, ATTN_ROLE_ALIBI, ATTN_ROLE_SINK,
    ATTN_ROLE_SEQLENS_Q, ATTN_ROLE_SEQLENS_K, ATTN_ROLE_CU_SEQLENS_Q, ATTN_ROLE_CU_SEQLENS_K, ATTN_ROLE_BLOCK_TABLE,
    ATTN_ROLE_INDICES, ATTN_ROLE_TOPK_LENGTH,
    ATTN_ROLE_OUT, ATTN_ROLE_LSE, ATTN_ROLE_LSE_ROUNDED, ATTN_ROLE_MAX_LOGITS, ATTN_ROLE_DIST,
    ATTN_ROLE_DOUT, ATTN_ROLE_DLSE,
    ATTN_ROLE_DQ, ATTN_ROLE_DK, ATTN_ROLE_DV, ATTN_ROLE_DKV,
    ATTN_ROLE_DMASK, ATTN_ROLE_DALIBI, ATTN_ROLE_DSINK,
    ATTN_ROLE_JOINED,
    ATTN_ROLE_Q_SCALE, ATTN_ROLE_K_SCALE, ATTN_ROLE_V_SCALE,
    ATTN_ROLE_COUNT
};

/* How a problem uses a role. */
enum {
    ATTN_USE_NONE = 0,       /* must be NULL                     */
    ATTN_USE_IN = 1,         /* required input                   */
    ATTN_USE_OUT = 2,        /* required output                  */
    ATTN_USE_OUT_OPTIONAL = 3, /* output, may be NULL            */
    ATTN_USE_INOUT_OPTIONAL = 4 /* read and written (accumulate), may be NULL */
};

/* The tensors of one execution, by name, plus workspace and stream. Borrowed for the duration of the call
 * (the memory they point to: until the work is done). */
typedef struct attn_args {
    uint32_t size; /* sizeof(attn_args) */
    uint32_t reserved0;
    const attn_tensor *q, *k, *v, *kv;
    const attn_tensor *mask, *alibi, *sink;
    const attn_tensor *seqlens_q, *seqlens_k, *cu_seqlens_q, *cu_seqlens_k, *block_table;
    const attn_tensor *indices, *topk_length;
    const attn_tensor *out, *lse, *lse_rounded, *max_logits, *dist;
    const attn_tensor *dout, *dlse;
    const attn_tensor *dq, *dk, *dv, *dkv;
    const attn_tensor *dmask, *dalibi, *dsink;
    void *workspace;          /* at least attn_plan_info.workspace_bytes, on the plan's device; NULL if 0   */
    uint64_t workspace_bytes;
    void *stream;             /* CUDA plans: the CUstream; NULL = default stream. CPU plans: must be NULL   */
    const attn_tensor *joined;
    const attn_tensor *q_scale, *k_scale, *v_scale;
} attn_args;

#ifdef __cplusplus
#define ATTN_ARGS_INIT attn_args_init_()
static inline attn_args attn_args_init_() { attn_args a = attn_args(); a.size = sizeof a; return a; }
#else
#define ATTN_ARGS_INIT {.size = sizeof(attn_args)}
#endif

/* The args struct seen as an array, for bindings and generic tools.
 * attn_role_name   - member name in attn_args ("q", "cu_seqlens_k"); NULL if out of range.
 * attn_args_set    - store a tensor pointer by role.      attn_args_at - read it back (NULL if none).
 * attn_role_tensor - how `problem` uses `role` (ATTN_USE_*), returned in *use; unless NONE, *out (may be NULL) becomes the
 *                    row-major CPU view of the expected shape and dtype with data = NULL. */
ATTN_API const char *attn_role_name(int32_t role);
ATTN_API attn_status attn_args_set(attn_args *args, int32_t role, const attn_tensor *tensor);
ATTN_API const attn_tensor *attn_args_at(const attn_args *args, int32_t role);
ATTN_API attn_status attn_role_tensor(const attn_problem *problem, int32_t role, int32_t *use, attn_tensor *out);

/* ------------------------------------------------------------------ context ------------------------ */

/* attn_ctx - one library instance: devices, thread pool, driver, caches, tuning table, log sink. No globals are
 * shared between contexts except read-only CPU features and the environment. Reference counted. */
typedef struct attn_ctx attn_ctx;

enum { ATTN_LOG_OFF = 0, ATTN_LOG_WARN = 1, ATTN_LOG_INFO = 2, ATTN_LOG_DEBUG = 3 };

/* Log sink: called from any thread, also from pool threads; must not call back into the library.
 * area: "plan", "pool", "cuda", ...; text: one line without newline. */
typedef void (*attn_log_fn)(void *user, int32_t level, const char *area, const char *text);

/* Allocator for everything the library allocates (never during attn_execute). alloc returns memory aligned to
 * `alignment` (a power of two) or NULL; free receives what alloc returned and the same byte count. Any thread. */
typedef void *(*attn_alloc_fn)(void *user, size_t bytes, size_t alignment);
typedef void (*attn_free_fn)(void *user, void *memory, size_t bytes);

/* Executor: the caller's threads in place of the library's, which then starts none. An execution submits one group of
 * calls after the other, and works on the calling thread meanwhile.
 *   submit: may call run(task, i) for i = 1 .. n, once each, on any other threads, at once or later, in any order; returns
 *           a handle for wait. A call that is not made costs time alone, as its share of the work goes to the others.
 *   wait:   returns when every call that has begun has returned; none begins afterwards. The calling thread has done its
 *           part by then: calls that have not begun would find no work left, and need not be made.
 * Calls run in the floating-point mode of the execution and leave the thread's own. Any thread, several executions at a
 * time; must not call back into the library with the same context. */
typedef void (*attn_task_fn)(void *task, int32_t index);
typedef void *(*attn_submit_fn)(void *user, int32_t n, attn_task_fn run, void *task);
typedef void (*attn_wait_fn)(void *user, void *handle);

typedef struct attn_ctx_options {
    uint32_t size;         /* sizeof(attn_ctx_options)                                                   */
    int32_t threads;       /* CPU threads at most, the caller's included; 0 = ATTN_THREADS, else all that
                              affinity and control groups' quotas grant. An execution uses as many as its
                              work is worth: a short one runs on the calling thread alone              */
    attn_alloc_fn alloc;   /* NULL = the C library's; set both or none                                   */
    attn_free_fn free;
    void *alloc_user;
    attn_log_fn log;       /* NULL = standard error, and only at the level that ATTN_LOG asks for         */
    void *log_user;
    int32_t log_level;     /* ATTN_LOG_*, with `log` set; 0 = ATTN_LOG's level                            */
    uint32_t reserved0;    /* 0 */
    const char *cpu_isa;   /* cap on CPU features: "c", "avx2", "avx512", "avx512bf16", "amx"; NULL = ATTN_CPU */
    const char *cuda_driver; /* path of the driver library; NULL = ATTN_CUDA_DRIVER, else the system's     */
    const char *tuning_file; /* measured choices, read at creation; NULL = ATTN_TUNING, else none          */
    attn_submit_fn submit;   /* NULL = the library's own threads; set both or none                        */
    attn_wait_fn wait;
    void *executor_user;
} attn_ctx_options;

/* attn_ctx_create - *out receives a context with one reference. options may be NULL.
 * Returns ATTN_OK, _E_ABI, _E_ARGUMENT, _E_ENUM (unknown isa), _E_MEMORY, _E_IO (tuning file). */
ATTN_API attn_status attn_ctx_create(const attn_ctx_options *options, attn_ctx **out);
ATTN_API attn_ctx *attn_ctx_retain(attn_ctx *ctx);
ATTN_API void attn_ctx_release(attn_ctx *ctx); /* NULL is allowed */

/* Devices that this context can plan for. Index 0 is the CPU. */
typedef struct attn_device_info {
    uint32_t size;
    attn_device device;
    int32_t arch;           /* CUDA: 80, 90, 100, ...; CPU: 0                                               */
    uint64_t memory_bytes;  /* 0 = unknown                                                                 */
    char name[96];
    char features[160];     /* CPU: "avx2 fma f16c avx512f ..."; CUDA: "sm_90 132 SMs 227 KiB shared"       */
} attn_device_info;
ATTN_API int32_t attn_device_count(attn_ctx *ctx);
ATTN_API attn_status attn_device_get_info(attn_ctx *ctx, int32_t index, attn_device_info *out);

/* attn_cuda_status - why CUDA devices are absent: ATTN_OK if there is at least one, else ATTN_E_NO_DRIVER or
 * ATTN_E_NO_DEVICE with the reason in attn_last_error(). */
ATTN_API attn_status attn_cuda_status(attn_ctx *ctx);

/* Memory of a device, for programs that do not use its own runtime. Blocking and simple, not for inner loops.
 * alloc: *out receives `bytes` bytes aligned to 256 (NULL for 0 bytes).   free: with the same byte count; NULL is allowed.
 * copy:  between any two devices of the context; returns when the bytes have arrived.
 * attn_device_synchronize: waits for all work queued on the device; reports its faults (ATTN_E_DEVICE_FAULT).
 * Return ATTN_OK, _E_ARGUMENT, _E_NO_DEVICE, _E_MEMORY, _E_DEVICE_FAULT. */
ATTN_API attn_status attn_memory_alloc(attn_ctx *ctx, attn_device device, size_t bytes, void **out);
ATTN_API void attn_memory_free(attn_ctx *ctx, attn_device device, void *memory, size_t bytes);
ATTN_API attn_status attn_memory_copy(attn_ctx *ctx, attn_device dst_device, void *dst, attn_device src_device,
                                      const void *src, size_t bytes);
ATTN_API attn_status attn_device_synchronize(attn_ctx *ctx, attn_device device);

/* ------------------------------------------------------------------ plan --------------------------- */

/* attn_plan - a chosen kernel with everything it needs; immutable, reference counted, keeps its ctx alive. */
typedef struct attn_plan attn_plan;

enum { ATTN_BACKEND_ANY = 0, ATTN_BACKEND_REF = 1, ATTN_BACKEND_CPU = 2, ATTN_BACKEND_CUDA = 3, ATTN_BACKEND_COUNT_ = 4 };
enum { ATTN_EFFORT_ESTIMATE = 0, ATTN_EFFORT_MEASURE = 1, ATTN_EFFORT_COUNT_ = 2 };

#define ATTN_PLAN_STRICT          (UINT32_C(1) << 0) /* a preference that cannot be met is an error, not a hint   */
#define ATTN_PLAN_WORKSPACE_LIMIT (UINT32_C(1) << 1) /* max_workspace_bytes is set (0 then means: none at all)    */
#define ATTN_PLAN_NO_TUNING       (UINT32_C(1) << 2) /* ignore the tuning table                                   */
#define ATTN_PLAN_QUERIES_APART   (UINT32_C(1) << 3) /* sparse: no kernel that joins the index lists of neighbouring
                                                      * queries; a row's bits depend on that row alone            */

typedef struct attn_plan_options {
    uint32_t size;
    uint32_t flags;     /* ATTN_PLAN_*                                                                       */
    int32_t backend;    /* preferred ATTN_BACKEND_*; the choice is visible in attn_plan_info                  */
    int32_t effort;     /* MEASURE times the accepted kernels once on scratch tensors and remembers the winner */
    const char *kernel; /* preferred kernels: name pattern with * and ?, e.g. "*_avx2_*"; NULL = ATTN_KERNEL    */
    uint64_t max_workspace_bytes; /* kernels that need more are refused                                       */
    int32_t threads;              /* CPU threads of an execution at most; 0 = the context's, which bounds it   */
    uint32_t reserved0;           /* 0 */
} attn_plan_options;

/* attn_plan_create - validate, walk the ordered kernel list, keep the best kernel that accepts the problem.
 * All one-time set-up (threads, modules, function attributes) happens here, never in attn_execute.
 * Without a preference ref kernels are taken only when every other kernel refuses.
 * options may be NULL. Returns ATTN_OK; any 1xx of attn_problem_check; _E_NO_DEVICE; _E_NO_KERNEL with the reasons of
 * every kernel of the operator in attn_last_error(); _E_MEMORY; _E_THREAD (the pool could not be started); _E_NO_DRIVER
 * or _E_DEVICE_FAULT (the GPU's driver cannot load the kernel). */
ATTN_API attn_status attn_plan_create(attn_ctx *ctx, attn_device device, const attn_problem *problem,
                                      const attn_plan_options *options, attn_plan **out);
ATTN_API attn_plan *attn_plan_retain(attn_plan *plan);
ATTN_API void attn_plan_release(attn_plan *plan); /* NULL is allowed */

typedef struct attn_plan_info {
    uint32_t size;
    int32_t backend;           /* ATTN_BACKEND_* of the chosen kernel                                        */
    attn_device device;
    int32_t op;
    int32_t dtype;             /* element type of the tensors                                               */
    int32_t math_dtype;        /* type the products are formed in                                           */
    int32_t accumulator_dtype; /* type sums are kept in                                                     */
    int32_t deterministic;     /* 1: bit-equal from run to run on the same device                           */
    int32_t bit_stable;        /* 1: the same bits for any number of threads, too                            */
    int32_t tuned;             /* 1: chosen by a measurement                                                 */
    uint32_t alignment_bytes;  /* addresses and outer strides `kernel` needs; element size = any tensor       */
    uint64_t workspace_bytes;
    uint64_t workspace_alignment;
    double flops;              /* attn_problem_flops                                                        */
    double estimate_seconds;   /* the ranking's estimate, a rough figure; with `tuned` what was measured        */
    char kernel[96];           /* "attn_sdpa_fwd_avx512_bf16_any"                                            */
    char kernel_unaligned[96]; /* used for tensors that lack alignment_bytes; "" if never needed              */
    char arch[16];             /* "ref", "c", "avx2", "avx512", "amx", "sm80", ...                           */
    int32_t joins;             /* 1: joins the index lists of neighbouring queries: a row's last bits depend on theirs */
    int32_t threads;           /* CPU threads of an execution at most; 0 = the plan is for another device      */
    int64_t group;             /* with `joins`: neighbouring queries whose lists it joins, else 0; as attn_problem.group it
                                * makes the problem of mla_join, and those that take its lists                */
    int64_t union_limit;       /* with `joins`, of lists that it joins itself: a group whose union has more entries is
                                * left apart; 0 = none is. As attn_problem.union_limit it has mla_join do so           */
} attn_plan_info;
ATTN_API attn_status attn_plan_get_info(const attn_plan *plan, attn_plan_info *out);
ATTN_API attn_status attn_plan_get_problem(const attn_plan *plan, attn_problem *out);

/* attn_explain - the choice in words: one line per kernel of the operator with `accepted` and its estimate, or the
 * reason of its refusal; the chosen one is marked `>`. Works also when no kernel accepts or the problem is bad (then the
 * text says so and the return is still ATTN_OK). Buffer rules as attn_problem_format. */
ATTN_API attn_status attn_explain(attn_ctx *ctx, attn_device device, const attn_problem *problem,
                                  const attn_plan_options *options, char *buf, size_t bytes, size_t *needed);

/* attn_plan_check - validate args against the plan without running: presence, dtype, rank, shape, strides, buffer bytes,
 * alignment, device, overlap of outputs, workspace. Returns ATTN_OK or the first fault. */
ATTN_API attn_status attn_plan_check(const attn_plan *plan, const attn_args *args);

/* attn_execute - run a plan once; validates like attn_plan_check first.
 *
 * plan  immutable; many threads may execute it at once with different workspaces.
 * args  tensors with the shapes of the problem; strides and addresses are free from call to call.
 *       The workspace's contents are ignored on entry and undefined on return.
 *
 * CPU plans return when the result is written. CUDA plans return when the work is queued on args->stream, are safe
 * under stream capture, and report device faults at a later synchronising call (at once with ATTN_SYNC=1).
 * Never allocates; from its third execution on, a CUDA plan of several kernels may have the driver make graphs of them,
 * which the plan keeps (ATTN_CUDA_GRAPHS=0: never). Returns ATTN_OK, a 1xx fault of args, _E_LAUNCH, _E_DEVICE_FAULT
 * (earlier work on the device failed, or with ATTN_SYNC=1 this one). */
ATTN_API attn_status attn_execute(const attn_plan *plan, const attn_args *args);

/* attn_run - one-shot tier: plan from the context's cache (or a new one), workspace from its allocator, execute.
 * For CUDA the workspace is kept per stream; a stream that records a graph is refused if the plan needs one (the graph
 * would outlive it). args->workspace is ignored. May allocate. */
ATTN_API attn_status attn_run(attn_ctx *ctx, attn_device device, const attn_problem *problem, const attn_args *args);

/* attn_merge - attention over the keys of all parts from the results over each: splits of a context, a shared prefix
 * (cascades), steps of a ring. Part i is out_i and lse_i of the same rows over keys of its own, without a sink:
 *     m = max lse_i     w_i = exp(lse_i - m)     out = sum_i w_i out_i / sum_i w_i     lse = m + ln sum_i w_i
 * A row of a part with lse -inf or +inf is empty there: its out is not read. A row that is empty in every part is an empty
 * row: out 0, lse -inf. A NaN in lse makes the row NaN. A sink is one more part: out 0, lse the sink.
 * Any part's out and lse may be those of the result (same address, dtype and strides), as the running result of a ring;
 * other overlap is refused. CUDA: up to 32 parts (else ATTN_E_NO_KERNEL), queued on args->stream, may be captured. Only a
 * context's first call allocates. Returns ATTN_OK, a 1xx fault, _E_NO_DEVICE, _E_NO_KERNEL, _E_THREAD, _E_LAUNCH. */
typedef struct attn_merge_args {
    uint32_t size;                       /* sizeof(attn_merge_args)                                          */
    int32_t n_parts;                     /* >= 1                                                             */
    const attn_tensor *const *out_parts; /* [n_parts] the shape of out, each F32, F16, BF16 or F64; NULL if out is */
    const attn_tensor *const *lse_parts; /* [n_parts] the shape of lse, each F32 or F64                       */
    const attn_tensor *out;              /* [.., DV] of rank 2 to 4, F32, F16, BF16 or F64; NULL = lse alone  */
    const attn_tensor *lse;              /* out without its last axis, F32 or F64; NULL = out alone           */
    uint64_t flags;                      /* ATTN_LSE_BASE_2, of every lse; ATTN_LSE_EMPTY_PLUS_INF            */
    void *stream;                        /* CUDA: CUstream, NULL = the default stream. CPU: NULL              */
} attn_merge_args;
ATTN_API attn_status attn_merge(attn_ctx *ctx, attn_device device, const attn_merge_args *args);

/* attn_tuning_save - write the context's measured choices to a file that attn_ctx_options.tuning_file reads. */
ATTN_API attn_status attn_tuning_save(attn_ctx *ctx, const char *path);

/* ------------------------------------------------------------------ listings ----------------------- */

/* Every kernel in this build, in the order plans consider them. */
typedef struct attn_kernel_info {
    uint32_t size;
    int32_t op;
    int32_t backend;
    int32_t dtype;
    int32_t math_dtype;
    int32_t accumulator_dtype;
    int32_t deterministic;
    int32_t bit_stable;
    uint32_t alignment_bytes;
    int32_t usable;        /* 1: this context has a device that can run it */
    char arch[16];
    char name[96];
    char summary[160];     /* limits in words: "any D and DV to 512, all features" */
} attn_kernel_info;
ATTN_API int32_t attn_kernel_count(attn_ctx *ctx);
ATTN_API attn_status attn_kernel_get_info(attn_ctx *ctx, int32_t index, attn_kernel_info *out);

/* attn_kernel_supports - ATTN_OK if the kernel would accept the problem on the device, else ATTN_E_NO_KERNEL with the
 * reason in attn_last_error(). */
ATTN_API attn_status attn_kernel_supports(attn_ctx *ctx, attn_device device, int32_t index, const attn_problem *problem);

/* The environment variables the library reads (once, at attn_ctx_create). */
typedef struct attn_env_info {
    uint32_t size;
    char name[32];
    char type[16];          /* "level", "int", "text", "path", "bool" */
    char value[128];        /* current value, "" if unset             */
    char help[224];
} attn_env_info;
ATTN_API int32_t attn_env_count(void);
ATTN_API attn_status attn_env_get_info(int32_t index, attn_env_info *out);

/* ------------------------------------------------------------------ structs by call ---------------- */

/* For bindings that do not read this header: sizes, defaults and members of its structs, by the library that runs.
 * attn_sizeof       - bytes of a struct, ATTN_STRUCT_*; 0 if unknown.
 * attn_struct_init  - what its INIT macro does: all zero, `size` set. `bytes`: room at `object`, attn_sizeof or more.
 * attn_struct_set_* - store a member by name, "seq_q"; elements and members of members as in C, "shape[2]", "device.index".
 *                     int: members of every integer type, whose range is checked. pointer: also strings and functions,
 *                     which are stored, not copied.
 * attn_struct_get_* - read it back. text: strings, and arrays of char, which stay the struct's.
 * Return ATTN_OK; ATTN_E_ENUM: no such struct; ATTN_E_ARGUMENT: no such member, or one of another type (the text has the
 * nearest name); ATTN_E_EXTENT: the value does not fit; ATTN_E_ABI: the struct's `size` ends before the member. */
enum {
    ATTN_STRUCT_ERROR = 1, ATTN_STRUCT_TENSOR = 2, ATTN_STRUCT_PROBLEM = 3, ATTN_STRUCT_ARGS = 4,
    ATTN_STRUCT_CTX_OPTIONS = 5, ATTN_STRUCT_DEVICE_INFO = 6, ATTN_STRUCT_PLAN_OPTIONS = 7, ATTN_STRUCT_PLAN_INFO = 8,
    ATTN_STRUCT_MERGE_ARGS = 9, ATTN_STRUCT_KERNEL_INFO = 10, ATTN_STRUCT_ENV_INFO = 11, ATTN_STRUCT_COUNT_ = 12
};
ATTN_API size_t attn_sizeof(int32_t kind);
ATTN_API attn_status attn_struct_init(int32_t kind, void *object, size_t bytes);
ATTN_API attn_status attn_struct_set_int(int32_t kind, void *object, const char *member, int64_t value);
ATTN_API attn_status attn_struct_set_real(int32_t kind, void *object, const char *member, double value);
ATTN_API attn_status attn_struct_set_pointer(int32_t kind, void *object, const char *member, const void *value);
ATTN_API attn_status attn_struct_get_int(int32_t kind, const void *object, const char *member, int64_t *out);
ATTN_API attn_status attn_struct_get_real(int32_t kind, const void *object, const char *member, double *out);
ATTN_API attn_status attn_struct_get_text(int32_t kind, const void *object, const char *member, const char **out);

#ifdef __cplusplus
}
#endif
#endif /* ATTN_H */
