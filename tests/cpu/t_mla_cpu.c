/* SPDX-License-Identifier: MIT
 * The blocked MLA kernels (mla_fwd, mla_bwd, dist) through the public API against the reference kernels: random
 * problems with every feature, index lists of every bad kind, odd strides, poisoned workspaces and guarded outputs; any
 * number of threads must give the same bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn.h"
#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ random numbers ------------------ */

static uint64_t state;
static uint64_t next_u64(void) { /* splitmix64 */
    uint64_t z = (state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}
static int64_t below(int64_t n) { return (int64_t)(next_u64() % (uint64_t)n); }
static int one_in(int64_t n) { return below(n) == 0; }
static double normal(void) { /* sum of uniforms: variance 1, no tails */
    double x = 0;
    for (int k = 0; k < 4; ++k) x += (double)(next_u64() >> 11) * 0x1p-53;
    return (x - 2) * 1.7320508;
}

/* ------------------------------------------------------------------ tensors ------------------------- */

enum { GUARD = 64, FILL = 0xa5 };
struct block { /* a tensor in a guarded allocation */
    attn_tensor t;
    unsigned char *memory;
    size_t bytes;
};

static size_t elements(const attn_tensor *t) {
    size_t n = 1;
    for (int32_t a = 0; a < t->rank; ++a) n *= (size_t)t->shape[a];
    return n;
}
/* Offset in elements of the n-th element in row-major order. */
static int64_t offset_of(const attn_tensor *t, size_t n) {
    int64_t offset = 0;
    uint32_t left = (uint32_t)n; /* the tests' tensors are small, and 64-bit divisions slow */
    for (int32_t a = t->rank - 1; a >= 0; --a) {
        offset += (int64_t)(left % (uint32_t)t->shape[a]) * t->strides[a];
        left /= (uint32_t)t->shape[a];
    }
    return offset;
}
static double get(const attn_tensor *t, size_t n) {
    if (t->dtype == ATTN_I32) return ((const int32_t *)t->data)[offset_of(t, n)];
    return attn_num_load(t->data, t->dtype, offset_of(t, n));
}
static void put(const attn_tensor *t, size_t n, double x) {
    if (t->dtype == ATTN_I32)
        ((int32_t *)t->data)[offset_of(t, n)] = (int32_t)x;
    else
        attn_num_store(t->data, t->dtype, offset_of(t, n), x);
}

/* Memory for a tensor of the expected shape: outer axes in random order, padded rows, unaligned start. */
static void make_block(struct block *b, const attn_tensor *shape) {
    b->t = *shape;
    int32_t order[ATTN_MAX_RANK];
    for (int32_t a = 0; a < b->t.rank; ++a) order[a] = a;
    for (int32_t a = b->t.rank - 2; a > 0; --a) {
        int32_t other = (int32_t)below(a + 1), swap = order[a];
        order[a] = order[other], order[other] = swap;
    }
    int64_t stride = 1;
    for (int32_t a = b->t.rank - 1; a >= 0; --a) {
        int32_t axis = order[a];
        b->t.strides[axis] = stride;
        stride *= b->t.shape[axis];
        if (one_in(3)) stride += below(9);
    }
    size_t e = attn_dtype_bytes(b->t.dtype);
    b->bytes = (size_t)stride * e + 2 * GUARD;
    b->memory = malloc(b->bytes);
    assert_non_null(b->memory);
    memset(b->memory, FILL, b->bytes);
    b->t.data = b->memory + GUARD;
    if (one_in(2)) b->t.data = b->memory + GUARD - e * (size_t)below(4);
    b->t.bytes = (size_t)stride * e;
    /* a negative stride on one axis of an input or output: start at its last element */
    if (b->t.rank > 2 && one_in(4) && b->t.shape[0] > 0) {
        b->t.data = (char *)b->t.data + (size_t)((b->t.shape[0] - 1) * b->t.strides[0]) * e;
        b->t.strides[0] = -b->t.strides[0];
        b->t.bytes = 0;
    }
}
/* Bytes that belong to no element still hold FILL. */
static int untouched(const struct block *b) {
    size_t e = attn_dtype_bytes(b->t.dtype);
    unsigned char *seen = calloc(b->bytes, 1);
    assert_non_null(seen);
    for (size_t n = 0; n < elements(&b->t); ++n)
        memset(seen + ((unsigned char *)b->t.data - b->memory) + offset_of(&b->t, n) * (int64_t)e, 1, e);
    int ok = 1;
    for (size_t k = 0; k < b->bytes; ++k) ok &= seen[k] || b->memory[k] == FILL;
    free(seen);
    return ok;
}

/* ------------------------------------------------------------------ cases --------------------------- */

enum lists { SPREAD, MESSY, ONE_KEY, TWICE, MANY_TIMES, NO_SLOT, LISTS };
struct trial {
    attn_problem p;
    enum lists lists;
    int nan_rows;  /* kv rows that no valid slot names hold NaN */
    int dead_rows; /* some lse are +-inf on input of the backward */
    int nan_named; /* one kv row that valid slots name holds a NaN */
    int leave_out; /* bit 0: dq, 1: dkv, 2: lse and max_logits */
    struct block in[ATTN_ROLE_COUNT];
    unsigned char *named;        /* [B*SK]: some valid slot names the row */
    double *weight;              /* [B*SK]: sum of 1 / valid slots of the queries that name it */
    double rms[ATTN_ROLE_COUNT]; /* of the finite elements of inputs */
};

/* The rule of attn.h, straight: not the library's. */
static int is_valid(const struct trial *c, int64_t b, int64_t i, int64_t t) {
    const attn_problem *p = &c->p;
    size_t row = (size_t)(b * p->seq_q + i);
    double key = get(&c->in[ATTN_ROLE_INDICES].t, row * (size_t)p->topk + (size_t)t);
    if ((p->flags & ATTN_TOPK_LENGTH) && (double)t >= get(&c->in[ATTN_ROLE_TOPK_LENGTH].t, row)) return 0;
    if (key < 0 || key >= (double)p->seq_k) return 0;
    if (!(p->flags & ATTN_CAUSAL)) return 1;
    return (double)p->q_start + (double)i + 1 >= (double)(p->k_stride ? p->k_stride : 1) * (key + 1);
}

static void fill_lists(struct trial *c) {
    const attn_problem *p = &c->p;
    const attn_tensor *idx = &c->in[ATTN_ROLE_INDICES].t;
    for (int64_t r = 0; r < p->batch * p->seq_q; ++r) {
        for (int64_t t = 0; t < p->topk; ++t) {
            int64_t key = p->seq_k ? below(p->seq_k) : below(5);
            if (c->lists == MESSY && one_in(3)) {
                const int64_t bad[] = {-1, INT32_MIN, INT32_MAX, p->seq_k, p->seq_k + 1, -below(1000)};
                key = bad[below(6)];
            }
            if (c->lists == ONE_KEY) key = p->seq_k / 2;
            if (c->lists == NO_SLOT) key = one_in(2) ? -1 : p->seq_k;
            size_t n = (size_t)(r * p->topk + t), back = c->lists == TWICE ? 2 : 64;
            if ((c->lists == TWICE || c->lists == MANY_TIMES) && t % (int64_t)back) key = (int64_t)get(idx, n - 1);
            put(idx, n, (double)key);
        }
        if (p->flags & ATTN_TOPK_LENGTH) {
            const int64_t len[] = {0, 1, p->topk, p->topk + 7, -3, below(p->topk + 1), below(p->topk + 1), p->topk - 1};
            put(&c->in[ATTN_ROLE_TOPK_LENGTH].t, (size_t)r, (double)len[below(8)]);
        }
    }
    c->named = calloc((size_t)(p->batch * p->seq_k) + 1, 1);
    c->weight = calloc((size_t)(p->batch * p->seq_k) + 1, sizeof(double));
    assert_true(c->named && c->weight);
    for (int64_t r = 0; r < p->batch * p->seq_q; ++r) {
        int64_t b = r / p->seq_q, n = 0;
        for (int64_t t = 0; t < p->topk; ++t) n += is_valid(c, b, r % p->seq_q, t);
        for (int64_t t = 0; t < p->topk; ++t) {
            if (!is_valid(c, b, r % p->seq_q, t)) continue;
            int64_t cell = b * p->seq_k + (int64_t)get(idx, (size_t)(r * p->topk + t));
            c->named[cell] = 1;
            c->weight[cell] += 1.0 / (double)n;
        }
    }
}

static void make_trial(struct trial *c, uint64_t seed) {
    static const int32_t dtypes[] = {ATTN_BF16, ATTN_F16, ATTN_F32};
    static const int64_t heads[] = {1, 2, 7, 9, 16, 17, 33, 64, 65, 100, 127, 128};
    static const int64_t topks[] = {1, 2, 3, 15, 31, 64, 65, 100, 130, 257, 300, 511};
    *c = (struct trial){0};
    state = seed * 7919 + 1;
    c->p = (attn_problem)ATTN_PROBLEM_INIT;
    attn_problem *p = &c->p;
    p->dtype = dtypes[below(3)];
    p->batch = one_in(3) ? 2 : 1;
    p->heads_q = heads[below(12)];
    p->heads_k = 1;
    p->seq_q = 1 + below(4);
    if (one_in(6)) p->seq_q = 17 + below(8), p->heads_q = 1 + below(40);
    if (one_in(40)) p->heads_q = 192, p->seq_q = 16, p->batch = 1; /* two chunks of heads */
    p->seq_k = one_in(3) ? 1 + below(20) : 50 + below(400);
    if (one_in(40)) p->seq_k = 0;
    p->dim_qk = one_in(2) ? 576 : 512;
    p->dim_v = 512;
    p->topk = topks[below(12)];
    if (one_in(25)) { /* several windows of slots in the backward; the reference is slow, so few heads */
        p->topk = 17000;
        p->heads_q = 1 + below(3);
        p->seq_q = 2;
    }
    if (one_in(30)) p->topk = 2048, p->heads_q = 8, p->seq_q = 2;
    if (one_in(3)) {
        static const double scales[] = {0.25, -0.05, 0, 0.01};
        p->flags |= ATTN_SCALE;
        p->scale = scales[below(4)];
    }
    if (one_in(3)) p->flags |= ATTN_SINK | (one_in(2) ? ATTN_GRAD_SINK : 0);
    if (one_in(3)) p->flags |= ATTN_LSE_BASE_2;
    if (one_in(3)) p->flags |= ATTN_LSE_EMPTY_PLUS_INF;
    if (one_in(3)) p->flags |= ATTN_TOPK_LENGTH;
    if (one_in(3)) p->flags |= ATTN_DLSE;
    if (one_in(3)) p->flags |= ATTN_ACCUMULATE;
    if (one_in(2)) p->flags |= ATTN_WITH_DIST;
    if (one_in(2)) p->dkv_dtype = ATTN_F32;
    p->dist_norm = (int32_t)below(ATTN_DIST_COUNT_);
    if (one_in(3)) {
        p->flags |= ATTN_CAUSAL;
        p->k_stride = 1 + below(4);
        p->q_start = one_in(3) ? 0 : one_in(8) ? INT64_C(1) << 60 : below(1 + p->seq_k * p->k_stride);
    }
    c->lists = one_in(2) ? SPREAD : (enum lists)below(LISTS);
    c->nan_rows = one_in(2);
    c->dead_rows = one_in(4);
    c->nan_named = one_in(12);
    c->leave_out = one_in(4) ? (int)below(8) : 0;
}

static const uint64_t fwd_flags =
    ATTN_CAUSAL | ATTN_SCALE | ATTN_SINK | ATTN_LSE_BASE_2 | ATTN_LSE_EMPTY_PLUS_INF | ATTN_TOPK_LENGTH;
static attn_problem problem_of(const struct trial *c, int32_t op) {
    attn_problem p = c->p;
    p.op = op;
    if (op != ATTN_OP_MLA_BWD) {
        p.dkv_dtype = 0;
        p.flags &= op == ATTN_OP_DIST ? fwd_flags & ~(ATTN_SINK | ATTN_LSE_EMPTY_PLUS_INF) : fwd_flags;
        if (op == ATTN_OP_MLA_FWD) p.dist_norm = 0;
    } else {
        p.flags &= ~ATTN_LSE_EMPTY_PLUS_INF;
        if (!(p.flags & ATTN_WITH_DIST)) p.dist_norm = 0;
    }
    return p;
}

/* ------------------------------------------------------------------ running ------------------------- */

static attn_ctx *make_ctx(const char *isa, int32_t threads) {
    attn_ctx_options o = {.size = sizeof o, .cpu_isa = isa, .threads = threads};
    attn_ctx *ctx = NULL;
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
    return ctx;
}

static int is_output(int32_t use) { return use >= ATTN_USE_OUT; }

/* Inputs of every role of the backward, the forward's among them. */
static void fill_inputs(struct trial *c) {
    attn_problem p = problem_of(c, ATTN_OP_MLA_BWD);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; ++role) {
        int32_t use;
        attn_tensor shape;
        assert_int_equal(attn_role_tensor(&p, role, &use, &shape), ATTN_OK);
        if (use == ATTN_USE_NONE || (is_output(use) && use != ATTN_USE_INOUT_OPTIONAL)) continue;
        struct block *b = &c->in[role];
        make_block(b, &shape);
        if (role == ATTN_ROLE_INDICES || role == ATTN_ROLE_TOPK_LENGTH) continue;
        for (size_t n = 0; n < elements(&b->t); ++n) put(&b->t, n, normal());
    }
    fill_lists(c);
    if (p.flags & ATTN_SINK) {
        for (size_t h = 0; h < (size_t)p.heads_q; ++h)
            if (one_in(8)) put(&c->in[ATTN_ROLE_SINK].t, h, one_in(2) ? INFINITY : -INFINITY);
    }
    for (int64_t r = 0; r < p.batch * p.seq_k; ++r) {
        if (c->nan_named && c->named[r]) {
            put(&c->in[ATTN_ROLE_KV].t, (size_t)(r * p.dim_qk + below(p.dim_qk)), NAN);
            c->nan_named = 0;
        }
        if (!c->nan_rows || c->named[r]) continue;
        for (int64_t d = 0; d < p.dim_qk; ++d)
            put(&c->in[ATTN_ROLE_KV].t, (size_t)(r * p.dim_qk + d), one_in(2) ? NAN : INFINITY);
    }
}

