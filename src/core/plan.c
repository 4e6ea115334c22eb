/* SPDX-License-Identifier: MIT
 * The choice of a kernel: every row of every backend says yes or gives its reason, preferences and the tuning table
 * rank those that accept, and the same walk prints the table of attn_explain. Life of plan objects and measuring:
 * src/api. */
#include "core/plan.h"

#include "attn.h"
#include "base/err.h"
#include "base/log.h"
#include "core/former_names.h"
#include "core/problem.h"
#include "core/tune.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

/* Everything the verdict on one kernel depends on. */
struct request {
    attn_ctx *ctx;
    const struct attn_core_device *device;
    const attn_problem *problem;
    const char *kernel, *env_kernel; /* patterns, NULL = none */
    int32_t backend, env_backend;    /* ATTN_BACKEND_ANY = none */
    bool strict, limited, apart;
    uint64_t limit;
    struct attn_core_amount amount;
    char tuned[96]; /* remembered winner, "" = none */
    double tuned_seconds;
};

/* The verdict. `score` says which preferences are met, the caller's before the environment's. */
struct verdict {
    bool accepted, tuned;
    int score;
    double seconds;
    uint64_t workspace;
};
enum { PREFERS_KERNEL = 8, PREFERS_BACKEND = 4, ENV_KERNEL = 2, ENV_BACKEND = 1 };

static const char *backend_name(int32_t backend) {
    static const char *const names[ATTN_BACKEND_COUNT_] = {"any", "ref", "cpu", "cuda"};
    return backend >= 0 && backend < ATTN_BACKEND_COUNT_ ? names[backend] : "?";
}

static const struct attn_kernel *next_row(const attn_ctx *ctx, int32_t op, int32_t cursor[3]) {
    for (; cursor[0] < ctx->n_backends; cursor[0]++, cursor[1] = cursor[2] = 0)
        for (; cursor[1] < ctx->backends[cursor[0]]->n_sets; cursor[1]++, cursor[2] = 0) {
            const struct attn_core_rows *set = &ctx->backends[cursor[0]]->sets[cursor[1]];
            while (cursor[2] < *set->n_rows) {
                const struct attn_kernel *k = &set->rows[cursor[2]++];
                if (k->op == op) return k;
            }
        }
    return NULL;
}

static int score_of(const struct request *q, const struct attn_kernel *k) {
    int score = 0;
    if (q->kernel && attn_core_name_matches(q->kernel, k->name)) score |= PREFERS_KERNEL;
    if (q->backend && k->backend == q->backend) score |= PREFERS_BACKEND;
    if (q->env_kernel && attn_core_name_matches(q->env_kernel, k->name)) score |= ENV_KERNEL;
    if (q->env_backend && k->backend == q->env_backend) score |= ENV_BACKEND;
    return score;
}

static int wanted_score(const struct request *q) {
    return (q->kernel ? PREFERS_KERNEL : 0) | (q->backend ? PREFERS_BACKEND : 0) | (q->env_kernel ? ENV_KERNEL : 0) |
           (q->env_backend ? ENV_BACKEND : 0);
}

static bool refuse(struct attn_text *why, const char *format, const char *word) {
    attn_text_add(why, format, word);
    return false;
}

