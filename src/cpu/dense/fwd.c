/* SPDX-License-Identifier: MIT
 * Dense forward: blocked, online softmax. A task is a block of flat rows of one (batch, key head), or of one key split
 * of it (decode_merge.c). The geometry changes speed only, not results, except for decode (`panel`, `splits`),
 * which depends on the problem alone. */
#include "cpu/dense/fwd.h"

#include "cpu/dense/bf16_operands.h"
#include "cpu/dense/fwd_amx.h"
#include "cpu/dense/fwd_transposed.h"
#include "cpu/ref/ref.h"

#include <math.h>
#include <string.h>

#define LOG2_E 1.44269504088896340736

static void store_lse(const struct attn_cpu_fwd *f, int64_t b, int64_t h, int64_t row, double lse) {
    if (f->lse.data) attn_num_store(attn_view_row(&f->lse, b, h, row), f->lse.dtype, 0, lse);
    if (f->lse_rounded.data) attn_num_store(attn_view_row(&f->lse_rounded, b, h, row), f->lse_rounded.dtype, 0, lse);
}

static void store_max(const struct attn_cpu_fwd *f, int64_t b, int64_t h, int64_t row, double max) {
    if (f->max_logits.data) attn_num_store(attn_view_row(&f->max_logits, b, h, row), f->max_logits.dtype, 0, max);
}

/* lse as the caller wants it; `natural` excludes the sink and is -inf for an empty row. */
static double outer_lse(const attn_problem *p, double natural, double sink) {
    double lse = natural;
    if (attn_core_has(p, ATTN_LSE_WITH_SINK)) {
        double hi = natural > sink ? natural : sink, lo = natural > sink ? sink : natural;
        lse = isnan(natural) || isnan(sink) ? NAN : isinf(hi) ? hi : hi + log1p(exp(lo - hi));
    }
    if (lse == -INFINITY) return attn_cpu_ref_empty_lse(p);
    return attn_core_has(p, ATTN_LSE_BASE_2) ? lse * LOG2_E : lse;
}

double attn_cpu_fwd_close(const struct attn_cpu_fwd *f, const struct attn_core_seq *seq, int64_t b,
                          const struct attn_cpu_sdpa_row *row, double m, double natural, double l) {
    const double sink = attn_cpu_ref_sink(f->s.p, f->s.args, row->h);
    double factor = 0;
    if (m != -INFINITY) factor = 1 / (sink == -INFINITY ? l : l + exp(sink - m - row->shift));
    store_lse(f, b, row->h, seq->q0 + row->i, outer_lse(f->s.p, m == -INFINITY ? m : natural, sink));
    store_max(f, b, row->h, seq->q0 + row->i, m == -INFINITY ? m : m + row->shift);
    return isnan(m) ? m : factor;
}

void attn_cpu_fwd_logs(const struct attn_cpu_fwd *f, const struct attn_core_seq *seq, int64_t b,
                       const struct attn_cpu_sdpa_row *row, int64_t n, const double *natural) {
    const struct attn_view *lse = &f->lse;
    const int as_is = !attn_core_has(f->s.p, ATTN_LSE_WITH_SINK | ATTN_LSE_BASE_2) && !f->lse_rounded.data &&
                      lse->data && lse->dtype == ATTN_F32;
    for (int64_t r = 0; r < n; r++) {
        const double x = natural[r] + row[r].shift;
        if (as_is) {
            *(float *)(void *)attn_view_row(lse, b, row[r].h, seq->q0 + row[r].i) = (float)x;
        } else {
            const double sink = attn_cpu_ref_sink(f->s.p, f->s.args, row[r].h);
            store_lse(f, b, row[r].h, seq->q0 + row[r].i, outer_lse(f->s.p, x, sink));
        }
    }
}

