/* SPDX-License-Identifier: MIT
 * Loops that poll memory, see spin.h. */
#include "checks/spin.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST = 16, LONGEST = 4096, OTHERS = 8 };
struct sim_spin {
    const struct sim_ins *in; /* the poll that is watched */
    uint32_t m;               /* its lanes */
    uint32_t n, wait;         /* polls in a row; how many before the registers are kept */
    uint32_t others;          /* polls at other places since */
    uint64_t changes;         /* of the cluster, at the last one */
    uint32_t *registers;
    uint8_t spins;
};

static size_t bytes_of(const struct sim_program *p) { return ((size_t)p->n_words + p->n_predicates) * 4; }
static void keep(struct sim_warp *w) {
    const struct sim_program *p = w->cta->cluster->launch->program;
    memcpy(w->spin->registers, w->r, (size_t)p->n_words * 4);
    memcpy(w->spin->registers + p->n_words, w->p, (size_t)p->n_predicates * 4);
}
static int is_as_kept(const struct sim_warp *w) {
    const struct sim_program *p = w->cta->cluster->launch->program;
    return !memcmp(w->spin->registers, w->r, (size_t)p->n_words * 4) &&
           !memcmp(w->spin->registers + p->n_words, w->p, (size_t)p->n_predicates * 4);
}

enum sim_step sim_spin_poll(struct sim_warp *w, const struct sim_ins *in, uint32_t m) {
    struct sim_cluster *c = w->cta->cluster;
    struct sim_spin *s = w->spin;
    if (!s) {
        s = w->spin = calloc(1, sizeof *s);
        if (!s || !(s->registers = malloc(bytes_of(c->launch->program)))) abort();
    }
    const int same_place = s->in == in && s->m == m;
    if (!same_place && s->in && s->changes == c->changes && ++s->others < OTHERS) return SIM_NEXT;
    if (!same_place || s->changes != c->changes) {
        *s = (struct sim_spin){.in = in, .m = m, .wait = FIRST, .changes = c->changes, .registers = s->registers};
        return SIM_NEXT;
    }
    s->others = 0;
    if (s->n < s->wait) {
        if (++s->n == s->wait) keep(w);
        return SIM_NEXT;
    }
    if (is_as_kept(w)) {
        s->spins = 1;
        return SIM_RETRY;
    }
    if (s->spins) c->changes++; /* another cluster's news */
    s->spins = 0, s->n = 0, s->changes = c->changes;
    if (s->wait < LONGEST) s->wait *= 2;
    return SIM_NEXT;
}
int sim_spins(const struct sim_warp *w) {
    return w->spin && w->spin->spins && w->spin->changes == w->cta->cluster->changes;
}
void sim_spin_start(struct sim_warp *w) {
    if (w->spin) *w->spin = (struct sim_spin){.registers = w->spin->registers};
}
void sim_spin_free(struct sim_warp *w) {
    if (w->spin) free(w->spin->registers);
    free(w->spin);
}

/* ---- several host threads ----
 * A worker whose cluster is stuck tries again and again. It agrees to a deadlock when it has found nothing in a whole
 * round of tries since the launch's epoch began; every worker that becomes stuck, and every one that goes on, begins a
 * new epoch, so that what it wrote is looked at. When all have agreed to one epoch nobody is left to write. */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void sim_spin_leave(struct sim_launch *g) {
    pthread_mutex_lock(&lock);
    g->spin.n_running--;
    g->spin.epoch++, g->spin.n_agreed = 0;
    pthread_mutex_unlock(&lock);
}
void sim_spin_went_on(struct sim_worker *k) {
    if (!k->spin_stuck) return;
    pthread_mutex_lock(&lock);
    k->launch->spin.epoch++, k->launch->spin.n_agreed = 0;
    k->spin_stuck = 0;
    pthread_mutex_unlock(&lock);
}
int sim_spin_is_for_good(struct sim_worker *k) {
    const struct sim_cluster *c = &k->cluster;
    struct sim_spin_room *s = &k->launch->spin;
    int any = 0, good;
    for (uint32_t i = 0; i < c->n_warps; i++) {
        const struct sim_warp *w = &c->ctas[i / c->ctas->n_warps].warps[i % c->ctas->n_warps];
        any |= !w->done && sim_spins(w);
    }
    if (!any) return 1;
    pthread_mutex_lock(&lock);
    if (!k->spin_stuck) { /* what it wrote before is for others to look at; its own next round counts */
        s->epoch++, s->n_agreed = 0;
        k->spin_stuck = 1, k->spin_agreed = 0;
    } else if (k->spin_round == s->epoch && k->spin_agreed != s->epoch) {
        k->spin_agreed = s->epoch;
        s->n_agreed++;
    }
    k->spin_round = s->epoch;
    good = s->n_agreed == s->n_running;
    pthread_mutex_unlock(&lock);
    if (good) return 1;
    k->n_chances = 0;
    sched_yield();
    return 0;
}
