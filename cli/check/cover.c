/* SPDX-License-Identifier: MIT
 * Which of the listed values the generator has hit: the list is the promise of what a long run has seen. Counted per
 * case, and per case that some kernel other than ref accepted. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

/* A line: the operators' side, what is counted, its values. A value is hit by note(). */
static const struct {
    char side; /* d dense, f sdpa_fwd, b sdpa_bwd, s sparse, m mla_bwd, x: dist or mla_bwd, a mla_fwd or mla_bwd, e
                  every, j mla_join, l every operator with index lists, w mla_fwd */
    const char *what, *values;
} lists[] = {
    {'d', "D", "1 8 32 40 64 72 80 96 128 160 192 224 256 320 512 0 other"},
    {'d', "DV", "equal different 0"},
    {'d', "HK", "HQ HQ/4 1 stride-0 other"},
    {'d', "visibility", "all causal causal+bottom_right left right left+right causal+left negative-window huge-window"},
    {'d', "softcap", "0 30 small"},
    {'d', "alibi", "none linear distance [HQ] [B,HQ]"},
    {'d', "mask", "none f32 f16 bf16 bool b-broadcast h-broadcast i-broadcast j-broadcast dead-rows low +inf"},
    {'d', "sink", "none finite +inf -inf with-lse"},
    {'d', "lse", "base-e base-2 empty-plus-inf"},
    {'f', "outputs", "lse lse_rounded omitted alone max_logits out=f32"},
    {'d', "lengths", "SQ=0 SK=0 SQ=1 SQ>SK SQ<SK decode SK>=512 SK>1024 odd"},
    {'d', "storage", "dense seqlens_q seqlens_k packed wild-lengths falling-offsets fill-padding packed-lengths"},
    {'f', "paged", "yes bad-pages packed-queries"},
    {'d', "scale", "default 0 negative large"},
    {'d', "rows", "uneven"},
    {'d', "infinite", "with-softcap without"},
    {'b', "gradient",
     "dlse dmask dmask-folded dalibi dsink omitted lse=+inf deterministic one-number bad-dout inf-dout"},
    {'s', "HQ", "1 7 16 64 128 192"},
    {'j', "group", "2 4 8 16 last-short"},
    {'j', "groups", "joined apart"},
    {'j', "SK", "2^31"},
    {'l', "topk", "1 <64 64 65 >128 >400"},
    {'s', "D", "576 512"},
    {'l', "causal", "no k_stride=1 k_stride=4 q_start>0"},
    {'l', "rows", "empty one-slot one-hole twice 64-times one-key bad-indices"},
    {'l', "topk_length", "none some edges wild"},
    {'s', "lse", "base-e base-2 empty-plus-inf"},
    {'l', "batch", "1 many no-axis"},
    {'l', "lengths", "SQ=0 SK=0 SK<16"},
    {'a', "sink", "none finite +inf -inf"},
    {'w', "outputs", "out=f32"},
    {'m', "dkv", "f32 dtype accumulate omitted"},
    {'m', "gradient", "dlse dsink dist one-number bad-dout inf-dout"},
    {'x', "dist_norm", "sum mean l1"},
    {'s', "lists", "indices joined apart"},
    {'v', "data", "plain far-negative nan-query nan-key hidden-nan huge equal-scores"},
    {'e', "memory",
     "unaligned page-end negative-stride permuted padded broadcast align_bytes=16 align_bytes=128 tight"},
};
enum { N_LISTS = sizeof lists / sizeof *lists, MAX_VALUES = 20 };
static struct { int64_t cases, accepted; } count[N_LISTS][MAX_VALUES];

static bool on_side(char side, int32_t op) {
    bool dense = op == ATTN_OP_SDPA_FWD || op == ATTN_OP_SDPA_BWD;
    switch (side) {
    case 'd': return dense;
    case 'f': return op == ATTN_OP_SDPA_FWD;
    case 'b': return op == ATTN_OP_SDPA_BWD;
    case 's': return !dense && op != ATTN_OP_MLA_JOIN;
    case 'l': return !dense;
    case 'j': return op == ATTN_OP_MLA_JOIN;
    case 'v': return op != ATTN_OP_MLA_JOIN;
    case 'm': return op == ATTN_OP_MLA_BWD;
    case 'w': return op == ATTN_OP_MLA_FWD;
    case 'x': return op == ATTN_OP_MLA_BWD || op == ATTN_OP_DIST;
    case 'a': return op == ATTN_OP_MLA_BWD || op == ATTN_OP_MLA_FWD;
    default: return true;
    }
}