void attn_cpu_fwd_empty(const struct attn_cpu_fwd *f, const struct attn_core_seq *seq, int64_t b, int64_t hk,
                        int64_t f0, int64_t f1) {
    const attn_problem *p = f->s.p;
    for (; f0 < f1 && f0 < seq->sq_rows * f->s.group; f0++) {
        const int64_t h = hk * f->s.group + f0 % f->s.group, row = seq->q0 + f0 / f->s.group;
        if (p->dim_v > 0) attn_cpu_ref_fill(attn_view_row(&f->out, b, h, row), f->out.dtype, p->dim_v, 0);
        store_max(f, b, h, row, -INFINITY);
        store_lse(f, b, h, row, attn_cpu_ref_empty_lse(p));
    }
}

enum {
    MOST_STRIP = 32,       /* rows of a strip */
    MOST_DECODE_ROWS = 16, /* up to this many flat rows, packing keys costs more than it saves */
    WIDE_ROWS =
        4, /* flat rows up to which one pass loses: wide values go in parts, and scores are computed again for each */
    SUM_KEYS = 128,           /* keys of a product of many rows with values */
    V_STEP = 32,              /* keys of a product of few rows with values */
    PREFETCH_BYTES = 8 << 10, /* of values that are prefetched ahead */
    PREFETCH_LEAST =
        8
        << 20, /* bytes of keys and values up to which nothing is prefetched, since a prefetch costs what a load does */
    BLOCK_BYTES =
        512 << 10, /* keys and values of a block, and a task's rows and sums: they share a second-level cache */
    TASK_BYTES = 512 << 10,
    CACHED_BYTES = 1 << 20 /* packed keys of a (batch, key head) up to here are kept for a worker's next task */
};

#define PAIRS   0
#define HALF    0
#define REAL    double
#define T(name) name##_f64
#define R(name) name##_f64
#define GEMM    u->gemm_f64
#include "cpu/dense/fwd_tpl.h"
#undef HALF
#undef REAL
#undef T
#undef R
#undef GEMM
#define HALF    1
#define REAL    float
#define T(name) name##_f32
#define R(name) name##_f32
#define GEMM    u->gemm_f32
#include "cpu/dense/fwd_tpl.h"
#undef T
#undef GEMM
#undef PAIRS
#define PAIRS   1
#define T(name) name##_bf16
#define GEMM    bf16->gemm
#include "cpu/dense/fwd_tpl.h"

/* Scores need at most a factor, and keys may be in pages. */
static const struct attn_ukr_decode *steps_of(const struct attn_cpu_sdpa *s) {
    const attn_problem *p = s->p;
    if (!s->remaining_fits || attn_core_has(p, ATTN_MAX_LOGITS) || p->softcap > 0 || p->alibi != ATTN_ALIBI_NONE ||
        p->mask_dtype || p->dim_qk <= 0 || p->dim_v <= 0)
        return NULL;
    if (s->bf16) return p->scale > 0 ? s->bf16->decode : NULL;
    switch (p->dtype) {
    case ATTN_F32: return s->u->decode_f32;
    case ATTN_F16: return s->u->decode_f16;
    case ATTN_BF16: return s->u->decode_bf16;
    default: return NULL;
    }
}

