/* SPDX-License-Identifier: MIT
 * Dense backward: geometry and phases. */
#include "cpu/dense/bwd.h"

#include "cpu/dense/bwd_amx.h"
#include "cpu/dense/bwd_amx_score.h"
#include "cpu/dense/bwd_tile.h"
#include "cpu/ref/ref.h"

#include <math.h>
#include <string.h>

enum {
    ROWS = ATTN_CPU_BWD_ROWS,
    PART_TILES = 64,       /* tiles of rows whose share of dk and dv is summed by itself */
    KEY_SLOTS = 4,         /* tiles of keys that go by rows together, and... */
    SLOT_BYTES = 1 << 20,  /* what they may take of a second-level cache, with their sums */
    SLAB_BYTES = 64 << 20, /* most dq accumulators that a worker may keep for the fused phase */
};

#define REAL    double
#define T(name) name##_f64
#define R(name) name##_f64
#include "cpu/dense/bwd_tpl.h"
#undef REAL
#undef T
#undef R
#define REAL    float
#define T(name) name##_f32
#define R(name) name##_f32
#include "cpu/dense/bwd_tpl.h"
#undef T
#define T(name) name##_bf16
#include "cpu/dense/bwd_tpl.h"

/* The phases of one kind of operands. */
struct phases {
    void (*rows)(struct attn_cpu_bwd *w, int64_t task, char *scratch);
    void (*fused)(struct attn_cpu_bwd *w, int64_t task, char *scratch);
    void (*keys)(struct attn_cpu_bwd *w, int64_t task, char *scratch);
    void (*queries)(struct attn_cpu_bwd *w, int64_t task, char *scratch);
    void (*mask)(struct attn_cpu_bwd *w, int64_t task, char *scratch);
};
#define PHASES(T)                                                                                                      \
    static const struct phases phases_##T = {phase_rows_##T, phase_fused_##T, phase_keys_##T, phase_queries_##T,       \
                                             attn_cpu_bwd_mask_##T}
PHASES(f64);
PHASES(f32);
PHASES(bf16);

/* Row strides of an odd number of cache lines spread over the cache's sets. */
static int64_t padded_row(int64_t n, int64_t line) { return n > 0 ? ((n + line - 1) / line | 1) * line : 0; }

/* One owner per (batch, key head) needs 5 products where two phases need 7: worth it unless threads stand idle. */
static int can_fuse(const struct attn_cpu_bwd *w, int32_t threads) {
    const int64_t pairs = w->s.p->batch * w->s.p->heads_k, rounds = attn_cpu_sdpa_blocks(pairs, threads);
    if (w->s.flat > SLAB_BYTES || w->s.flat * w->ldd * w->real > SLAB_BYTES) return 0;
    return (double)pairs / (double)(rounds * threads) > 0.75;
}

