/* SPDX-License-Identifier: MIT
 * mla_bwd on the CPU, first of two files: sizes, the walk over batches of units, and the outputs of whole rows. The
 * other, mla_bwd_products.c, has the products.
 *
 * A unit is one query and one chunk of its heads. A batch of units goes through two phases, each shared out to all
 * threads:
 *   1. per unit:  the slots are sorted (stably) by ranges of keys; P and dS of all of them go to the unit's memory; dQ.
 *   2. per key range and column slice:  dKV[key] += sum over heads of dS q + g P dout, unit after unit, slot after
 * slot. Every element of dKV has one owner, which adds in the order of the units: no atomics, and the same bits with
 * any number of threads. TOPK beyond a window's worth of slots runs the two phases once per window of slots.
 * The first phase 2 clears the sums and the last one rounds them, a task its own, if its cache holds them.
 *
 * An f32 dkv of f32 inputs is summed in parts of MLA_SUMMANDS: thousands of queries that name one key, with numbers
 * that are alike, would be rounded the same way each time (20,000: 1.7e-4 of the sum; the bound is 2e-5).
 *
 * Workspace: per thread less than 2 MiB, and UNITS_PER_THREAD units of at most 3 MiB each (least SMALL_BATCH_BYTES in
 * all; MIN_UNITS units when TOPK is beyond a window); and, if dkv is not f32 or the inputs are, the f32 sums of one
 * batch entry, SK * D * 4 bytes. */
#include "cpu/sparse/mla_bwd.h"

#include "attn.h"
#include "core/problem.h"

#include <string.h>

enum {
    WINDOW_FLOATS = 1 << 18, /* P of one unit and window: 2048 slots of 128 heads */
    UNITS_PER_THREAD = 4,
    MIN_UNITS = 16,               /* of a batch when there are several windows */
    SMALL_BATCH_BYTES = 32 << 20, /* units so small that they fit are batched beyond UNITS_PER_THREAD */
    MAX_UNITS = 4096,
    ROWS_PER_TASK = 256 /* keys of a task that clears or rounds sums */
};

struct mla_bwd_size attn_cpu_mla_bwd_size(const struct mla_isa *isa, const attn_problem *p, int32_t threads) {
    const int32_t threads_wanted = threads;
    threads = attn_cpu_mla_crew(isa, p, threads);
    struct mla_bwd_size z = {.chunk = mla_chunk(p)};
    const int64_t f = (int64_t)sizeof(float);
    const int pairs = isa->bf16 != NULL;
    z.n_chunks = (p->heads_q + z.chunk - 1) / z.chunk;
    z.ldh = mla_side(isa, z.chunk);
    z.ldx = pairs ? z.ldh : 2 * z.ldh;
    z.ldk = mla_round(mla_depth(isa, p->dim_qk), 16) + 16;
    z.ldz = mla_round(p->dim_qk, 16) + 16;
    const int64_t head_rows = pairs ? z.ldh / 2 : z.chunk, sum_rows = mla_strips(isa) ? z.ldh : z.chunk,
                  fill = mla_strips(isa) ? ATTN_MLA_HEADS : 0;
    z.window = mla_min(p->topk, WINDOW_FLOATS / z.ldh);
    z.n_windows = (p->topk + z.window - 1) / z.window;
    /* Ranges of keys: enough slots of a unit in each for products of a useful height. */
    const int64_t slots = mla_strips(isa) ? MLA_STRIP_RANGE_SLOTS : MLA_RANGE_SLOTS;
    int64_t most = mla_min(mla_max(z.window / slots, 1), MLA_MAX_RANGES);
    while (p->seq_k && (p->seq_k - 1) >> z.range_shift >= most) ++z.range_shift;
    z.n_ranges = p->seq_k ? ((p->seq_k - 1) >> z.range_shift) + 1 : 1;
    z.slice = MLA_SLICE;
    if (mla_strips(isa)) { /* several tasks for each thread, if that takes narrower ones; no sum depends on it */
        const int64_t pieces = mla_min(2 * threads / z.n_ranges + 1, p->dim_qk / MLA_LEAST_SLICE);
        z.slice = mla_min(MLA_STRIP_SLICE, mla_round((p->dim_qk + pieces - 1) / pieces, ATTN_MLA_HEADS));
    }
    z.n_slices = (p->dim_qk + z.slice - 1) / z.slice;
    /* what a task adds to at a time lies on few pages */
    z.sum_block = mla_strips(isa) && p->dkv_dtype != ATTN_F32 ? ATTN_MLA_HEADS : p->dim_qk;