static double rms(const struct block *b) {
    double sum = 0;
    size_t n = 0;
    for (size_t k = 0; b->memory && k < elements(&b->t); ++k) {
        double x = get(&b->t, k);
        if (isfinite(x)) sum += x * x, ++n;
    }
    return n ? sqrt(sum / (double)n) : 0;
}

static void free_blocks(struct block *b) {
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; ++role) free(b[role].memory);
}

/* Runs one kernel (name pattern) with fresh outputs in out[]. */
static void execute(attn_ctx *ctx, const char *pattern, const struct trial *c, const attn_problem *p,
                    struct block *out) {
    attn_plan_options o = {.size = sizeof o, .flags = ATTN_PLAN_STRICT, .kernel = pattern};
    attn_plan *plan = NULL;
    attn_plan_info info = {.size = sizeof info};
    attn_args args = ATTN_ARGS_INIT;
    if (attn_plan_create(ctx, ATTN_DEVICE_CPU, p, &o, &plan)) fail_msg("%s", attn_last_error());
    assert_int_equal(attn_plan_get_info(plan, &info), ATTN_OK);
    assert_true(info.deterministic && info.bit_stable);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; ++role) {
        int32_t use;
        attn_tensor shape;
        out[role] = (struct block){0};
        assert_int_equal(attn_role_tensor(p, role, &use, &shape), ATTN_OK);
        if (use == ATTN_USE_IN) assert_int_equal(attn_args_set(&args, role, &c->in[role].t), ATTN_OK);
        if (!is_output(use)) continue;
        if (role == ATTN_ROLE_DQ && (c->leave_out & 1)) continue;
        if (role == ATTN_ROLE_DKV && (c->leave_out & 2)) continue;
        if ((role == ATTN_ROLE_LSE || role == ATTN_ROLE_MAX_LOGITS) && (c->leave_out & 4)) continue;
        make_block(&out[role], &shape);
        if (use == ATTN_USE_INOUT_OPTIONAL)
            for (size_t n = 0; n < elements(&shape); ++n) put(&out[role].t, n, get(&c->in[role].t, n));
        assert_int_equal(attn_args_set(&args, role, &out[role].t), ATTN_OK);
    }
    unsigned char *ws = aligned_alloc(64, ((size_t)info.workspace_bytes + 63 + GUARD) / 64 * 64);
    assert_non_null(ws);
    memset(ws, 0xff, (size_t)info.workspace_bytes); /* NaN everywhere */
    memset(ws + info.workspace_bytes, FILL, GUARD);
    args.workspace = ws;
    args.workspace_bytes = info.workspace_bytes;
    if (attn_execute(plan, &args)) fail_msg("%s: %s", info.kernel, attn_last_error());
    for (int k = 0; k < GUARD; ++k) assert_int_equal(ws[info.workspace_bytes + (uint64_t)k], FILL);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; ++role)
        if (out[role].memory && !untouched(&out[role]))
            fail_msg("%s wrote outside of %s", info.kernel, attn_role_name(role));
    free(ws);
    attn_plan_release(plan);
}

