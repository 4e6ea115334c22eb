/* SPDX-License-Identifier: MIT
 * What processors can do at this moment, for bench/run_cpu.py: on a shared machine that changes from second to second.
 *
 *   cpu_limits probe CPU...
 *       rates of each, a few milliseconds apiece: {"cpu": 4, "fma": 178.1, "amx": 2758.0}
 *   cpu_limits pairs CPU...
 *       rates of each two of them, alone and together: who takes something from whom
 *   cpu_limits course CPU...
 *       rates of each in 40 milliseconds, one after the other
 *   cpu_limits limits CPU...
 *       limits of all of them together, one line each: {"limit": "f32 fma", "unit": ...}
 *   cpu_limits read BYTES CPU...
 *       GB/s of one read of BYTES shared by all, median of several
 *
 * Needs AVX2; multiply-adds and reads are of the widest vectors there are. Rates of tiles, and of pairs of bf16, are 0
 * where the system or the processor does not have them. No part of the library. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, LARGE_PAGE = 2 << 20 };
static const size_t MEMORY = (size_t)256 << 20; /* of a thread */
static int tiles, wide /* AVX-512 */, paired /* AVX-512 BF16 */;

/* What LDTILECFG reads; the instructions, tile numbers as constants. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} shapes = {.palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
#define TILE_CONFIG()     __asm__ volatile("ldtilecfg %0" : : "m"(shapes) : "memory")
#define TILE_RELEASE()    __asm__ volatile("tilerelease" : : : "memory")
#define TILE_LOAD(t, at)  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(at), "r"((int64_t)64) : "memory")
#define TILE_STORE(t, at) __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"(at), "r"((int64_t)64) : "memory")
#define TILE_DP(c, a, b)  __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}
static volatile float sink;

#define FMA(i)    "vfmadd231ps %%zmm0,%%zmm1,%%zmm" #i "\n"
#define HALF(i)   "vfmadd231ps %%ymm0,%%ymm1,%%ymm" #i "\n"
#define PAIR(i)   "vdpbf16ps %%zmm0,%%zmm1,%%zmm" #i "\n"
#define TEN(x)    x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9) x(10) x(11)
#define REGISTERS "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11"
/* Operands are 0 in both halves of each register: what lies in them can change the clock. */
#define ZEROS() __asm__ volatile("vxorps %%ymm0,%%ymm0,%%ymm0\nvxorps %%ymm1,%%ymm1,%%ymm1" : : : "xmm0", "xmm1")
static double fma_f32(char *mem, size_t bytes) {
    (void)mem, (void)bytes;
    ZEROS();
    for (int i = 0; i < 20000 && wide; i++) __asm__ volatile(TEN(FMA) : : : REGISTERS);
    for (int i = 0; i < 20000 && !wide; i++) __asm__ volatile(TEN(HALF) : : : REGISTERS);
    return 20000. * 10 * (wide ? 32 : 16);
}
static double dp_bf16(char *mem, size_t bytes) {
    (void)mem, (void)bytes;
    ZEROS();
    for (int i = 0; i < 10000 && paired; i++) __asm__ volatile(TEN(PAIR) : : : REGISTERS);
    return paired * 10000. * 10 * 64;
}
static double products(char *mem, size_t bytes) {
    (void)mem, (void)bytes;
    for (int i = 0; tiles && i < 6000; i++) {
        TILE_DP(0, 4, 6);
        TILE_DP(1, 4, 7);
        TILE_DP(2, 5, 6);
        TILE_DP(3, 5, 7);
    }
    return tiles * 6000. * 4 * 16384;
}
static double products_loads(char *mem, size_t bytes) {
    (void)bytes;
    for (int i = 0; tiles && i < 6000; i++) {
        char *m = mem + i % 4 * 4096;
        TILE_LOAD(4, m);
        TILE_LOAD(6, m + 1024);
        TILE_DP(0, 4, 6);
        TILE_LOAD(7, m + 2048);
        TILE_DP(1, 4, 7);
        TILE_LOAD(5, m + 3072);
        TILE_DP(2, 5, 6);
        TILE_DP(3, 5, 7);
    }
    return tiles * 6000. * 4 * 16384;
}
static double load_tiles(char *mem, size_t bytes) {
    for (size_t i = 0, at = 0; tiles && i < 10000; i++, at = at + 4096 < bytes ? at + 4096 : 0) {
        TILE_LOAD(4, mem + at);
        TILE_LOAD(5, mem + at + 1024);
        TILE_LOAD(6, mem + at + 2048);
        TILE_LOAD(7, mem + at + 3072);
    }
    return tiles * 40000.;
}
static double store_tiles(char *mem, size_t bytes) {
    (void)bytes;
    for (int i = 0; tiles && i < 10000; i++) {
        char *m = mem + i % 4 * 4096;
        TILE_STORE(4, m);
        TILE_STORE(5, m + 1024);
        TILE_STORE(6, m + 2048);
        TILE_STORE(7, m + 3072);
    }
    return tiles * 40000.;
}
#define READ(name, isa, size)                                                                                          \
    __attribute__((target(isa))) static void name(const char *mem, size_t bytes, size_t times) {                       \
        typedef uint64_t part __attribute__((vector_size(size)));                                                      \
        part s[4] = {{0}};                                                                                             \
        for (size_t r = 0; r < times; r++)                                                                             \
            for (size_t i = 0; i + 4 * size <= bytes; i += 4 * size)                                                   \
                for (int x = 0; x < 4; x++) s[x] ^= *(const part *)(const void *)(mem + i + size * x);                 \
        s[0] ^= s[1] ^ s[2] ^ s[3];                                                                                    \
        sink = (float)s[0][0];                                                                                         \
    }
