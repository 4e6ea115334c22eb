/* SPDX-License-Identifier: MIT
 * The CUDA runtime as nvcc's host code calls it, over the driver of this simulator: programs built with `nvcc -cudart
 * shared` and PTX run unchanged (docs/sim.md, "Run your own kernels without a GPU"). Structures and numbers are those of
 * the runtime's binary interface, of CUDA 12 and 13. */
#ifndef SIM_RUNTIME_H
#define SIM_RUNTIME_H
#include "runtime/driver.h"

enum {
    RT_SUCCESS = 0,
    RT_INVALID_VALUE = 1,
    RT_INVALID_CONFIGURATION = 9,
    RT_INVALID_PITCH = 12,
    RT_INVALID_SYMBOL = 13,
    RT_INVALID_DIRECTION = 21,
    RT_INVALID_FUNCTION = 98,
    RT_INVALID_DEVICE = 101,
    RT_INVALID_HANDLE = 400,
    RT_NOT_READY = 600,
    RT_ILLEGAL_ADDRESS = 700,
    RT_LAUNCH_FAILED = 719,
    RT_TOO_LARGE_TOGETHER = 720,
    RT_NOT_SUPPORTED = 801
};
enum { RT_DEVICES = 8 };
struct rt_dim3 {
    unsigned x, y, z;
};
enum rt_direction { RT_HOST_TO_HOST, RT_HOST_TO_DEVICE, RT_DEVICE_TO_HOST, RT_DEVICE_TO_DEVICE, RT_BY_ADDRESS };

/* Declares and begins a function that programs call. */
#define RT_CALL(name, ...)                                                                                             \
    __attribute__((visibility("default"))) int name(__VA_ARGS__);                                                      \
    int name(__VA_ARGS__)
/* Makes the thread's device current, or returns why not. */
#define RT_ENTER                                                                                                       \
    do {                                                                                                               \
        const int entered_ = sim_rt_enter();                                                                           \
        if (entered_) return sim_rt_result(entered_);                                                                  \
    } while (0)

int sim_rt_enter(void);
int sim_rt_device(void); /* of this thread */
/* What a call returns, and remembers as the thread's last error. Findings that did not end a kernel are no error where
 * ATTNSIM_GO_ON is 1: their results are in place. */
int sim_rt_result(int r);
int sim_rt_attribute(int attribute); /* of the thread's device; 0: the driver does not say */
void sim_rt_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* register.c: kernels and variables by the address or handle that the host's code has for them. */
int sim_rt_function(const void *host, void **function);
int sim_rt_symbol(const void *host, uint64_t *address, size_t *bytes);
const char *sim_rt_kernel_name(const void *host); /* NULL: none */
struct image;                                     /* device code, loaded as a module once a device */
struct image *sim_rt_image(const void *data);
int sim_rt_module(struct image *image, void **module);
int sim_rt_library_kernel(struct image *image, const char *name, const void **kernel);
/* copy.c */
int sim_rt_on_device(const void *address); /* memory of the simulator: of a device, managed or pinned */
#endif
