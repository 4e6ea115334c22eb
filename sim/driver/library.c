/* SPDX-License-Identifier: MIT
 * Driver calls about libraries and kernels without a context: here every module is good for every device, so that a
 * library is a module and a kernel its function. */
#include "driver/cu.h"

struct sim_module;
struct sim_function;
SIM_API cuModuleLoadDataEx(struct sim_module **out, const void *image, unsigned n, int *options, void **values);
SIM_API cuModuleUnload(struct sim_module *module);
SIM_API cuModuleGetFunction(struct sim_function **out, struct sim_module *module, const char *name);
SIM_API cuFuncSetAttribute(struct sim_function *f, int attribute, int value);
SIM_API cuFuncGetAttribute(int *value, int attribute, struct sim_function *f);

#define ENTER_CONTEXT                                                                                                  \
    struct sim_context *context = NULL;                                                                                \
    int r_ = sim_enter(__func__, &context);                                                                            \
    if (r_) return r_;

SIM_API cuLibraryLoadData(struct sim_module **out, const void *image, int *options, void **values, unsigned n,
                          int *library_options, void **library_values, unsigned n_library);
SIM_API cuLibraryLoadData(struct sim_module **out, const void *image, int *options, void **values, unsigned n,
                          int *library_options, void **library_values, unsigned n_library) {
    ENTER_CONTEXT
    if (!out || (n_library && (!library_options || !library_values))) return R_INVALID_VALUE;
    return cuModuleLoadDataEx(out, image, n, options, values);
}
SIM_API cuLibraryUnload(struct sim_module *library);
SIM_API cuLibraryUnload(struct sim_module *library) {
    ENTER_CONTEXT
    return cuModuleUnload(library);
}
SIM_API cuLibraryGetModule(struct sim_module **out, struct sim_module *library);
SIM_API cuLibraryGetModule(struct sim_module **out, struct sim_module *library) {
    ENTER_CONTEXT
    if (!out || !library) return R_INVALID_VALUE;
    *out = library;
    return R_SUCCESS;
}
SIM_API cuLibraryGetKernel(struct sim_function **out, struct sim_module *library, const char *name);
SIM_API cuLibraryGetKernel(struct sim_function **out, struct sim_module *library, const char *name) {
    ENTER_CONTEXT
    if (!out || !library || !name) return R_INVALID_VALUE;
    return cuModuleGetFunction(out, library, name);
}
SIM_API cuKernelGetFunction(struct sim_function **out, struct sim_function *kernel);
SIM_API cuKernelGetFunction(struct sim_function **out, struct sim_function *kernel) {
    ENTER_CONTEXT
    if (!out || !kernel) return R_INVALID_VALUE;
    *out = kernel;
    return R_SUCCESS;
}
SIM_API cuKernelSetAttribute(int attribute, int value, struct sim_function *kernel, int device);
SIM_API cuKernelSetAttribute(int attribute, int value, struct sim_function *kernel, int device) {
    ENTER_CONTEXT
    if (!kernel || device < 0) return R_INVALID_VALUE;
    return cuFuncSetAttribute(kernel, attribute, value);
}
SIM_API cuKernelGetAttribute(int *value, int attribute, struct sim_function *kernel, int device);
SIM_API cuKernelGetAttribute(int *value, int attribute, struct sim_function *kernel, int device) {
    ENTER_CONTEXT
    if (!kernel || device < 0) return R_INVALID_VALUE;
    return cuFuncGetAttribute(value, attribute, kernel);
}
