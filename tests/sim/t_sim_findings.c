/* SPDX-License-Identifier: MIT
 * Classes of findings: what nothing orders is told apart from what lacks only a fence or a wait by the letter; faults
 * alone make a launch fail; each class has its variable; advice is listed once a place with a count.
 * usage: t_sim_findings DRIVER */
#include "kernel_mutants.h"
#include "tensor_ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BEFORE  "tcgen05.fence::before_thread_sync;\n"
#define AFTER   "tcgen05.fence::after_thread_sync;\n"
#define BAR     "bar.sync 0;\n"
#define WAIT_ST "tcgen05.wait::st.sync.aligned;\n"
#define WAIT_LD "tcgen05.wait::ld.sync.aligned;\n"
/* Every warp but the first writes columns 32 and 33 of its lanes; then a product of thread 0 writes columns 32 to 63.
 */
#define ST_32   "@!w0 tcgen05.st.sync.aligned.32x32b.x1.b32 [%r5+32], {%r0};\n"
#define ST_33   "@!w0 tcgen05.st.sync.aligned.32x32b.x1.b32 [%r5+33], {%r0};\n"
#define NO_SUMS "setp.ne.u32 add, %r0, %r0;\n"
#define STORES  READY NO_SUMS ST_32 ST_33
#define PRODUCT MMA("kind::f16", "") COMMIT SEE END
/* Every warp reads column 3; then warp w writes it again after a barrier of all, or a product reads and writes it. */
#define LOAD       READY "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r30}, [%r5+3];\n"
#define USE        "add.u32 %r30, %r30, 1;\n"
#define OVER       "@q tcgen05.mma.cta_group::1.kind::f16 [%r4], %rd2, %rd2, %r21, add;\n" COMMIT SEE END
#define ONE_LINE   "\n.loc 1 77 0\n"
#define OTHER_LINE "\n.loc 1 78 0\n"
#define FILE_1     ".file 1 \"room/kernel.cu\"\n"

