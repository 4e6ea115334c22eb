/* SPDX-License-Identifier: MIT
 * CPU features by CPUID and XGETBV, never by model name: a level counts only when the processor has it and the system
 * saves its registers (Intel SDM vol. 1, 13.2 and 18.3). AMX also needs the system's permission, asked for once per
 * process. Other architectures give ATTN_CPU_C alone. */
#include "cpu/host/cpu.h"

#include <pthread.h>
#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* What the processor and the system offer, without any cap. */
struct survey {
    uint64_t levels; /* without AMX: its permission is asked for only when the cap allows AMX */
    int amx;
    uint8_t avx512_fp16;
};

#if defined(__x86_64__) || defined(__i386__)
enum { XCR0_AVX = 0x6, XCR0_AVX512 = 0xe6, XCR0_AMX = 0x60000 }; /* state components, SDM vol. 1, 13.1 */

static uint64_t read_xcr0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static int all_set(uint64_t word, uint64_t bits) { return (word & bits) == bits; }

static struct survey look(void) {
    struct survey found = {.levels = ATTN_CPU_C};
    uint32_t a, b, c, d, b7, c7, d7, a71 = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
    uint32_t leaf1 =
        UINT32_C(1) << 12 | UINT32_C(1) << 27 | UINT32_C(1) << 28 | UINT32_C(1) << 29; /* FMA OSXSAVE AVX F16C */
    if (!all_set(c, leaf1)) return found;
    uint64_t xcr0 = read_xcr0();
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return found;
    if (!all_set(xcr0, XCR0_AVX) || !all_set(b7, UINT32_C(1) << 5)) return found;
    found.levels |= ATTN_CPU_AVX2;
    uint32_t avx512 = UINT32_C(1) << 16 | UINT32_C(1) << 17 | UINT32_C(1) << 30 | UINT32_C(1) << 31; /* F DQ BW VL */
    if (!all_set(xcr0, XCR0_AVX512) || !all_set(b7, avx512)) return found;
    found.levels |= ATTN_CPU_AVX512;
    if (a >= 1) {
        uint32_t x, y, z;
        if (__get_cpuid_count(7, 1, &a71, &x, &y, &z)) found.levels |= a71 >> 5 & 1 ? ATTN_CPU_BF16 : 0;
    }
    found.avx512_fp16 = (uint8_t)(d7 >> 23 & 1);
    found.amx = all_set(xcr0, XCR0_AMX) && all_set(d7, UINT32_C(1) << 22 | UINT32_C(1) << 24); /* BF16 TILE */
#ifdef ATTN_AMX_EMULATED /* tests alone: cpu/amx/tile.h */
    found.amx = 1;
#endif
    found.amx = found.amx && (found.levels & ATTN_CPU_BF16) && (c7 >> 1 & 1); /* those kernels use both, and VBMI */
    return found;
}
#else
static struct survey look(void) { return (struct survey){.levels = ATTN_CPU_C}; }
#endif

/* Written once, under pthread_once. */
static struct survey survey;
static int amx_granted;
static pthread_once_t survey_once = PTHREAD_ONCE_INIT, amx_once = PTHREAD_ONCE_INIT;

static void fill_survey(void) { survey = look(); }

/* Linux gives the tile registers to a process on request (arch_prctl(2), ARCH_REQ_XCOMP_PERM). The request enlarges
 * signal frames, so nobody makes it who capped the level below AMX. A refusal leaves AVX-512. */
static void request_amx(void) {
#ifdef ATTN_AMX_EMULATED
    extern int attn_amx_emulated_permit;
    amx_granted = attn_amx_emulated_permit;
#elif defined(__x86_64__) && defined(__linux__)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    amx_granted = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#endif
}

static uint64_t levels_up_to(const char *cap) {
    static const struct {
        const char *name;
        uint64_t levels;
    } caps[] = {{"c", ATTN_CPU_C},
                {"avx2", ATTN_CPU_C | ATTN_CPU_AVX2},
                {"avx512", ATTN_CPU_C | ATTN_CPU_AVX2 | ATTN_CPU_AVX512},
                {"avx512bf16", ATTN_CPU_C | ATTN_CPU_AVX2 | ATTN_CPU_AVX512 | ATTN_CPU_BF16}};
    for (size_t i = 0; cap && i < sizeof caps / sizeof caps[0]; ++i)
        if (!strcmp(cap, caps[i].name)) return caps[i].levels;
    return ATTN_CPU_C | ATTN_CPU_AVX2 | ATTN_CPU_AVX512 | ATTN_CPU_BF16 | ATTN_CPU_AMX;
}

uint64_t attn_cpu_features(const char *cap, struct attn_text *text) {
    pthread_once(&survey_once, fill_survey);
    uint64_t allowed = levels_up_to(cap), features = survey.levels & allowed;
    if (survey.amx && (allowed & ATTN_CPU_AMX)) {
        pthread_once(&amx_once, request_amx);
        if (amx_granted) features |= ATTN_CPU_AMX;
    }
    if (!text) return features;
    attn_text_add(text, "c");
    if (features & ATTN_CPU_AVX2) attn_text_add(text, " avx2 fma f16c");
    if (features & ATTN_CPU_AVX512) {
        attn_text_add(text, " avx512f avx512bw avx512dq avx512vl");
        if (features & ATTN_CPU_BF16) attn_text_add(text, " avx512_bf16");
        if (survey.avx512_fp16) attn_text_add(text, " avx512_fp16");
    }
    if (features & ATTN_CPU_AMX) attn_text_add(text, " amx_tile amx_bf16");
    return features;
}

int attn_cpu_amx_denied(const char *cap) {
    const uint64_t features = attn_cpu_features(cap, NULL);
    return survey.amx && (levels_up_to(cap) & ATTN_CPU_AMX) && !(features & ATTN_CPU_AMX);
}