    z.u_state = mla_take(&z.unit_bytes, (int64_t)sizeof(struct mla_unit));
    z.u_sink = mla_take(&z.unit_bytes, z.chunk * (int64_t)sizeof(double));
    z.u_key = mla_take(&z.unit_bytes, z.window * (int64_t)sizeof(int32_t));
    z.u_slot = mla_take(&z.unit_bytes, z.window * (int64_t)sizeof(int64_t));
    z.u_q = mla_take(&z.unit_bytes, mla_strips(isa) ? z.ldh * p->dim_qk * f : head_rows * z.ldz * f);
    if (!mla_strips(isa)) z.u_do = mla_take(&z.unit_bytes, head_rows * z.ldz * f);
    z.u_x = mla_take(&z.unit_bytes, (z.window + fill) * z.ldx * f);
    if (z.n_windows > 1) z.u_dq = mla_take(&z.unit_bytes, sum_rows * z.ldz * f);

    z.t_qt = mla_take(&z.thread_bytes, mla_depth(isa, p->dim_qk) * mla_transposed(z.ldh) * f);
    z.t_dot = mla_take(&z.thread_bytes, mla_depth(isa, p->dim_v) * mla_transposed(z.ldh) * f);
    if (!mla_in_place(isa)) z.t_k = mla_take(&z.thread_bytes, isa->block * z.ldk * f);
    if (pairs) {
        if (!mla_in_place(isa)) z.t_zip = mla_take(&z.thread_bytes, isa->block / 2 * z.ldz * f);
        z.t_x = mla_take(&z.thread_bytes, (mla_strips(isa) ? MLA_STRIP_FLOATS(isa) : isa->block * 2 * z.ldh) * f);
        z.t_ds = mla_take(&z.thread_bytes, isa->block / 2 * z.ldh * f);
    }
    z.t_dq = mla_take(&z.thread_bytes, sum_rows * z.ldz * f);
    z.t_key = mla_take(&z.thread_bytes, z.window * (int64_t)sizeof(int32_t));
    z.t_slot = mla_take(&z.thread_bytes, z.window * (int64_t)sizeof(int64_t));
    z.t_row = mla_take(&z.thread_bytes, 2 * z.ldz * f);
    z.t_lse = mla_take(&z.thread_bytes, z.ldh * f);
    z.t_g = mla_take(&z.thread_bytes, z.ldh * f);
    z.t_c = mla_take(&z.thread_bytes, z.ldh * f);
    z.t_dead = mla_take(&z.thread_bytes, z.ldh);
    z.t_sum = mla_take(&z.thread_bytes, MLA_SUM_ROWS * (MLA_SLICE + 16) * f); /* strips: 32 * 32 */

    if (mla_in_place(isa)) z.t_at = mla_take(&z.thread_bytes, 2 * isa->block * (int64_t)sizeof(uint16_t *));

    /* With several windows the order in which a key's parts are added depends on the size of the batch, so that it must
     * not depend on the threads; with one window it may. */
    int64_t units = MIN_UNITS;
    if (z.n_windows == 1) {
        units = mla_max((int64_t)threads * UNITS_PER_THREAD, SMALL_BATCH_BYTES / (int64_t)z.unit_bytes);
        units = mla_min(mla_max(units, 1), MAX_UNITS);
    }
    const int64_t all = mla_max(1, p->seq_q > MAX_UNITS ? MAX_UNITS : p->seq_q * z.n_chunks);
    z.batch_units = mla_min(units, all);
    if (z.n_windows == 1 && units > threads) { /* each thread gets as many, and the last batch is no small one */
        units -= units % threads;
        const int64_t batches = (all + units - 1) / units;
        z.batch_units = mla_min(all, mla_round((all + batches - 1) / batches, threads));
    }