static bool accepts(const struct request *q, const struct attn_kernel *k, struct attn_text *why, uint64_t *workspace) {
    const attn_problem *p = q->problem;
    if (k->device_type != q->device->id.type)
        return refuse(why, "runs on %s devices", k->device_type == ATTN_DEVICE_TYPE_CUDA ? "cuda" : "cpu");
    if (k->dtype != p->dtype) return refuse(why, "is for %s tensors", attn_dtype_name(k->dtype));
    if (k->features & q->device->denied) {
        attn_text_add(why, "needs %s: %s", k->arch, q->device->denied_why);
        return false;
    }
    if (k->features & ~q->device->features)
        return refuse(why, "needs %s, which the device lacks or is not allowed to use", k->arch);
    if (attn_core_has(p, ATTN_DETERMINISTIC) && !k->deterministic) return refuse(why, "%s", "is not deterministic");
    if (q->apart && k->joins)
        return refuse(why, "%s", "joins the lists of neighbouring queries, which the plan is to keep apart");
    if (p->out_dtype && !k->out_f32)
        return refuse(why, "writes out in %s, the dtype of its inputs, alone", attn_dtype_name(p->dtype));
    if (attn_core_has(p, ATTN_MAX_LOGITS) && !k->max_logits)
        return refuse(why, "%s", "keeps no exact maximum of its rows' scores for max_logits");
    if (k->supports && !k->supports(k, q->device, p, why))
        return why->len ? false : refuse(why, "%s", "refuses the problem without a reason");
    why->len = 0; /* a kernel that accepts may have written words as well */
    if (why->cap) why->buf[0] = 0;
    *workspace = k->workspace ? k->workspace(k, q->device, p) : 0;
    if (*workspace > INT64_MAX) return refuse(why, "%s", "needs more workspace than can be addressed");
    if (q->limited && *workspace > q->limit) {
        attn_text_add(why, "needs %" PRIu64 " bytes of workspace, the limit is %" PRIu64, *workspace, q->limit);
        return false;
    }
    if (q->strict && q->backend && k->backend != q->backend)
        return refuse(why, "is not of backend %s, which the strict preference asks for", backend_name(q->backend));
    if (q->strict && q->kernel && !attn_core_name_matches(q->kernel, k->name))
        return refuse(why, "does not match the strictly preferred '%.100s'", q->kernel);
    return true;
}

/* `words`: of a refusal, or NULL where nobody asks for them; a choice among many rows would mostly format reasons. */
struct words {
    char why[256];
};
static void judge(const struct request *q, const struct attn_kernel *k, struct verdict *v, struct words *words) {
    *v = (struct verdict){.seconds = (double)INFINITY};
    struct attn_text why = words ? attn_text_over(words->why, sizeof words->why) : attn_text_mute();
    v->accepted = accepts(q, k, &why, &v->workspace);
    if (!v->accepted) return;
    v->score = score_of(q, k);
    v->tuned = q->tuned[0] && attn_core_is_named(q->tuned, k->name);
    double seconds = k->estimate ? k->estimate(k, q->device, q->problem, &q->amount) : (double)INFINITY;
    if (seconds >= 0) v->seconds = seconds; /* a NaN must not win or block comparisons */
}

/* Is a better than b? Ties keep the order of the tables. */
static bool better(const struct attn_kernel *a, const struct verdict *va, const struct attn_kernel *b,
                   const struct verdict *vb) {
    if (!b) return true;
    if (va->score != vb->score) return va->score > vb->score;
    if (va->tuned != vb->tuned) return va->tuned;
    bool ref_a = a->backend == ATTN_BACKEND_REF, ref_b = b->backend == ATTN_BACKEND_REF;
    if (ref_a != ref_b) return ref_b;
    return va->seconds < vb->seconds;
}

/* The best kernel that accepts; with `alignment` not 0 only among those that need no more than that, and take any
 * strides. */
static const struct attn_kernel *best_row(const struct request *q, uint32_t alignment, struct verdict *best,
                                          int32_t *n_accepted) {
    const struct attn_kernel *found = NULL, *k;
    int32_t cursor[3] = {0, 0, 0};
    *n_accepted = 0;
    while ((k = next_row(q->ctx, q->problem->op, cursor)) != NULL) {
        struct verdict v;
        if (alignment && (k->alignment_bytes > alignment || k->refuses_strides)) continue;
        judge(q, k, &v, NULL);
        if (!v.accepted) continue;
        ++*n_accepted;
        if (better(k, &v, found, best)) {
            found = k;
            *best = v;
        }
    }
    return found;
}

static void find_tuned(struct request *q) {
    const struct attn_core_tuning *table = q->ctx->tuning;
    const struct attn_core_device *d = q->device;
    pthread_mutex_lock(&q->ctx->lock);
    const char *name = table ? attn_core_tuning_find(table, q->problem, d->name, d->threads) : NULL;
    if (name && strlen(name) < sizeof q->tuned) {
        memcpy(q->tuned, name, strlen(name) + 1);
        q->tuned_seconds = attn_core_tuning_seconds(table, q->problem, d->name, d->threads);
    }
    pthread_mutex_unlock(&q->ctx->lock);
}