static void lay_out(struct attn_cpu_fwd *f, int32_t threads) {
    const attn_problem *p = f->s.p;
    const struct attn_ukr *u = f->s.u;
    const int f64 = p->dtype == ATTN_F64, pairs = f->s.bf16 != NULL;
    f->exact_max = attn_core_has(p, ATTN_MAX_LOGITS);
    const int64_t mr = f64 ? u->mr64 : u->mr32, line = f64 ? 8 : 16;
    f->real = f64 ? 8 : 4;
    f->panel = f->s.flat > MOST_DECODE_ROWS ? (f64 ? u->nr64 : u->nr32) : 0;
    f->strip = f->panel ? (mr < 12 ? 12 / mr * mr : mr) : MOST_DECODE_ROWS;
    f->depth = pairs ? attn_cpu_sdpa_blocks(p->dim_qk, 2) : p->dim_qk;
    f->ldq = attn_cpu_sdpa_up(f->depth, line);
    f->ldv = attn_cpu_sdpa_up(p->dim_v, line);
    f->block_keys = 512 / (f64 ? 2 : 1);
    if (pairs && f->panel && f->s.bf16->rows) {
        f->strip = f->s.bf16->rows;
        f->block_keys = f->s.bf16->keys;
    }
    while (f->block_keys > 64 && f->block_keys * (f->ldq + f->ldv) * f->real > BLOCK_BYTES) f->block_keys /= 2;
    if (!f->panel && f->block_keys > 256) f->block_keys = 256;
    f->half = !f->panel && (p->dtype == ATTN_F16 || p->dtype == ATTN_BF16) && u->gemm_half;
    f->decode_amx = pairs && !f->panel && f->s.bf16->decode_tiles && !f->exact_max && f->s.plain && p->dim_qk > 0 &&
                    p->dim_qk % 32 == 0 && p->dim_v > 0 && p->dim_v % 32 == 0 &&
                    (p->dim_v <= ATTN_DECODE_AMX_WIDTH || f->s.flat > WIDE_ROWS);
    f->steps = f->panel ? NULL : steps_of(&f->s);
    const double width = (double)(p->dim_qk + p->dim_v) * (p->dtype == ATTN_F32 ? 4 : 2);
    f->prefetches = (double)(p->batch * p->heads_k) * (double)p->seq_k * width > PREFETCH_LEAST;
    /* one row: products wait for memory whatever their form, and the other one's order of reads suits it better */
    if (f->s.flat == 1 && !attn_core_has(p, ATTN_PAGED) && !(pairs && f->prefetches)) f->steps = NULL;
    f->same_keys = p->seq_q == 1 || !attn_core_has(p, ATTN_CAUSAL | ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT);
    f->n_cached = f->panel ? attn_cpu_sdpa_blocks(p->seq_k, f->block_keys) : 1;
    if (f->n_cached < 1 || f->n_cached * f->block_keys * f->ldq * f->real > CACHED_BYTES) f->n_cached = 1;
    f->lds = f->block_keys + line;
    f->ldp = pairs ? f->block_keys / 2 + line : f->lds;

    f->split = attn_cpu_decode_split(&f->s);
    f->splits = p->seq_k > 0 ? attn_cpu_sdpa_blocks(p->seq_k, f->split) : 1;
    const int64_t owners = p->batch * p->heads_k, fit = TASK_BYTES / ((f->ldq + f->ldv + 1) * f->real * f->strip);
    const int64_t most = fit < 8 ? 8 : fit > 36 ? 36 : fit;
    int64_t strips = attn_cpu_sdpa_blocks(f->s.flat, f->strip), want = strips * owners / (4 * (int64_t)threads);
    want = want < 2 ? 2 : want > most ? most : want;
    f->row_blocks = attn_cpu_sdpa_blocks(strips, f->splits > 1 ? strips : want);
    /* Tasks of one size, and as many for each thread: of four blocks of 36 strips and one of 3, times two, one thread
     * would have 180 strips and the other 114. */
    const int64_t finer = (f->row_blocks + threads - 1) / threads * threads;
    if (f->splits == 1 && owners * f->row_blocks % threads != 0 && 2 * finer <= strips) f->row_blocks = finer;
    f->rows = attn_cpu_sdpa_blocks(strips, f->row_blocks) * f->strip;
    f->row_blocks = attn_cpu_sdpa_blocks(f->s.flat, f->rows);
    if (f->row_blocks == 1) f->rows = f->s.flat;
    f->side = owners < threads ? owners : threads;

    f->offsets.end = 0;
    int64_t *end = &f->offsets.end;
    f->offsets.q = attn_cpu_sdpa_take(end, f->rows * f->ldq * f->real);
    f->offsets.k = attn_cpu_sdpa_take(end, f->n_cached * f->block_keys * f->ldq * f->real);
    f->offsets.cached = attn_cpu_sdpa_take(end, f->n_cached * (int64_t)sizeof(struct attn_cpu_fwd_cached));
    f->offsets.tmp = attn_cpu_sdpa_take(end, f->panel * f->ldq * f->real);
    f->offsets.v = attn_cpu_sdpa_take(end, f->block_keys * f->ldv * f->real);
    f->offsets.raw = attn_cpu_sdpa_take(end, f->block_keys * f->ldv * f->real);
    f->offsets.nonfinite = attn_cpu_sdpa_take(end, f->block_keys);
    f->offsets.s = attn_cpu_sdpa_take(end, f->strip * f->lds * f->real);
    f->offsets.p = pairs ? attn_cpu_sdpa_take(end, f->strip * f->ldp * f->real) : f->offsets.s;
    f->offsets.hidden = attn_cpu_sdpa_take(end, f->block_keys);
    f->offsets.mask = attn_cpu_sdpa_take(end, f->block_keys * (int64_t)sizeof(float));
    f->offsets.row = attn_cpu_sdpa_take(end, f->rows * (int64_t)sizeof(struct attn_cpu_sdpa_row));
    f->offsets.o = attn_cpu_sdpa_take(end, f->rows * f->ldv * f->real);
    f->offsets.m = attn_cpu_sdpa_take(end, f->rows * f->real);
    f->offsets.l = attn_cpu_sdpa_take(end, 2 * f->rows * f->real);
    f->offsets.older = attn_cpu_sdpa_take(end, f->panel ? 0 : (3 + f->ldv) * MOST_DECODE_ROWS * f->real);
    attn_cpu_fwd_lay_out_partial(f);
}