static int same_bits(const struct block *a, const struct block *b) {
    size_t e = attn_dtype_bytes(a->t.dtype);
    for (size_t n = 0; n < elements(&a->t); ++n) {
        const char *x = (const char *)a->t.data + offset_of(&a->t, n) * (int64_t)e;
        const char *y = (const char *)b->t.data + offset_of(&b->t, n) * (int64_t)e;
        if (memcmp(x, y, e)) return 0;
    }
    return 1;
}

/* ------------------------------------------------------------------ comparison ---------------------- */

/* Largest error that rounding may leave in a row whose sum cancels (a query with one valid slot has P = 1 and
 * dP = D): a few f32 roundings of the terms, not of their sum. */
static double cancelled(const struct trial *c, int32_t role, size_t row) {
    const attn_problem *p = &c->p;
    double scale = fabs(p->flags & ATTN_SCALE ? p->scale : 1 / sqrt((double)p->dim_qk)), d = sqrt((double)p->dim_qk),
           v = sqrt((double)p->dim_v);
    double kv = c->rms[ATTN_ROLE_KV], q = c->rms[ATTN_ROLE_Q], dout = c->rms[ATTN_ROLE_DOUT];
    double dp = dout * kv * v + ((p->flags & ATTN_DLSE) ? 2 : 0);
    if (role == ATTN_ROLE_DQ) return (p->dtype == ATTN_F32 ? 1.5e-6 : 4e-6) * scale * dp * kv * d;
    if (role == ATTN_ROLE_DKV) return 1e-6 * (double)p->heads_q * c->weight[row] * (scale * dp * q * d + dout * v);
    if (role == ATTN_ROLE_DSINK) return 1e-6 * (double)(p->batch * p->seq_q) * dp;
    return 0;
}