static attn_status make_request(struct request *q, attn_ctx *ctx, const struct attn_core_device *device,
                                const attn_problem *problem, const attn_plan_options *options) {
    static const attn_plan_options defaults = {.size = sizeof defaults};
    const attn_plan_options *o = options ? options : &defaults;
    uint32_t known = ATTN_PLAN_STRICT | ATTN_PLAN_WORKSPACE_LIMIT | ATTN_PLAN_NO_TUNING | ATTN_PLAN_QUERIES_APART;
    if (o->flags & ~known) FAIL(ATTN_E_ENUM, "flags", "options.flags has unknown bits %#" PRIx32, o->flags & ~known);
    if (o->backend < 0 || o->backend >= ATTN_BACKEND_COUNT_)
        FAIL2(ATTN_E_ENUM, "backend", ATTN_BACKEND_COUNT_ - 1, o->backend,
              "options.backend is %" PRId32 ", expected ATTN_BACKEND_ANY (0) to _CUDA (3)", o->backend);
    if (o->effort < 0 || o->effort >= ATTN_EFFORT_COUNT_)
        FAIL2(ATTN_E_ENUM, "effort", ATTN_EFFORT_COUNT_ - 1, o->effort,
              "options.effort is %" PRId32 ", expected ATTN_EFFORT_ESTIMATE (0) or _MEASURE (1)", o->effort);
    *q = (struct request){.ctx = ctx,
                          .device = device,
                          .problem = problem,
                          .kernel = o->kernel && o->kernel[0] ? o->kernel : NULL,
                          .backend = o->backend,
                          .strict = (o->flags & ATTN_PLAN_STRICT) != 0,
                          .limited = (o->flags & ATTN_PLAN_WORKSPACE_LIMIT) != 0,
                          .apart = (o->flags & ATTN_PLAN_QUERIES_APART) != 0,
                          .limit = o->max_workspace_bytes,
                          .amount = {attn_core_flops(problem), attn_core_bytes(problem)}};
    if (q->kernel == ctx->env_kernel) q->kernel = NULL; /* handed on by the API: still only a hint */
    if (!q->kernel && ctx->env_kernel[0]) q->env_kernel = ctx->env_kernel;
    if (!q->backend) q->env_backend = ctx->env_backend;
    if (!(o->flags & ATTN_PLAN_NO_TUNING)) find_tuned(q);
    return ATTN_OK;
}

/* ---- words ---- */

static void add_seconds(struct attn_text *text, double seconds) {
    if (!isfinite(seconds))
        attn_text_add(text, "unknown");
    else if (seconds < 1e-3)
        attn_text_add(text, "%.3g us", seconds * 1e6);
    else if (seconds < 1)
        attn_text_add(text, "%.3g ms", seconds * 1e3);
    else
        attn_text_add(text, "%.3g s", seconds);
}

static void add_problem(struct attn_text *text, const attn_problem *p) {
    char buf[1024];
    attn_problem_format(p, buf, sizeof buf, NULL);
    attn_text_add(text, "%s", buf);
}

static void add_device(struct attn_text *text, const struct attn_core_device *device) {
    if (device->id.type == ATTN_DEVICE_TYPE_CPU)
        attn_text_add(text, "cpu");
    else
        attn_text_add(text, "cuda:%" PRId32, device->id.index);
    attn_text_add(text, " %s", device->name);
}

/* The preferences that `score` leaves unmet, in words; "" if none. */
static void add_unmet(struct attn_text *text, const struct request *q, int score) {
    int unmet = wanted_score(q) & ~score;
    const char *sep = "";
    if (unmet & PREFERS_KERNEL) attn_text_add(text, "kernel '%.100s'", q->kernel), sep = " and ";
    if (unmet & ENV_KERNEL) attn_text_add(text, "kernel '%.100s' (ATTN_KERNEL)", q->env_kernel), sep = " and ";
    if (unmet & PREFERS_BACKEND) attn_text_add(text, "%sbackend %s", sep, backend_name(q->backend));
    if (unmet & ENV_BACKEND) attn_text_add(text, "%sbackend %s (ATTN_BACKEND)", sep, backend_name(q->env_backend));
}

