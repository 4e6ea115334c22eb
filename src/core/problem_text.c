/* SPDX-License-Identifier: MIT
 * The one-line form of a problem, read and written from the same tables. docs/problem-text.md lists the words.
 * Does not judge a problem: attn_problem_check does. */
#include "core/problem.h"

#include "attn.h"
#include "base/err.h"
#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

/* word=number. When printed: `def` is left out; DEF_* say where the default comes from. */
enum { DEF_VALUE, DEF_ALWAYS_PRINT, DEF_HK, DEF_SK, DEF_DV, DEF_FLAG };
struct number {
    const char *word;
    size_t offset;
    uint64_t flag; /* set when the word is given; printed when set */
    int kind;
    int64_t def;
};
#define MEMBER(member) offsetof(attn_problem, member)
static const struct number dims[] = {
    {"b", MEMBER(batch), 0, DEF_VALUE, 1}, {"hq", MEMBER(heads_q), 0, DEF_ALWAYS_PRINT, 0},
    {"hk", MEMBER(heads_k), 0, DEF_HK, 0}, {"sq", MEMBER(seq_q), 0, DEF_ALWAYS_PRINT, 0},
    {"sk", MEMBER(seq_k), 0, DEF_SK, 0},   {"d", MEMBER(dim_qk), 0, DEF_ALWAYS_PRINT, 0},
    {"dv", MEMBER(dim_v), 0, DEF_DV, 0},   {"topk", MEMBER(topk), 0, DEF_VALUE, 0},
};
static const struct number others[] = {
    {"left", MEMBER(window_left), ATTN_WINDOW_LEFT, DEF_FLAG, 0},
    {"right", MEMBER(window_right), ATTN_WINDOW_RIGHT, DEF_FLAG, 0},
    {"q_start", MEMBER(q_start), 0, DEF_VALUE, 0},
    {"k_stride", MEMBER(k_stride), 0, DEF_VALUE, 0},
    {"total_q", MEMBER(total_q), 0, DEF_VALUE, 0},
    {"total_k", MEMBER(total_k), 0, DEF_VALUE, 0},
    {"page_size", MEMBER(page_size), 0, DEF_VALUE, 0},
    {"n_pages", MEMBER(n_pages), 0, DEF_VALUE, 0},
    {"max_pages", MEMBER(max_pages), 0, DEF_VALUE, 0},
    {"group", MEMBER(group), 0, DEF_VALUE, 0},
    {"union_limit", MEMBER(union_limit), 0, DEF_VALUE, 0},
};
/* word=name of a value; a value of 0 is left out when printed. */
struct choice {
    const char *word;
    size_t offset;
    const char *values[8]; /* "" = not a choice */
};
static const struct choice choices[] = {
    {"alibi", MEMBER(alibi), {"", "linear", "distance"}},
    {"mask", MEMBER(mask_dtype), {"", "f32", "f16", "bf16", "", "", "", "bool"}},
    {"dkv", MEMBER(dkv_dtype), {"", "f32", "f16", "bf16"}},
    {"out", MEMBER(out_dtype), {"", "f32", "f16", "bf16", "f64"}},
    {"dist_norm", MEMBER(dist_norm), {"sum", "mean", "l1"}},
};
static const char *const dtype_words[] = {"", "f32", "f16", "bf16", "f64", "i32", "", "", "e4m3"}; /* by ATTN_* */
#define COUNT(array) (sizeof(array) / sizeof *(array))

static int is_sparse(int32_t op) { return op >= ATTN_OP_MLA_FWD && op <= ATTN_OP_DIST; }

/* Joined lists have no heads and no widths. */
static bool has_no_rows(int32_t op, const struct number *n) {
    return op == ATTN_OP_MLA_JOIN && (n->offset == MEMBER(heads_q) || n->offset == MEMBER(heads_k) ||
                                      n->offset == MEMBER(dim_qk) || n->offset == MEMBER(dim_v));
}

