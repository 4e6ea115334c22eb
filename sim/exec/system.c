/* SPDX-License-Identifier: MIT
 * Functions that device code calls from the system: vprintf, which prints on the program's standard output, and
 * __assertfail, a trap that says which assertion it was. Their operands are the variables of the call (ptx/call.c). */
#include "checks/report.h"
#include "machine/address.h"
#include "machine/device.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t variable(const struct sim_warp *w, uint32_t lane, uint32_t place, size_t bytes) {
    const uint32_t room = w->cta->cluster->launch->program->kernel->local_bytes;
    uint64_t v = 0;
    memcpy(&v, w->local + (size_t)lane * room + place, bytes);
    return v;
}
/* A text in memory that ends in a 0, or NULL. */
static const char *find_text(uint64_t address) {
    const struct sim_block *b = sim_memory_find(address);
    if (!b || b->freed || address - b->address >= b->bytes) return NULL;
    const char *text = (const char *)(uintptr_t)address;
    return memchr(text, 0, (size_t)(b->bytes - (address - b->address))) ? text : NULL;
}

/* ---- vprintf ---- */

/* The arguments in the lane's memory, each at a multiple of its size. */
struct arguments {
    struct sim_warp *warp;
    const struct sim_ins *in;
    uint32_t lane;
    uint64_t next;
};
static int take(struct arguments *a, uint32_t bytes, uint64_t *out) {
    uint64_t addresses[SIM_LANES];
    uint8_t *from[SIM_LANES];
    a->next = (a->next + bytes - 1) / bytes * bytes;
    EACH_LANE addresses[l] = a->next;
    if (sim_resolve(a->warp, a->in, 1u << a->lane, PTX_GENERIC, addresses, bytes, SIM_LOAD, from)) return -1;
    *out = 0;
    memcpy(out, from[a->lane], bytes);
    a->next += bytes;
    return 0;
}
/* One conversion: its text without the letters for a length, which say how many bytes the argument has. */
struct conversion {
    char text[64], letter;
    unsigned n, bytes;
    int stars[2], n_stars;
};
static const char *read_conversion(const char *format, struct conversion *c, struct arguments *a) {
    uint64_t v;
    *c = (struct conversion){.text = "%", .n = 1, .bytes = 4};
    while (*format && c->n < sizeof c->text - 4 && strchr("-+ #0123456789.*hlLjzt", *format)) {
        if (*format == 'l' || *format == 'j' || *format == 'z' || *format == 't')
            c->bytes = 8;
        else if (*format == '*' && (c->n_stars == 2 || take(a, 4, &v)))
            return NULL;
        else if (*format == '*')
            c->stars[c->n_stars++] = (int)(uint32_t)v, c->text[c->n++] = '*';
        else if (*format != 'h' && *format != 'L')
            c->text[c->n++] = *format;
        format++;
    }
    c->letter = *format ? *format++ : '%';
    return format;
}
/* With no, one or two stars. */
#define PRINT(value)                                                                                                   \
    (c->n_stars == 2   ? printf(c->text, c->stars[0], c->stars[1], value)                                              \
     : c->n_stars == 1 ? printf(c->text, c->stars[0], value)                                                           \
                       : printf(c->text, value))
static int print_one(struct conversion *c, struct arguments *a) {
    const char *text;
    uint64_t v = 0;
    double real;
    switch (c->letter) {
    case '%': return putchar('%'), 0;
    case 'd':
    case 'i':
    case 'u':
    case 'o':
    case 'x':
    case 'X':
        if (take(a, c->bytes, &v)) return -1;
        if (c->bytes == 4 && (c->letter == 'd' || c->letter == 'i')) v = (uint64_t)(int64_t)(int32_t)v;
        memcpy(c->text + c->n, (char[]){'l', 'l', c->letter, 0}, 4);
        PRINT((long long)v);
        return 0;
    case 'c':
        if (take(a, 4, &v)) return -1;
        memcpy(c->text + c->n, "c", 2);
        PRINT((int)v);
        return 0;
    case 's':
        if (take(a, 8, &v)) return -1;
        memcpy(c->text + c->n, "s", 2);
        text = find_text(v);
        PRINT(text ? text : "(no text in memory)");
        return 0;
    case 'p':
        if (take(a, 8, &v)) return -1;
        memcpy(c->text + c->n, "p", 2);
        PRINT((void *)(uintptr_t)v);
        return 0;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
    case 'a':
    case 'A':
        if (take(a, 8, &v)) return -1;
        memcpy(&real, &v, sizeof real);
        memcpy(c->text + c->n, (char[]){c->letter, 0}, 2);
        PRINT(real);
        return 0;
    default: return printf("%s%c", c->text, c->letter), 0; /* as it stands there */
    }
}
/* Lanes in order; the result is how many arguments were printed. Warps of other host threads wait. */
static pthread_mutex_t printing = PTHREAD_MUTEX_INITIALIZER;
SIM_HEAD(print) {
    enum sim_step step = SIM_NEXT;
    pthread_mutex_lock(&printing);
    EACH_OF(m) {
        struct arguments a = {w, in, l, variable(w, l, in->o[2], 8)};
        const uint64_t address = variable(w, l, in->o[1], 8);
        const char *format = find_text(address);
        uint32_t n = 0;
        if (!format) {
            sim_find(w, in, 1u << l, SIM_F_BOUNDS, "vprintf's format 0x%" PRIx64 " is no text in memory", address);
            step = SIM_FAULT;
            break;
        }
        while (*format && step == SIM_NEXT) {
            struct conversion c;
            if (*format != '%') {
                putchar(*format++);
                continue;
            }
            format = read_conversion(format + 1, &c, &a);
            if (!format || print_one(&c, &a)) step = SIM_FAULT;
            if (step == SIM_FAULT) break;
            n += c.letter != '%';
        }
        memcpy(w->local + (size_t)l * w->cta->cluster->launch->program->kernel->local_bytes + in->o[0], &n, sizeof n);
        if (step == SIM_FAULT) break;
    }
    pthread_mutex_unlock(&printing);
    return step;
}

/* ---- __assertfail(message, file, line, function, bytes of a character) ---- */

SIM_HEAD(fail) {
    const uint32_t lane = (uint32_t)__builtin_ctz(m);
    const char *message = find_text(variable(w, lane, in->o[0], 8)), *file = find_text(variable(w, lane, in->o[1], 8));
    if (message && file)
        sim_find(w, in, m, SIM_F_TRAP, "the assertion \"%s\" does not hold (%s:%u)", message, file,
                 (uint32_t)variable(w, lane, in->o[2], 4));
    else
        sim_find(w, in, m, SIM_F_TRAP, "an assertion does not hold");
    atomic_store(&w->cta->cluster->launch->asserted, 1);
    return SIM_FAULT;
}

static void read_variables(struct sim_decoder *d, struct sim_ins *in, uint32_t n) {
    sim_want(d, n, n);
    for (uint32_t i = 0; i < n && !d->failed; i++) {
        const struct ptx_operand *o = &d->o[i];
        if (o->kind != PTX_VARIABLE || o->var->space != PTX_LOCAL)
            sim_refuse(d, "operand %u is no variable of a call", i);
        else
            in->o[i] = (uint32_t)o->var->address;
    }
}
SIM_DECODER(print) {
    read_variables(d, in, 3);
    in->exec = print;
}
SIM_DECODER(assertion) {
    read_variables(d, in, 5);
    in->exec = fail;
}