/* Kernels side by side in the tables that give the same verdict in the same words: one line of an error text, whose
 * room is bounded. Only refusals are taken together, and only three or more. attn_explain has a line for each. */
struct line {
    const struct attn_kernel *first, *last;
    int32_t n;
    struct verdict v;
    struct words words;
};
enum { ALONE = 2 };

/* "first" or "first .. rest of last": names are of one grammar, so the words that both begin with are left out. */
static void add_label(struct attn_text *text, const struct line *line) {
    const char *first = line->first->name, *last = line->last->name;
    size_t common = 0;
    attn_text_add(text, "%s", first);
    if (line->n <= ALONE) return;
    for (size_t i = 0; first[i] && first[i] == last[i]; i++)
        if (first[i] == '_') common = i + 1;
    attn_text_add(text, " .. %s", last + common);
}

/* The line that starts at kernel `k`; *next is the kernel after it. */
static void take_line(const struct request *q, const struct attn_kernel *k, bool together, int32_t cursor[3],
                      struct line *line, const struct attn_kernel **next) {
    struct verdict v;
    struct words words;
    *line = (struct line){.first = k, .last = k, .n = 1};
    judge(q, k, &line->v, &line->words);
    int32_t ahead[3] = {cursor[0], cursor[1], cursor[2]}, second[3];
    const struct attn_kernel *after_first = *next = next_row(q->ctx, q->problem->op, ahead);
    memcpy(second, ahead, sizeof second);
    while (together && !line->v.accepted && *next) {
        judge(q, *next, &v, &words);
        if (v.accepted || strcmp(words.why, line->words.why) != 0) break;
        line->last = *next;
        line->n++;
        *next = next_row(q->ctx, q->problem->op, ahead);
    }
    if (line->n <= ALONE) {
        line->last = k;
        line->n = 1;
        *next = after_first;
        memcpy(ahead, second, sizeof ahead);
    }
    memcpy(cursor, ahead, sizeof ahead);
}

static void add_rows(struct attn_text *text, const struct request *q, const struct attn_kernel *chosen, bool together) {
    char label[256];
    size_t width = 0;
    for (int pass = 0; pass < 2; pass++) { /* the first finds the width */
        int32_t cursor[3] = {0, 0, 0};
        const struct attn_kernel *k = next_row(q->ctx, q->problem->op, cursor);
        while (k) {
            struct line line;
            const struct attn_kernel *first = k;
            take_line(q, first, together, cursor, &line, &k);
            struct attn_text l = attn_text_over(label, sizeof label);
            add_label(&l, &line);
            if (pass == 0) {
                width = l.len > width ? l.len : width;
                continue;
            }
            attn_text_add(text, "%c %-*s  ", first == chosen ? '>' : ' ', (int)width, label);
            if (line.v.accepted) {
                attn_text_add(text, "accepted  est ");
                add_seconds(text, line.v.seconds);
                attn_text_add(text, ", workspace %" PRIu64 " bytes\n", line.v.workspace);
            } else if (line.n > 1) {
                attn_text_add(text, "no  %s (%" PRId32 " kernels)\n", line.words.why, line.n);
            } else {
                attn_text_add(text, "no  %s\n", line.words.why);
            }
        }
    }
}

static void add_choice(struct attn_text *text, const struct request *q, const struct attn_plan *plan,
                       const struct verdict *best, int32_t n_accepted) {
    char unmet[320];
    struct attn_text u = attn_text_over(unmet, sizeof unmet);
    add_unmet(&u, q, best->score);
    if (u.len)
        attn_text_add(text, "preferred %s: no kernel that accepts the problem meets it, chosen without\n", unmet);
    if (plan->unaligned)
        attn_text_add(text, "tensors that are not aligned to %" PRIu32 " bytes%s: %s\n", plan->kernel->alignment_bytes,
                      plan->kernel->refuses_strides ? ", or with strides that it cannot take" : "",
                      plan->unaligned->name);
    if (plan->kernel->joins)
        attn_text_add(text,
                      "joins the lists of %" PRId64 " neighbouring queries%s: a row's last bits depend on its "
                      "neighbours' (ATTN_PLAN_QUERIES_APART: not)\n",
                      attn_core_plan_group(plan), plan->problem.group ? ", which are given" : ", at each execution");
    const char *reason = "smallest estimate of those that accept";
    if (best->tuned)
        reason = "fastest when measured";
    else if (best->score)
        reason = "the preference";
    else if (n_accepted == 1)
        reason = "the only one that accepts";
    attn_text_add(text, "workspace %" PRIu64 " bytes, chosen as %s\n", plan->workspace_bytes, reason);
}

