/* SPDX-License-Identifier: MIT
 * Driver calls about modules and functions: images are parsed and decoded when they are loaded, and refused then. */
#include "checks/report.h"
#include "decode/decode.h"
#include "driver/stream.h"
#include "machine/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTER_CONTEXT                                                                                                  \
    struct sim_context *context = NULL;                                                                                \
    int r_ = sim_enter(__func__, &context);                                                                            \
    if (r_) return r_;

static int in_memory(const struct ptx_var *v) { return (v->space == PTX_GLOBAL || v->space == PTX_CONST) && v->bytes; }
static void release(struct sim_module *m) {
    for (struct sim_function *f = m->functions, *next; f; f = next) {
        next = f->next;
        if (f->program) sim_deeds_leave(f->program);
        sim_program_free(f->program);
        free(f->refused);
        free(f);
    }
    for (uint32_t i = 0; m->placed && i < m->ptx->n_vars; i++)
        if (in_memory(m->ptx->vars[i])) sim_memory_free(m->ptx->vars[i]->address);
    ptx_free(m->ptx);
    free(m);
}
/* PTX ISA, initializers: variables of the module have memory of the device, 0 where no value is given. */
static int place_variables(struct sim_module *m, int device) {
    m->placed = 1;
    for (uint32_t i = 0; i < m->ptx->n_vars; i++) {
        struct ptx_var *v = m->ptx->vars[i];
        if (!in_memory(v)) continue;
        if (!(v->address = sim_memory_alloc(device, (size_t)v->bytes))) return R_OUT_OF_MEMORY;
        if (v->data)
            memcpy((void *)(uintptr_t)v->address, v->data, (size_t)v->bytes);
        else
            memset((void *)(uintptr_t)v->address, 0, (size_t)v->bytes);
    }
    return R_SUCCESS;
}
/* The name of the first kernel that a text defines, before it is parsed, which takes long; n: its bytes, 0: none. */
static struct ptx_token first_kernel(const char *text) {
    struct ptx_lexer x = {.next = text, .line = 1};
    struct ptx_token t, name = {.text = text};
    for (ptx_next(&x, &t); t.kind != PTX_T_END; ptx_next(&x, &t)) {
        if (!ptx_is(&t, ".entry")) continue;
        ptx_next(&x, &name);
        for (t = name; t.kind != PTX_T_END && !ptx_is(&t, "{") && !ptx_is(&t, ";");) ptx_next(&x, &t);
        if (ptx_is(&t, "{")) return name;
        name.n = 0; /* that was a declaration */
    }
    return name;
}
/* Of the text's file in a folder, of whose name its first 200 characters count: mangled names can be longer than a
 * file's may be. 0: there is none. */
static int path_of(char *path, size_t room, const char *folder, const char *text) {
    if (!folder || !folder[0]) return 0;
    const struct ptx_token name = first_kernel(text);
    return name.n && snprintf(path, room, "%s/%.*s.ptx", folder, (int)(name.n < 200 ? name.n : 200), name.text) > 0;
}
/* ATTNSIM_PTX=folder: a file NAME.ptx there takes the place of the module whose first kernel is NAME. For trying an
 * edit of PTX without a build. NULL: there is none. */
