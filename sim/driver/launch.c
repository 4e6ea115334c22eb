/* SPDX-License-Identifier: MIT
 * Driver calls about launches. Faults make a launch fail, or the next call that waits for it; one that ended a kernel
 * stays in the context; advice (checks/report.h) changes no result. Environment: ATTNSIM_POLICY (eager, late, random),
 * ATTNSIM_SEED, ATTNSIM_THREADS, ATTNSIM_RACES=0, ATTNSIM_ORDERED_SUMS=1, ATTNSIM_QUIET=1, ATTNSIM_REPORT=file of JSON
 * lines, ATTNSIM_TRACE (barrier_trace.h). */
#include "checks/coverage.h"
#include "checks/report.h"
#include "counts/counts.h"
#include "decode/decode.h"
#include "driver/stream.h"
#include "machine/device.h"
#include "machine/turns.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_ullong n_launches, n_executed, nanoseconds;

long long sim_setting(const char *name, long long otherwise) {
    const char *text = getenv(name);
    return text && text[0] ? strtoll(text, NULL, 10) : otherwise;
}
enum sim_policy sim_policy(void) {
    const char *policy = getenv("ATTNSIM_POLICY");
    if (policy && !strcmp(policy, "late")) return SIM_LATE;
    return policy && !strcmp(policy, "random") ? SIM_RANDOM : SIM_EAGER;
}
uint64_t sim_seed(void) { return (uint64_t)sim_setting("ATTNSIM_SEED", 1); }
static struct sim_options read_options(void) {
    struct sim_options o = {.policy = sim_policy(), .seed = sim_seed()};
    o.threads = (int)sim_setting("ATTNSIM_THREADS", sysconf(_SC_NPROCESSORS_ONLN));
    if (o.threads < 1) o.threads = 1;
    o.races = sim_setting("ATTNSIM_RACES", 1) != 0;
    o.ordered_sums = sim_setting("ATTNSIM_ORDERED_SUMS", 0) != 0;
    o.quiet = sim_setting("ATTNSIM_QUIET", 0) != 0;
    o.trace = getenv("ATTNSIM_TRACE") != NULL;
    o.counts = sim_counts_wanted();
    o.gpu = sim_profile()->word;
    o.trace_cta = (uint64_t)sim_setting("ATTNSIM_TRACE_CTA", 0);
    o.max_instructions = (uint64_t)sim_setting("ATTNSIM_MAX_INSTRUCTIONS", 4000000000LL);
    return o;
}