void attn_cpu_fwd_lay_out_partial(struct attn_cpu_fwd *f) {
    f->partial_bytes = 0;
    attn_cpu_sdpa_take(&f->partial_bytes, f->s.flat * f->real);
    f->partial_l = attn_cpu_sdpa_take(&f->partial_bytes, f->s.flat * f->real);
    f->partial_o = attn_cpu_sdpa_take(&f->partial_bytes, f->s.flat * f->ldv * f->real);
}

/* Threads of a crew that find a task. */
static int32_t workers(const struct attn_cpu_fwd *f, int32_t crew) {
    return attn_cpu_at_most(crew, f->s.p->batch * f->s.p->heads_k * f->row_blocks * f->splits);
}

static int64_t partials(const struct attn_cpu_fwd *f) {
    return f->splits > 1 ? f->s.p->batch * f->s.p->heads_k * f->splits * f->partial_bytes : 0;
}

static int64_t queues(const struct attn_cpu_fwd *f) {
    return f->s.p->batch * f->s.p->heads_k * (int64_t)sizeof(struct attn_cpu_fwd_queue);
}

static void set_up(struct attn_cpu_fwd *f, const struct attn_cpu_sdpa_isa *isa, const attn_problem *p,
                   const attn_args *args, int32_t threads) {
    attn_cpu_sdpa_init(&f->s, p, args, isa->u, isa->bf16);
    lay_out(f, threads);
    if (attn_cpu_fwd_amx_serves(f)) {
        attn_cpu_fwd_amx_lay_out(f, threads);
    } else if (isa->n_bf16) {
        attn_cpu_sdpa_init(&f->s, p, args, isa->u, NULL);
        lay_out(f, threads);
    }
    if (attn_cpu_transposed_serves(f)) attn_cpu_transposed_lay_out(f, threads);
}

/* total_k counts rows of packed keys; those of a pool of pages are bounded by SK alone. */
static int32_t crew_of(const struct attn_cpu_sdpa_isa *isa, const attn_problem *p, int32_t threads) {
    if (!attn_core_has(p, ATTN_PAGED)) return attn_cpu_sdpa_crew(isa, p, threads);
    attn_problem dense = *p;
    dense.total_k = INT64_MAX;
    return attn_cpu_sdpa_crew(isa, &dense, threads);
}

int64_t attn_cpu_sdpa_fwd_workspace(const struct attn_cpu_sdpa_isa *isa, const attn_problem *p, int32_t threads) {
    struct attn_cpu_fwd f = {0};
    if (p->batch <= 0 || p->heads_q <= 0 || p->seq_q <= 0) return 0;
    const int32_t crew = crew_of(isa, p, threads);
    set_up(&f, isa, p, NULL, crew);
    return workers(&f, crew) * f.offsets.end + partials(&f) + queues(&f);
}

