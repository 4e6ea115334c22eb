/* SPDX-License-Identifier: MIT
 * Handlers of XLA's foreign function interface, for CPU and CUDA: a call's attributes are the text of a problem and the
 * role of every buffer; the handler hands the buffers to libattn. libattn.so is found by the handle that Python opened
 * it with, so that this library links with neither it nor XLA. Used by python/libattn/jax. */
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "attn.h"
#include "xla.h"

#define EXPORT __attribute__((visibility("default")))
#define MAX_BUFFERS 24

/* What Python calls (python/libattn/jax/_call.py), and the two handlers. */
EXPORT const char *attn_jax_open(void *handle);
EXPORT void attn_jax_use(attn_ctx *ctx);
EXPORT struct xla_error *attn_jax_cpu(struct xla_frame *frame);
EXPORT struct xla_error *attn_jax_cuda(struct xla_frame *frame);

/* Functions of attn.h that are called here. */
#define FUNCTIONS(X)                                                                                                 \
    X(attn_status, attn_problem_parse, (const char *, attn_problem *))                                               \
    X(attn_status, attn_plan_create,                                                                                 \
      (attn_ctx *, attn_device, const attn_problem *, const attn_plan_options *, attn_plan **))                      \
    X(attn_status, attn_plan_get_info, (const attn_plan *, attn_plan_info *))                                        \
    X(void, attn_plan_release, (attn_plan *))                                                                        \
    X(attn_ctx *, attn_ctx_retain, (attn_ctx *))                                                                     \
    X(void, attn_ctx_release, (attn_ctx *))                                                                          \
    X(attn_status, attn_execute, (const attn_plan *, const attn_args *))                                             \
    X(attn_status, attn_run, (attn_ctx *, attn_device, const attn_problem *, const attn_args *))                     \
    X(attn_status, attn_role_tensor, (const attn_problem *, int32_t, int32_t *, attn_tensor *))                      \
    X(attn_status, attn_args_set, (attn_args *, int32_t, const attn_tensor *))                                       \
    X(const char *, attn_role_name, (int32_t))                                                                       \
    X(const char *, attn_last_error, (void))

static struct {
#define FIELD(result, name, arguments) result(*name) arguments;
    FUNCTIONS(FIELD)
#undef FIELD
} lib;
static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;
static attn_ctx *context;