static void compare(const struct trial *c, const char *who, int32_t op, int32_t role, const struct block *got,
                    const struct block *want) {
    const attn_tensor *t = &want->t;
    const int half = t->dtype != ATTN_F32;
    const int per_element = role == ATTN_ROLE_LSE || role == ATTN_ROLE_MAX_LOGITS || role == ATTN_ROLE_DSINK;
    size_t width = per_element ? 1 : (size_t)t->shape[t->rank - 1], rows = width ? elements(t) / width : 0;
    /* dkv of a kernel that rounds P and dS has the bound of the problem's dtype, also as f32 (docs/numerics.md) */
    const int pairs = strstr(who, " avx512bf16 ") || strstr(who, " amx ");
    const int32_t dtype = role == ATTN_ROLE_DKV && pairs ? c->p.dtype : t->dtype;
    double bound = dtype == ATTN_BF16 ? 0x1p-7 : dtype == ATTN_F16 ? 0x1p-10 : op == ATTN_OP_MLA_FWD ? 4e-6 : 2e-5;
    double xy = 0, squares = 0;
    for (size_t r = 0; r < rows; ++r) {
        double err = 0, ref = 0;
        for (size_t k = 0; k < width; ++k) {
            double x = get(&got->t, r * width + k), y = get(t, r * width + k);
            if (isnan(y) || isinf(y)) {
                if (!(isnan(x) && isnan(y)) && x != y)
                    fail_msg("%s %s row %zu column %zu: %g, reference %g", who, attn_role_name(role), r, k, x, y);
                continue;
            }
            err += (x - y) * (x - y);
            ref += y * y;
            xy += 2 * x * y;
            squares += x * x + y * y;
        }
        double limit = bound * sqrt(ref);
        if (role == ATTN_ROLE_LSE || role == ATTN_ROLE_MAX_LOGITS) limit = 1e-5 * fmax(1, sqrt(ref));
        limit += cancelled(c, role, r);
        if (half) limit += t->dtype == ATTN_F16 ? sqrt((double)width) * 0x1p-25 : 0; /* below f16's normal numbers */
        if (!(sqrt(err) <= limit))
            fail_msg("%s %s row %zu: error %g, limit %g, reference %g", who, attn_role_name(role), r, sqrt(err), limit,
                     sqrt(ref));
    }
    double apart = squares > 0 ? 1 - xy / squares : 0;
    if (t->dtype == ATTN_BF16 && squares > 1e-6 && apart > (op == ATTN_OP_MLA_FWD ? 7e-6 : 1e-5))
        fail_msg("%s %s: 1 - cosine %g", who, attn_role_name(role), apart);
}

