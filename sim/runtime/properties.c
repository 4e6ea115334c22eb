/* SPDX-License-Identifier: MIT
 * cudaGetDeviceProperties in the layouts of CUDA 12 and of CUDA 13, which lacks some of the fields. Texts of errors. */
#include "runtime/runtime.h"

#include <string.h>

enum { MOST_BYTES = 1024, TEXT_BYTES = 256, HEAD = 280, TOTAL_MEMORY = -1 }; /* HEAD: name, uuid, luid */
/* The fields in order, as attributes of the driver; attribute 0: fields that stay 0. */
static const struct field {
    short attribute;
    unsigned char bytes, n, only_12;
} fields[] = {
    {0, 4, 1, 0},            /* mask of luid's nodes */
    {TOTAL_MEMORY, 8, 1, 0}, /* */
    {8, 8, 1, 0},            /* shared memory of a block */
    {12, 4, 1, 0},           /* registers of a block */
    {10, 4, 1, 0},           /* lanes of a warp */
    {11, 8, 1, 0},           /* pitch */
    {1, 4, 1, 0},            /* threads of a block */
    {2, 4, 3, 0},            /* its dimensions: attributes 2, 3, 4 */
    {5, 4, 3, 0},            /* those of a grid */
    {13, 4, 1, 1},           /* clock */
    {9, 8, 1, 0},            /* constant memory */
    {75, 4, 2, 0},           /* compute capability */
    {14, 8, 1, 0},           /* alignment of textures */
    {51, 8, 1, 0},           /* and of their pitch */
    {15, 4, 1, 1},           /* copies beside kernels */
    {16, 4, 1, 0},           /* multiprocessors */
    {17, 4, 1, 1},           /* time limit */
    {18, 4, 2, 0},           /* integrated, maps the host's memory */
    {20, 4, 1, 1},           /* compute mode */
    {0, 4, 1, 1},            /* linear textures of one dimension */
    {0, 4, 39, 0},           /* sizes of textures and surfaces: there are none */
    {0, 8, 1, 0},            /* alignment of surfaces */
    {31, 4, 4, 0},           /* kernels at the same time, ECC, bus, device */
    {50, 4, 1, 0},           /* domain */
    {35, 4, 1, 0},           /* TCC */
    {40, 4, 2, 0},           /* copy engines, one address space */
    {36, 4, 1, 1},           /* memory clock */
    {37, 4, 2, 0},           /* bus width, L2 cache */
    {108, 4, 1, 0},          /* of it for persisting lines */
    {39, 4, 1, 0},           /* threads of a multiprocessor */
    {78, 4, 3, 0},           /* priorities, caching in L1 */
    {81, 8, 1, 0},           /* shared memory of a multiprocessor */
    {82, 4, 5, 0},           /* registers of it, managed memory, two GPUs a board, their group, atomics of the host */
    {87, 4, 1, 1},           /* ratio of single to double precision */
    {88, 4, 4, 0},           /* pageable and managed memory, preemption, registered pointers */
    {95, 4, 1, 0},           /* cooperative launch */
    {0, 4, 1, 1},            /* the same on several devices */
    {97, 8, 1, 0},           /* shared memory of a block that asks for it */
    {100, 4, 2, 0},          /* page tables, managed memory of the host */
    {106, 4, 1, 0},          /* blocks of a multiprocessor */
    {109, 4, 1, 0},          /* access policy window */
    {111, 8, 1, 0},          /* shared memory that the system takes */
    {99, 4, 1, 0},           /* registration of the host's memory */
    {112, 4, 4, 0},          /* sparse arrays, read-only registration, timelines, pools */
    {116, 4, 4, 0},          /* RDMA, handles of pools */
    {121, 4, 1, 0},          /* deferred mapping of arrays */
    {125, 4, 1, 0},          /* events of other processes */
    {120, 4, 1, 0},          /* clusters */
    {129, 4, 1, 0},          /* unified function pointers */
    {0, 4, 63, 0},           /* reserved, and what CUDA 13 has made of some of it */
};

static int write_properties(unsigned char *out, int device, int is_12) {
    size_t place = HEAD, memory = 0;
    unsigned char all[MOST_BYTES] = {0};
    int r = cuDeviceGetName((char *)all, TEXT_BYTES, device);
    if (!r) r = cuDeviceTotalMem_v2(&memory, device);
    if (r) return r;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const struct field *f = &fields[i];
        if (f->only_12 && !is_12) continue;
        place = (place + f->bytes - 1) / f->bytes * f->bytes;
        for (int k = 0; k < f->n; k++, place += f->bytes) {
            int value = 0;
            if (f->attribute > 0) cuDeviceGetAttribute(&value, f->attribute + k, device); /* else it stays 0 */
            const uint64_t wide = f->attribute == TOTAL_MEMORY ? memory : (uint64_t)value;
            memcpy(all + place, &wide, f->bytes);
        }
    }
    memcpy(out, all, (place + 7) / 8 * 8);
    return RT_SUCCESS;
}
RT_CALL(cudaGetDeviceProperties, void *out, int device) { /* of CUDA 13 */
    RT_ENTER;
    return sim_rt_result(out ? write_properties(out, device, 0) : RT_INVALID_VALUE);
}
RT_CALL(cudaGetDeviceProperties_v2, void *out, int device) { /* of CUDA 12 */
    RT_ENTER;
    return sim_rt_result(out ? write_properties(out, device, 1) : RT_INVALID_VALUE);
}
RT_CALL(cudaChooseDevice, int *device, const void *properties) { /* all devices are alike */
    if (!device || !properties) return sim_rt_result(RT_INVALID_VALUE);
    *device = 0;
    return RT_SUCCESS;
}

/* ---- errors ---- */

static const struct {
    int number;
    const char *name, *words;
} errors[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {4, "cudaErrorCudartUnloading", "driver shutting down"},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {12, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {13, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {21, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {200, "cudaErrorInvalidKernelImage", "device kernel image is invalid"},
    {201, "cudaErrorDeviceUninitialized", "invalid device context"},
    {209, "cudaErrorNoKernelImageForDevice", "no PTX that the simulated device can take (see above)"},
    {218, "cudaErrorInvalidPtx", "a PTX text that the simulator does not understand (see above)"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {500, "cudaErrorSymbolNotFound", "named symbol not found"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {701, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {704, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {712, "cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {713, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {719, "cudaErrorLaunchFailure", "the simulator found faults of a kernel (see its report)"},
    {720, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {902, "cudaErrorStreamCaptureMerge", "operation would result in a merge of separate capture sequences"},
    {903, "cudaErrorStreamCaptureUnmatched", "capture was not ended in the same stream as it began"},
    {904, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {905, "cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"},
    {906, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"},
    {908, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {910, "cudaErrorGraphExecUpdateFailure", "the graph update was not performed"},
    {999, "cudaErrorUnknown", "unknown error"},
};
static size_t error_row(int number) {
    const size_t n = sizeof errors / sizeof *errors;
    for (size_t i = 0; i < n; i++)
        if (errors[i].number == number) return i;
    return n - 1;
}
__attribute__((visibility("default"))) const char *cudaGetErrorName(int error);
const char *cudaGetErrorName(int error) { return errors[error_row(error)].name; }
__attribute__((visibility("default"))) const char *cudaGetErrorString(int error);
const char *cudaGetErrorString(int error) { return errors[error_row(error)].words; }
