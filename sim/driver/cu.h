/* SPDX-License-Identifier: MIT
 * The driver's binary interface as far as this stand-in offers it: result numbers, attributes, launch structures. Own
 * declarations, so that no toolkit is needed. */
#ifndef SIM_CU_H
#define SIM_CU_H
#include <stddef.h>
#include <stdint.h>

enum {
    R_SUCCESS = 0,
    R_INVALID_VALUE = 1,
    R_OUT_OF_MEMORY = 2,
    R_NOT_INITIALIZED = 3,
    R_NO_DEVICE = 100,
    R_INVALID_DEVICE = 101,
    R_INVALID_IMAGE = 200,
    R_INVALID_CONTEXT = 201,
    R_NO_BINARY = 209,
    R_INVALID_PTX = 218,
    R_INVALID_HANDLE = 400,
    R_NOT_FOUND = 500,
    R_NOT_READY = 600,
    R_ILLEGAL_ADDRESS = 700,
    R_OUT_OF_RESOURCES = 701,
    R_ASSERT = 710,
    R_ALREADY_REGISTERED = 712,
    R_NOT_REGISTERED = 713,
    R_LAUNCH_FAILED = 719,
    R_TOO_LARGE_TOGETHER = 720,
    R_NOT_SUPPORTED = 801,
    R_CAPTURE_UNSUPPORTED = 900,
    R_CAPTURE_INVALIDATED = 901,
    R_CAPTURE_MERGE = 902,
    R_CAPTURE_UNMATCHED = 903,
    R_CAPTURE_UNJOINED = 904,
    R_CAPTURE_ISOLATION = 905,
    R_CAPTURE_IMPLICIT = 906,
    R_CAPTURED_EVENT = 907,
    R_CAPTURE_WRONG_THREAD = 908,
    R_GRAPH_UPDATE = 910,
    R_UNKNOWN = 999
};
enum { ATTRIBUTE_COOPERATIVE = 2, ATTRIBUTE_CLUSTER = 4, ATTRIBUTE_SERIALIZATION = 6, ATTRIBUTE_PRIORITY = 8 };
/* hints that change no result: access policy window, memory synchronisation domain and their map, preferred cluster
 * size, preferred carveout of shared memory */
enum {
    ATTRIBUTE_WINDOW = 1,
    ATTRIBUTE_DOMAIN_MAP = 9,
    ATTRIBUTE_DOMAIN = 10,
    ATTRIBUTE_PREFERRED_CLUSTER = 11,
    ATTRIBUTE_CARVEOUT = 14
};
enum { JIT_ERROR_TEXT = 5, JIT_ERROR_BYTES = 6, FUNCTION_MAX_DYNAMIC = 8, FUNCTION_CARVEOUT = 9 };
enum { FUNCTION_LARGE_CLUSTER = 14 }; /* more CTAs than every chip has room for */
struct cu_attribute {
    int id;
    char pad[4];
    union {
        unsigned cluster[3];
        char bytes[64];
        uint64_t align;
    } value;
};
struct cu_launch {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    struct cu_attribute *attributes;
    unsigned n_attributes;
};
struct cu_kernel_node {
    struct sim_function *function;
    unsigned grid[3], block[3], shared_bytes;
    void **params, **extra;
    void *kernel, *context;
};
struct cu_fill_node {
    unsigned long long to;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
};
struct cu_host_node {
    void (*function)(void *);
    void *data;
};
enum { MEMORY_HOST = 1, MEMORY_DEVICE, MEMORY_ARRAY, MEMORY_UNIFIED };
struct cu_copy_end {
    size_t x_bytes, y, z, level;
    int type;
    void *host;
    unsigned long long device;
    void *array, *reserved;
    size_t pitch, height;
};
struct cu_copy_node {
    struct cu_copy_end from, to;
    size_t width_bytes, height, depth;
};
struct sim_context {
    int device, fault; /* fault: a kernel that was ended: every later call returns it */
    int late_result;   /* of queued work, for the next call that waits */
    int retained;      /* somebody has asked for it: it is active */
};
struct sim_module {
    struct ptx_module *ptx;
    struct sim_function *functions;
    int placed; /* variables have memory, at ptx->vars[i]->address */
};
struct sim_function {
    struct sim_module *module;
    struct sim_program *program; /* NULL: refused, which ATTNSIM_LAZY=1 leaves to its first use */
    struct sim_function *next;
    const struct ptx_kernel *kernel;
    char *refused;
};

#define SIM_API __attribute__((visibility("default"))) int
/* Bookkeeping at the start of each call: fault injection by name, a current context where one is needed. */
int sim_enter(const char *name, struct sim_context **context);
const struct sim_profile *sim_profile(void);
long long sim_setting(const char *name, long long otherwise); /* of the environment */

/* The PTX text inside an image: the image itself or that of a fatbin. NULL with `why` if there is none to read. The
 * caller frees it. */
char *sim_image_text(const void *image, char *why, size_t why_bytes);
/* The PTX that its compiler left beside this machine code (cubin.c); bytes 0: as its header says. NULL: none. */
char *sim_cubin_text(const void *code, size_t bytes);
#endif