static int64_t get64(const attn_problem *p, size_t offset) {
    int64_t v;
    memcpy(&v, (const char *)p + offset, sizeof v);
    return v;
}
static int32_t get32(const attn_problem *p, size_t offset) {
    int32_t v;
    memcpy(&v, (const char *)p + offset, sizeof v);
    return v;
}

static int64_t default_of(const attn_problem *p, const struct number *n) {
    if (has_no_rows(p->op, n)) return 0;
    switch (n->kind) {
    case DEF_HK: return is_sparse(p->op) ? 1 : p->heads_q;
    case DEF_SK: return p->seq_q;
    case DEF_DV: return is_sparse(p->op) ? 512 : p->dim_qk;
    default: return n->def;
    }
}

/* ---- reading ---- */

/* A word's key: the part before '=', or all of it. */
struct word {
    const char *s;
    size_t n, key;
};
/* What a key stands for; exactly one is set. */
enum { KEY_NONE, KEY_NUMBER, KEY_SCALE, KEY_SOFTCAP, KEY_ALIGN, KEY_CHOICE, KEY_FLAG, KEY_DTYPE };
struct key {
    int kind;
    int index; /* for "given twice": dtype words share one index */
    int takes_value;
    const void *row;
};

/* Key number i in a fixed order, for look-up and for hints; 0 past the end. */
static const char *key_at(int i, struct key *key) {
    *key = (struct key){KEY_NONE, i, 1, NULL};
    int n = i;
    if (n < (int)COUNT(dims)) return key->kind = KEY_NUMBER, key->row = &dims[n], dims[n].word;
    n -= (int)COUNT(dims);
    if (n < (int)COUNT(others)) return key->kind = KEY_NUMBER, key->row = &others[n], others[n].word;
    n -= (int)COUNT(others);
    if (n < (int)COUNT(choices)) return key->kind = KEY_CHOICE, key->row = &choices[n], choices[n].word;
    n -= (int)COUNT(choices);
    if (n < 3) return key->kind = KEY_SCALE + n, (const char *[]){"scale", "softcap", "align"}[n];
    n -= 3;
    key->takes_value = 0;
    if (n < attn_core_n_flags) return key->kind = KEY_FLAG, key->row = &attn_core_flags[n], attn_core_flags[n].word;
    n -= attn_core_n_flags;
    key->index = i - n; /* one index for all dtypes */
    if (n + 1 < (int)COUNT(dtype_words))
        return key->kind = KEY_DTYPE, key->row = &dtype_words[n + 1], dtype_words[n + 1];
    return NULL;
}

struct hint {
    const char *word;
    int distance, takes_value;
};
/* What other libraries call it. Not read, only answered: a problem has one text form. */
static const struct {
    const char *other, *word;
} elsewhere[] = {
    {"head_dim", "d"},
    {"head_size", "d"},
    {"dim", "d"},
    {"head_dim_v", "dv"},
    {"is_causal", "causal"},
    {"batch", "b"},
    {"batch_size", "b"},
    {"bsz", "b"},
    {"heads", "hq"},
    {"num_heads", "hq"},
    {"n_heads", "hq"},
    {"nheads", "hq"},
    {"heads_q", "hq"},
    {"heads_k", "hk"},
    {"kv_heads", "hk"},
    {"num_kv_heads", "hk"},
    {"n_kv_heads", "hk"},
    {"nheads_k", "hk"},
    {"seq_len", "sq"},
    {"seqlen", "sq"},
    {"seq", "sq"},
    {"seq_q", "sq"},
    {"seq_k", "sk"},
    {"kv_len", "sk"},
    {"window_left", "left"},
    {"window_right", "right"},
    {"softmax_scale", "scale"},
    {"sm_scale", "scale"},
    {"attn_mask", "mask"},
    {"logits_soft_cap", "softcap"},
    {"float32", "f32"},
    {"fp32", "f32"},
    {"float", "f32"},
    {"float16", "f16"},
    {"fp16", "f16"},
    {"half", "f16"},
    {"bfloat16", "bf16"},
    {"float64", "f64"},
    {"fp64", "f64"},
    {"double", "f64"},
    {"sdpa", "sdpa_fwd"},
    {"attention", "sdpa_fwd"},
    {"flash_attention", "sdpa_fwd"},
    {"mla", "mla_fwd"},
    {"scaled_dot_product_attention", "sdpa_fwd"},
};
/* A word whose counterpart is `known`: closer than any misspelling. */
static int is_counterpart(const struct word *w, const char *known) {
    for (size_t i = 0; i < COUNT(elsewhere); i++)
        if (!strcmp(elsewhere[i].word, known) && attn_text_equal(w->s, w->key, elsewhere[i].other)) return 1;
    return 0;
}
static void consider(struct hint *hint, const struct word *w, const char *known, int takes_value) {
    int d = is_counterpart(w, known) ? 0 : attn_text_distance(w->s, w->key, known), limit = w->key < 4 ? 1 : 2;
    if (*known && d <= limit && d < hint->distance) *hint = (struct hint){known, d, takes_value};
}