static const int32_t ops[] = {ATTN_OP_MLA_FWD, ATTN_OP_MLA_BWD, ATTN_OP_DIST};
static const char *const words[] = {"mla_fwd", "mla_bwd", "dist"};

/* Reference forward, then its lse and out become inputs. */
static void finish_inputs(attn_ctx *ctx, struct trial *c) {
    struct block out[ATTN_ROLE_COUNT];
    attn_problem p = problem_of(c, ATTN_OP_MLA_FWD);
    int left_out = c->leave_out;
    c->leave_out = 0;
    execute(ctx, "attn_mla_fwd_ref_*", c, &p, out);
    c->leave_out = left_out;
    const int32_t roles[] = {ATTN_ROLE_OUT, ATTN_ROLE_LSE};
    for (int k = 0; k < 2; ++k) {
        struct block *to = &c->in[roles[k]];
        for (size_t n = 0; n < elements(&to->t); ++n) put(&to->t, n, get(&out[roles[k]].t, n));
        for (size_t n = 0; k == 1 && c->dead_rows && n < elements(&to->t); ++n)
            if (one_in(5)) put(&to->t, n, one_in(2) ? INFINITY : -INFINITY);
    }
    free_blocks(out);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; ++role) c->rms[role] = rms(&c->in[role]);
}

