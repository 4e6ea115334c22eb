/* SPDX-License-Identifier: MIT
 * How far an output may be from the reference: the table of docs/numerics.md in code, by role. What `attn check` adds
 * for data that makes it harder is in check/bounds.c. */
#include "shared/cli.h"

struct attn_cli_tolerance attn_cli_tolerance(int32_t op, int32_t role, int32_t dtype) {
    const int wide = dtype == ATTN_F64, backward = op == ATTN_OP_SDPA_BWD || op == ATTN_OP_MLA_BWD;
    const double logs = wide ? 1e-13 : dtype == ATTN_E4M3 ? 0x1p-7 : 1e-5;
    switch (role) {
    case ATTN_ROLE_LSE_ROUNDED:
        return (struct attn_cli_tolerance){.absolute = 1,
                                           .bound = logs,
                                           .slack = dtype == ATTN_F16                          ? 0x1p-11
                                                    : dtype == ATTN_BF16 || dtype == ATTN_E4M3 ? 0x1p-8
                                                                                               : 0};
    case ATTN_ROLE_LSE:
    case ATTN_ROLE_MAX_LOGITS: return (struct attn_cli_tolerance){.absolute = 1, .bound = logs};
    case ATTN_ROLE_DIST: /* f32 from products that are exact in f32, whatever the dtype of the inputs */
        return (struct attn_cli_tolerance){.bound = 2e-5};
    case ATTN_ROLE_JOINED: return (struct attn_cli_tolerance){.absolute = 1, .bound = 0}; /* integers */
    default: break;
    }
    if (dtype == ATTN_F16) return (struct attn_cli_tolerance){.bound = 0x1p-10};
    if (dtype == ATTN_BF16) return (struct attn_cli_tolerance){.bound = 0x1p-7};
    if (dtype == ATTN_E4M3) return (struct attn_cli_tolerance){.bound = 0x1p-3};
    if (wide) return (struct attn_cli_tolerance){.bound = backward ? 1e-12 : 1e-13};
    return (struct attn_cli_tolerance){.bound = backward ? 2e-5 : 4e-6};
}