static int cut(const struct word *w) {
    return w->n > 40 ? 40 : (int)w->n;
} /* a word as %.*s: no novel in an error text */

static attn_status unknown(const struct word *w, const struct hint *hint, const char *what) {
    int value = hint->takes_value && w->n - w->key < 32 ? (int)(w->n - w->key) : 0; /* "=64" after the right key */
    if (hint->word)
        FAIL(ATTN_E_TEXT, "text", "unknown %s '%.*s' in a problem text, did you mean '%s%.*s'?", what, cut(w), w->s,
             hint->word, value, w->s + w->key);
    FAIL(ATTN_E_TEXT, "text", "unknown %s '%.*s' in a problem text", what, cut(w), w->s);
}

static attn_status find_key(const struct word *w, struct key *key) {
    struct hint hint = {NULL, 100, 0};
    const char *known;
    for (int i = 0; (known = key_at(i, key)) != NULL; i++) {
        if (*known && attn_text_equal(w->s, w->key, known)) return ATTN_OK;
        consider(&hint, w, known, key->takes_value);
    }
    return unknown(w, &hint, "word");
}

static attn_status bad_value(const struct word *w, const char *expected) {
    FAIL(ATTN_E_TEXT, "text", "'%.*s' in a problem text: expected %s after '='", cut(w), w->s, expected);
}

static attn_status read_choice(attn_problem *p, const struct choice *c, const struct word *w, const char *value,
                               size_t n) {
    char list[96];
    struct attn_text text = attn_text_over(list, sizeof list);
    for (int32_t i = 0; i < (int32_t)COUNT(c->values); i++) {
        if (!c->values[i] || !*c->values[i]) continue;
        if (attn_text_equal(value, n, c->values[i])) {
            memcpy((char *)p + c->offset, &i, sizeof i);
            return ATTN_OK;
        }
        attn_text_add(&text, "%s%s", text.len ? ", " : "one of ", c->values[i]);
    }
    return bad_value(w, list);
}

static attn_status read_value(attn_problem *p, const struct key *key, const struct word *w) {
    const char *value = w->s + w->key + 1;
    size_t n = w->n - w->key - 1;
    int64_t integer;
    double real;
    switch (key->kind) {
    case KEY_NUMBER: {
        const struct number *row = key->row;
        if (attn_text_int64(value, n, &integer)) return bad_value(w, "an integer");
        memcpy((char *)p + row->offset, &integer, sizeof integer);
        p->flags |= row->flag;
        return ATTN_OK;
    }
    case KEY_ALIGN:
        if (attn_text_int64(value, n, &integer) || integer < 0 || integer > UINT32_MAX)
            return bad_value(w, "a number of bytes");
        p->align_bytes = (uint32_t)integer;
        return ATTN_OK;
    case KEY_CHOICE: return read_choice(p, key->row, w, value, n);
    default:
        if (attn_text_double(value, n, &real)) return bad_value(w, "a number");
        if (key->kind == KEY_SCALE) {
            p->scale = real;
            p->flags |= ATTN_SCALE;
        } else {
            p->softcap = real;
        }
        return ATTN_OK;
    }
}

