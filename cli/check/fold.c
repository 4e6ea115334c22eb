/* SPDX-License-Identifier: MIT
 * Sums over the broadcast axes of an output: a gradient of a mask with stride 0 gets the sum of what the positions that
 * share its storage would get. The sum is written to each of those positions, as a load through the strides would see
 * it. */
#include "check.h"

#include <math.h>

static int64_t representative(const struct check_tensor *t, int64_t element) {
    int64_t out = 0, weight = 1;
    for (int a = t->view.rank - 1; a >= 0; a--) {
        int64_t x = element % t->view.shape[a];
        element /= t->view.shape[a];
        if (!t->broadcast[a]) out += x * weight;
        weight *= t->view.shape[a];
    }
    return out;
}

void attn_cli_check_fold(const struct check_tensor *t, double *values, bool squares) {
    bool any = false;
    for (int a = 0; a < t->view.rank; a++) any |= t->broadcast[a] != 0;
    if (!any || !values) return;
    if (squares)
        for (int64_t i = 0; i < t->n; i++) values[i] *= values[i];
    for (int64_t i = 0; i < t->n; i++) {
        int64_t r = representative(t, i);
        if (r != i) values[r] += values[i];
    }
    for (int64_t i = t->n - 1; i >= 0; i--) {
        int64_t r = representative(t, i);
        if (r != i) values[i] = values[r];
    }
    if (squares)
        for (int64_t i = 0; i < t->n; i++) values[i] = sqrt(values[i]);
}