struct noting {
    const struct check_case *c;
    bool accepted;
};

static void note(const struct noting *n, const char *what, const char *value) {
    for (int k = 0; k < N_LISTS; k++) {
        if (strcmp(lists[k].what, what) || !on_side(lists[k].side, n->c->p.op)) continue;
        const char *s = lists[k].values;
        size_t bytes = strlen(value);
        for (int v = 0; v < MAX_VALUES && *s; v++) {
            size_t word = strcspn(s, " ");
            if (word == bytes && !memcmp(s, value, bytes)) {
                count[k][v].cases++;
                count[k][v].accepted += n->accepted;
                return;
            }
            s += word + (s[word] == ' ');
        }
    }
}
static void note_if(const struct noting *n, bool yes, const char *what, const char *value) {
    if (yes) note(n, what, value);
}

static void note_dense(const struct noting *n) {
    const struct check_case *c = n->c;
    const attn_problem *p = &c->p;
    const struct check_tensor *t = c->t, *mask = &t[ATTN_ROLE_MASK];
    char text[24];
    static const int listed[] = {0, 1, 8, 32, 40, 64, 72, 80, 96, 128, 160, 192, 224, 256, 320, 512};
    snprintf(text, sizeof text, "other");
    for (size_t k = 0; k < sizeof listed / sizeof *listed; k++)
        if (listed[k] == p->dim_qk) snprintf(text, sizeof text, "%d", listed[k]);
    note(n, "D", text);
    note(n, "DV", p->dim_v == 0 ? "0" : p->dim_v == p->dim_qk ? "equal" : "different");
    bool grouped = p->heads_q > p->heads_k;
    note(n, "HK", !grouped ? "HQ" : p->heads_k == 1 ? "1" : p->heads_q == 4 * p->heads_k ? "HQ/4" : "other");
    int head_axis = check_has(c, ATTN_PACKED) ? 0 : 1;
    note_if(n, p->heads_k > 1 && t[ATTN_ROLE_K].broadcast[head_axis], "HK", "stride-0");
    bool causal = check_has(c, ATTN_CAUSAL), left = check_has(c, ATTN_WINDOW_LEFT),
         right = check_has(c, ATTN_WINDOW_RIGHT);
    note_if(n, !causal && !left && !right, "visibility", "all");
    note_if(n, causal && !left && !right, "visibility",
            check_has(c, ATTN_BOTTOM_RIGHT) ? "causal+bottom_right" : "causal");
    note_if(n, left && !right && !causal, "visibility", "left");
    note_if(n, right && !left && !causal, "visibility", "right");
    note_if(n, left && right, "visibility", "left+right");
    note_if(n, left && causal, "visibility", "causal+left");
    note_if(n, (left && p->window_left < 0) || (right && p->window_right < 0), "visibility", "negative-window");
    note_if(n, (left && p->window_left > 1000000) || (right && p->window_right > 1000000), "visibility", "huge-window");
    note(n, "softcap", p->softcap == 0 ? "0" : p->softcap >= 30 ? "30" : "small");
    note(n, "alibi", p->alibi == ATTN_ALIBI_NONE ? "none" : p->alibi == ATTN_ALIBI_LINEAR ? "linear" : "distance");
    note_if(n, p->alibi, "alibi",
            t[ATTN_ROLE_ALIBI].view.rank == 2 && t[ATTN_ROLE_ALIBI].view.shape[0] > 1 ? "[B,HQ]" : "[HQ]");
    note(n, "mask", p->mask_dtype ? attn_dtype_name(p->mask_dtype) : "none");
    for (int a = 0; a < 4; a++) {
        snprintf(text, sizeof text, "%c-broadcast", "bhij"[a]);
        note_if(n, mask->use && mask->broadcast[a], "mask", text);
    }
    note_if(n, c->modes & CHECK_MASK_DEAD_ROWS, "mask", "dead-rows");
    note_if(n, c->modes & CHECK_MASK_LOW, "mask", "low");
    note_if(n, c->modes & CHECK_MASK_PLUS_INF, "mask", "+inf");
    note_if(n, check_has(c, ATTN_LSE_WITH_SINK), "sink", "with-lse");
    note_if(n, p->seq_q == 0, "lengths", "SQ=0");
    note_if(n, p->seq_k == 0, "lengths", "SK=0");
    note_if(n, p->seq_q == 1, "lengths", "SQ=1");
    note_if(n, p->seq_q > p->seq_k, "lengths", "SQ>SK");
    note_if(n, p->seq_q < p->seq_k, "lengths", "SQ<SK");
    note_if(n, p->seq_q <= 4 && p->seq_k >= 100, "lengths", "decode");
    note_if(n, p->seq_k >= 512, "lengths", "SK>=512");
    note_if(n, p->seq_k > 1024, "lengths", "SK>1024");
    note_if(n, p->seq_k % 2 && p->seq_q % 2, "lengths", "odd");
    uint64_t lengths = ATTN_SEQLENS_Q | ATTN_SEQLENS_K | ATTN_PACKED;
    note_if(n, !(p->flags & lengths), "storage", "dense");
    note_if(n, check_has(c, ATTN_SEQLENS_Q), "storage", "seqlens_q");
    note_if(n, check_has(c, ATTN_SEQLENS_K), "storage", "seqlens_k");
    note_if(n, check_has(c, ATTN_PACKED), "storage", "packed");
    note_if(n, c->modes & CHECK_WILD_LENGTHS, "storage", "wild-lengths");
    note_if(n, attn_cli_check_falls(c), "storage", "falling-offsets");
    note_if(n, check_has(c, ATTN_FILL_PADDING), "storage", "fill-padding");
    note_if(n, attn_cli_check_uneven(c), "rows", "uneven");
    note_if(n, attn_cli_check_infinite(c), "infinite", c->p.softcap > 0 ? "with-softcap" : "without");
    note_if(n, check_has(c, ATTN_PACKED) && (p->flags & (ATTN_SEQLENS_Q | ATTN_SEQLENS_K)), "storage",
            "packed-lengths");
    note_if(n, check_has(c, ATTN_PAGED), "paged", "yes");
    note_if(n, c->modes & CHECK_BAD_PAGES, "paged", "bad-pages");
    note_if(n, check_has(c, ATTN_PAGED) && check_has(c, ATTN_PACKED), "paged", "packed-queries");
    note(n, "scale",
         !check_has(c, ATTN_SCALE) ? "default"
         : p->scale == 0           ? "0"
         : p->scale < 0            ? "negative"
         : p->scale >= 0.5         ? "large"
                                   : "-");
    note_if(n, t[ATTN_ROLE_LSE].given, "outputs", "lse");
    note_if(n, t[ATTN_ROLE_LSE_ROUNDED].given, "outputs", "lse_rounded");
    note_if(n, t[ATTN_ROLE_LSE].use && !t[ATTN_ROLE_LSE].given, "outputs", "omitted");
    note_if(n, !t[ATTN_ROLE_LSE].given && !t[ATTN_ROLE_LSE_ROUNDED].given, "outputs", "alone");
    note_if(n, t[ATTN_ROLE_MAX_LOGITS].use, "outputs", "max_logits");
    note_if(n, p->out_dtype == ATTN_F32 && p->dtype != ATTN_F32, "outputs", "out=f32");
    if (p->op != ATTN_OP_SDPA_BWD) return;
    const struct check_tensor *dm = &t[ATTN_ROLE_DMASK];
    note_if(n, dm->use, "gradient", "dmask");
    note_if(n, dm->broadcast[0] || dm->broadcast[1] || dm->broadcast[2] || dm->broadcast[3], "gradient",
            "dmask-folded");
    note_if(n, t[ATTN_ROLE_DALIBI].use, "gradient", "dalibi");
    note_if(n, !t[ATTN_ROLE_DQ].given || !t[ATTN_ROLE_DK].given || !t[ATTN_ROLE_DV].given, "gradient", "omitted");
    note_if(n, c->modes & CHECK_LSE_PLUS_INF, "gradient", "lse=+inf");
    note_if(n, check_has(c, ATTN_DETERMINISTIC), "gradient", "deterministic");
}