/* ATTNSIM_STATS=1: what all launches took, summed over host threads; 2: each, too. */
__attribute__((destructor)) static void tell_statistics(void) {
    double seconds = (double)atomic_load(&nanoseconds) * 1e-9, executed = (double)atomic_load(&n_executed);
    if (!sim_setting("ATTNSIM_STATS", 0) || seconds <= 0) return;
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

/* ---- a launch that has been checked: it may run now, later, or often ---- */

struct sim_kernel_call {
    struct sim_function *function;
    uint32_t grid[3], block[3], cluster[3], dynamic_bytes, shared_bytes, n_threads, n_warps;
    uint8_t early, together;
    uint8_t params[];
};
void sim_call_free(struct sim_kernel_call *call) { free(call); }
struct sim_kernel_call *sim_call_copy(const struct sim_kernel_call *call) {
    size_t bytes = sizeof *call + call->function->program->kernel->param_bytes;
    struct sim_kernel_call *copy = malloc(bytes);
    if (!copy) abort();
    memcpy(copy, call, bytes);
    return copy;
}

enum { WORKSPACE = 256 }; /* bytes of a cooperative launch: two words are known to be used */
int sim_call_is_early(const struct sim_kernel_call *call) { return call->early; }
static struct sim_launch launch_of(const struct sim_task *t) {
    const struct sim_kernel_call *call = t->call;
    struct sim_launch g = {.program = call->function->program,
                           .options = read_options(),
                           .dynamic_bytes = call->dynamic_bytes,
                           .shared_bytes = call->shared_bytes,
                           .n_threads = call->n_threads,
                           .n_warps = call->n_warps,
                           .params = call->params,
                           .when = &t->when,
                           .together = call->together};
    if (g.together && (g.workspace = sim_memory_alloc(t->context->device, WORKSPACE)) != 0)
        memset((void *)(uintptr_t)g.workspace, 0, WORKSPACE);
    memcpy(g.grid, call->grid, sizeof g.grid);
    memcpy(g.block, call->block, sizeof g.block);
    memcpy(g.cluster, call->cluster, sizeof g.cluster);
    g.number = atomic_fetch_add(&n_launches, 1);
    return g;
}
int sim_calls_run(struct sim_context *context, const struct sim_task *tasks, const uint32_t *behind, uint32_t n) {
    struct sim_launch launches[SIM_TOGETHER], *list[SIM_TOGETHER];
    const uint64_t before = sim_report_count();
    for (uint32_t i = 0; i < n; i++) {
        launches[i] = launch_of(&tasks[i]);
        if (behind && behind[i]) launches[i].behind = &launches[behind[i] - 1];
        list[i] = &launches[i];
        if (sim_enter("kernel", NULL)) return context->fault = R_ILLEGAL_ADDRESS; /* ATTNSIM_FAIL=kernel:n */
    }
    const struct sim_options *o = &launches[0].options;
    if (n > 1 || launches[0].together || (o->policy == SIM_RANDOM && o->threads == 1))
        sim_launches_run(list, n);
    else
        sim_launch_run(&launches[0]);
    for (uint32_t i = 0; i < n; i++) {
        struct sim_launch *g = &launches[i];
        if (atomic_load(&g->failed)) context->fault = atomic_load(&g->asserted) ? R_ASSERT : R_LAUNCH_FAILED;
        if (g->workspace) sim_memory_free(g->workspace);
        sim_coverage_save(g->program);
        sim_counts_end(g, sim_profile());
        atomic_fetch_add(&n_executed, atomic_load(&g->n_executed));
        atomic_fetch_add(&nanoseconds, atomic_load(&g->nanoseconds));
        if (sim_setting("ATTNSIM_STATS", 0) > 1)
            fprintf(stderr, "attnsim: %s: %llu warp instructions, %.3f ms\n", g->program->kernel->name,
                    (unsigned long long)atomic_load(&g->n_executed), (double)atomic_load(&g->nanoseconds) * 1e-6);
    }
    sim_report_advice();
    if (context->fault == R_ASSERT) return R_ASSERT;
    return sim_report_count() != before ? R_LAUNCH_FAILED : R_SUCCESS;
}

static int bad_shape(const struct cu_launch *c, const struct ptx_kernel *k, struct sim_kernel_call *g) {
    uint64_t threads = (uint64_t)c->block[0] * c->block[1] * c->block[2];
    for (int i = 0; i < 3; i++) {
        g->grid[i] = c->grid[i], g->block[i] = c->block[i];
        g->cluster[i] = k->cluster[i] ? k->cluster[i] : 1;
        if (!c->grid[i] || !c->block[i] || (i && c->grid[i] > 65535)) return R_INVALID_VALUE;
        if (k->reqntid[0] && k->reqntid[i] != c->block[i]) return R_INVALID_VALUE;
    }
    if (c->grid[0] > INT32_MAX || c->block[2] > 64) return R_INVALID_VALUE;
    for (unsigned i = 0; i < c->n_attributes; i++) switch (c->attributes[i].id) {
        case ATTRIBUTE_CLUSTER: memcpy(g->cluster, c->attributes[i].value.cluster, 12); break;
        case ATTRIBUTE_COOPERATIVE: g->together = c->attributes[i].value.cluster[0] != 0; break;
        case ATTRIBUTE_SERIALIZATION: g->early = c->attributes[i].value.cluster[0] != 0; break;
        case 0:
        case ATTRIBUTE_WINDOW:
        case ATTRIBUTE_DOMAIN_MAP:
        case ATTRIBUTE_DOMAIN:
        case ATTRIBUTE_PREFERRED_CLUSTER:
        case ATTRIBUTE_CARVEOUT:
        case ATTRIBUTE_PRIORITY: break;
        default: return R_INVALID_VALUE;
        }
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
static int make_call(const struct cu_launch *c, struct sim_function *f, void **params, void **extra,
                     struct sim_kernel_call **out) {
    if (!c || !f || extra || (c->n_attributes && !c->attributes)) return R_INVALID_VALUE;
    const struct ptx_kernel *k = f->program->kernel;
    if (k->n_params && !params) return R_INVALID_VALUE;
    struct sim_kernel_call *call = calloc(1, sizeof *call + k->param_bytes);
    if (!call) return R_OUT_OF_MEMORY;
    int r = bad_shape(c, k, call);
    if (!r && (int64_t)c->shared_bytes > f->program->max_dynamic) r = R_INVALID_VALUE;
    if (!r && call->together) { /* all CTAs at once */
        const uint64_t ctas = (uint64_t)c->grid[0] * c->grid[1] * c->grid[2];
        const int each = sim_occupancy(f, (int)call->n_threads, c->shared_bytes);
        if (ctas > (uint64_t)each * (uint64_t)sim_setting("ATTNSIM_SMS", sim_profile()->n_sms))
            r = R_TOO_LARGE_TOGETHER;
    }
    call->function = f;
    call->dynamic_bytes = c->shared_bytes;
    call->shared_bytes = c->shared_bytes ? k->dynamic_at + c->shared_bytes : k->shared_bytes;
    for (uint32_t i = 0; i < k->n_params && !r; i++)
        memcpy(call->params + k->params[i].address, params[i], (size_t)k->params[i].bytes);
    if (r)
        free(call);
    else
        *out = call;
    return r;
}
int sim_call_change(struct sim_kernel_call **call, const struct cu_kernel_node *to) {
    struct sim_kernel_call *old = *call;
    struct cu_attribute attributes[3] = {
        {.id = ATTRIBUTE_CLUSTER}, {.id = ATTRIBUTE_SERIALIZATION}, {.id = ATTRIBUTE_COOPERATIVE}};
    struct cu_launch c = {.shared_bytes = to->shared_bytes, .attributes = attributes, .n_attributes = old ? 3 : 0};
    if (old) {
        memcpy(attributes[0].value.cluster, old->cluster, sizeof old->cluster);
        attributes[1].value.cluster[0] = old->early;
        attributes[2].value.cluster[0] = old->together;
    }
    memcpy(c.grid, to->grid, sizeof c.grid);
    memcpy(c.block, to->block, sizeof c.block);
    const int r = make_call(&c, to->function, to->params, to->extra, call);
    if (!r) free(old);
    return r;
}
int sim_call_set(struct sim_kernel_call *call, int id, const void *value) {
    struct cu_attribute attributes[3] = {{.id = ATTRIBUTE_CLUSTER}, {.id = ATTRIBUTE_SERIALIZATION}, {.id = id}};
    struct cu_launch c = {.shared_bytes = call->dynamic_bytes, .attributes = attributes, .n_attributes = 3};
    struct sim_kernel_call changed = {0};
    memcpy(attributes[0].value.cluster, call->cluster, sizeof call->cluster);
    attributes[1].value.cluster[0] = call->early;
    memcpy(&attributes[2].value, value, sizeof attributes[2].value);
    memcpy(c.grid, call->grid, sizeof c.grid);
    memcpy(c.block, call->block, sizeof c.block);
    const int r = bad_shape(&c, call->function->program->kernel, &changed);
    if (r) return r;
    memcpy(call->cluster, changed.cluster, sizeof call->cluster);
    call->early = changed.early;
    if (id == ATTRIBUTE_COOPERATIVE) call->together = changed.together;
    return r;
}
static int launch(struct sim_context *context, const struct cu_launch *c, struct sim_function *f, void **params,
                  void **extra) {
    struct sim_kernel_call *call = NULL;
    const int r = make_call(c, f, params, extra, &call);
    if (r) return r;
    return sim_task_add((uintptr_t)c->stream < 4 ? NULL : c->stream,
                        (struct sim_task){.kind = SIM_TASK_LAUNCH, .context = context, .call = call});
}
SIM_API cuLaunchKernelEx(const struct cu_launch *c, struct sim_function *f, void **params, void **extra);
SIM_API cuLaunchKernelEx(const struct cu_launch *c, struct sim_function *f, void **params, void **extra) {
    ENTER_CONTEXT
    return launch(context, c, f, params, extra);
}
SIM_API cuLaunchKernel(struct sim_function *f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                       unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **params,
                       void **extra);
SIM_API cuLaunchKernel(struct sim_function *f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                       unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **params,
                       void **extra) {
    ENTER_CONTEXT
    const struct cu_launch c = {.grid = {grid_x, grid_y, grid_z},
                                .block = {block_x, block_y, block_z},
                                .shared_bytes = shared_bytes,
                                .stream = stream};
    return launch(context, &c, f, params, extra);
}