/* In order: fences, waits, advice as the variables say; faults wanted; words that must be told, and that must not */
static const struct {
    const char *name, *ptx, *fences, *waits, *advice;
    int faults;
    const char *told, *also, *never;
} cases[] = {
    /* a tensor store of other warps, then a product */
    {"all", STORES WAIT_ST BEFORE BAR AFTER PRODUCT, "2", "2", "1", 0, NULL, NULL, "attnsim"},
    {"no_before", STORES WAIT_ST BAR AFTER PRODUCT, "2", "2", "1", 1,
     "proxy: only a fence is missing: writes column 32", "no tcgen05.fence::before_thread_sync", "nothing orders"},
    {"no_after", STORES WAIT_ST BEFORE BAR PRODUCT, "2", "2", "1", 1,
     "proxy: only a fence is missing: writes column 32", "no tcgen05.fence::after_thread_sync", "nothing orders"},
    {"no_fences", STORES WAIT_ST BAR PRODUCT, "1", "2", "1", 0, "advice: proxy: only a fence is missing",
     "1 time, first", "nothing orders"},
    {"no_fences_off", STORES WAIT_ST BAR PRODUCT, "0", "2", "1", 0, NULL, NULL, "attnsim"},
    {"no_wait", STORES BAR AFTER PRODUCT, "1", "1", "1", 1, "async: nothing orders it: writes column 32",
     "no tcgen05.wait there", "only a fence"},
    {"no_wait_before", STORES BEFORE BAR AFTER PRODUCT, "0", "0", "0", 1, "async: nothing orders it: writes column 32",
     NULL, NULL},
    {"no_barrier", STORES WAIT_ST BEFORE PRODUCT, "1", "1", "1", 1, "async: nothing orders it", NULL, NULL},
    /* column 32 lacks a fence, column 33 a wait: one must not hide behind the other */
    {"fence_then_order", READY NO_SUMS ST_32 WAIT_ST ST_33 BAR AFTER PRODUCT, "1", "1", "1", 1, "no tcgen05.wait there",
     "advice: proxy: only a fence is missing: writes column 32", NULL},
    /* a tensor load, then a product over its column */
    {"load_all", LOAD WAIT_LD USE BEFORE BAR AFTER NO_SUMS OVER, "2", "2", "1", 0, NULL, NULL, "attnsim"},
    {"load_no_before", LOAD WAIT_LD USE BAR AFTER NO_SUMS OVER, "1", "2", "1", 0,
     "advice: proxy: only a fence is missing: writes column", "before_thread_sync", "nothing orders"},
    /* a load whose registers are used with no wait::ld does not keep a later wait::st from counting */
    {"load_used_then_stored", LOAD USE NO_SUMS ST_32 WAIT_ST BAR PRODUCT, "1", "1", "1", 0,
     "advice: proxy: only a fence is missing: writes column 32", "advice: unwaited: touches a register",
     "nothing orders"},
    {"load_used_then_stored_no_wait", LOAD USE NO_SUMS ST_32 BAR PRODUCT, "1", "1", "1", 1,
     "async: nothing orders it: writes column 32", "advice: unwaited: touches a register", NULL},
    {"load_open_then_stored", LOAD NO_SUMS ST_32 WAIT_ST BAR OVER, "1", "1", "1", 1,
     "async: nothing orders it: writes column 3 of", "no tcgen05.wait there", NULL},
    {"load_used", LOAD USE BAR AFTER NO_SUMS OVER, "1", "1", "1", 0, "advice: unwaited: touches a register",
     "4 times, first launch 0", "nothing orders"},
    {"load_used_strict", LOAD USE WAIT_LD BEFORE BAR AFTER NO_SUMS OVER, "2", "2", "1", 1,
     "attnsim: unwaited: touches a register", NULL, "advice"},
    {"load_used_off", LOAD USE WAIT_LD BEFORE BAR AFTER NO_SUMS OVER, "2", "0", "1", 0, NULL, NULL, "attnsim"},
    {"freed_no_before",
     READY "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r30}, [%r5+3];\n" WAIT_LD BAR
           "@w0 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 64;\nret;\n}\n",
     "1", "1", "1", 0, "advice: proxy: only a fence is missing: frees column 3", NULL, NULL},
    {"load_unused", LOAD BAR AFTER NO_SUMS OVER, "1", "1", "1", 1, "async: nothing orders it: writes column 3", NULL,
     "only a fence is missing: writes column 3 "},
    /* shared memory: two pieces of what a copy reads, one written with no fence, one with no barrier, either first */
    {"proxy_then_race",
     READY "@q st.shared.b32 [%r1], %r0;\nsetp.eq.u32 p, %r0, 127;\n@p st.shared.b32 [%r1+256], %r0;\n" CP("128x128b")
         COMMIT SEE END,
     "1", "1", "1", 1, "shared byte 256", NULL, NULL},
    /* once a line of the source, however many instructions it became and warps came there */
    {"one_line",
     FILE_1 READY ONE_LINE
     "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r30}, [%r5+3];\n" USE
     "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r31}, [%r5+4];\nadd.u32 %r31, %r31, 1;\n" WAIT_LD OTHER_LINE
     "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r30}, [%r5+3];\n" USE WAIT_LD END,
     "2", "1", "1", 0, "8 times, first launch 0", "4 times, first launch 0", "1 time"},
    /* every call that was inlined on the way to the kernel's own line; of the last, no place told before it */
    {"calls",
     FILE_1 READY "\n.loc 1 77 3\n.loc 1 60 4, function_name $s, inlined_at 1 77 3\n.loc 1 50 5, function_name $s, "
                  "inlined_at 1 60 4\ntcgen05.ld.sync.aligned.32x32b.x1.b32 {%r30}, [%r5+3];\n" USE WAIT_LD
                  "\n.loc 1 40 4, function_name $s, inlined_at 1 33 9\n"
                  "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r31}, [%r5+4];\nadd.u32 %r31, %r31, 1;\n" WAIT_LD END,
     "2", "1", "1", 0, "(kernel.cu:50 in kernel.cu:60 in kernel.cu:77)", "(kernel.cu:40 in kernel.cu:33)",
     "kernel.cu:77 in"},
    /* a register of 64 bits that holds a generic address, where the instruction says .shared::cta */
    {"alloc_generic",
     ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .u64 out)\n.maxntid 128, 1, 1\n{\n"
     ".shared .align 8 .b8 s[16];\n.reg .pred w0;\n.reg .b32 %r<3>;\n.reg .b64 %rd<2>;\nmov.u32 %r0, %tid.x;\n"
     "setp.lt.u32 w0, %r0, 32;\nmov.u64 %rd1, s;\ncvta.shared.u64 %rd1, %rd1;\n"
     "@w0 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%rd1+8], 64;\n@w0 ld.shared.b32 %r1, [s+8];\n"
     "@w0 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 64;\nret;\n}\n",
     "2", "2", "1", 0, "advice: a generic address where .shared::cta wants", "1 time, first", NULL},
    {"advice_off", "", "1", "1", "0", 0, NULL, NULL, "attnsim"},
};

