/* SPDX-License-Identifier: MIT
 * ATTNSIM_COVERAGE: which instructions were executed, over launches, processes and texts of a kernel, and what
 * tools/sim_coverage.py says of it. usage: t_sim_coverage DRIVER SCRIPT */
#define _GNU_SOURCE
#include "kernel_mutants.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* One way or the other; an instruction whose guard holds for no lane is not executed. */
#define KERNEL(last_lines)                                                                                             \
    ".version 7.8\n.target sm_80\n.address_size 64\n.file 1 \"room/way.cu\"\n"                                         \
    ".visible .entry way(.param .u64 out, .param .u32 way)\n{\n.reg .pred p, q;\n.reg .b32 %r<4>;\n.reg .b64 %d<3>;\n" \
    ".loc 1 5 0\nmov.u32 %r0, %tid.x;\nld.param.u32 %r1, [way];\nsetp.ne.u32 p, %r1, 0;\n@p bra B;\n"                  \
    ".loc 1 6 0\nmov.u32 %r2, 1;\nbra.uni END;\nB:\n.loc 1 7 0\nmov.u32 %r2, 2;\nEND:\n.loc 1 8 0\n" last_lines        \
    "setp.gt.u32 q, %r0, 40;\n.loc 1 9 0\n@q mov.u32 %r2, 3;\n.loc 1 10 0\nld.param.u64 %d0, [out];\n"                 \
    "mad.wide.u32 %d0, %r0, 4, %d0;\nst.global.u32 [%d0], %r2;\nret;\n}\n"
#define FIRST  "1110110101111"
#define SECOND "1111001101111"
#define BOTH   "1111111101111"

static const struct {
    const char *name, *ptx, *ways, *digits; /* a launch a way; what the file says then */
    int folder;
} steps[] = {
    {"first way", KERNEL(""), "0", FIRST, 0},
    {"the other, in another process", KERNEL(""), "1", BOTH, 0},
    {"again", KERNEL(""), "0", BOTH, 0},
    {"the other alone", KERNEL(""), "1", SECOND, 1},
    {"both in one process", KERNEL(""), "01", BOTH, 2},
    {"another text", KERNEL("add.u32 %r2, %r2, 1;\n"), "1", "11110011101111", 2},
};

static int launch(const char *driver, int i) {
    void *module, *function;
    uint64_t address;
    static uint32_t words[32];
    if (kernel_open_driver(driver) || cu.load(&module, steps[i].ptx, 0, NULL, NULL) ||
        cu.function(&function, module, "way") || kernel_upload(&address, words, sizeof words))
        return 1;
    for (const char *w = steps[i].ways; *w; w++) {
        uint32_t way = *w == '1';
        struct kernel_launch l = {.grid = {1, 1, 1}, .block = {32, 1, 1}};
        void *params[] = {&address, &way};
        if (cu.launch(&l, function, params, NULL) || cu.down(words, address, sizeof words)) return 1;
        const uint32_t want = way + 1 + (steps[i].ptx != steps[0].ptx && strstr(steps[i].ptx, "%r2, %r2, 1"));
        if (words[7] != want) return 1;
    }
    return 0;
}

static int in_a_process(const char *driver, int i) {
    int status = 1;
    const pid_t child = fork();
    if (child == 0) _exit(launch(driver, i));
    return child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status);
}

static int has(const char *path, const char *digits) {
    char text[4096] = "";
    FILE *f = fopen(path, "r");
    if (f) text[fread(text, 1, sizeof text - 1, f)] = 0, fclose(f);
    const char *second = strchr(text, '\n'), *rows = second ? strchr(second + 1, '\n') : NULL;
    const size_t n = strlen(digits);
    const int good = rows && (size_t)(rows - second) == n + 1 && !memcmp(second + 1, digits, n) &&
                     strstr(rows, "\tmov.u32\troom/way.cu:9\t-\n");
    if (!good) printf("%s: not %s:\n%s", path, digits, text);
    return good;
}

/* The script's output has these words. */
static int says(const char *script, const char *folder, const char *options, int code, const char *words) {
    char command[1200], out[4096] = "";
    snprintf(command, sizeof command, "python3 '%s' '%s' %s", script, folder, options);
    FILE *f = popen(command, "r");
    if (!f) return 0;
    out[fread(out, 1, sizeof out - 1, f)] = 0;
    const int status = pclose(f), good = WIFEXITED(status) && WEXITSTATUS(status) == code && strstr(out, words);
    if (!good) printf("%s: status %d, no \"%s\":\n%s", command, status, words, out);
    return good;
}

static int write_to(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    if (!f) return 1;
    fputs(text, f);
    return fclose(f) != 0;
}