    /* those that find a task in the phase that has most of them */
    const int64_t tasks = mla_max(mla_max(z.batch_units, z.n_ranges * z.n_slices), p->seq_k / ROWS_PER_TASK + 1);
    z.threads = attn_cpu_at_most(threads, tasks);
    z.at_threads = mla_take(&z.bytes, (int64_t)z.thread_bytes * z.threads);
    z.at_units = mla_take(&z.bytes, (int64_t)z.unit_bytes * z.batch_units);
    z.at_sink = mla_take(&z.bytes, attn_core_has(p, ATTN_GRAD_SINK) ? p->heads_q * (int64_t)sizeof(double) : 0);
    z.at_sums = z.bytes;
    z.in_parts = p->dtype == ATTN_F32;
    if (p->dkv_dtype != ATTN_F32 || z.in_parts) mla_take(&z.bytes, p->seq_k * p->dim_qk * f);
    if (z.in_parts) z.at_counts = mla_take(&z.bytes, p->seq_k * z.n_slices);
    if (attn_core_has(p, ATTN_WITH_DIST) && z.n_chunks > 1) {
        uint64_t dist = attn_cpu_mla_dist_workspace(isa, p, threads_wanted);
        if (z.bytes < dist) z.bytes = dist;
    }
    return z;
}

uint64_t attn_cpu_mla_bwd_workspace(const struct mla_isa *isa, const attn_problem *p, int32_t threads) {
    return attn_cpu_mla_bwd_size(isa, p, threads).bytes;
}

static int in_output(const struct mla_bwd *j) { return j->p->dkv_dtype == ATTN_F32 && !j->z.in_parts; }

/* f32 sums of a key from a column on, which is the first of a block: in the output itself or in the workspace. */
float *attn_cpu_mla_bwd_sum(const struct mla_bwd *j, int64_t key, int64_t column) {
    if (in_output(j)) return (float *)attn_view_row(&j->dkv, j->b, 0, key) + column;
    return (float *)(j->ws + j->z.at_sums) + column * j->p->seq_k + key * j->z.sum_block;
}

/* The same from any column on. */
static float *sum_at(const struct mla_bwd *j, int64_t key, int64_t column) {
    const int64_t within = column % j->z.sum_block;
    return attn_cpu_mla_bwd_sum(j, key, column - within) + within;
}

/* Of these the sums are added to dkv. */
static void add_part(const struct mla_bwd *j, int64_t key, int64_t c0, int64_t c1) {
    j->isa->vec->add((float *)attn_view_row(&j->dkv, j->b, 0, key) + c0, sum_at(j, key, c0), c1 - c0);
}
static uint8_t *count_of(const struct mla_bwd *j, int64_t key, int64_t c0) {
    return (uint8_t *)j->ws + j->z.at_counts + c0 / j->z.slice * j->p->seq_k + key;
}
void attn_cpu_mla_bwd_count(const struct mla_bwd *j, int64_t key, int64_t c0, int64_t c1) {
    uint8_t *count = count_of(j, key, c0);
    if (++*count < MLA_SUMMANDS) return;
    add_part(j, key, c0, c1);
    memset(sum_at(j, key, c0), 0, (size_t)(c1 - c0) * sizeof(float));
    *count = 0;
}

/* The parts' beginning: no summands, and dkv 0 or what the caller has in it. */
static void clear_parts(const struct mla_bwd *j, int64_t from, int64_t to, int64_t c0, int64_t c1) {
    for (int64_t c = c0; c < c1; c += j->z.slice) memset(count_of(j, from, c), 0, (size_t)(to - from));
    if (attn_core_has(j->p, ATTN_ACCUMULATE)) return;
    for (int64_t key = from; key < to; ++key)
        memset((float *)attn_view_row(&j->dkv, j->b, 0, key) + c0, 0, (size_t)(c1 - c0) * sizeof(float));
}

