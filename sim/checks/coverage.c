/* SPDX-License-Identifier: MIT
 * The notes of first executions, and the files that they are merged into, see coverage.h. */
#define _GNU_SOURCE
#include "checks/coverage.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct sim_coverage {
    sim_exec *real;  /* of each instruction, which has first_time until then */
    char *executed;  /* digits */
    atomic_int news; /* since it was saved */
};

static enum sim_step first_time(struct sim_warp *w, const struct sim_ins *in, uint32_t m) {
    const struct sim_program *p = w->cta->cluster->launch->program;
    struct sim_coverage *c = p->coverage;
    const uint32_t i = (uint32_t)(in - p->ins);
    __atomic_store_n(&c->executed[i], '1', __ATOMIC_RELAXED);
    __atomic_store_n(&p->ins[i].exec, c->real[i], __ATOMIC_RELAXED);
    atomic_store(&c->news, 1);
    return c->real[i](w, in, m);
}

void sim_coverage_watch(struct sim_program *p) {
    const char *folder = getenv("ATTNSIM_COVERAGE");
    if (!folder || !folder[0]) return;
    struct sim_coverage *c = p->coverage = calloc(1, sizeof *c);
    if (!c) abort();
    c->real = calloc(p->n_ins + 1, sizeof *c->real);
    c->executed = malloc(p->n_ins + 1);
    if (!c->real || !c->executed) abort();
    memset(c->executed, '0', p->n_ins);
    for (uint32_t i = 0; i < p->n_ins; i++) c->real[i] = p->ins[i].exec, p->ins[i].exec = first_time;
}
void sim_coverage_free(struct sim_coverage *c) {
    if (!c) return;
    free(c->real), free(c->executed), free(c);
}

static void write_place(FILE *f, const struct sim_program *p, uint32_t file, uint32_t line) {
    const char *path = line && file < p->module->n_files ? p->module->files[file] : NULL;
    if (path)
        fprintf(f, "\t%s:%u", path, line);
    else
        fputs("\t-", f);
}
static void write_anew(FILE *f, const struct sim_program *p, const char *head, const char *executed) {
    rewind(f);
    if (ftruncate(fileno(f), 0)) return;
    fprintf(f, "%s%.*s\n", head, (int)p->n_ins, executed);
    for (uint32_t i = 0; i < p->n_ins; i++) {
        const struct ptx_statement *s = &p->kernel->statements[i];
        fprintf(f, "%u\t%s", s->line, s->opcode);
        write_place(f, p, s->file, s->source_line);
        write_place(f, p, s->call_file, s->call_line);
        fputc('\n', f);
    }
}
static void head_of(const struct sim_program *p, char *out, size_t room) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (uint32_t i = 0; i < p->n_ins; i++) {
        const struct ptx_statement *s = &p->kernel->statements[i];
        hash = (hash ^ s->line) * UINT64_C(1099511628211);
        for (const char *c = s->opcode; *c; c++) hash = (hash ^ (uint8_t)*c) * UINT64_C(1099511628211);
    }
    snprintf(out, room, "%016" PRIx64 " %u\n", hash, p->n_ins);
}

void sim_coverage_save(const struct sim_program *p) {
    struct sim_coverage *c = p->coverage;
    const char *folder = getenv("ATTNSIM_COVERAGE");
    char path[600], head[64], found[64];
    if (!c || !folder || !folder[0] || !atomic_exchange(&c->news, 0)) return;
    mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/%.200s.cov", folder, p->kernel->name);
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    char *known = malloc(p->n_ins + 1);
    if (!known) abort();
    pthread_mutex_lock(&lock);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "r+");
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (f && !fcntl(fd, F_SETLKW, &all)) { /* against other processes, until it is closed */
        head_of(p, head, sizeof head);
        if (fgets(found, sizeof found, f) && !strcmp(found, head) && fread(known, 1, p->n_ins, f) == p->n_ins) {
            for (uint32_t i = 0; i < p->n_ins; i++)
                if (known[i] == '1') c->executed[i] = '1';
            fseek(f, (long)strlen(head), SEEK_SET);
            fwrite(c->executed, 1, p->n_ins, f);
        } else {
            write_anew(f, p, head, c->executed);
        }
    }
    free(known);
    if (f)
        fclose(f);
    else if (fd >= 0)
        close(fd);
    else
        fprintf(stderr, "attnsim: %s cannot be written\n", path);
    pthread_mutex_unlock(&lock);
}