static void lay_out(struct attn_cpu_bwd *w, int32_t threads) {
    const attn_problem *p = w->s.p;
    const int f64 = p->dtype == ATTN_F64;
    const int64_t line = f64 ? 8 : 16;
    w->real = f64 ? 8 : 4;
    /* Whole register tiles as columns. Large tiles pay where no diagonal runs through them and the cache holds them. */
    const int open = p->window_left == ATTN_UNBOUNDED && p->window_right == ATTN_UNBOUNDED;
    const int whole = (open || !w->s.bf16) && p->dim_qk <= 128 && p->dim_v <= 128;
    const int strips = attn_cpu_bwd_amx_serves(w); /* then tiles are for what it leaves; they divide its blocks */
    w->tile = strips ? 128 : whole ? 192 : 96;
    w->ldd = padded_row(strips ? attn_cpu_sdpa_up(p->dim_qk, 32) : p->dim_qk, line);
    w->ldv = padded_row(p->dim_v, line);
    const int pairs = w->s.bf16 != NULL;
    w->depth_qk = pairs ? attn_cpu_sdpa_blocks(p->dim_qk, 2) : p->dim_qk;
    w->depth_v = pairs ? attn_cpu_sdpa_blocks(p->dim_v, 2) : p->dim_v;
    w->ldq = pairs ? padded_row(w->depth_qk, line) : w->ldd; /* rows of q go to sums of keys as they are */
    w->ldo = padded_row(w->depth_v, line);
    w->lds = padded_row(w->tile, line);
    w->ldh = padded_row(w->tile / 2, line);
    w->slots = 1;
    w->rows = w->tile * (attn_cpu_sdpa_blocks(w->s.flat, w->tile) * p->batch * p->heads_k < 8 * (int64_t)threads
                             ? 1
                             : ATTN_CPU_TILE_SLOTS);
    w->row_blocks = attn_cpu_sdpa_blocks(w->s.flat, w->rows);
    w->fused = can_fuse(w, threads);
    while (w->fused && !w->s.bf16 && !strips && w->slots < KEY_SLOTS && w->slots * w->tile < p->seq_k &&
           (w->slots + 1) * w->tile * (4 * w->ldd + 2 * w->ldv) * w->real <= SLOT_BYTES)
        w->slots++;
    w->keys = w->slots * w->tile;
    if (strips) attn_cpu_bwd_amx_lay_out(w, threads);
    w->key_blocks = attn_cpu_sdpa_blocks(p->seq_k, w->keys);
    w->n_stats = attn_core_has(p, ATTN_PACKED) ? p->heads_q * p->total_q : p->batch * p->heads_q * p->seq_q;

    int64_t *end = &w->offsets.end;
    const int64_t qs = w->tile * w->ldd * w->real, vs = w->tile * w->ldv * w->real, ss = w->tile * w->lds * w->real;
    const int64_t slots = ATTN_CPU_TILE_SLOTS, two_rows = 2 * w->ldv * w->real;
    w->offsets.q = attn_cpu_sdpa_take(end, slots * qs);
    w->offsets.dout = attn_cpu_sdpa_take(end, slots * vs > two_rows ? slots * vs : two_rows);
    w->offsets.k = attn_cpu_sdpa_take(end, w->slots * qs);
    w->offsets.v = attn_cpu_sdpa_take(end, vs);
    w->offsets.kt = attn_cpu_sdpa_take(end, w->slots * p->dim_qk * w->tile * w->real);
    w->offsets.vt = attn_cpu_sdpa_take(end, w->slots * p->dim_v * w->tile * w->real);
    w->offsets.p = attn_cpu_sdpa_take(end, ss);
    w->offsets.ds = attn_cpu_sdpa_take(end, ss);
    w->offsets.chain = attn_cpu_sdpa_take(end, p->softcap > 0 ? ss : 0);
    w->offsets.dk = attn_cpu_sdpa_take(end, w->slots * qs);
    w->offsets.dv = attn_cpu_sdpa_take(end, w->slots * vs);
    w->in_parts = p->dtype == ATTN_F32 && w->s.flat > PART_TILES * w->tile;
    w->offsets.sums = attn_cpu_sdpa_take(end, w->in_parts ? w->slots * (qs + vs) : 0);
    w->offsets.tmp = *end;
    w->offsets.mask = attn_cpu_sdpa_take(end, w->tile * (int64_t)sizeof(float));
    w->offsets.hidden = attn_cpu_sdpa_take(end, w->tile);
    w->offsets.bad = attn_cpu_sdpa_take(end, (2 + w->slots) * w->tile);
    w->offsets.row = attn_cpu_sdpa_take(end, slots * w->tile * (int64_t)sizeof(struct attn_cpu_sdpa_row));
    w->offsets.stat = attn_cpu_sdpa_take(end, slots * w->tile * (int64_t)sizeof(struct attn_cpu_bwd_row *));
    w->offsets.raw_q = attn_cpu_sdpa_take(end, qs);
    w->offsets.raw_dout = attn_cpu_sdpa_take(end, vs);
    w->offsets.raw_k = attn_cpu_sdpa_take(end, w->slots * qs);
    w->offsets.sum =
        attn_cpu_sdpa_take(end, attn_core_has(p, ATTN_GRAD_MASK) ? w->tile * w->tile * (int64_t)sizeof(double) : 0);
    if (pairs) {
        w->offsets.q_zip = attn_cpu_sdpa_take(end, qs / 2);
        w->offsets.dout_zip = attn_cpu_sdpa_take(end, vs / 2);
        w->offsets.k_zip = attn_cpu_sdpa_take(end, qs / 2);
        w->offsets.p_zip = attn_cpu_sdpa_take(end, ss / 2);
        w->offsets.ds_zip = attn_cpu_sdpa_take(end, ss / 2);
        w->offsets.ds_half = attn_cpu_sdpa_take(end, w->tile * w->ldh * w->real);
    }
    if (w->amx.end > *end) *end = w->amx.end;
    const int64_t all = attn_cpu_sdpa_up(w->s.flat, 32);
    w->offsets.dq = attn_cpu_sdpa_take(end, (w->fused && all > w->rows ? all : w->rows) * w->ldd * w->real);
}

static int64_t row_tasks(const struct attn_cpu_bwd *w) {
    return w->s.p->batch * w->s.p->heads_q * attn_cpu_sdpa_blocks(w->s.p->seq_q, ROWS);
}
static int64_t key_tasks(const struct attn_cpu_bwd *w) { return w->s.p->batch * w->s.p->heads_k * w->key_blocks; }

/* Workers that find a task in the phase that has most of them. */
static int64_t workers(const struct attn_cpu_bwd *w) {
    const attn_problem *p = w->s.p;
    const int64_t pairs = p->batch * p->heads_k;
    const int64_t tasks[] = {row_tasks(w), key_tasks(w), pairs * w->row_blocks, p->heads_q};
    if (attn_core_has(p, ATTN_GRAD_MASK)) return w->crew; /* its tasks depend on the tensor */
    int64_t most = 1;
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++)
        if (tasks[i] > most) most = tasks[i];
    return attn_cpu_at_most(w->crew, most);
}