static int run(const char *driver, int i) {
    void *module, *function;
    uint64_t address, n = 0;
    static uint32_t words[128];
    static char json[1 << 16];
    char path[64];
    /* an mbarrier whose phase nobody waited for is advice of its own */
    const char *ptx = cases[i].ptx[0] ? cases[i].ptx
                                      : READY COMMIT WAIT "bar.sync 0;\n@q mbarrier.arrive.shared::cta.b64 _, [%r6];\n"
                                                          "@q mbarrier.arrive.shared::cta.b64 _, [%r6];\n" END;
    setenv("ATTNSIM_QUIET", "1", 1), setenv("ATTNSIM_GPU", "b200", 1), setenv("ATTNSIM_THREADS", "1", 1);
    setenv("ATTNSIM_FENCES", cases[i].fences, 1), setenv("ATTNSIM_WAITS", cases[i].waits, 1);
    setenv("ATTNSIM_ADVICE", cases[i].advice, 1);
    snprintf(path, sizeof path, "t_sim_findings.%d.json", (int)getpid());
    setenv("ATTNSIM_REPORT", path, 1);
    if (kernel_open_driver(driver) || cu.load(&module, ptx, 0, NULL, NULL) || cu.function(&function, module, "k"))
        return -1;
    struct kernel_launch l = {.grid = {1, 1, 1}, .block = {128, 1, 1}};
    void *params[] = {&address};
    if (kernel_upload(&address, words, sizeof words)) return -1;
    const int r = cu.launch(&l, function, params, NULL);
    const char *text = cu.report(&n, 0), *told = cases[i].told;
    FILE *f = fopen(path, "r");
    json[f ? fread(json, 1, sizeof json - 1, f) : 0] = 0;
    if (f) fclose(f);
    unlink(path);
    int good = cases[i].faults ? r == 719 && n > 0 : !r && !n;
    good = good && (!told || strstr(text, told)) && (!cases[i].also || strstr(text, cases[i].also));
    good = good && (!cases[i].never || !strstr(text, cases[i].never));
    /* the file of JSON lines says the same */
    good = good && !strstr(text, "advice: ") == !strstr(json, "\"class\":\"advice\"");
    good = good && !strstr(text, "attnsim: async") == !strstr(json, "\"kind\":\"async\",\"class\":\"fault\"");
    if (!strcmp(cases[i].name, "one_line")) good = good && strstr(json, "\"count\":8}") && strstr(json, "\"line\":77");
    if (good) return 0;
    printf("FAIL %s, %s: result %d, %llu faults: %.1800s\n%.600s\n", cases[i].name, getenv("ATTNSIM_POLICY"), r,
           (unsigned long long)n, text, json);
    return 1;
}

int main(int argc, char **argv) { return kernel_cases_main(argc, argv, (int)(sizeof cases / sizeof *cases), run); }
