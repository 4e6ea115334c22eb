/* SPDX-License-Identifier: MIT
 * Where counts go: ATTNSIM_COUNTS=file appends a line of JSON for each launch, ATTNSIM_COUNTS=- writes tables to
 * standard error; a program that has the driver open asks for them by attnsim_counts(). */
#include "counts/counts.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int asked;
static struct sim_counted *kept;
static uint32_t n_kept;
static char *text;

static const char *path(void) {
    const char *name = getenv("ATTNSIM_COUNTS");
    return name && *name ? name : NULL;
}
int sim_counts_wanted(void) { return atomic_load(&asked) || path(); }

static void append(const struct sim_counted *c) {
    if (!strcmp(path(), "-")) {
        sim_count_table(c, stderr);
        return;
    }
    FILE *f = fopen(path(), "a");
    if (!f) {
        fprintf(stderr, "attnsim: ATTNSIM_COUNTS: %s cannot be written\n", path());
        return;
    }
    sim_count_json(c, f);
    fputc('\n', f);
    fclose(f);
}
void sim_counts_keep(struct sim_counted c) {
    pthread_mutex_lock(&lock);
    if (path()) append(&c);
    if (atomic_load(&asked)) {
        kept = realloc(kept, (n_kept + 1) * sizeof *kept);
        if (!kept) abort();
        kept[n_kept++] = c;
    } else {
        sim_counted_free(&c);
    }
    pthread_mutex_unlock(&lock);
}

static void tell(int json) {
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    struct sim_counted sum = {.profile = kept[0].profile};
    if (!f) abort();
    if (json) fputs("{\"launches\":[", f);
    for (uint32_t i = 0; i < n_kept; i++) {
        if (json && i) fputc(',', f);
        (json ? sim_count_json : sim_count_table)(&kept[i], f);
        sim_counted_add(&sum, &kept[i]);
    }
    if (json) fputs("],\"sum\":", f);
    if (json || n_kept > 1) (json ? sim_count_json : sim_count_table)(&sum, f);
    if (json) fputc('}', f);
    sim_counted_free(&sum);
    fclose(f);
}
const char *attnsim_counts(int what) {
    pthread_mutex_lock(&lock);
    free(text);
    text = NULL;
    if (what == SIM_COUNTS_START) {
        for (uint32_t i = 0; i < n_kept; i++) sim_counted_free(&kept[i]);
        free(kept);
        kept = NULL, n_kept = 0;
    }
    if (what <= SIM_COUNTS_START) atomic_store(&asked, what == SIM_COUNTS_START);
    if (what > SIM_COUNTS_START && n_kept) tell(what == SIM_COUNTS_JSON);
    const char *told = text;
    pthread_mutex_unlock(&lock);
    return told;
}