static void note_join(const struct noting *n) {
    const attn_problem *p = &n->c->p;
    const struct check_want *w = &n->c->want[ATTN_ROLE_JOINED];
    char text[24];
    snprintf(text, sizeof text, "%d", (int)p->group);
    note(n, "group", text);
    note_if(n, p->seq_q % p->group != 0, "group", "last-short");
    note_if(n, p->seq_k == INT64_C(1) << 31, "SK", "2^31");
    const int64_t groups = (p->seq_q + p->group - 1) / p->group * p->batch, words = groups ? w->rows / groups : 0;
    for (int64_t g = 0; g < groups; g++) note(n, "groups", w->plain[g * words + 1] != 0 ? "apart" : "joined");
}

/* Of attention: whether joined lists are given, and with groups left apart. */
static void note_lists(const struct noting *n) {
    const struct check_tensor *t = &n->c->t[ATTN_ROLE_JOINED];
    note_if(n, !t->use, "lists", "indices");
    if (!t->n) return;
    const int64_t words = t->view.shape[t->view.rank - 1];
    for (int64_t x = 0; x < t->n; x += words) note(n, "lists", t->val[x + 1] != 0 ? "apart" : "joined");
}

static void note_sparse(const struct noting *n) {
    const struct check_case *c = n->c;
    const attn_problem *p = &c->p;
    char text[24];
    if (check_join(p)) note_join(n);
    snprintf(text, sizeof text, "%d", (int)p->heads_q);
    note(n, "HQ", text);
    snprintf(text, sizeof text, "%d", (int)p->dim_qk);
    note(n, "D", text);
    note(n, "topk",
         p->topk == 1    ? "1"
         : p->topk < 64  ? "<64"
         : p->topk == 64 ? "64"
         : p->topk == 65 ? "65"
         : p->topk > 400 ? ">400"
         : p->topk > 128 ? ">128"
                         : "-");
    bool causal = check_has(c, ATTN_CAUSAL), lengths = check_has(c, ATTN_TOPK_LENGTH);
    note(n, "causal", !causal ? "no" : p->k_stride == 4 ? "k_stride=4" : p->k_stride <= 1 ? "k_stride=1" : "-");
    note_if(n, causal && p->q_start > 0, "causal", "q_start>0");
    static const struct {
        uint32_t mode;
        const char *name;
    } rows[] = {{CHECK_EMPTY_ROWS, "empty"},    {CHECK_ONE_SLOT, "one-slot"}, {CHECK_TWICE, "twice"},
                {CHECK_MANY_TIMES, "64-times"}, {CHECK_ONE_KEY, "one-key"},   {CHECK_BAD_INDICES, "bad-indices"}};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) note_if(n, c->modes & rows[k].mode, "rows", rows[k].name);
    note_if(n, attn_cli_check_hole(c), "rows", "one-hole");
    note(n, "topk_length", lengths ? "some" : "none");
    if (!check_join(p)) note_lists(n);
    note_if(n, c->modes & CHECK_TOPK_EDGES, "topk_length", "edges");
    note_if(n, lengths && (c->modes & CHECK_WILD_LENGTHS), "topk_length", "wild");
    note(n, "batch", p->batch > 1 ? "many" : "1");
    note_if(n, c->modes & CHECK_NO_BATCH_AXIS, "batch", "no-axis");
    note_if(n, p->seq_q == 0, "lengths", "SQ=0");
    note_if(n, p->seq_k == 0, "lengths", "SK=0");
    note_if(n, p->seq_k < 16, "lengths", "SK<16");
    note(n, "dist_norm", p->dist_norm == ATTN_DIST_SUM ? "sum" : p->dist_norm == ATTN_DIST_MEAN ? "mean" : "l1");
    note_if(n, p->out_dtype == ATTN_F32 && p->dtype != ATTN_F32, "outputs", "out=f32");
    if (p->op != ATTN_OP_MLA_BWD) return;
    note(n, "dkv", p->dkv_dtype == ATTN_F32 ? "f32" : "dtype");
    note_if(n, check_has(c, ATTN_ACCUMULATE), "dkv", "accumulate");
    note_if(n, !c->t[ATTN_ROLE_DKV].given, "dkv", "omitted");
    note_if(n, check_has(c, ATTN_WITH_DIST), "gradient", "dist");
}