READ(read_lines, "avx512f", 64)
READ(read_halves, "avx2", 32)
static double read_all(char *mem, size_t bytes) {
    const size_t times = bytes < (16u << 20) ? (16u << 20) / bytes : 1;
    (wide ? read_lines : read_halves)(mem, bytes, times);
    return (double)times * (double)bytes;
}

static const struct limit {
    const char *name, *unit;
    double (*run)(char *mem, size_t bytes); /* returns the work */
    size_t bytes;
    double scale, seconds;
} limits[] = {{"f32 fma", "GFLOP/s", fma_f32, 0, 1e-9, 0.03},
              {"vdpbf16ps", "GFLOP/s", dp_bf16, 0, 1e-9, 0.02},
              {"tdpbf16ps", "GFLOP/s", products, 0, 1e-9, 0.03},
              {"tdpbf16ps, four loads for four products", "GFLOP/s", products_loads, 0, 1e-9, 0.03},
              {"tile loads, first-level cache", "M/s", load_tiles, 16 << 10, 1e-6, 0.02},
              {"tile loads, second-level cache", "M/s", load_tiles, 512 << 10, 1e-6, 0.02},
              {"tile stores, first-level cache", "M/s", store_tiles, 0, 1e-6, 0.02},
              {"read of 24 KiB", "GB/s", read_all, 24 << 10, 1e-9, 0.03},
              {"read of 1 MiB", "GB/s", read_all, 1 << 20, 1e-9, 0.03},
              {"read of 16 MiB", "GB/s", read_all, 16 << 20, 1e-9, 0.05},
              {"read of 256 MiB", "GB/s", read_all, 256 << 20, 1e-9, 0.2}};

struct thread {
    const struct limit *limit;
    int cpu;
    char *mem;
    double rate;
    pthread_barrier_t *start;
};
/* The best rate, work by work: what the processor does when nobody disturbs it. */
static void *measure(void *arg) {
    struct thread *t = arg;
    const struct limit *l = t->limit;
    pin(t->cpu);
    if (tiles) TILE_CONFIG();
    l->run(t->mem, l->bytes);
    pthread_barrier_wait(t->start);
    const double begin = now();
    for (double at = begin, next; at - begin < l->seconds; at = next) {
        const double work = l->run(t->mem, l->bytes);
        next = now();
        if (work / (next - at) > t->rate) t->rate = work / (next - at);
    }
    if (tiles) TILE_RELEASE();
    return NULL;
}
static double together(const struct limit *l, int n, const int *cpu, char **mem) {
    struct thread t[MOST];
    pthread_t id[MOST];
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        t[i] = (struct thread){l, cpu[i], mem[i], 0, &start};
        if (i) pthread_create(&id[i], NULL, measure, &t[i]);
    }
    measure(&t[0]);
    double sum = t[0].rate;
    for (int i = 1; i < n; i++) {
        pthread_join(id[i], NULL);
        sum += t[i].rate;
    }
    pthread_barrier_destroy(&start);
    return sum * l->scale;
}

static void probe(int n, const int *cpu) {
    static char mem[16 << 10] __attribute__((aligned(4096)));
    for (int i = 0; i < n; i++) {
        double amx = 0, t;
        pin(cpu[i]);
        if (tiles) {
            TILE_CONFIG();
            for (int x = 0; x < 3; x++) { /* the first ones find the tile unit asleep */
                t = now();
                const double work = products_loads(mem, 0);
                amx = work / (now() - t);
            }
            TILE_RELEASE();
        }
        fma_f32(NULL, 0);
        t = now();
        const double work = fma_f32(NULL, 0), fma = work / (now() - t);
        printf("{\"cpu\": %d, \"fma\": %.1f, \"amx\": %.1f}\n", cpu[i], fma * 1e-9, amx * 1e-9);
    }
}

