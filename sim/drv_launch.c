/* SPDX-License-Identifier: MIT
 * Driver calls about modules, functions and launches. A launch runs before it returns; findings make it fail, and a
 * fault that ended a kernel stays in the context. Environment: ATTNSIM_POLICY (eager, late, random), ATTNSIM_SEED,
 * ATTNSIM_THREADS, ATTNSIM_RACES=0, ATTNSIM_QUIET=1, ATTNSIM_REPORT=file of JSON lines. */
#include "cu.h"
#include "decode.h"
#include "device.h"
#include "report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_ullong n_launches, n_executed, nanoseconds;

static long long setting(const char *name, long long otherwise) {
    const char *text = getenv(name);
    return text && text[0] ? strtoll(text, NULL, 10) : otherwise;
}
static struct sim_options read_options(void) {
    const char *policy = getenv("ATTNSIM_POLICY");
    struct sim_options o = {.policy = SIM_EAGER};
    if (policy && !strcmp(policy, "late")) o.policy = SIM_LATE;
    if (policy && !strcmp(policy, "random")) o.policy = SIM_RANDOM;
    o.seed = (uint64_t)setting("ATTNSIM_SEED", 1);
    o.threads = (int)setting("ATTNSIM_THREADS", sysconf(_SC_NPROCESSORS_ONLN));
    if (o.threads < 1) o.threads = 1;
    o.races = setting("ATTNSIM_RACES", 1) != 0;
    o.quiet = setting("ATTNSIM_QUIET", 0) != 0;
    o.max_instructions = (uint64_t)setting("ATTNSIM_MAX_INSTRUCTIONS", 4000000000LL);
    return o;
}

/* ATTNSIM_STATS=1: what all launches took, summed over host threads; 2: each, too. */
__attribute__((destructor)) static void tell_statistics(void) {
    double seconds = (double)atomic_load(&nanoseconds) * 1e-9, executed = (double)atomic_load(&n_executed);
    if (!setting("ATTNSIM_STATS", 0) || seconds <= 0) return;
    fprintf(stderr, "attnsim: %llu launches, %.0f warp instructions in %.3f s of a core, %.2f million/s\n",
            (unsigned long long)atomic_load(&n_launches), executed, seconds, executed / seconds * 1e-6);
}

#define ENTER_CONTEXT                                                                                                  \
    struct sim_context *context = NULL;                                                                                \
    int r_ = sim_enter(__func__, &context);                                                                            \
    if (r_) return r_;

/* The report's text so far, and how many findings; for tests. */
__attribute__((visibility("default"))) const char *attnsim_report(uint64_t *count, int clear);
const char *attnsim_report(uint64_t *count, int clear) {
    if (count) *count = sim_report_count();
    if (clear) sim_report_clear();
    return sim_report_text();
}

static void release(struct sim_module *m) {
    for (struct sim_function *f = m->functions, *next; f; f = next) {
        next = f->next;
        sim_program_free(f->program);
        free(f);
    }
    ptx_free(m->ptx);
    free(m);
}
SIM_API cuModuleLoadDataEx(struct sim_module **out, const void *image, unsigned n, int *options, void **values);
SIM_API cuModuleLoadDataEx(struct sim_module **out, const void *image, unsigned n, int *options, void **values) {
    ENTER_CONTEXT
    char why[400] = "", *log = NULL;
    size_t room = 0;
    if (!image || (n && (!options || !values))) return R_INVALID_VALUE;
    for (unsigned i = 0; i < n; i++) {
        if (options[i] == JIT_ERROR_TEXT) log = values[i];
        if (options[i] == JIT_ERROR_BYTES) room = (size_t)(uintptr_t)values[i];
    }
    struct sim_module *m = calloc(1, sizeof *m);
    if (!m) return R_OUT_OF_MEMORY;
    int r = R_SUCCESS;
    char *text = sim_image_text(image, why, sizeof why);
    if (!text)
        r = R_NO_BINARY;
    else if (!(m->ptx = ptx_parse(text, why, sizeof why)))
        r = R_INVALID_PTX;
    for (const struct ptx_kernel *k = r ? NULL : m->ptx->kernels; k && !r; k = k->next) {
        struct sim_program *p = sim_decode(m->ptx, k, why, sizeof why);
        struct sim_function *f = p ? calloc(1, sizeof *f) : NULL;
        if (f)
            *f = (struct sim_function){m, p, m->functions}, m->functions = f, p->max_dynamic = 48 << 10;
        else
            r = R_INVALID_PTX;
    }
    if (!r && m->ptx->target > sim_profile()->major * 10 + sim_profile()->minor) {
        snprintf(why, sizeof why, "PTX for sm_%d on a device of sm_%d%d", m->ptx->target, sim_profile()->major,
                 sim_profile()->minor);
        r = R_INVALID_PTX;
    }
    free(text);
    if (r && log && room) snprintf(log, room, "%s", why);
    if (r && !setting("ATTNSIM_QUIET", 0)) fprintf(stderr, "attnsim: %s\n", why);
    if (r)
        release(m);
    else
        *out = m;
    return r;
}
SIM_API cuModuleUnload(struct sim_module *module);
SIM_API cuModuleUnload(struct sim_module *module) {
    ENTER_CONTEXT
    if (!module) return R_INVALID_HANDLE;
    release(module);
    return R_SUCCESS;
}
SIM_API cuModuleGetFunction(struct sim_function **out, struct sim_module *module, const char *name);
SIM_API cuModuleGetFunction(struct sim_function **out, struct sim_module *module, const char *name) {
    ENTER_CONTEXT
    for (struct sim_function *f = module->functions; f; f = f->next)
        if (!strcmp(f->program->kernel->name, name)) {
            *out = f;
            return R_SUCCESS;
        }
    return R_NOT_FOUND;
}
SIM_API cuFuncSetAttribute(struct sim_function *f, int attribute, int value);
SIM_API cuFuncSetAttribute(struct sim_function *f, int attribute, int value) {
    ENTER_CONTEXT
    if (attribute != FUNCTION_MAX_DYNAMIC || value < 0 ||
        value + (int)f->program->kernel->shared_bytes > sim_profile()->shared_per_block)
        return R_INVALID_VALUE;
    f->program->max_dynamic = value;
    return R_SUCCESS;
}