static char *other_text(const char *original) {
    char path[1024];
    FILE *f = path_of(path, sizeof path, getenv("ATTNSIM_PTX"), original) ? fopen(path, "rb") : NULL;
    if (!f) return NULL;
    char *text = NULL;
    long bytes = !fseek(f, 0, SEEK_END) ? ftell(f) : -1;
    if (bytes > 0 && (text = calloc(1, (size_t)bytes + 1)) != NULL) {
        rewind(f);
        if (fread(text, 1, (size_t)bytes, f) != (size_t)bytes) text[0] = 0;
    }
    fclose(f);
    return text;
}
/* ATTNSIM_KEEP_PTX=folder: the text goes there under the name that ATTNSIM_PTX looks for. */
static void keep_text(const char *text) {
    char path[1024];
    if (!path_of(path, sizeof path, getenv("ATTNSIM_KEEP_PTX"), text)) return;
    FILE *f = fopen(path, "wb");
    const int bad = !f || fputs(text, f) < 0;
    if ((f && fclose(f)) || bad) fprintf(stderr, "attnsim: %s cannot be written\n", path);
}
static int parse(struct sim_module *m, char **text, char *why, size_t why_bytes) {
    keep_text(*text);
    char *other = other_text(*text);
    if (other) {
        free(*text);
        *text = other;
    }
    return (m->ptx = ptx_parse(*text, why, why_bytes)) ? R_SUCCESS : R_INVALID_PTX;
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
    int r = R_SUCCESS, is_lazy = sim_setting("ATTNSIM_LAZY", 0) != 0;
    char *text = sim_image_text(image, why, sizeof why);
    if (!text)
        r = R_NO_BINARY;
    else
        r = parse(m, &text, why, sizeof why);
    if (!r) r = place_variables(m, context->device); /* the decoder puts their addresses into instructions */
    for (const struct ptx_kernel *k = r ? NULL : m->ptx->kernels; k && !r; k = k->next) {
        struct sim_program *p = sim_decode(m->ptx, k, why, sizeof why);
        struct sim_function *f = p || is_lazy ? calloc(1, sizeof *f) : NULL;
        if (f)
            *f = (struct sim_function){m, p, m->functions, k, p ? NULL : strdup(why)}, m->functions = f;
        else
            r = R_INVALID_PTX;
        if (p) p->max_dynamic = 48 << 10;
    }
    if (!r && m->ptx->target > sim_profile()->major * 10 + sim_profile()->minor) {
        snprintf(why, sizeof why, "PTX for sm_%d on a device of sm_%d%d", m->ptx->target, sim_profile()->major,
                 sim_profile()->minor);
        r = R_INVALID_PTX;
    }
    free(text);
    if (r && log && room) snprintf(log, room, "%s", why);
    if (r) sim_tell_refusal(why);
    if (r)
        release(m);
    else
        *out = m;
    return r;
}
SIM_API cuModuleLoadData(struct sim_module **out, const void *image);
SIM_API cuModuleLoadData(struct sim_module **out, const void *image) {
    return cuModuleLoadDataEx(out, image, 0, NULL, NULL);
}
SIM_API cuModuleUnload(struct sim_module *module);
SIM_API cuModuleUnload(struct sim_module *module) {
    ENTER_CONTEXT
    if (!module) return R_INVALID_HANDLE;
    sim_streams_finish(NULL, 0); /* kernels that are still queued */
    release(module);
    return R_SUCCESS;
}
SIM_API cuModuleGetFunction(struct sim_function **out, struct sim_module *module, const char *name);
SIM_API cuModuleGetFunction(struct sim_function **out, struct sim_module *module, const char *name) {
    ENTER_CONTEXT
    struct sim_function *f = module->functions;
    while (f && strcmp(f->kernel->name, name)) f = f->next;
    if (!f) return R_NOT_FOUND;
    if (!f->program) {
        sim_tell_refusal(f->refused);
        return R_INVALID_PTX;
    }
    *out = f;
    return R_SUCCESS;
}
SIM_API cuModuleGetGlobal_v2(uint64_t *address, size_t *bytes, struct sim_module *module, const char *name);
SIM_API cuModuleGetGlobal_v2(uint64_t *address, size_t *bytes, struct sim_module *module, const char *name) {
    ENTER_CONTEXT
    if (!module || !name || (!address && !bytes)) return R_INVALID_VALUE;
    for (uint32_t i = 0; i < module->ptx->n_vars; i++) {
        const struct ptx_var *v = module->ptx->vars[i];
        if (!in_memory(v) || strcmp(v->name, name)) continue;
        if (address) *address = v->address;
        if (bytes) *bytes = (size_t)v->bytes;
        return R_SUCCESS;
    }
    return R_NOT_FOUND;
}
SIM_API cuFuncSetAttribute(struct sim_function *f, int attribute, int value);
SIM_API cuFuncSetAttribute(struct sim_function *f, int attribute, int value) {
    ENTER_CONTEXT
    /* hints and permissions that change no result here: clusters of 16 are taken in any case */
    if (attribute == FUNCTION_CARVEOUT) return value >= -1 && value <= 100 ? R_SUCCESS : R_INVALID_VALUE;
    if (attribute == FUNCTION_LARGE_CLUSTER) return value == 0 || value == 1 ? R_SUCCESS : R_INVALID_VALUE;
    if (attribute != FUNCTION_MAX_DYNAMIC || value < 0 ||
        value + (int)f->program->kernel->shared_bytes > sim_profile()->shared_per_block)
        return R_INVALID_VALUE;
    f->program->max_dynamic = value;
    return R_SUCCESS;
}
SIM_API cuFuncGetAttribute(int *value, int attribute, struct sim_function *f);
SIM_API cuFuncGetAttribute(int *value, int attribute, struct sim_function *f) {
    ENTER_CONTEXT
    if (!value || !f) return R_INVALID_VALUE;
    const struct ptx_kernel *k = f->program->kernel;
    switch (attribute) {
    case 0: *value = k->maxntid[0] ? (int)(k->maxntid[0] * k->maxntid[1] * k->maxntid[2]) : 1024; break;
    case 1: *value = (int)k->shared_bytes; break;
    case 2: *value = 0; break; /* constants */
    case 3: *value = (int)k->local_bytes; break;
    case 4: *value = 0; break; /* registers: machine code has them, PTX does not */
    case 5:
    case 6: *value = f->program->module->target; break;
    case FUNCTION_MAX_DYNAMIC: *value = f->program->max_dynamic; break;
    default: return R_INVALID_VALUE;
    }
    return R_SUCCESS;
}
/* CTAs of a multiprocessor, by threads and shared memory; machine code alone would tell registers. */
int sim_occupancy(const struct sim_function *f, int threads, size_t dynamic_bytes) {
    const struct sim_profile *p = sim_profile();
    const struct ptx_kernel *k = f->program->kernel;
    const size_t shared = 1024 + (dynamic_bytes ? k->dynamic_at + dynamic_bytes : k->shared_bytes);
    const int warps = (threads + 31) / 32, most = p->warps_per_sm / 2; /* CTAs at most */
    int n = warps ? p->warps_per_sm / warps : 0;
    if ((size_t)p->shared_per_sm / shared < (size_t)n) n = (int)((size_t)p->shared_per_sm / shared);
    return n < most ? n : most;
}
SIM_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, struct sim_function *f, int threads, size_t dynamic_bytes);
SIM_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, struct sim_function *f, int threads, size_t dynamic_bytes) {
    ENTER_CONTEXT
    if (!n || !f || threads < 1) return R_INVALID_VALUE;
    *n = threads > 1024 ? 0 : sim_occupancy(f, threads, dynamic_bytes);
    return R_SUCCESS;
}