/* Do two processors take something from each other? Each alone just before, then both. */
static void pairs(int n, const int *cpu, char **mem) {
    const struct limit *l = &limits[tiles ? 3 : 0];
    struct limit brief = *l;
    brief.seconds = 0.006;
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++) {
            const int two[2] = {cpu[i], cpu[j]};
            const double a = together(&brief, 1, two, mem), b = together(&brief, 1, two + 1, mem);
            printf("{\"pair\": [%d, %d], \"alone\": [%.0f, %.0f], \"together\": %.0f}\n", two[0], two[1], a, b,
                   together(&brief, 2, two, mem));
        }
}
static void course(int n, const int *cpu, char *mem) {
    for (int i = 0; i < n; i++) {
        pin(cpu[i]);
        if (tiles) TILE_CONFIG();
        printf("{\"cpu\": %d, \"course\": [", cpu[i]);
        const double begin = now();
        for (int ms = 0; ms < 40; ms++) {
            double work = 0;
            const double t = now();
            while (now() < begin + (ms + 1) * 1e-3) work += (tiles ? products_loads : fma_f32)(mem, 0);
            printf("%s%.0f", ms ? ", " : "", work / (now() - t) * 1e-9);
        }
        printf("]}\n");
        if (tiles) TILE_RELEASE();
    }
}

/* One read of all bytes, as a decode does, from large pages, as attn's tensors have them: threads start together, and
 * the last one ends it. */
struct part {
    int cpu;
    char *mem;
    size_t bytes;
    pthread_barrier_t *meet;
    double *begin, *end;
    int times;
};
static void *read_part(void *arg) {
    const struct part *p = arg;
    pin(p->cpu);
    memset(p->mem, 1, p->bytes);
    for (int i = 0; i < p->times; i++) {
        pthread_barrier_wait(p->meet);
        p->begin[i] = now();
        read_all(p->mem, p->bytes);
        p->end[i] = now();
        pthread_barrier_wait(p->meet);
    }
    return NULL;
}
static int earlier(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double read_rate(size_t bytes, int n, const int *cpu) {
    enum { TIMES = 7 };
    struct part p[MOST];
    pthread_t id[MOST];
    double begin[MOST][TIMES], end[MOST][TIMES], took[TIMES];
    pthread_barrier_t meet;
    pthread_barrier_init(&meet, NULL, (unsigned)n);
    const size_t each = bytes / (size_t)n / 4096 * 4096;
    for (int i = 0; i < n; i++) {
        const size_t whole = (each + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
        p[i] = (struct part){cpu[i], aligned_alloc(LARGE_PAGE, whole), each, &meet, begin[i], end[i], TIMES};
        (void)madvise(p[i].mem, whole, MADV_HUGEPAGE);
        pthread_create(&id[i], NULL, read_part, &p[i]);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(id[i], NULL);
        free(p[i].mem);
    }
    pthread_barrier_destroy(&meet);
    for (int t = 0; t < TIMES; t++) {
        double first = begin[0][t], last = end[0][t];
        for (int i = 1; i < n; i++) {
            if (begin[i][t] < first) first = begin[i][t];
            if (end[i][t] > last) last = end[i][t];
        }
        took[t] = last - first;
    }
    qsort(took, TIMES, sizeof *took, earlier);
    return (double)each * n / took[TIMES / 2] * 1e-9;
}

int main(int argc, char **argv) {
    const int reads = argc > 1 && !strcmp(argv[1], "read"), first = 2 + reads, n = argc - first;
    int cpu[MOST];
    if (n < 1 || n > MOST) {
        fprintf(stderr, "cpu_limits probe|pairs|course|limits|read BYTES, then processors\n");
        return 2;
    }
    for (int i = 0; i < n; i++) cpu[i] = atoi(argv[first + i]);
    wide = __builtin_cpu_supports("avx512f") != 0;
    paired = __builtin_cpu_supports("avx512bf16") != 0;
    tiles = !syscall(158 /* arch_prctl */, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18);
    if (reads) {
        printf("{\"limit\": \"read\", \"bytes\": %s, \"unit\": \"GB/s\", \"value\": %.2f}\n", argv[2],
               read_rate(strtoull(argv[2], NULL, 0), n, cpu));
    } else if (!strcmp(argv[1], "probe")) {
        probe(n, cpu);
    } else {
        char *mem[MOST];
        for (int i = 0; i < n; i++) {
            mem[i] = aligned_alloc(4096, MEMORY);
            memset(mem[i], 0, strcmp(argv[1], "limits") ? 16 << 10 : MEMORY);
        }
        if (!strcmp(argv[1], "pairs")) pairs(n, cpu, mem);
        if (!strcmp(argv[1], "course")) course(n, cpu, mem[0]);
        for (size_t i = 0; i < sizeof limits / sizeof *limits && !strcmp(argv[1], "limits"); i++)
            printf("{\"limit\": \"%s\", \"threads\": %d, \"unit\": \"%s\", \"value\": %.1f}\n", limits[i].name, n,
                   limits[i].unit, together(&limits[i], n, cpu, mem));
        for (int i = 0; i < n; i++) free(mem[i]);
    }
    return 0;
}