void attn_cpu_mla_bwd_clear(const struct mla_bwd *j, int64_t from, int64_t to, int64_t c0, int64_t c1) {
    const int64_t width = mla_min(j->z.sum_block, c1 - c0);
    const int together = width == j->z.sum_block && !in_output(j); /* rows follow each other */
    if (j->z.in_parts) clear_parts(j, from, to, c0, c1);
    for (int64_t c = c0; c < c1; c += width) {
        const int64_t n = together ? to - from : 1;
        for (int64_t key = from; key < to; key += n) memset(sum_at(j, key, c), 0, (size_t)(n * width) * sizeof(float));
    }
}

void attn_cpu_mla_bwd_round(const struct mla_bwd *j, int64_t from, int64_t to, int64_t c0, int64_t c1, float *old) {
    const struct attn_ukr *ukr = j->isa->ukr;
    const int64_t width = mla_min(j->z.sum_block, c1 - c0);
    const int add = attn_core_has(j->p, ATTN_ACCUMULATE);
    for (int64_t key = from; key < to && j->z.in_parts; ++key) add_part(j, key, c0, c1);
    if (j->z.in_parts) return;
    for (int64_t c = c0; c < c1; c += width) {
        const int64_t bytes = c * j->dkv.element_bytes;
        if (mla_strips(j->isa) && !add) {
            j->isa->bf16->narrow_rows((uint16_t *)(void *)(attn_view_row(&j->dkv, j->b, 0, from) + bytes), j->dkv.row,
                                      sum_at(j, from, c), to - from);
            continue;
        }
        for (int64_t key = from; key < to; ++key) {
            float *sum = sum_at(j, key, c);
            char *row = attn_view_row(&j->dkv, j->b, 0, key) + bytes;
            if (add) {
                ukr->widen(old, row, j->dkv.dtype, width, 1.0f);
                j->isa->vec->add(sum, old, width);
            }
            ukr->narrow(row, j->dkv.dtype, sum, width, 1.0f);
        }
    }
}

/* Passes of their own, where the sums of a task are more than it has in its cache. */
enum { CACHED_BYTES = 2 << 20 };
static int cached(const struct mla_bwd *j) {
    return mla_min(INT64_C(1) << j->z.range_shift, j->p->seq_k) * j->z.slice * (int64_t)sizeof(float) <= CACHED_BYTES;
}
static void clear_job(void *arg, int32_t worker) {
    struct mla_bwd *j = arg;
    const attn_problem *p = j->p;
    (void)worker;
    for (int64_t t; (t = attn_cpu_next(&j->next) * ROWS_PER_TASK) < p->seq_k;)
        attn_cpu_mla_bwd_clear(j, t, mla_min(t + ROWS_PER_TASK, p->seq_k), 0, p->dim_qk);
}
static void round_job(void *arg, int32_t worker) {
    struct mla_bwd *j = arg;
    const attn_problem *p = j->p;
    float *old = (float *)(j->ws + j->z.at_threads + j->z.thread_bytes * (uint64_t)worker + j->z.t_row);
    for (int64_t t; (t = attn_cpu_next(&j->next) * ROWS_PER_TASK) < p->seq_k;)
        attn_cpu_mla_bwd_round(j, t, mla_min(t + ROWS_PER_TASK, p->seq_k), 0, p->dim_qk, old);
}

static void share(struct mla_bwd *j, const struct attn_core_device *dev, int64_t tasks, attn_cpu_job job) {
    atomic_store_explicit(&j->next.next, 0, memory_order_relaxed);
    attn_cpu_pool_run(attn_cpu_pool_of(dev), attn_cpu_at_most(j->z.threads, tasks), job, j);
}

