/* SPDX-License-Identifier: MIT
 * How far ahead of ALiBi the running max of a query is, where queries lie across the lanes. */
#ifndef ATTN_CPU_UKR_ALIBI_GROWTH_H
#define ATTN_CPU_UKR_ALIBI_GROWTH_H
#include "cpu/ukr/bf16.h"
#include "cpu/vec/vec.h"

/* How much larger than in this step ALiBi will become in the steps to come, at most SCORE_GROWTH: a running max that is
 * so much larger need not be moved with each step, and f32 and bf16 have room below. The largest of a row's is 0. */
#define SCORE_GROWTH 40.0f
/* Of the queries at lanes part * V32_LANES on. */
static inline v32 growth(const struct attn_fwd_score_mod *f, int64_t span, int64_t key, int64_t part) {
    const v32 none = v32_set(0);
    if (!f || !f->alibi) return none;
    const v32 slope = v32_load(f->slope + part * V32_LANES), origin = v32_load(f->origin + part * V32_LANES),
              near = v32_load(f->near + part * V32_LANES);
    v32 d[2] = {v32_set((float)key) - origin, v32_set((float)(key + span - 1)) - origin};
    for (int i = 0; i < 2 && f->alibi == 2; i++) d[i] = near - v32_abs(d[i]);
    d[0] *= slope, d[1] *= slope;
    const v32 most = v32_set(SCORE_GROWTH), growth_left = none - d[1];
    return v32_pick(v32_and(v32_lt(d[0], d[1]), v32_lt(d[1], none)),
                    v32_pick(v32_lt(growth_left, most), growth_left, most), none);
}
#endif