void attn_cli_check_cover_case(const struct check_case *c, bool accepted) {
    struct noting n = {c, accepted};
    if (check_dense(&c->p))
        note_dense(&n);
    else
        note_sparse(&n);
    bool sink = check_has(c, ATTN_SINK);
    note(&n, "sink", !sink ? "none" : c->modes & (CHECK_SINK_PLUS_INF | CHECK_SINK_MINUS_INF) ? "-" : "finite");
    note_if(&n, c->modes & CHECK_SINK_PLUS_INF, "sink", "+inf");
    note_if(&n, c->modes & CHECK_SINK_MINUS_INF, "sink", "-inf");
    note(&n, "lse", check_has(c, ATTN_LSE_BASE_2) ? "base-2" : "base-e");
    note_if(&n, check_has(c, ATTN_LSE_EMPTY_PLUS_INF), "lse", "empty-plus-inf");
    note_if(&n, check_has(c, ATTN_DLSE), "gradient", "dlse");
    note_if(&n, c->t[ATTN_ROLE_DSINK].use, "gradient", "dsink");
    const struct check_tensor *dout = &c->t[ATTN_ROLE_DOUT];
    note_if(&n, dout->use && dout->broadcast[dout->view.rank - 1], "gradient", "one-number");
    static const struct {
        uint32_t mode;
        const char *what, *name;
    } both[] = {
        {CHECK_FAR_NEGATIVE, "data", "far-negative"}, {CHECK_NAN_QUERY, "data", "nan-query"},
        {CHECK_NAN_KEY, "data", "nan-key"},           {CHECK_BAD_DOUT, "gradient", "bad-dout"},
        {CHECK_HIDDEN_NAN, "data", "hidden-nan"},     {CHECK_HUGE, "data", "huge"},
        {CHECK_EQUAL_SCORES, "data", "equal-scores"}, {CHECK_UNALIGNED, "memory", "unaligned"},
        {CHECK_AT_PAGE_END, "memory", "page-end"},    {CHECK_NEGATIVE_STRIDE, "memory", "negative-stride"},
        {CHECK_PERMUTED, "memory", "permuted"},       {CHECK_PADDED, "memory", "padded"},
        {CHECK_BROADCAST, "memory", "broadcast"},     {CHECK_INF_DOUT, "gradient", "inf-dout"},
    };
    uint32_t data = 0;
    for (size_t k = 0; k < sizeof both / sizeof *both; k++) {
        note_if(&n, c->modes & both[k].mode, both[k].what, both[k].name);
        if (k < 6) data |= both[k].mode;
    }
    note_if(&n, !(c->modes & data), "data", "plain");
    note_if(&n, !(c->modes & (CHECK_PADDED | CHECK_PERMUTED)), "memory", "tight");
    note_if(&n, c->p.align_bytes == 16, "memory", "align_bytes=16");
    note_if(&n, c->p.align_bytes == 128, "memory", "align_bytes=128");
}

int attn_cli_check_cover_print(bool table, const bool ops[ATTN_OP_COUNT_], bool demand) {
    int missing = 0;
    if (table) printf("coverage: cases (of which accepted by a kernel other than ref)\n");
    for (int k = 0; k < N_LISTS; k++) {
        bool wanted = false;
        for (int32_t op = 1; op < ATTN_OP_COUNT_; op++) wanted |= ops[op] && on_side(lists[k].side, op);
        if (!wanted) continue;
        const char *side = strchr("dfb", lists[k].side) ? "dense"
                           : lists[k].side == 'e'       ? "all"
                                                        : "sparse",
                   *s = lists[k].values;
        if (table) printf("  %-6s %-12s", side, lists[k].what);
        for (int v = 0; *s; v++) {
            int word = (int)strcspn(s, " ");
            if (table)
                printf(" %.*s:%lld(%lld)", word, s, (long long)count[k][v].cases, (long long)count[k][v].accepted);
            if (!count[k][v].cases) {
                missing++;
                if (demand) printf("%snever hit: %s %s %.*s\n", table ? "\n" : "", side, lists[k].what, word, s);
            }
            s += word + (s[word] == ' ');
        }
        if (table) printf("\n");
    }
    return missing;
}
