/* SPDX-License-Identifier: MIT
 * Bulk copies. */
#include "exec.h"

SIM_DECODER(bulk) {
    (void)d, (void)in;
}