static attn_status fail_no_kernel(const struct request *q) {
    char list[7168], problem[1024], device[160], strict[320];
    struct attn_text text = attn_text_over(list, sizeof list), p = attn_text_over(problem, sizeof problem);
    struct attn_text d = attn_text_over(device, sizeof device), s = attn_text_over(strict, sizeof strict);
    add_rows(&text, q, NULL, true);
    add_problem(&p, q->problem);
    add_device(&d, q->device);
    if (q->strict) add_unmet(&s, q, ENV_KERNEL | ENV_BACKEND);
    if (list[0] && text.len < sizeof list) list[text.len - 1] = 0; /* the last newline */
    FAIL(ATTN_E_NO_KERNEL, s.len ? q->kernel ? "kernel" : "backend" : "problem", "no kernel for %s on %s%s%s:\n%s",
         problem, device, s.len ? ", strictly preferred: " : "", strict,
         text.len ? list : "  this build has none for the operator");
}

static void warn_unmet(const struct request *q, const struct attn_kernel *chosen, int score) {
    char problem[1024], unmet[320];
    struct attn_text p = attn_text_over(problem, sizeof problem), u = attn_text_over(unmet, sizeof unmet);
    if (q->ctx->log.level < ATTN_LOG_WARN) return;
    add_unmet(&u, q, score);
    if (!u.len) return;
    add_problem(&p, q->problem);
    attn_base_log(&q->ctx->log, ATTN_LOG_WARN, "plan", "preferred %s cannot be met for %s: %s instead", unmet, problem,
                  chosen->name);
}

attn_status attn_core_plan_choose(attn_ctx *ctx, struct attn_core_device *device, const attn_problem *normalised,
                                  const attn_plan_options *options, struct attn_plan *out, struct attn_text *why) {
    struct request q;
    TRY(make_request(&q, ctx, device, normalised, options));
    struct verdict best = {0};
    int32_t n_accepted;
    const struct attn_kernel *chosen = best_row(&q, 0, &best, &n_accepted);
    out->device = device;
    if (&out->problem != normalised) out->problem = *normalised;
    if (why) {
        attn_text_add(why, "attn plan  ");
        add_problem(why, normalised);
        attn_text_add(why, "   device ");
        add_device(why, device);
        attn_text_add(why, "\n");
        add_rows(why, &q, chosen, false);
    }
    if (!chosen) {
        if (why) attn_text_add(why, "no kernel accepts the problem\n");
        return fail_no_kernel(&q);
    }
    out->kernel = chosen;
    out->unaligned = NULL;
    out->workspace_bytes = best.workspace;
    out->estimate_seconds = best.tuned ? q.tuned_seconds : best.seconds;
    out->tuned = best.tuned;
    uint32_t element = (uint32_t)attn_dtype_bytes(normalised->dtype);
    uint32_t promised = normalised->align_bytes > element ? normalised->align_bytes : element;
    if (chosen->alignment_bytes > promised || chosen->refuses_strides) {
        struct verdict second = {0};
        int32_t n;
        out->unaligned = best_row(&q, promised, &second, &n);
        if (out->unaligned && second.workspace > out->workspace_bytes) out->workspace_bytes = second.workspace;
    }
    if (why) add_choice(why, &q, out, &best, n_accepted);
    warn_unmet(&q, chosen, best.score);
    return ATTN_OK;
}

int attn_core_kernel_accepts(attn_ctx *ctx, const struct attn_core_device *device, const struct attn_kernel *kernel,
                             const attn_problem *normalised, struct attn_text *why) {
    const struct request q = {.ctx = ctx, .device = device, .problem = normalised};
    uint64_t workspace;
    return accepts(&q, kernel, why, &workspace);
}
