/* SPDX-License-Identifier: MIT
 * Libraries that the host loads by name, as generated host code of the CuTe DSL does: PTX as text; machine code beside
 * whose file its compiler left PTX, by itself and in a fat binary. */
#include "check.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <unistd.h>

#define TWICE(factor)                                                                                                  \
    ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry twice(.param .u64 a)\n{\n.reg .u64 p;\n.reg .u32 x;\n" \
    "ld.param.u64 p, [a];\nld.global.u32 x, [p];\nmul.lo.u32 x, x, " factor ";\nst.global.u32 [p], x;\nret;\n}\n"

/* What the DSL's own runtime library calls them. */
typedef cudaError_t (*load_call)(cudaLibrary_t *, const void *, void *, void *, unsigned, void *, void *, unsigned);
typedef cudaError_t (*kernel_call)(cudaKernel_t *, cudaLibrary_t, const char *);
typedef cudaError_t (*launch_call)(const cudaLaunchConfig_t *, const void *, void **);

typedef int (*init_call)(unsigned);
typedef int (*version_call)(int *);
typedef int (*state_call)(int, unsigned *, int *);

static unsigned *word;
static int product(const void *image, unsigned *result) {
    cudaLibrary_t library;
    cudaKernel_t kernel;
    const load_call load = (load_call)dlsym(RTLD_DEFAULT, "_cudaLibraryLoadData");
    const kernel_call find = (kernel_call)dlsym(RTLD_DEFAULT, "_cudaLibraryGetKernel");
    const launch_call launch = (launch_call)dlsym(RTLD_DEFAULT, "_cudaLaunchKernelEx");
    EXPECT(load && find && launch);
    const cudaError_t r = load(&library, image, NULL, NULL, 0, NULL, NULL, 0);
    if (r) return r;
    const unsigned first = 21;
    void *params[] = {&word};
    cudaLaunchConfig_t config = {};
    config.gridDim = config.blockDim = dim3(1);
    EXPECT(find(&kernel, library, "none") != cudaSuccess);
    CALL(find(&kernel, library, "twice"));
    CALL(cudaMemcpy(word, &first, sizeof first, cudaMemcpyHostToDevice));
    CALL(launch(&config, kernel, params));
    CALL(cudaMemcpy(result, word, sizeof *result, cudaMemcpyDeviceToHost));
    CALL(cudaLibraryUnload(library));
    return 0;
}
static void put(const std::string &path, const std::string &bytes) {
    FILE *f = fopen(path.c_str(), "wb");
    EXPECT(f && fwrite(bytes.data(), 1, bytes.size(), f) == bytes.size() && !fclose(f));
}
static std::string fat(const std::string &code) { /* one entry of machine code */
    std::string s(16 + 64, 0);
    const unsigned magic = 0xba55ed50, shape = 16 << 16 | 1, entry_bytes = 64;
    const unsigned short kind = 2;
    const unsigned long long all = 64 + code.size(), bytes = code.size();
    memcpy(&s[0], &magic, 4), memcpy(&s[4], &shape, 4), memcpy(&s[8], &all, 8);
    memcpy(&s[16], &kind, 2), memcpy(&s[20], &entry_bytes, 4), memcpy(&s[24], &bytes, 8);
    return s + code;
}

int main() {
    char folder[] = "/tmp/librariesXXXXXX";
    unsigned result = 0, flags = 1;
    int version = 0, is_active = 1;
    const version_call driver_version = (version_call)dlsym(RTLD_DEFAULT, "cuDriverGetVersion");
    const state_call state = (state_call)dlsym(RTLD_DEFAULT, "cuDevicePrimaryCtxGetState");
    EXPECT(driver_version && driver_version(&version) == 0 && version >= 13000); /* before cuInit */
    const init_call init = (init_call)dlsym(RTLD_DEFAULT, "cuInit");
    EXPECT(init && init(0) == 0);
    EXPECT(state && state(0, &flags, &is_active) == 0 && !is_active && flags == 0);
    std::string code(200, 'x'), other(200, 'x');
    memcpy(&code[0], "\177ELF", 4), memcpy(&other[0], "\177ELF", 4);
    other[150] = 'y';
    CALL(cudaMalloc(&word, sizeof *word));
    EXPECT(state(0, &flags, &is_active) == 0 && is_active);
    EXPECT(product(TWICE("2"), &result) == 0 && result == 42);

    EXPECT(mkdtemp(folder));
    const std::string place = folder;
    setenv("ATTNSIM_CUBINS", folder, 1);
    put(place + "/a.sm.cubin", other), put(place + "/a.sm.ptx", TWICE("5"));
    put(place + "/b.sm.cubin", code), put(place + "/b.sm.ptx", TWICE("3"));
    EXPECT(product(code.c_str(), &result) == 0 && result == 63);
    EXPECT(product(fat(other).c_str(), &result) == 0 && result == 105);
    unsetenv("ATTNSIM_CUBINS");
    for (const char *name : {"/a.sm.cubin", "/a.sm.ptx", "/b.sm.cubin", "/b.sm.ptx"}) unlink((place + name).c_str());
    rmdir(folder);
    puts("right");
    return 0;
}
