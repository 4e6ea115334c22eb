/* SPDX-License-Identifier: MIT
 * What one multiprocessor does in a clock, measured or published, each with its source. A rate that was not measured
 * says so. They are ceilings of a unit alone: no kernel reaches all of them at once. */
#include "counts/counts.h"

#include <string.h>

const char *const sim_rate_names[SIM_N_RATES] = {
    [SIM_RATE_WGMMA] = "wgmma, FLOP",
    [SIM_RATE_TCGEN05] = "tcgen05.mma, FLOP",
    [SIM_RATE_MMA] = "mma.sync, FLOP",
    [SIM_RATE_MMA_DOUBLE] = "mma.sync f64, FLOP",
    [SIM_RATE_SHARED] = "shared memory, bytes",
    [SIM_RATE_CELLS] = "tensor memory, bytes",
    [SIM_RATE_SPECIAL] = "special functions, lanes",
    [SIM_RATE_FMA] = "fma f32, lanes",
    [SIM_RATE_FMA_PACKED] = "fma f32x2, lanes",
    [SIM_RATE_DOUBLE] = "fma f64, lanes",
    [SIM_RATE_ISSUE] = "warp instructions",
    [SIM_RATE_CACHE] = "second-level cache to and from multiprocessors, bytes",
    [SIM_RATE_REDUCE] = "f32 additions in the second-level cache, bytes",
    [SIM_RATE_MEMORY] = "device memory, bytes",
};

#define ROW(rate, value, source) .v[SIM_RATE_##rate] = (value), .sources[SIM_RATE_##rate] = (source)

static const struct sim_rates rates[] = {
    {.gpu = "b200",
     .ghz = 1.85,
     ROW(TCGEN05, 8192,
         "bf16; microbench-blackwell 9a068d8: N/2 clocks a step of K 16 with M 128 of one CTA and M 256 "
         "of a pair, N/4 with M 128 of a pair, N/2 with M 64 of one CTA, which is half rate; .ws assumed"),
     ROW(MMA, 2615, "assumed: an H100's"),
     ROW(MMA_DOUBLE, 128, "as fma: 40 TFLOP/s of a chip"),
     ROW(SHARED, 128, "microbench-blackwell 9a068d8: SS products with N 64 take what 128 B a clock say"),
     ROW(CELLS, 512, "assumed: 4 warps a clock of 32 lanes by 4 bytes, reads and writes together"),
     ROW(SPECIAL, 16, "CUDA C++ Programming Guide, arithmetic throughput, compute capability 10.0"),
     ROW(FMA, 128, "the same"),
     ROW(FMA_PACKED, 64, "the same rate of results as .f32"),
     ROW(DOUBLE, 64, "the same: 40 TFLOP/s of a chip"),
     ROW(ISSUE, 4, "four schedulers"),
     ROW(CACHE, 44, "at least: 12 TB/s of gathered rows by a published kernel, 148 multiprocessors at 1.85 GHz"),
     ROW(REDUCE, 16.1, "at least: 4.41 TB/s of red.v4.f32 by a published kernel; not known whether it is a wall"),
     ROW(MEMORY, 26.5, "microbench-blackwell 9a068d8: 7.26 TB/s of tensor copies, 128 KiB in flight a multiprocessor")},
    {.gpu = "h100",
     .ghz = 1.755,
     ROW(WGMMA, 4096, "bf16; H100 whitepaper: 989.4 TFLOP/s, 132 multiprocessors at 1.83 GHz"),
     ROW(MMA, 2615, "docs/kernels/sdpa_bwd_wide_sm80.md: 604 TFLOP/s of f16 measured, at 1.75 GHz"),
     ROW(MMA_DOUBLE, 256, "H100 whitepaper: 66.9 TFLOP/s, 132 multiprocessors at 1.83 GHz and more"),
     ROW(SHARED, 128, "H100 whitepaper: 32 banks of 4 bytes"),
     ROW(SPECIAL, 16, "CUDA C++ Programming Guide, arithmetic throughput, compute capability 9.0"),
     ROW(FMA, 128, "the same"),
     ROW(DOUBLE, 64, "the same"),
     ROW(ISSUE, 4, "four schedulers"),
     ROW(CACHE, 34,
         "at least: attn_dist_sm90_bf16_d576_h64 reads that in 1276 us (bench/results/h100, 4096 queries of 2048 keys)"),
     ROW(REDUCE, 13.4, "docs/kernels/sdpa_bwd_sm80.md: 3.1 TB/s of f32 additions measured"),
     ROW(MEMORY, 13.2, "docs/kernels/sdpa_fwd_sm80.md: 3.02 TB/s of a device-to-device copy, 3.08 read, measured")},
};

const struct sim_rates *sim_rates_of(const char *gpu) {
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (!strcmp(rates[i].gpu, gpu)) return &rates[i];
    return NULL;
}
