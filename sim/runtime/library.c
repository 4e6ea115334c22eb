/* SPDX-License-Identifier: MIT
 * Libraries: device code that the host loads by name, as programs of the CuTe DSL do (docs/sim.md, "Programs of the
 * CuTe DSL"). Their generated host code calls the runtime through names with an underscore in front, which the linker makes
 * (cmake/sim_library.cmake); here are the calls that are no runtime's. */
#include "runtime/runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

RT_CALL(cudaLibraryLoadData, struct image **library, const void *code, const int *options, void *const *values,
        unsigned n, const int *library_options, void *const *library_values, unsigned n_library) {
    void *module = NULL;
    (void)options, (void)values, (void)n, (void)library_options, (void)library_values,
        (void)n_library; /* of a compiler */
    if (!library || !code) return sim_rt_result(RT_INVALID_VALUE);
    struct image *image = sim_rt_image(code);
    const int r = sim_rt_module(image, &module);
    if (r)
        free(image);
    else
        *library = image;
    return sim_rt_result(r);
}
RT_CALL(cudaLibraryUnload, struct image *library) { /* its kernels' handles stay good until the end */
    return sim_rt_result(library ? RT_SUCCESS : RT_INVALID_VALUE);
}
RT_CALL(cudaLibraryGetKernel, const void **kernel, struct image *library, const char *name) {
    if (!kernel || !library || !name) return sim_rt_result(RT_INVALID_VALUE);
    return sim_rt_result(sim_rt_library_kernel(library, name, kernel));
}
RT_CALL(cudaLibraryGetGlobal, void **address, size_t *bytes, struct image *library, const char *name) {
    void *module = NULL;
    uint64_t place = 0;
    if (!library || !name) return sim_rt_result(RT_INVALID_VALUE);
    int r = sim_rt_module(library, &module);
    if (!r) r = cuModuleGetGlobal_v2(&place, bytes, module, name);
    if (!r && address) *address = (void *)(uintptr_t)place;
    return sim_rt_result(r);
}
RT_CALL(cudaKernelSetAttributeForDevice, const void *kernel, int attribute, int value, int device) {
    void *function = NULL;
    (void)device; /* a module is good for every device */
    const int r = sim_rt_function(kernel, &function);
    return sim_rt_result(r ? r : cuFuncSetAttribute(function, attribute, value));
}

/* ---- called by host code that the CuTe DSL generates ---- */

struct rt_config { /* of cudaLaunchKernelExC */
    struct rt_dim3 grid, block;
    size_t shared_bytes;
    void *stream;
    const void *attributes;
    unsigned n_attributes;
};
int cudaLaunchKernelExC(const struct rt_config *config, const void *kernel, void **params);
const char *cudaGetErrorName(int r);
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags);

RT_CALL(_cudaLaunchKernel, const void *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
        unsigned block_y, unsigned block_z, void **params, size_t shared, void *stream) {
    const struct rt_config config = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream, NULL, 0};
    return cudaLaunchKernelExC(&config, kernel, params);
}
RT_CALL(_cudaStreamWaitEvent, void *stream, void *event) { return cudaStreamWaitEvent(stream, event, 0); }
RT_CALL(_cuKernelGetAttribute, int *value, int attribute, const void *kernel, int device) {
    void *function = NULL;
    (void)device;
    const int r = sim_rt_function(kernel, &function);
    return r ? r : cuFuncGetAttribute(value, attribute, function);
}

#define EXPORTED __attribute__((visibility("default")))
EXPORTED const char *cuda_dialect_get_error_name(int r);
EXPORTED const char *cuda_dialect_get_error_name(int r) { return cudaGetErrorName(r); }
EXPORTED void cuda_dialect_print_on_error(int r);
EXPORTED void cuda_dialect_print_on_error(int r) {
    if (r) sim_rt_say("%s", cudaGetErrorName(r));
}
EXPORTED void cuda_dialect_assert_success(int r);
EXPORTED void cuda_dialect_assert_success(int r) {
    cuda_dialect_print_on_error(r);
    if (r) abort();
}
/* Loads a function's library when it is first called. */
RT_CALL(cuda_dialect_init_library_once, void **state, int (*init)(void **), int (*load)(void **, int),
        void (*fail)(const char *, const char *)) {
    void *library = NULL;
    if (*state) return 0;
    int r = init(&library);
    if (!r && load) r = load(&library, 0);
    if (!r) {
        *state = library;
        return 0;
    }
    fail("RuntimeError", cudaGetErrorName(r));
    return -1;
}
EXPORTED void cuda_dialect_unload_library_once(void **state);
EXPORTED void cuda_dialect_unload_library_once(void **state) { *state = NULL; }

typedef void (*raise_parts)(const char *kind, const char **parts, int32_t n);
EXPORTED void CuteDSLRT_TVMFFISetRaisedCudaError(raise_parts raise, int32_t r);
EXPORTED void CuteDSLRT_TVMFFISetRaisedCudaError(raise_parts raise, int32_t r) {
    const char *parts[] = {cudaGetErrorName(r)};
    raise("RuntimeError", parts, 1);
}
EXPORTED void CuteDSLRT_TVMFFISetRaisedCudaLaunchError(raise_parts raise, int32_t r);
EXPORTED void CuteDSLRT_TVMFFISetRaisedCudaLaunchError(raise_parts raise, int32_t r) {
    CuteDSLRT_TVMFFISetRaisedCudaError(raise, r);
}