static void free_trial(struct trial *c) {
    free_blocks(c->in);
    free(c->named);
    free(c->weight);
}

static int has_isa(const char *isa) {
    attn_ctx *ctx = make_ctx(NULL, 1);
    attn_device_info info = {.size = sizeof info};
    assert_int_equal(attn_device_get_info(ctx, 0, &info), ATTN_OK);
    attn_ctx_release(ctx);
    if (!strcmp(isa, "c")) return 1;
    if (!strcmp(isa, "avx512")) isa = "avx512f";
    return strstr(info.features, strcmp(isa, "avx512bf16") ? isa : "avx512_bf16") != NULL;
}
static const char *best_isa(void) {
    const char *isas[] = {"amx", "avx512bf16", "avx512", "c"};
    int i = 0;
    while (!has_isa(isas[i])) ++i;
    return isas[i];
}

static void one_trial(attn_ctx *const ctx[3], const char *isa, uint64_t seed) {
    struct trial c;
    make_trial(&c, seed);
    if (!strcmp(isa, "c") && c.p.topk > 1000) return; /* slow, and the same driver */
    if ((!strcmp(isa, "avx512bf16") || !strcmp(isa, "amx")) && c.p.dtype != ATTN_BF16) return;
    fill_inputs(&c);
    finish_inputs(ctx[1], &c);
    for (int o = 0; o < 3; ++o) {
        attn_problem p = problem_of(&c, ops[o]);
        struct block want[ATTN_ROLE_COUNT], got[3][ATTN_ROLE_COUNT];
        char name[64], who[400] = "", text[300] = "";
        snprintf(name, sizeof name, "attn_%s_ref_*", words[o]);
        execute(ctx[1], name, &c, &p, want);
        attn_problem_format(&p, text, sizeof text, NULL);
        snprintf(who, sizeof who, "seed %llu %s lists=%d: %s", (unsigned long long)seed, isa, (int)c.lists, text);
        snprintf(name, sizeof name, "attn_%s_%s_*", words[o], isa);
        for (int k = 0; k < 3; ++k) execute(ctx[k], name, &c, &p, got[k]);
        for (int32_t role = 0; role < ATTN_ROLE_COUNT; ++role) {
            if (!want[role].memory) continue;
            compare(&c, who, ops[o], role, &got[0][role], &want[role]);
            for (int k = 1; k < 3; ++k)
                if (!same_bits(&got[0][role], &got[k][role]))
                    fail_msg("%s %s: other bits with %d threads", who, attn_role_name(role), k + 1);
        }
        free_blocks(want);
        for (int k = 0; k < 3; ++k) free_blocks(got[k]);
    }
    free_trial(&c);
}