/* What all workers see, in front of their scratch; *odd: where the bytes of unfit_rows and unfit_keys start. */
static int64_t shared_bytes(const struct attn_cpu_bwd *w, int64_t *unfit) {
    int64_t end = 0;
    attn_cpu_sdpa_take(&end, w->n_stats * (int64_t)sizeof(struct attn_cpu_bwd_row));
    *unfit = attn_cpu_sdpa_take(&end, w->amx.end ? row_tasks(w) + key_tasks(w) : 0);
    return end;
}

static void set_up(struct attn_cpu_bwd *w, const struct attn_cpu_sdpa_isa *isa, const attn_problem *p,
                   const attn_args *args, int32_t threads) {
    attn_cpu_sdpa_init(&w->s, p, args, isa->u, isa->n_bf16 ? NULL : isa->bf16);
    w->bf16 = isa->bf16;
    w->crew = attn_cpu_sdpa_crew(isa, p, threads);
    lay_out(w, w->crew);
}

int64_t attn_cpu_sdpa_bwd_workspace(const struct attn_cpu_sdpa_isa *isa, const attn_problem *p, int32_t threads) {
    struct attn_cpu_bwd w = {0};
    int64_t unfit;
    if (p->heads_q <= 0) return 0;
    set_up(&w, isa, p, NULL, threads);
    return shared_bytes(&w, &unfit) + workers(&w) * w.offsets.end;
}

static void run_tasks(void *arg, int32_t worker) {
    struct attn_cpu_bwd *w = arg;
    attn_ukr_bf16_begin(w->bf16);
    for (int64_t t; (t = attn_cpu_next(&w->next)) < w->tasks;) w->phase(w, t, w->scratch + worker * w->offsets.end);
    attn_ukr_bf16_end(w->bf16);
}

static void run_phase(struct attn_cpu_bwd *w, const struct attn_core_device *dev, int64_t tasks,
                      void (*phase)(struct attn_cpu_bwd *w, int64_t task, char *scratch)) {
    if (tasks <= 0) return;
    w->next = (struct attn_cpu_counter){0};
    w->tasks = tasks;
    w->phase = phase;
    attn_cpu_pool_run(attn_cpu_pool_of(dev), attn_cpu_at_most(w->crew, tasks), run_tasks, w);
}

void attn_cpu_sdpa_bwd(const struct attn_cpu_sdpa_isa *isa, const struct attn_core_device *dev, const attn_problem *p,
                       const attn_args *args) {
    struct attn_cpu_bwd w = {0};
    int64_t unfit;
    attn_cpu_ref_padding(dev, p, args);
    if (p->heads_q <= 0) return; /* without queries or batch entries the sums that remain are zeros, not left alone */
    set_up(&w, isa, p, args, dev->threads);
    w.stats = args->workspace;
    w.scratch = (char *)args->workspace + shared_bytes(&w, &unfit);
    w.unfit_rows = (uint8_t *)args->workspace + unfit;
    w.unfit_keys = w.unfit_rows + row_tasks(&w);
    w.out = attn_core_view(p, args, ATTN_ROLE_OUT);
    w.lse = attn_core_view(p, args, ATTN_ROLE_LSE);
    w.dout = attn_core_view(p, args, ATTN_ROLE_DOUT);
    w.dlse = attn_core_view(p, args, ATTN_ROLE_DLSE);
    w.dq = attn_core_view(p, args, ATTN_ROLE_DQ);
    w.dk = attn_core_view(p, args, ATTN_ROLE_DK);
    w.dv = attn_core_view(p, args, ATTN_ROLE_DV);
    w.dmask = attn_core_view(p, args, ATTN_ROLE_DMASK);
    w.want_dq = w.dq.data && p->dim_qk > 0;
    w.want_dk = w.dk.data && p->dim_qk > 0;
    w.want_dv = w.dv.data && p->dim_v > 0;

    const struct phases *phases = w.real == 8 ? &phases_f64 : w.s.bf16 ? &phases_bf16 : &phases_f32;
    const int dalibi = attn_core_has(p, ATTN_GRAD_ALIBI);
    const int64_t pairs = p->batch * p->heads_k;
    run_phase(&w, dev, row_tasks(&w), phases->rows);
    if (w.amx.end) run_phase(&w, dev, key_tasks(&w), attn_cpu_bwd_amx_look);
    if (w.fused && w.want_dq && (w.want_dk || w.want_dv)) {
        run_phase(&w, dev, pairs, phases->fused);
    } else {
        if (w.want_dk || w.want_dv) run_phase(&w, dev, pairs * w.key_blocks, phases->keys);
        if (w.want_dq || dalibi) run_phase(&w, dev, pairs * w.row_blocks, phases->queries);
    }
    if (attn_core_has(p, ATTN_GRAD_MASK)) run_phase(&w, dev, attn_cpu_bwd_mask_tasks(&w), phases->mask);
    if (dalibi || attn_core_has(p, ATTN_GRAD_SINK)) run_phase(&w, dev, p->heads_q, attn_cpu_bwd_sums);
}