/* Adds the batch's parts of dsink, in the order of the units. */
static void add_sink(struct mla_bwd *j, double *total) {
    for (int64_t u = 0; u < j->n_units; ++u) {
        const double *part = (const double *)(attn_cpu_mla_bwd_unit(j, u) + j->z.u_sink);
        const int64_t h0 = (j->u0 + u) % j->z.n_chunks * j->z.chunk;
        for (int64_t h = 0; h < mla_min(j->z.chunk, j->p->heads_q - h0); ++h) total[h0 + h] += part[h];
    }
}

static void one_entry(struct mla_bwd *j, const struct attn_core_device *dev, double *sink_total) {
    const attn_problem *p = j->p;
    const int64_t units = p->seq_q * j->z.n_chunks, row_tasks = p->seq_k / ROWS_PER_TASK + 1;
    const int f32_sums = in_output(j), within = units && cached(j);
    const int clear = j->dkv.data && !(f32_sums && attn_core_has(p, ATTN_ACCUMULATE));
    const int round = j->dkv.data && !f32_sums;
    if (clear && !within) share(j, dev, row_tasks, clear_job);
    for (j->u0 = 0; j->u0 < units; j->u0 += j->z.batch_units) {
        j->n_units = mla_min(j->z.batch_units, units - j->u0);
        for (j->window = 0; j->window < j->z.n_windows; ++j->window) {
            j->clear = clear && within && j->u0 + j->window == 0;
            j->round = round && within && j->u0 + j->n_units == units && j->window + 1 == j->z.n_windows;
            share(j, dev, j->n_units, attn_cpu_mla_bwd_rows_job);
            if (j->dkv.data) share(j, dev, j->z.n_ranges * j->z.n_slices, attn_cpu_mla_bwd_keys_job);
        }
        if (sink_total) add_sink(j, sink_total);
    }
    if (round && !within) share(j, dev, row_tasks, round_job);
}

void attn_cpu_mla_bwd(const struct mla_isa *isa, const struct attn_core_device *dev, const attn_problem *p,
                      const attn_args *a) {
    struct mla_bwd j = {
        .isa = isa, .p = p, .a = a, .z = attn_cpu_mla_bwd_size(isa, p, dev->threads), .ws = a->workspace};
    double *sink_total = NULL;
    j.q = attn_core_view(p, a, ATTN_ROLE_Q);
    j.kv = attn_core_view(p, a, ATTN_ROLE_KV);
    j.out = attn_core_view(p, a, ATTN_ROLE_OUT);
    j.lse = attn_core_view(p, a, ATTN_ROLE_LSE);
    j.dout = attn_core_view(p, a, ATTN_ROLE_DOUT);
    j.dlse = attn_core_view(p, a, ATTN_ROLE_DLSE);
    j.dq = attn_core_view(p, a, ATTN_ROLE_DQ);
    j.dkv = attn_core_view(p, a, ATTN_ROLE_DKV);
    /* Heads are added in one order only within a unit: with several chunks dist is computed by its own operator. */
    int dist_apart = attn_core_has(p, ATTN_WITH_DIST) && j.z.n_chunks > 1;
    if (attn_core_has(p, ATTN_WITH_DIST) && !dist_apart) j.dist = attn_core_view(p, a, ATTN_ROLE_DIST);
    if (attn_core_has(p, ATTN_SINK)) j.sink = a->sink->data;
    if (attn_core_has(p, ATTN_GRAD_SINK)) {
        sink_total = (double *)(j.ws + j.z.at_sink);
        memset(sink_total, 0, (size_t)p->heads_q * sizeof *sink_total);
    }
    for (j.b = 0; j.b < p->batch; ++j.b) one_entry(&j, dev, sink_total);
    for (int64_t h = 0; sink_total && h < p->heads_q; ++h) ((float *)a->dsink->data)[h] = (float)sink_total[h];
    if (dist_apart) attn_cpu_mla_dist(isa, dev, p, a);
}