struct attn_cpu_fwd_bounds attn_cpu_fwd_see(const struct attn_cpu_sdpa_row *row, int64_t n) {
    struct attn_cpu_fwd_bounds all = {INT64_MAX, 0, 0, INT64_MAX};
    for (const struct attn_cpu_sdpa_row *end = row + n; row < end; row++) {
        if (row->lo > all.lo_most) all.lo_most = row->lo;
        if (row->hi < all.hi_least) all.hi_least = row->hi;
        if (row->lo == row->hi) continue;
        if (row->lo < all.lo) all.lo = row->lo;
        if (row->hi > all.hi) all.hi = row->hi;
    }
    if (all.lo > all.hi) all.lo = all.hi;
    return all;
}

/* As many pairs as there are threads side by side. A worker stays with one, whose keys it has packed, and then helps
 * with the others. */
static void run_pairs(struct attn_cpu_fwd *f, int32_t worker, int64_t pairs, int64_t each, char *scratch) {
    for (int64_t first = 0; first < pairs; first += f->side) {
        const int64_t side = pairs - first < f->side ? pairs - first : f->side;
        for (int64_t i = 0; i < side; i++) {
            const int64_t head = first + (worker + i) % side;
            for (int64_t t; (t = attn_cpu_next(&f->queues[head].next)) < each;) {
                if (f->transposed) {
                    attn_cpu_transposed_task(f, head, t, scratch);
                } else if (f->amx_split) {
                    attn_cpu_fwd_amx_task(f, head, t, scratch);
                } else if (f->real == 8) {
                    run_task_f64(f, head, t, scratch);
                } else if (f->s.bf16) {
                    run_task_bf16(f, head, t, scratch);
                } else {
                    run_task_f32(f, head, t, scratch);
                }
            }
        }
    }
}

static void run_tasks(void *arg, int32_t worker) {
    struct attn_cpu_fwd *f = arg;
    const int64_t pairs = f->s.p->batch * f->s.p->heads_k, each = f->row_blocks * f->splits;
    char *scratch = f->scratch + worker * f->offsets.end;
    struct attn_cpu_fwd_cached *cached = (struct attn_cpu_fwd_cached *)(void *)(scratch + f->offsets.cached);
    for (int64_t i = 0; i < f->n_cached; i++) cached[i].head = -1;
    attn_ukr_bf16_begin(f->s.bf16);
    run_pairs(f, worker, pairs, each, scratch);
    attn_ukr_bf16_end(f->s.bf16);
}

void attn_cpu_sdpa_fwd(const struct attn_cpu_sdpa_isa *isa, const struct attn_core_device *dev, const attn_problem *p,
                       const attn_args *args) {
    struct attn_cpu_fwd f = {0};
    attn_cpu_ref_padding(dev, p, args);
    if (p->batch <= 0 || p->heads_q <= 0 || p->seq_q <= 0) return;
    const int32_t crew = crew_of(isa, p, dev->threads);
    set_up(&f, isa, p, args, crew);
    const int32_t n = workers(&f, crew);
    f.out = attn_core_view(p, args, ATTN_ROLE_OUT);
    f.lse = attn_core_view(p, args, ATTN_ROLE_LSE);
    f.lse_rounded = attn_core_view(p, args, ATTN_ROLE_LSE_ROUNDED);
    f.max_logits = attn_core_view(p, args, ATTN_ROLE_MAX_LOGITS);
    f.scratch = args->workspace;
    f.partials = f.scratch + n * f.offsets.end;
    f.queues = (struct attn_cpu_fwd_queue *)(void *)(f.partials + partials(&f));
    memset(f.queues, 0, (size_t)queues(&f));
    attn_cpu_pool_run(attn_cpu_pool_of(dev), n, run_tasks, &f);
    if (f.splits == 1) return;
    f.next = (struct attn_cpu_counter){0};
    attn_cpu_pool_run(attn_cpu_pool_of(dev), attn_cpu_at_most(n, p->batch * p->heads_k), attn_cpu_decode_merge, &f);
}
