/* SPDX-License-Identifier: MIT
 * The backends of this build: the only file that names them, and the place where CUDA says that it is absent. */
#include "api/api.h"
#include "cpu/host/cpu.h"
#ifdef ATTN_HAVE_CUDA
#include "cuda/backend/cuda.h"
#endif

const struct attn_core_backend *const attn_api_backends[] = {
#ifdef ATTN_HAVE_CUDA
    &attn_cuda_backend,
#endif
    &attn_cpu_backend,
};
const int32_t attn_api_n_backends = (int32_t)(sizeof attn_api_backends / sizeof *attn_api_backends);
_Static_assert(sizeof attn_api_backends / sizeof *attn_api_backends <= ATTN_MAX_BACKENDS,
               "attn_ctx has a slot for each");

attn_status attn_cuda_status(attn_ctx *ctx) {
    if (!ctx) FAIL(ATTN_E_ARGUMENT, "ctx", "ctx is NULL");
#ifdef ATTN_HAVE_CUDA
    return attn_cuda_absence(ctx);
#else
    FAIL(ATTN_E_NO_DRIVER, "ctx", "this libattn was built without CUDA");
#endif
}
