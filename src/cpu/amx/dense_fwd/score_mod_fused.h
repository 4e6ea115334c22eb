/* SPDX-License-Identifier: MIT
 * Softcap or ALiBi fused into the exponential of the forward on AMX (fwd.c): its argument x = score * factor - offset
 * comes straight from the product, while tiles are multiplied. A pass of its own (ukr/score_mod.h) would precede them.
 * Only where nothing else makes the score and the scale is positive. A boolean mask may be there besides, or alone: it
 * masks the exponential's last instruction, or the arguments of a table.
 *
 *     cap     x = s P(s^2) - offset: softcap.h
 *     ALiBi   x = s (scale factor) - (base + slope |key - origin|) */
#ifndef ATTN_CPU_AMX_DENSE_FWD_SCORE_MOD_FUSED_H
#define ATTN_CPU_AMX_DENSE_FWD_SCORE_MOD_FUSED_H
#include "cpu/amx/dense_fwd/softcap.h"

enum {
    FUSE_NONE, /* products are scores; where there are several terms, any */
    FUSE_CAP,
    FUSE_ALIBI,
    FUSE_BOOL,
    FUSE_CAP_BOOL,
    FUSE_ALIBI_BOOL,
    FUSE_SEPARATE /* scores are made by a pass of their own */
};
static inline int fuse_makes(int kind) { return kind != FUSE_NONE && kind != FUSE_SEPARATE; }
static inline int fuse_caps(int kind) { return kind == FUSE_CAP || kind == FUSE_CAP_BOOL; }
static inline int fuse_alibi(int kind) { return kind == FUSE_ALIBI || kind == FUSE_ALIBI_BOOL; }
static inline int fuse_bool_mask(int kind) {
    return kind == FUSE_BOOL || kind == FUSE_CAP_BOOL || kind == FUSE_ALIBI_BOOL;
}

struct fused {
    int kind;
    v32 factor;
    struct capped capped;
    v32 scaled[2], slope[2], base[2], start[2], from[2]; /* start: of the step, from: of the next keys, less origin */
    __m512i magnitude;                                   /* ALiBi by distance: all bits but the sign; else all */
};
/* factor: in parts, and of bf16_accuracy, where arguments go to a table. */
static inline void set_up_fused(struct fused *e, int kind, int bf16_accuracy, float factor,
                                const struct attn_fwd_score_mod *f) {
    *e = (struct fused){.kind = kind, .factor = v32_set(factor)};
    if (fuse_caps(kind)) set_up_capped(&e->capped, bf16_accuracy, factor, f);
}
/* ALiBi: what 16 queries at lane h need for a step from `key` on, relative to offset. Scores of `far` queries are
 * finished and have the running max subtracted already. */
static inline void begin_alibi(struct fused *e, const struct attn_fwd_score_mod *f, int64_t key, int h, v32 offset,
                               __mmask16 far) {
    const v32 slope = v32_load(f->slope + h * 16) * e->factor, origin = v32_load(f->origin + h * 16),
              near = v32_load(f->near + h * 16);
    const int by_distance = f->alibi == 2;
    const v32 other = v32_set(0) - slope, distance = v32_nfma(slope, near, offset);
    e->magnitude = _mm512_set1_epi32(by_distance ? INT32_MAX : -1);
    e->scaled[h] = _mm512_mask_mov_ps(v32_set(f->scale) * e->factor, far, e->factor);
    e->slope[h] = _mm512_maskz_mov_ps((__mmask16)~far, by_distance ? (v32)slope : other);
    e->base[h] = _mm512_mask_mov_ps(offset, by_distance ? (__mmask16)~far : 0, distance);
    e->start[h] = v32_set((float)key) - origin;
}
static inline __attribute__((always_inline)) void begin_fused(struct fused *e) {
    e->capped.beyond = _mm512_setzero_si512();
    for (int h = 0; h < 2; h++) e->from[h] = e->start[h];
}
static inline int is_beyond(const struct fused *e) { return fuse_caps(e->kind) && is_beyond_cap(&e->capped); }
/* A boolean mask alone: what remains is the scale. */
static inline void begin_bool_mask(struct fused *e, const struct attn_fwd_score_mod *f, int h, __mmask16 far) {
    e->scaled[h] = _mm512_mask_mov_ps(v32_set(f->scale) * e->factor, far, e->factor);
}
/* Of two keys by 32 queries. kept: NULL, or who gets 0 instead (not with ALiBi). */
static inline __attribute__((always_inline)) void fused_arguments(struct fused *e, int exactly, const v32 *s,
                                                                  const v32 *offset, const __mmask16 *visible, v32 *x) {
    enum { MANY = SOFTCAP_MANY };
    v32 t[MANY];
    if (e->kind == FUSE_BOOL) {
        UNROLL for (int i = 0; i < MANY; i++) {
            x[i] = visible ? _mm512_maskz_fmsub_ps(visible[i], s[i], e->scaled[i % 2], offset[i % 2])
                           : _mm512_fmsub_ps(s[i], e->scaled[i % 2], offset[i % 2]);
        }
        return;
    }
    if (fuse_alibi(e->kind)) {
        UNROLL for (int i = 0; i < 2; i++) t[i] = e->from[i], t[2 + i] = e->from[i] + v32_set(1);
        UNROLL for (int i = 0; i < MANY; i++) t[i] =
            _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(t[i]), e->magnitude));
        UNROLL for (int i = 0; i < MANY; i++) t[i] = v32_fma(e->slope[i % 2], t[i], e->base[i % 2]);
        UNROLL for (int i = 0; i < MANY; i++) x[i] = _mm512_fmsub_ps(s[i], e->scaled[i % 2], t[i]);
        UNROLL for (int h = 0; h < 2; h++) e->from[h] += v32_set(2);
        return;
    }
    const v32 offsets[MANY] = {offset[0], offset[1], offset[0], offset[1]};
    capped_arguments(&e->capped, exactly, s, offsets, visible, x);
}
#endif