static void random_problems(const char *isa, uint64_t first, uint64_t n) {
    const char *only = getenv("T_MLA_CPU_ISA");
    if (!has_isa(isa) || (only && strcmp(only, isa))) skip();
    attn_ctx *ctx[3];
    for (int k = 0; k < 3; ++k) ctx[k] = make_ctx(isa, k + 1);
    for (uint64_t s = 0; s < n; ++s) one_trial(ctx, isa, first + s);
    for (int k = 0; k < 3; ++k) attn_ctx_release(ctx[k]);
}
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SHARE 4 /* such builds are slow and look for other faults */
#else
#define SHARE 2 /* attn check draws others for the same kernels */
#endif
#define RANDOM(isa, first, n)                                                                                          \
    static void random_##isa(void **unused) { (void)unused, random_problems(#isa, first, (n) / SHARE); }
RANDOM(avx512, 1, 100)
RANDOM(avx512bf16, 3001, 120)
RANDOM(amx, 4001, 160)
RANDOM(avx2, 1001, 80)
RANDOM(c, 2001, 40)

/* ------------------------------------------------------------------ isolation ----------------------- */

static void plain_trial(struct trial *c, int64_t sq) {
    make_trial(c, 77);
    c->p = (attn_problem)ATTN_PROBLEM_INIT;
    c->p.dtype = ATTN_BF16, c->p.batch = 1, c->p.heads_q = 48, c->p.heads_k = 1, c->p.seq_q = sq, c->p.seq_k = 300;
    c->p.dim_qk = 576, c->p.dim_v = 512, c->p.topk = 90, c->p.dkv_dtype = ATTN_F32, c->p.flags = ATTN_WITH_DIST;
    c->lists = MESSY, c->nan_rows = c->nan_named = c->dead_rows = c->leave_out = 0;
    state = 5;
}