/* Before any call: `handle` is dlopen's of libattn.so. Returns the name of a function that it lacks, or NULL. */
const char *attn_jax_open(void *handle) {
#define LOAD(result, name, arguments)                                                                                \
    if (!(*(void **)&lib.name = dlsym(handle, #name))) return #name;
    FUNCTIONS(LOAD)
#undef LOAD
    return NULL;
}

/* The context of calls from now on. Calls that run keep the one that they began with. */
void attn_jax_use(attn_ctx *ctx) {
    lib.attn_ctx_retain(ctx);
    pthread_mutex_lock(&context_lock);
    attn_ctx *before = context;
    context = ctx;
    pthread_mutex_unlock(&context_lock);
    if (before) lib.attn_ctx_release(before);
}

static attn_ctx *retain_context(void) {
    pthread_mutex_lock(&context_lock);
    attn_ctx *ctx = lib.attn_ctx_retain(context);
    pthread_mutex_unlock(&context_lock);
    return ctx;
}

static struct xla_error *refuse(const struct xla_frame *frame, int32_t code, const char *text) {
    struct xla_error_create args = {.size = sizeof args, .message = text, .code = code};
    return frame->api->error_create(&args);
}

static struct xla_error *refuse_status(const struct xla_frame *frame, attn_status status) {
    int32_t code = status == ATTN_E_NO_KERNEL || status == ATTN_E_FEATURE ? XLA_UNIMPLEMENTED
                   : status == ATTN_E_MEMORY                              ? XLA_RESOURCE_EXHAUSTED
                   : status >= 100 && status < 200                        ? XLA_INVALID_ARGUMENT
                                                                          : XLA_INTERNAL;
    return refuse(frame, code, lib.attn_last_error());
}

/* Version 0 of the interface; nothing more is known of a handler. */
static int answer_metadata(const struct xla_frame *frame) {
    struct xla_extension *first = frame->extensions;
    if (!first || first->type != XLA_EXTENSION_METADATA) return 0;
    struct xla_metadata *metadata = ((struct xla_metadata_extension *)first)->metadata;
    metadata->version.major = 0;
    metadata->version.minor = 1; /* what is used here has been there since */
    metadata->traits = 0;
    return 1;
}

/* Copy a text attribute with a NUL behind it; 0 if there is none of this name or it is too long. */
static int text_attribute(const struct xla_frame *frame, const char *name, char *text, size_t bytes) {
    const struct xla_attributes *a = &frame->attributes;
    for (int64_t i = 0; i < a->n; i++) {
        const struct xla_text *word = a->names[i], *value = a->values[i];
        if (word->length != strlen(name) || memcmp(word->start, name, word->length)) continue;
        if (a->types[i] != XLA_ATTRIBUTE_TEXT || value->length >= bytes) return 0;
        memcpy(text, value->start, value->length);
        text[value->length] = 0;
        return 1;
    }
    return 0;
}

static int32_t role_by_name(const char *name, size_t length) {
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        const char *known = lib.attn_role_name(role);
        if (known && strlen(known) == length && !memcmp(known, name, length)) return role;
    }
    return -1;
}

static int32_t dtype_of(int32_t dtype) {
    static const int32_t known[XLA_E4M3FN + 1] = {
        [XLA_PRED] = ATTN_BOOL, [XLA_S32] = ATTN_I32, [XLA_S64] = ATTN_I64,   [XLA_F16] = ATTN_F16,
        [XLA_F32] = ATTN_F32,   [XLA_F64] = ATTN_F64, [XLA_BF16] = ATTN_BF16, [XLA_E4M3FN] = ATTN_E4M3};
    return dtype >= 0 && dtype <= XLA_E4M3FN ? known[dtype] : 0;
}

/* A row-major buffer; `swapped`: in memory [B,S,H,D], which is [B,H,S,D] here. 0 if it has too many axes. */
static int describe(attn_tensor *t, const struct xla_buffer *buffer, attn_device device, int swapped) {
    memset(t, 0, sizeof *t);
    if (buffer->rank > (int64_t)(sizeof t->shape / sizeof t->shape[0]) || (swapped && buffer->rank < 3)) return 0;
    t->data = buffer->data;
    t->dtype = dtype_of(buffer->dtype);
    t->rank = (int32_t)buffer->rank;
    t->device = device;
    int64_t step = 1;
    for (int32_t axis = t->rank; axis-- > 0;) {
        t->shape[axis] = buffer->shape[axis];
        t->strides[axis] = step;
        step *= buffer->shape[axis] > 1 ? buffer->shape[axis] : 1;
    }
    if (swapped) {
        int32_t a = t->rank - 3, b = t->rank - 2;
        int64_t shape = t->shape[a], stride = t->strides[a];
        t->shape[a] = t->shape[b], t->strides[a] = t->strides[b];
        t->shape[b] = shape, t->strides[b] = stride;
    }
    return 1;
}

/* A mask (or its gradient) with extents of 1 has strides of 0 there. */
static attn_status broadcast(attn_tensor *t, const attn_problem *problem) {
    attn_tensor expected;
    int32_t use;
    attn_status status = lib.attn_role_tensor(problem, ATTN_ROLE_MASK, &use, &expected);
    if (status || use == ATTN_USE_NONE || t->rank != expected.rank) return status;
    for (int32_t axis = 0; axis < t->rank; axis++) {
        if (t->shape[axis] != 1 || expected.shape[axis] == 1) continue;
        t->shape[axis] = expected.shape[axis];
        t->strides[axis] = 0;
    }
    return ATTN_OK;
}

/* args and tensors from the buffers, whose roles are a list as in "q~,k~,v~,out~,lse": "~" for [B,S,H,D] in memory. */
static struct xla_error *gather(const struct xla_frame *frame, const char *roles, attn_device device,
                                const attn_problem *problem, attn_args *args, attn_tensor *tensors) {
    int64_t n_arguments = frame->arguments.n, n = n_arguments + frame->results.n;
    if (n > MAX_BUFFERS) return refuse(frame, XLA_INVALID_ARGUMENT, "libattn: too many buffers");
    for (int64_t i = 0; i < n; i++) {
        const struct xla_buffer *buffer =
            i < n_arguments ? frame->arguments.buffers[i] : frame->results.buffers[i - n_arguments];
        size_t length = strcspn(roles, ",~");
        int32_t role = role_by_name(roles, length);
        int swapped = roles[length] == '~';
        if (role < 0 || !describe(&tensors[i], buffer, device, swapped))
            return refuse(frame, XLA_INVALID_ARGUMENT, "libattn: roles do not fit the buffers");
        roles += length + (size_t)swapped;
        roles += *roles == ',';
        attn_status status = ATTN_OK;
        if (role == ATTN_ROLE_MASK || role == ATTN_ROLE_DMASK) status = broadcast(&tensors[i], problem);
        if (!status) status = lib.attn_args_set(args, role, &tensors[i]);
        if (status) return refuse_status(frame, status);
    }
    return *roles ? refuse(frame, XLA_INVALID_ARGUMENT, "libattn: more roles than buffers") : NULL;
}

/* XLA's allocator refuses to promise more than this: the rest of the workspace's alignment is made here. */
enum { XLA_ALIGNMENT = 16 };

/* A plan, its workspace from XLA's allocator, and the work queued on XLA's stream. The workspace goes back to the
 * allocator at once, which hands memory on in the order of the stream. */
static struct xla_error *queue(const struct xla_frame *frame, attn_ctx *ctx, attn_device device,
                               const attn_problem *problem, attn_args *args) {
    struct xla_stream_get stream = {.size = sizeof stream, .context = frame->context};
    struct xla_error *fault = frame->api->stream_get(&stream);
    if (fault) return fault;
    attn_plan *plan = NULL;
    attn_status status = lib.attn_plan_create(ctx, device, problem, NULL, &plan);
    if (status) return refuse_status(frame, status);
    attn_plan_info info = {.size = sizeof info};
    status = lib.attn_plan_get_info(plan, &info);
    uint64_t alignment = info.workspace_alignment > XLA_ALIGNMENT ? info.workspace_alignment : XLA_ALIGNMENT;
    struct xla_allocate memory = {.size = sizeof memory, .context = frame->context,
                                  .bytes = info.workspace_bytes + alignment, .alignment = XLA_ALIGNMENT};
    if (!status && info.workspace_bytes) fault = frame->api->allocate(&memory);
    if (!status && !fault) {
        args->stream = stream.stream;
        if (memory.data) args->workspace = (char *)memory.data + (-(uintptr_t)memory.data & (alignment - 1));
        args->workspace_bytes = info.workspace_bytes;
        status = lib.attn_execute(plan, args);
    }
    if (status) fault = refuse_status(frame, status); /* before other calls replace the text */
    lib.attn_plan_release(plan);
    if (memory.data) {
        struct xla_free release = {.size = sizeof release, .context = frame->context, .bytes = memory.bytes,
                                   .data = memory.data};
        struct xla_error *late = frame->api->free(&release);
        if (!fault) fault = late;
    }
    return fault;
}

static struct xla_error *call(const struct xla_frame *frame, int32_t device_type) {
    if (answer_metadata(frame) || frame->stage != XLA_STAGE_EXECUTE) return NULL;
    char text[1024], roles[512];
    if (!text_attribute(frame, "problem", text, sizeof text) || !text_attribute(frame, "roles", roles, sizeof roles))
        return refuse(frame, XLA_INVALID_ARGUMENT, "libattn: the attributes problem and roles are texts");
    attn_device device = {device_type, 0};
    if (device_type == ATTN_DEVICE_TYPE_CUDA) {
        struct xla_ordinal_get ordinal = {.size = sizeof ordinal, .context = frame->context};
        struct xla_error *fault = frame->api->ordinal_get(&ordinal);
        if (fault) return fault;
        device.index = ordinal.ordinal;
    }
    attn_problem problem;
    attn_status status = lib.attn_problem_parse(text, &problem);
    if (status) return refuse_status(frame, status);
    attn_args args = ATTN_ARGS_INIT;
    attn_tensor tensors[MAX_BUFFERS];
    struct xla_error *fault = gather(frame, roles, device, &problem, &args, tensors);
    if (fault) return fault;
    attn_ctx *ctx = retain_context();
    if (device_type == ATTN_DEVICE_TYPE_CUDA) {
        fault = queue(frame, ctx, device, &problem, &args);
    } else {
        status = lib.attn_run(ctx, device, &problem, &args);
        if (status) fault = refuse_status(frame, status);
    }
    lib.attn_ctx_release(ctx);
    return fault;
}

struct xla_error *attn_jax_cpu(struct xla_frame *frame) { return call(frame, ATTN_DEVICE_TYPE_CPU); }
struct xla_error *attn_jax_cuda(struct xla_frame *frame) { return call(frame, ATTN_DEVICE_TYPE_CUDA); }