static attn_status read_word(attn_problem *p, uint64_t *seen, const struct word *w) {
    struct key key;
    TRY(find_key(w, &key));
    if (*seen >> key.index & 1) {
        if (key.kind == KEY_DTYPE) FAIL(ATTN_E_TEXT, "text", "second dtype '%.*s' in a problem text", cut(w), w->s);
        FAIL(ATTN_E_TEXT, "text", "'%.*s' is given twice in a problem text", (int)w->key, w->s);
    }
    *seen |= UINT64_C(1) << key.index;
    if (key.takes_value && w->key == w->n)
        FAIL(ATTN_E_TEXT, "text", "'%.*s' in a problem text needs a value, as in %.*s=...", cut(w), w->s, cut(w), w->s);
    if (!key.takes_value && w->key != w->n)
        FAIL(ATTN_E_TEXT, "text", "'%.*s' in a problem text: '%.*s' takes no value", cut(w), w->s, (int)w->key, w->s);
    if (key.takes_value) return read_value(p, &key, w);
    if (key.kind == KEY_FLAG)
        p->flags |= ((const struct attn_core_flag *)key.row)->bit;
    else
        p->dtype = (int32_t)((const char *const *)key.row - dtype_words);
    return ATTN_OK;
}

static attn_status read_op(attn_problem *p, const struct word *w) {
    struct hint hint = {NULL, 100, 0};
    for (int32_t op = ATTN_OP_NONE + 1; op < ATTN_OP_COUNT_; op++) {
        if (attn_text_equal(w->s, w->n, attn_core_op_name(op))) {
            p->op = op;
            return ATTN_OK;
        }
        consider(&hint, w, attn_core_op_name(op), 0);
    }
    return unknown(w, &hint, "operator");
}

/* Defaults that stand for no number must be given: a forgotten hq would otherwise be a valid problem without heads. */
static attn_status finish(attn_problem *p, uint64_t seen) {
    if (is_sparse(p->op)) {
        for (size_t i = 0; i < COUNT(dims); i++)
            if (dims[i].offset == MEMBER(dim_qk) && !(seen >> i & 1)) p->dim_qk = 576, seen |= UINT64_C(1) << i;
    }
    for (size_t i = 0; i < COUNT(dims); i++) {
        if (seen >> i & 1) continue;
        if (dims[i].kind == DEF_ALWAYS_PRINT && !has_no_rows(p->op, &dims[i]))
            FAIL(ATTN_E_TEXT, "text", "the problem text lacks '%s=', which has no default for %s", dims[i].word,
                 attn_core_op_name(p->op));
        int64_t value = default_of(p, &dims[i]);
        memcpy((char *)p + dims[i].offset, &value, sizeof value);
    }
    if (!p->dtype && p->op == ATTN_OP_MLA_JOIN) p->dtype = ATTN_I32;
    if (!p->dtype) FAIL(ATTN_E_TEXT, "text", "the problem text lacks a dtype: f32, f16, bf16, f64 or e4m3");
    return ATTN_OK;
}

attn_status attn_problem_parse(const char *text, attn_problem *out) {
    if (!text) FAIL(ATTN_E_ARGUMENT, "text", "text is NULL");
    if (!out) FAIL(ATTN_E_ARGUMENT, "out", "out is NULL");
    attn_problem p = ATTN_PROBLEM_INIT;
    uint64_t seen = 0;
    struct word w;
    w.n = w.key = attn_text_word(&text, &w.s);
    if (!w.n) FAIL(ATTN_E_TEXT, "text", "the problem text is empty, expected an operator first");
    TRY(read_op(&p, &w));
    while ((w.n = attn_text_word(&text, &w.s)) != 0) {
        const char *equals = memchr(w.s, '=', w.n);
        w.key = equals ? (size_t)(equals - w.s) : w.n;
        TRY(read_word(&p, &seen, &w));
    }
    TRY(finish(&p, seen));
    *out = p;
    return ATTN_OK;
}

