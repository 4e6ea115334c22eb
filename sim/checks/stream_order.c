/* SPDX-License-Identifier: MIT
 * See stream_order.h. Deeds are kept in the order of their numbers; when those or the places run out, and nothing is
 * under way, all records of global memory are forgotten. */
#include "checks/stream_order.h"

#include "checks/global.h"
#include "machine/device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { MOST = 1 << 14, SEARCHED = 512 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_deed deeds[MOST];
static atomic_uint n_deeds; /* published last: readers take no lock */
static uint32_t next_actor = 1, n_active, next_number[SIM_SLOTS];
struct sim_stamp sim_host_stamp;

void sim_stamp_join(struct sim_stamp *into, const struct sim_stamp *from) {
    for (int i = 0; i < SIM_SLOTS; i++)
        if (from->number[i] > into->number[i]) into->number[i] = from->number[i];
}
void sim_when_next(struct sim_when *when, uint32_t slot, struct sim_stamp *now) {
    when->known = 1;
    when->slot = slot;
    when->number = now->number[slot] = ++next_number[slot];
}

struct sim_deed *sim_deed_begin(const struct sim_deed *what, uint64_t n, const struct sim_when *when) {
    struct sim_deed *d = NULL;
    pthread_mutex_lock(&lock);
    uint32_t count = atomic_load(&n_deeds);
    if (!n_active && (count == MOST || n > SIM_GLOBAL_ACTORS - next_actor)) {
        sim_memory_forget();
        atomic_store(&n_deeds, 0);
        count = 0, next_actor = 1;
    }
    if (count < MOST && n <= SIM_GLOBAL_ACTORS - next_actor) {
        d = &deeds[count];
        *d = *what;
        d->first = next_actor, d->n = (uint32_t)n, d->slot = when->slot, d->number = when->number;
        next_actor += d->n;
        n_active++;
        atomic_store(&n_deeds, count + 1);
    }
    pthread_mutex_unlock(&lock);
    return d;
}
void sim_deed_end(struct sim_deed *d) {
    if (!d) return;
    pthread_mutex_lock(&lock);
    n_active--;
    pthread_mutex_unlock(&lock);
}

const struct sim_stamp *sim_when_begun(const struct sim_when *when) {
    uint32_t n = when->ahead ? atomic_load(&n_deeds) : 0, tried = 0;
    while (n && tried++ < SEARCHED && (deeds[n - 1].slot != when->slot || deeds[n - 1].number != when->ahead)) n--;
    return n && tried <= SEARCHED && __atomic_load_n(&deeds[n - 1].hands_on, __ATOMIC_RELAXED) ? &when->handed
                                                                                               : &when->before;
}

const struct sim_deed *sim_deed_of(uint32_t actor) {
    uint32_t low = 0, high = atomic_load(&n_deeds);
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (deeds[middle].first <= actor)
            low = middle + 1;
        else
            high = middle;
    }
    return low && actor - deeds[low - 1].first < deeds[low - 1].n ? &deeds[low - 1] : NULL;
}
int sim_is_after(const struct sim_stamp *stamp, uint32_t actor) {
    const struct sim_deed *d = sim_deed_of(actor);
    return !d || d->number <= stamp->number[d->slot];
}
uint32_t sim_calm_from(const struct sim_stamp *stamp, uint32_t first) {
    uint32_t n = atomic_load(&n_deeds), from = first;
    while (n && deeds[n - 1].first >= first) n--;
    for (uint32_t i = 0; i < SEARCHED && n && deeds[n - 1].number <= stamp->number[deeds[n - 1].slot]; i++)
        from = deeds[--n].first;
    return n ? from : 1;
}
void sim_deeds_leave(const struct sim_program *program) {
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < atomic_load(&n_deeds); i++)
        if (deeds[i].program == program) deeds[i].program = NULL;
    pthread_mutex_unlock(&lock);
}
