/* SPDX-License-Identifier: MIT
 * Status codes in words, the thread's last error, and the size rule for structs that the library fills. */
#include "api/api.h"

#include <string.h>

struct status_row {
    attn_status status;
    const char *name, *text;
};
static const struct status_row rows[] = {
    {ATTN_OK, "ATTN_OK", "Success."},
    {ATTN_E_ABI, "ATTN_E_ABI", "A struct's size does not fit this library, or its unknown tail is not zero."},
    {ATTN_E_ARGUMENT, "ATTN_E_ARGUMENT", "A pointer is NULL, or a tensor is missing or not expected."},
    {ATTN_E_ENUM, "ATTN_E_ENUM", "An operator, dtype, flag or other enumerated field is outside its range."},
    {ATTN_E_EXTENT, "ATTN_E_EXTENT", "An extent is negative or beyond what the operator defines."},
    {ATTN_E_HEADS, "ATTN_E_HEADS", "The key heads do not divide the query heads."},
    {ATTN_E_SCALE, "ATTN_E_SCALE", "The scale is not finite."},
    {ATTN_E_SOFTCAP, "ATTN_E_SOFTCAP", "The softcap is negative or not finite."},
    {ATTN_E_SPARSE, "ATTN_E_SPARSE", "topk, k_stride or q_start is outside its range."},
    {ATTN_E_FEATURE, "ATTN_E_FEATURE", "The operator does not have this feature."},
    {ATTN_E_TEXT, "ATTN_E_TEXT", "A problem text could not be parsed."},
    {ATTN_E_SHAPE, "ATTN_E_SHAPE", "A tensor's rank or an extent is not what the problem says."},
    {ATTN_E_DTYPE, "ATTN_E_DTYPE", "A tensor's dtype is not what the problem says."},
    {ATTN_E_STRIDE, "ATTN_E_STRIDE", "A tensor's innermost stride is not 1, or an output's elements overlap."},
    {ATTN_E_ALIGNMENT, "ATTN_E_ALIGNMENT", "A tensor's address or stride is not aligned as needed or promised."},
    {ATTN_E_BUFFER, "ATTN_E_BUFFER", "A tensor's storage is smaller than its shape and strides need."},
    {ATTN_E_TENSOR_DEVICE, "ATTN_E_TENSOR_DEVICE", "A tensor lives on another device than the plan."},
    {ATTN_E_OVERLAP, "ATTN_E_OVERLAP", "An output shares memory with an input or another output."},
    {ATTN_E_WORKSPACE, "ATTN_E_WORKSPACE", "The workspace is missing, too small or misaligned."},
    {ATTN_E_NO_KERNEL, "ATTN_E_NO_KERNEL", "Every kernel refused the problem."},
    {ATTN_E_NO_DEVICE, "ATTN_E_NO_DEVICE", "There is no such device."},
    {ATTN_E_NO_DRIVER, "ATTN_E_NO_DRIVER", "The device's driver is absent or too old."},
    {ATTN_E_MEMORY, "ATTN_E_MEMORY", "An allocation failed."},
    {ATTN_E_THREAD, "ATTN_E_THREAD", "A thread could not be started."},
    {ATTN_E_IO, "ATTN_E_IO", "A file could not be read or written."},
    {ATTN_E_LAUNCH, "ATTN_E_LAUNCH", "The device refused a launch."},
    {ATTN_E_DEVICE_FAULT, "ATTN_E_DEVICE_FAULT", "The device reported a fault of earlier work."},
    {ATTN_E_INTERNAL, "ATTN_E_INTERNAL", "A check inside the library failed; please report it."},
};

static const struct status_row *find(attn_status status) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].status == status) return &rows[i];
    return NULL;
}

const char *attn_status_name(attn_status status) {
    const struct status_row *row = find(status);
    return row ? row->name : "ATTN_E_?";
}

const char *attn_status_text(attn_status status) {
    const struct status_row *row = find(status);
    return row ? row->text : "Unknown status.";
}

const char *attn_last_error(void) { return attn_base_error_get()->text; }

attn_status attn_last_error_detail(attn_error *out) {
    const struct attn_base_error *e = attn_base_error_get();
    attn_error ours = {.status = e->status, .expected = e->expected, .given = e->given};
    memcpy(ours.argument, e->argument, sizeof ours.argument);
    return attn_api_struct_out(out, &ours, sizeof ours, "attn_error");
}

attn_status attn_api_struct_out(void *out, const void *ours, size_t known, const char *what) {
    if (!out) FAIL(ATTN_E_ARGUMENT, "out", "%s: out is NULL", what);
    uint32_t size;
    memcpy(&size, out, sizeof size);
    if (size < 8)
        FAIL2(ATTN_E_ABI, "size", (int64_t)known, size, "%s: size is %u; set it to sizeof(%s)", what, size, what);
    size_t n = size < known ? size : known;
    memcpy((char *)out + sizeof size, (const char *)ours + sizeof size, n - sizeof size);
    return ATTN_OK;
}