/* --unreachable: the way's line 9 is never executed, which is one instruction of 13 and more than 5 %. */
static int check_unreachable(const char *script, const char *folder) {
    char list[96], floors[96], source[96], options[240];
    int failed = 0;
    snprintf(list, sizeof list, "%s/list", folder), snprintf(source, sizeof source, "room/way.cu");
    mkdir("room", 0777);
    failed += write_to(source, "1\n2\n3\n4\n5\n6\n7\n8\nnever done\nstore\n");
    snprintf(options, sizeof options, "--unreachable '%s'", list);
    failed += write_to(list, "# kernels, file, text, reason\nw*\troom/way.cu\tnever\tno lane has a number above 40\n");
    failed += !says(script, folder, options, 1, "12 of      13   92.3 % and 7.7 % unreachable");
    failed += !says(script, folder, options, 1, "way: 7.7 % listed as unreachable, at most 5 %");
    failed += write_to(list, "other\troom/way.cu\tnever\tanother kernel\n");
    failed += !says(script, folder, options, 0, "92.3 %\n");
    failed += write_to(list, "way\tway.cu\tstore\treached, so that it lists nothing\n");
    failed += !says(script, folder, options, 0, "92.3 %\n");
    failed += write_to(list, "way\tway.cu\tno such text\treason\n");
    failed += !says(script, folder, options, 0, "92.3 %\n"); /* other kernels may have it */
    snprintf(floors, sizeof floors, "%s/floors", folder);
    snprintf(options, sizeof options, "--unreachable '%s' --floors '%s'", list, floors);
    failed += write_to(floors, "*\t50\t\n");
    failed += !says(script, folder, options, 1, "no such line among the instructions: way.cu: no such text");
    unlink(list), unlink(floors), unlink(source), rmdir("room");
    return failed;
}

int main(int argc, char **argv) {
    char folder[64], path[128];
    int failed = 0;
    if (argc < 3) return 2;
    setenv("ATTNSIM_QUIET", "1", 1), setenv("ATTNSIM_GPU", "a100", 1);
    for (int i = 0; i < (int)(sizeof steps / sizeof *steps); i++) {
        snprintf(folder, sizeof folder, "t_sim_coverage.%d.%d", (int)getpid(), steps[i].folder);
        snprintf(path, sizeof path, "%s/way.cov", folder);
        setenv("ATTNSIM_COVERAGE", folder, 1);
        if (in_a_process(argv[1], i) || !has(path, steps[i].digits)) {
            printf("FAIL %s\n", steps[i].name);
            failed++;
        }
    }
    snprintf(folder, sizeof folder, "t_sim_coverage.%d.0", (int)getpid());
    if (!system("python3 -c 0")) {
        failed += !says(argv[2], folder, "", 0, "12 of      13   92.3 %");
        failed += !says(argv[2], folder, "--lines", 0, "room/way.cu:9: 1 of 1 instructions, PTX ");
        failed += !says(argv[2], folder, "--least 95", 1, "1 below 95 %");
        failed += !says(argv[2], folder, "--kernel other", 1, "no kernel other");
        char floors[96], options[240];
        snprintf(floors, sizeof floors, "%s/floors", folder);
        FILE *f = fopen(floors, "w");
        failed += !f;
        if (f) fputs("# kernels, percent, why\nnever\t50\t\nw*\t92\tone line\n*\t99\t\n", f), fclose(f);
        snprintf(options, sizeof options, "--floors '%s'", floors);
        failed += !says(argv[2], folder, options, 0, "12 of      13   92.3 %");
        f = fopen(floors, "w");
        if (f) fputs("way\t93\tone line\n", f), fclose(f);
        failed += !says(argv[2], folder, options, 1, "way: 92.3 %, not 93 %");
        snprintf(options, sizeof options, "%s/never.ptx", folder); /* a kernel that was built and never ran */
        f = fopen(options, "w");
        if (f) fclose(f);
        f = fopen(floors, "w");
        if (f) fputs("*\t50\t\n", f), fclose(f);
        snprintf(options, sizeof options, "--floors '%s' --ptx '%s'", floors, folder);
        failed += !says(argv[2], folder, options, 1, "never never ran");
        snprintf(options, sizeof options, "%s/never.ptx", folder);
        unlink(options), unlink(floors);
        failed += check_unreachable(argv[2], folder);
    }
    for (int k = 0; k < 3; k++) {
        snprintf(folder, sizeof folder, "t_sim_coverage.%d.%d", (int)getpid(), k);
        snprintf(path, sizeof path, "%s/way.cov", folder);
        unlink(path), rmdir(folder);
    }
    printf("%d steps, %d failed\n", (int)(sizeof steps / sizeof *steps), failed);
    return failed != 0;
}
