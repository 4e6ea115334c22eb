/* SPDX-License-Identifier: MIT
 * Special registers that keep their value while a CTA lives: they are filled in like constants when it starts. */
#include "exec/exec.h"

#include <string.h>

enum special {
    TID_X,
    TID_Y,
    TID_Z,
    NTID_X,
    NTID_Y,
    NTID_Z,
    CTAID_X,
    CTAID_Y,
    CTAID_Z,
    NCTAID_X,
    NCTAID_Y,
    NCTAID_Z,
    LANEID,
    WARPID,
    NWARPID,
    SMID,
    NSMID,
    GRIDID,
    LT,
    LE,
    GT,
    GE,
    EQ,
    CLUSTERID_X,
    CLUSTERID_Y,
    CLUSTERID_Z,
    NCLUSTERID_X,
    NCLUSTERID_Y,
    NCLUSTERID_Z,
    CLUSTER_CTAID_X,
    CLUSTER_CTAID_Y,
    CLUSTER_CTAID_Z,
    CLUSTER_NCTAID_X,
    CLUSTER_NCTAID_Y,
    CLUSTER_NCTAID_Z,
    CLUSTER_CTARANK,
    CLUSTER_NCTARANK,
    DYNAMIC_SMEM,
    TOTAL_SMEM,
    ENVREG_1, /* the address of the workspace of a cooperative launch: high and low words */
    ENVREG_2,
    N_SPECIALS
};
static const char *const names[N_SPECIALS] = {
    "%tid.x",
    "%tid.y",
    "%tid.z",
    "%ntid.x",
    "%ntid.y",
    "%ntid.z",
    "%ctaid.x",
    "%ctaid.y",
    "%ctaid.z",
    "%nctaid.x",
    "%nctaid.y",
    "%nctaid.z",
    "%laneid",
    "%warpid",
    "%nwarpid",
    "%smid",
    "%nsmid",
    "%gridid",
    "%lanemask_lt",
    "%lanemask_le",
    "%lanemask_gt",
    "%lanemask_ge",
    "%lanemask_eq",
    "%clusterid.x",
    "%clusterid.y",
    "%clusterid.z",
    "%nclusterid.x",
    "%nclusterid.y",
    "%nclusterid.z",
    "%cluster_ctaid.x",
    "%cluster_ctaid.y",
    "%cluster_ctaid.z",
    "%cluster_nctaid.x",
    "%cluster_nctaid.y",
    "%cluster_nctaid.z",
    "%cluster_ctarank",
    "%cluster_nctarank",
    "%dynamic_smem_size",
    "%total_smem_size",
    "%envreg1",
    "%envreg2",
};

int sim_special_of(const char *name) {
    for (int i = 0; i < N_SPECIALS; i++)
        if (!strcmp(names[i], name)) return i;
    return -1;
}
int sim_special_wide(int special) { return special == GRIDID; }

static uint32_t value_of(int special, const struct sim_warp *w, uint32_t lane) {
    const struct sim_cta *c = w->cta;
    const struct sim_launch *g = c->cluster->launch;
    uint32_t thread = w->index * SIM_LANES + lane;
    switch ((enum special)special) {
    case TID_X: return thread % g->block[0];
    case TID_Y: return thread / g->block[0] % g->block[1];
    case TID_Z: return thread / g->block[0] / g->block[1];
    case NTID_X:
    case NTID_Y:
    case NTID_Z: return g->block[special - NTID_X];
    case CTAID_X:
    case CTAID_Y:
    case CTAID_Z: return c->id[special - CTAID_X];
    case NCTAID_X:
    case NCTAID_Y:
    case NCTAID_Z: return g->grid[special - NCTAID_X];
    case LANEID: return lane;
    case WARPID: return w->index;
    case NWARPID: return c->n_warps;
    case SMID: return (uint32_t)(c->linear % 132);
    case NSMID: return 132;
    case GRIDID: return (uint32_t)g->number;
    case LT: return (1u << lane) - 1;
    case LE: return (uint32_t)((UINT64_C(2) << lane) - 1);
    case GT: return ~(uint32_t)((UINT64_C(2) << lane) - 1);
    case GE: return ~((1u << lane) - 1);
    case EQ: return 1u << lane;
    case CLUSTERID_X:
    case CLUSTERID_Y:
    case CLUSTERID_Z: return c->id[special - CLUSTERID_X] / g->cluster[special - CLUSTERID_X];
    case NCLUSTERID_X:
    case NCLUSTERID_Y:
    case NCLUSTERID_Z: return g->grid[special - NCLUSTERID_X] / g->cluster[special - NCLUSTERID_X];
    case CLUSTER_CTAID_X:
    case CLUSTER_CTAID_Y:
    case CLUSTER_CTAID_Z: return c->id[special - CLUSTER_CTAID_X] % g->cluster[special - CLUSTER_CTAID_X];
    case CLUSTER_NCTAID_X:
    case CLUSTER_NCTAID_Y:
    case CLUSTER_NCTAID_Z: return g->cluster[special - CLUSTER_NCTAID_X];
    case CLUSTER_CTARANK: return c->rank;
    case CLUSTER_NCTARANK: return c->cluster->n_ctas;
    case DYNAMIC_SMEM: return g->dynamic_bytes;
    case TOTAL_SMEM: return c->shared_bytes;
    case ENVREG_1: return (uint32_t)(g->workspace >> 32);
    case ENVREG_2: return (uint32_t)g->workspace;
    case N_SPECIALS: break;
    }
    return 0;
}
void sim_special_fill(int special, const struct sim_warp *w, uint32_t *words) {
    for (uint32_t lane = 0; lane < SIM_LANES; lane++) {
        uint32_t value = value_of(special, w, lane);
        if (sim_special_wide(special))
            words[2 * lane] = value, words[2 * lane + 1] = 0;
        else
            words[lane] = value;
    }
}
