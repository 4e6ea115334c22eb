/* SPDX-License-Identifier: MIT
 * Roles: warps of a cluster that run the same code. Two are alike where the executions of instructions that they share
 * are at least four fifths of those that either has, summed over the program. So the warps of a warpgroup are one role
 * whatever their data decide, a warp with a loop of its own is another, and no kernel has to say anything. */
#include "checks/report.h"
#include "counts/counts.h"

#include <stdlib.h>
#include <string.h>

enum { ALIKE_OF = 5, ALIKE = 4, MAX_RANGES = 8 };

struct group {
    uint64_t *executed; /* summed over its n warps */
    uint32_t n;
    uint8_t *has; /* by warp of the cluster */
};

static int alike(const struct group *g, const uint64_t *executed, uint32_t n_ins) {
    double shared = 0, either = 0;
    for (uint32_t i = 0; i < n_ins; i++) {
        const double a = (double)g->executed[i] / g->n, b = (double)executed[i];
        shared += a < b ? a : b, either += a < b ? b : a;
    }
    return shared * ALIKE_OF >= either * ALIKE;
}

/* " 0-3, 8" of the warps of a rank that the group has. */
static void ranges(const uint8_t *has, uint32_t n, char *text, size_t room) {
    size_t used = strlen(text);
    uint32_t told = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t end = i;
        if (!has[i]) continue;
        while (end + 1 < n && has[end + 1]) end++;
        int k = told++ == MAX_RANGES
                    ? snprintf(text + used, room - used, ", ..")
                    : snprintf(text + used, room - used, end > i ? "%s%u-%u" : "%s%u", told > 1 ? "," : " ", i, end);
        used += k > 0 ? (size_t)k : 0;
        if (told > MAX_RANGES || used + 16 > room) return;
        i = end;
    }
}
static void name_of(const struct group *g, uint32_t n_ranks, uint32_t n_warps, char *text, size_t room) {
    uint32_t equal = 1, one = 0;
    for (uint32_t r = 1; r < n_ranks; r++) equal &= !memcmp(g->has, g->has + r * n_warps, n_warps);
    while (one < n_ranks && !memchr(g->has + one * n_warps, 1, n_warps)) one++;
    if (equal) {
        snprintf(text, room, "%s", g->n > n_ranks ? "warps" : "warp");
        ranges(g->has, n_warps, text, room);
        return;
    }
    for (uint32_t r = one; r < n_ranks; r++) {
        const uint8_t *has = g->has + r * n_warps;
        size_t used = r == one ? 0 : strlen(text);
        if (!memchr(has, 1, n_warps) || used + 40 > room) continue;
        snprintf(text + used, room - used, "%srank %u warp", used ? "; " : "", r);
        ranges(has, n_warps, text, room);
    }
}

/* The instructions at which the group's warps waited longest. */
static void longest_waits(const struct sim_program *p, const struct sim_count_sheet *s, const uint8_t *has,
                          struct sim_role *r) {
    for (uint32_t j = 0; j < p->n_ins; j++) {
        double clocks = 0;
        uint32_t k = SIM_ROLE_WAITS;
        for (uint32_t i = 0; i < s->n; i++) clocks += has[i] ? s->warps[i].waited[j] : 0;
        while (k && clocks > r->waits[k - 1].clocks) k--;
        if (k == SIM_ROLE_WAITS) continue;
        memmove(&r->waits[k + 1], &r->waits[k], (SIM_ROLE_WAITS - 1 - k) * sizeof r->waits[k]);
        r->waits[k].clocks = clocks;
        snprintf(r->waits[k].place, sizeof r->waits[k].place, "%s", sim_place(p, p->ins[j].statement));
    }
}

uint32_t sim_count_roles(const struct sim_program *p, const struct sim_count_sheet *s, uint32_t n_ranks,
                         struct sim_role **out) {
    const uint32_t n_warps = s->n / n_ranks;
    struct group *groups = calloc(s->n, sizeof *groups);
    uint32_t n = 0;
    if (!groups) abort();
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t k = 0;
        while (k < n && !alike(&groups[k], s->warps[i].executed, s->n_ins)) k++;
        if (k == n) {
            groups[n].executed = calloc(s->n_ins, sizeof *groups[n].executed);
            groups[n].has = calloc(s->n, 1);
            if (!groups[n].executed || !groups[n].has) abort();
            n++;
        }
        for (uint32_t j = 0; j < s->n_ins; j++) groups[k].executed[j] += s->warps[i].executed[j];
        groups[k].has[i] = 1, groups[k].n++;
    }
    struct sim_role *roles = calloc(n ? n : 1, sizeof *roles);
    if (!roles) abort();
    for (uint32_t k = 0; k < n; k++) {
        struct sim_role *r = &roles[k];
        name_of(&groups[k], n_ranks, n_warps, r->name, sizeof r->name);
        r->n = groups[k].n;
        for (uint32_t i = 0; i < s->n; i++) {
            const struct sim_warp_counts *w = &s->warps[i];
            if (!groups[k].has[i]) continue;
            sim_counts_add(&r->counts, &w->counts);
            for (uint32_t j = 0; j < s->n_ins; j++)
                if (w->executed[j]) sim_count_work(p, j, w->executed[j], w->lanes[j], &r->counts);
        }
        longest_waits(p, s, groups[k].has, r);
        free(groups[k].executed), free(groups[k].has);
    }
    free(groups);
    *out = roles;
    return n;
}

void sim_counted_add(struct sim_counted *sum, const struct sim_counted *c) {
    sum->n_launches += c->n_launches, sum->n_ctas += c->n_ctas, sum->failed |= c->failed;
    sim_counts_add(&sum->counts, &c->counts);
}
void sim_counted_free(struct sim_counted *c) {
    for (uint32_t i = 0; i < c->n_roles; i++) sim_counts_free(&c->roles[i].counts);
    free(c->roles), free(c->kernel);
    sim_counts_free(&c->counts);
    *c = (struct sim_counted){0};
}
