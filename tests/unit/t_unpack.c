/* SPDX-License-Identifier: MIT
 * Packed PTX of the library: every image unpacks into the text of its kernel, and damaged bytes are refused or give
 * other text, without a read or write outside (for the sanitizers to see). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifndef ATTN_HAVE_CUDA
int main(void) {
    printf("skipped: built without CUDA\n");
    return 77;
}
#else
#include "cuda/backend/cuda.h"
#include "cuda/backend/unpack.h"

struct image {
    unsigned char *packed, *scratch;
    char *text;
    size_t packed_bytes, text_bytes;
};

static struct image image_of(const struct attn_cuda_variant *v) {
    struct image m = {.packed_bytes = (size_t)(v->ptx_end - v->ptx)};
    size_t scratch_bytes = 0;
    m.text_bytes = attn_cuda_ptx_bytes(v->ptx, m.packed_bytes, &scratch_bytes);
    assert_true(m.text_bytes > 0);
    m.packed = malloc(m.packed_bytes); /* exactly: a read beyond it is a fault */
    m.scratch = malloc(scratch_bytes);
    m.text = malloc(m.text_bytes + 1);
    assert_true(m.packed && m.scratch && m.text);
    memcpy(m.packed, v->ptx, m.packed_bytes);
    return m;
}

static void free_image(struct image *m) {
    free(m->packed);
    free(m->scratch);
    free(m->text);
}

static void every_image(void **state) {
    (void)state;
    for (int32_t i = 0; i < attn_cuda_n_variants; i++) {
        const struct attn_cuda_variant *v = &attn_cuda_variants[i];
        struct image m = image_of(v);
        if (attn_cuda_ptx_unpack(m.packed, m.packed_bytes, m.scratch, m.text)) fail_msg("%s is damaged", v->symbol);
        if (strlen(m.text) != m.text_bytes) fail_msg("%s: %zu bytes of %zu", v->symbol, strlen(m.text), m.text_bytes);
        char entry[256];
        snprintf(entry, sizeof entry, ".entry %s(", v->symbol);
        if (strncmp(m.text, ".version ", 9) || !strstr(m.text, entry)) fail_msg("%s: other text", v->symbol);
        free_image(&m);
    }
}

static void damaged(void **state) {
    (void)state;
    if (!attn_cuda_n_variants) return;
    struct image m = image_of(&attn_cuda_variants[0]);
    const struct attn_cuda_variant *v = &attn_cuda_variants[0];
    for (size_t bytes = 0; bytes < m.packed_bytes; bytes += bytes < 64 ? 1 : 61) { /* cut short */
        unsigned char *cut = malloc(bytes ? bytes : 1);
        assert_non_null(cut);
        memcpy(cut, v->ptx, bytes);
        const int refused = attn_cuda_ptx_unpack(cut, bytes, m.scratch, m.text);
        free(cut);
        if (!refused) fail_msg("%zu of %zu bytes are taken", bytes, m.packed_bytes);
    }
    int n_refused = 0, n_tries = 0;
    for (size_t i = 24; i < m.packed_bytes; i += i < 200 ? 1 : 53, n_tries++) { /* a byte changed after the header */
        m.packed[i] ^= (unsigned char)(1 + i % 255);
        n_refused += attn_cuda_ptx_unpack(m.packed, m.packed_bytes, m.scratch, m.text) != 0;
        m.packed[i] = v->ptx[i];
    }
    assert_true(n_refused > n_tries / 2);
    for (size_t i = 0; i < 8; i++) { /* of the magic */
        m.packed[i]++;
        assert_int_equal(attn_cuda_ptx_unpack(m.packed, m.packed_bytes, m.scratch, m.text), -1);
        m.packed[i]--;
    }
    assert_int_equal(attn_cuda_ptx_unpack(m.packed, m.packed_bytes, m.scratch, m.text), 0);
    free_image(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_image), cmocka_unit_test(damaged)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