/* ---- writing ---- */

static void add_numbers(struct attn_text *text, const attn_problem *p, const struct number *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        int64_t value = get64(p, rows[i].offset);
        bool print = (rows[i].kind == DEF_ALWAYS_PRINT && !has_no_rows(p->op, &rows[i])) ||
                     (rows[i].flag ? attn_core_has(p, rows[i].flag) : value != default_of(p, &rows[i]));
        if (rows[i].offset == MEMBER(k_stride) && value == 1) print = false; /* 0 means 1 */
        if (print) attn_text_add(text, " %s=%" PRId64, rows[i].word, value);
    }
}

static attn_status write_text(struct attn_text *text, const attn_problem *p) {
    const char *op = attn_core_op_name(p->op);
    if (*op == '?') FAIL2(ATTN_E_ENUM, "op", 0, p->op, "op is %" PRId32 ", which has no text form", p->op);
    if (p->dtype < ATTN_F32 || p->dtype >= (int32_t)COUNT(dtype_words) || !dtype_words[p->dtype][0])
        FAIL2(ATTN_E_ENUM, "dtype", 0, p->dtype, "dtype is %" PRId32 ", which has no text form", p->dtype);
    if (p->flags & ~ATTN_FLAGS_ALL_)
        FAIL(ATTN_E_ENUM, "flags", "flags has unknown bits 0x%" PRIx64 ", which have no text form",
             p->flags & ~ATTN_FLAGS_ALL_);
    attn_text_add(text, "%s", op);
    add_numbers(text, p, dims, COUNT(dims));
    attn_text_add(text, " %s", dtype_words[p->dtype]);
    for (int32_t i = 0; i < attn_core_n_flags; i++)
        if (attn_core_has(p, attn_core_flags[i].bit) && attn_core_flags[i].word[0])
            attn_text_add(text, " %s", attn_core_flags[i].word);
    add_numbers(text, p, others, COUNT(others));
    if (attn_core_has(p, ATTN_SCALE)) {
        attn_text_add(text, " scale=");
        attn_text_add_double(text, p->scale);
    }
    if (p->softcap != 0) {
        attn_text_add(text, " softcap=");
        attn_text_add_double(text, p->softcap);
    }
    for (size_t i = 0; i < COUNT(choices); i++) {
        int32_t value = get32(p, choices[i].offset);
        if (value == 0) continue;
        const char *name = value > 0 && value < (int32_t)COUNT(choices[i].values) ? choices[i].values[value] : NULL;
        if (!name || !*name)
            FAIL2(ATTN_E_ENUM, choices[i].word, 0, value, "%s of the problem is %" PRId32 ", which has no text form",
                  choices[i].word, value);
        /* normalising fills dkv_dtype in, so that the default would be printed */
        if (choices[i].offset != MEMBER(dkv_dtype) || p->op != ATTN_OP_MLA_BWD || value != p->dtype)
            attn_text_add(text, " %s=%s", choices[i].word, name);
    }
    if (p->align_bytes) attn_text_add(text, " align=%" PRIu32, p->align_bytes);
    return ATTN_OK;
}

attn_status attn_problem_format(const attn_problem *problem, char *buf, size_t bytes, size_t *needed) {
    attn_problem p;
    TRY(attn_core_struct_copy(&p, sizeof p, problem, "problem"));
    if (!buf && bytes) FAIL(ATTN_E_ARGUMENT, "buf", "buf is NULL, but bytes is %zu", bytes);
    struct attn_text text = attn_text_over(buf, bytes);
    attn_status status = write_text(&text, &p);
    if (status) {
        if (bytes) buf[0] = 0;
        return status;
    }
    if (needed) *needed = text.len + 1;
    if (text.len >= bytes)
        FAIL2(ATTN_E_ARGUMENT, "buf", (int64_t)text.len + 1, (int64_t)bytes,
              "the problem text needs %zu bytes, but the buffer has %zu", text.len + 1, bytes);
    return ATTN_OK;
}