/* A NaN in the rows of one query reaches nothing but that query's rows and the dKV rows that its valid slots name. */
static void nan_stays_in_its_query(void **unused) {
    (void)unused;
    enum { SICK = 2, QUERIES = 5 };
    attn_ctx *ctx = make_ctx(NULL, 2);
    struct trial c;
    plain_trial(&c, QUERIES);
    fill_inputs(&c);
    finish_inputs(ctx, &c);
    unsigned char named[300] = {0};
    for (int64_t t = 0; t < c.p.topk; ++t)
        if (is_valid(&c, 0, SICK, t)) named[(int)get(&c.in[ATTN_ROLE_INDICES].t, (size_t)(SICK * c.p.topk + t))] = 1;
    struct block well[3][ATTN_ROLE_COUNT], sick[3][ATTN_ROLE_COUNT];
    for (int pass = 0; pass < 2; ++pass) {
        for (int o = 0; o < 3; ++o) {
            attn_problem p = problem_of(&c, ops[o]);
            char name[64];
            snprintf(name, sizeof name, "attn_%s_%s_*", words[o], best_isa());
            execute(ctx, name, &c, &p, pass ? sick[o] : well[o]);
        }
        for (size_t h = 0; h < 48; ++h) put(&c.in[ATTN_ROLE_Q].t, (SICK * 48 + h) * 576 + h, NAN);
    }
    int seen_nan = 0;
    for (int o = 0; o < 3; ++o) {
        for (int32_t role = 0; role < ATTN_ROLE_COUNT; ++role) {
            if (!well[o][role].memory) continue;
            const attn_tensor *a = &well[o][role].t, *b = &sick[o][role].t;
            size_t rows = (size_t)a->shape[1], width = elements(a) / rows;
            for (size_t n = 0; n < elements(a); ++n) {
                int may = role == ATTN_ROLE_DKV ? named[n / width] : n / width == SICK;
                double x = get(a, n), y = get(b, n);
                seen_nan += isnan(y) != 0;
                assert_true(x == x);
                if (!may && x != y) fail_msg("%s %s element %zu changed", words[o], attn_role_name(role), n);
            }
        }
        free_blocks(well[o]);
        free_blocks(sick[o]);
    }
    assert_true(seen_nan > 48 * 512);
    free_trial(&c);
    attn_ctx_release(ctx);
}

/* The rows of a query have the same bits whether it comes with two others or with twenty. */
static void rows_do_not_depend_on_others(void **unused) {
    (void)unused;
    attn_ctx *ctx = make_ctx(NULL, 2);
    struct trial c;
    plain_trial(&c, 20);
    fill_inputs(&c);
    finish_inputs(ctx, &c);
    for (int o = 0; o < 3; ++o) {
        attn_problem p = problem_of(&c, ops[o]);
        struct block many[ATTN_ROLE_COUNT], few[ATTN_ROLE_COUNT];
        char name[64];
        snprintf(name, sizeof name, "attn_%s_%s_*", words[o], best_isa());
        execute(ctx, name, &c, &p, many);
        struct trial cut = c;
        cut.p.seq_q = p.seq_q = 3;
        for (int32_t role = 0; role < ATTN_ROLE_COUNT; ++role)
            if (cut.in[role].memory && role != ATTN_ROLE_KV) cut.in[role].t.shape[1] = 3;
        execute(ctx, name, &cut, &p, few);
        const int32_t roles[] = {ATTN_ROLE_OUT, ATTN_ROLE_LSE, ATTN_ROLE_MAX_LOGITS, ATTN_ROLE_DIST, ATTN_ROLE_DQ};
        for (int k = 0; k < 5; ++k) {
            if (!few[roles[k]].memory) continue;
            many[roles[k]].t.shape[1] = 3;
            if (!same_bits(&few[roles[k]], &many[roles[k]])) fail_msg("%s %s", words[o], attn_role_name(roles[k]));
        }
        free_blocks(many);
        free_blocks(few);
    }
    free_trial(&c);
    attn_ctx_release(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_avx512),
        cmocka_unit_test(random_avx512bf16),
        cmocka_unit_test(random_amx),
        cmocka_unit_test(random_avx2),
        cmocka_unit_test(random_c),
        cmocka_unit_test(nan_stays_in_its_query),
        cmocka_unit_test(rows_do_not_depend_on_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