static int bad_shape(const struct cu_launch *c, const struct ptx_kernel *k, struct sim_launch *g) {
    uint64_t threads = (uint64_t)c->block[0] * c->block[1] * c->block[2];
    for (int i = 0; i < 3; i++) {
        g->grid[i] = c->grid[i], g->block[i] = c->block[i];
        g->cluster[i] = k->cluster[i] ? k->cluster[i] : 1;
        if (!c->grid[i] || !c->block[i] || (i && c->grid[i] > 65535)) return R_INVALID_VALUE;
        if (k->reqntid[0] && k->reqntid[i] != c->block[i]) return R_INVALID_VALUE;
    }
    for (unsigned i = 0; i < c->n_attributes; i++)
        if (c->attributes[i].id == ATTRIBUTE_CLUSTER) memcpy(g->cluster, c->attributes[i].value.cluster, 12);
    uint64_t ctas = 1;
    for (int i = 0; i < 3; i++) {
        if (!g->cluster[i] || g->grid[i] % g->cluster[i]) return R_INVALID_VALUE;
        ctas *= g->cluster[i];
    }
    if (ctas > SIM_MAX_CLUSTER || (ctas > 1 && sim_profile()->major < 9)) return R_INVALID_VALUE;
    uint64_t most = k->maxntid[0] ? (uint64_t)k->maxntid[0] * k->maxntid[1] * k->maxntid[2] : 1024;
    if (threads > 1024 || threads > most) return R_INVALID_VALUE;
    g->n_threads = (uint32_t)threads;
    g->n_warps = (uint32_t)(threads + 31) / 32;
    return R_SUCCESS;
}
SIM_API cuLaunchKernelEx(const struct cu_launch *c, struct sim_function *f, void **params, void **extra);
SIM_API cuLaunchKernelEx(const struct cu_launch *c, struct sim_function *f, void **params, void **extra) {
    ENTER_CONTEXT
    if (!c || !f || extra || (c->n_attributes && !c->attributes)) return R_INVALID_VALUE;
    const struct ptx_kernel *k = f->program->kernel;
    struct sim_launch g = {.program = f->program, .options = read_options(), .dynamic_bytes = c->shared_bytes};
    int r = bad_shape(c, k, &g);
    if (r) return r;
    if ((int64_t)c->shared_bytes > f->program->max_dynamic) return R_INVALID_VALUE;
    g.shared_bytes = c->shared_bytes ? k->dynamic_at + c->shared_bytes : k->shared_bytes;
    g.number = atomic_fetch_add(&n_launches, 1);
    uint8_t *block = calloc(1, k->param_bytes + 1u);
    if (!block) return R_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < k->n_params; i++) memcpy(block + k->params[i].at, params[i], (size_t)k->params[i].bytes);
    g.params = block;
    uint64_t before = sim_report_count();
    if (sim_launch_run(&g)) context->fault = R_LAUNCH_FAILED;
    free(block);
    atomic_fetch_add(&n_executed, atomic_load(&g.n_executed));
    atomic_fetch_add(&nanoseconds, atomic_load(&g.nanoseconds));
    if (setting("ATTNSIM_STATS", 0) > 1)
        fprintf(stderr, "attnsim: %s: %llu warp instructions, %.3f ms\n", k->name,
                (unsigned long long)atomic_load(&g.n_executed), (double)atomic_load(&g.nanoseconds) * 1e-6);
    return sim_report_count() != before ? R_LAUNCH_FAILED : R_SUCCESS;
}
