/* SPDX-License-Identifier: MIT
 * Finds a program and looks into it. */
#include "command/program.h"

#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int is_executable(const char *path) {
    struct stat s;
    return !stat(path, &s) && S_ISREG(s.st_mode) && !access(path, X_OK);
}
int find_program(const char *name, char *path, size_t bytes) {
    const char *folders = getenv("PATH");
    if (strchr(name, '/') || !folders) {
        snprintf(path, bytes, "%s", name);
        return is_executable(path) ? 0 : -1;
    }
    while (*folders) {
        const size_t n = strcspn(folders, ":");
        snprintf(path, bytes, "%.*s/%s", n ? (int)n : 1, n ? folders : ".", name);
        if (is_executable(path)) return 0;
        folders += n + (folders[n] == ':');
    }
    return -1;
}

struct file {
    const unsigned char *data;
    size_t bytes;
};
/* Section by name; NULL: there is none, or the file is no 64-bit ELF. */
static const Elf64_Shdr *find_section(const struct file *f, const char *name) {
    const Elf64_Ehdr *e = (const Elf64_Ehdr *)(const void *)f->data;
    if (f->bytes < sizeof *e || memcmp(e->e_ident, ELFMAG, SELFMAG) != 0 || e->e_ident[EI_CLASS] != ELFCLASS64)
        return NULL;
    if (!e->e_shnum || e->e_shoff > f->bytes || e->e_shnum * sizeof(Elf64_Shdr) > f->bytes - e->e_shoff) return NULL;
    if (e->e_shoff % 8 || e->e_shstrndx >= e->e_shnum) return NULL;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(const void *)(f->data + e->e_shoff),
                     *names = &sections[e->e_shstrndx];
    if (names->sh_offset > f->bytes || names->sh_size > f->bytes - names->sh_offset) return NULL;
    const size_t n = strlen(name) + 1;
    for (unsigned i = 0; i < e->e_shnum; i++) {
        const Elf64_Shdr *s = &sections[i];
        if (s->sh_name >= names->sh_size || n > names->sh_size - s->sh_name) continue;
        if (memcmp(f->data + names->sh_offset + s->sh_name, name, n) != 0) continue;
        return s->sh_offset <= f->bytes && s->sh_size <= f->bytes - s->sh_offset ? s : NULL;
    }
    return NULL;
}
static int section_holds(const struct file *f, const char *name, const char *text) {
    const Elf64_Shdr *s = find_section(f, name);
    const size_t n = strlen(text);
    if (!s || s->sh_type == SHT_NOBITS) return 0;
    for (size_t i = 0; i + n <= s->sh_size; i++)
        if (!memcmp(f->data + s->sh_offset + i, text, n)) return 1;
    return 0;
}
int check_program(const char *path, char *why, size_t why_bytes) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat s;
    if (file < 0 || fstat(file, &s) || s.st_size < (off_t)sizeof(Elf64_Ehdr)) {
        if (file >= 0) close(file);
        return 0; /* the system says what is wrong */
    }
    void *data = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (data == MAP_FAILED) return 0;
    const struct file f = {data, (size_t)s.st_size};
    const int is_static = find_section(&f, ".nv_fatbin") && !section_holds(&f, ".dynstr", "__cudaRegisterFatBinary");
    munmap(data, f.bytes);
    if (!is_static) return 0;
    snprintf(why, why_bytes, "the CUDA runtime is linked into it; build it with `nvcc -cudart shared`");
    return -1;
}
