/* SPDX-License-Identifier: MIT
 * Counts as text: tables whose rows are those of counts.h, and JSON with the same names. What is zero everywhere is
 * left out of tables, not of JSON. */
#include "counts/counts.h"

#include <inttypes.h>
#include <string.h>

static const char *const kinds[SIM_PRODUCT_KINDS] = {"wgmma", "tcgen05.mma", "tcgen05.mma.ws", "mma.sync"};
static const char *place_of_a(char a) {
    return a == 'S' ? "shared" : a == 'T' ? "tensor" : a == 'R' ? "registers" : "kept";
}
static const struct sim_rates *rates_of(const struct sim_counted *c) {
    return c->profile ? sim_rates_of(c->profile->word) : NULL;
}

/* ---- for people ---- */

/* "12,345,678" */
static const char *grouped(double x, char text[32]) {
    char plain[32];
    int n = snprintf(plain, sizeof plain, "%.0f", x), k = 0;
    for (int i = 0; i < n && k < 30; i++) {
        if (i && (n - i) % 3 == 0) text[k++] = ',';
        text[k++] = plain[i];
    }
    text[k] = 0;
    return text;
}

/* A CTA's share. Of several launches there is none: their CTAs do different things. */
static const char *share(const struct sim_counted *c, double x, char text[32]) {
    text[0] = 0;
    if (c->kernel) snprintf(text, 32, "%.1f", x / (double)c->n_ctas);
    return text;
}

static void table_of_counts(const struct sim_counted *c, FILE *out) {
    char text[32], part[32], number[40];
    fprintf(out, "  %-18s %5s %18s %16s", "counted", "", c->kernel ? "the launch" : "all launches",
            c->kernel ? "a CTA" : "");
    if (c->n_roles > 1)
        for (uint32_t r = 0; r < c->n_roles; r++) {
            snprintf(number, sizeof number, "role %u", r);
            fprintf(out, " %13s", number);
        }
    fputc('\n', out);
    for (int i = 0; i < SIM_N_COUNTS; i++) {
        const uint64_t v = c->counts.v[i];
        if (!v) continue;
        fprintf(out, "  %-18s %5s %18s", sim_count_rows[i].name, sim_count_rows[i].unit, grouped((double)v, text));
        fprintf(out, " %16s", share(c, (double)v, part));
        for (uint32_t r = 0; r < c->n_roles && c->n_roles > 1; r++)
            fprintf(out, " %13.1f", (double)c->roles[r].counts.v[i] / (double)c->n_ctas);
        fputc('\n', out);
    }
}
static void table_of_waits(const struct sim_counted *c, FILE *out) {
    for (uint32_t r = 0; r < c->n_roles; r++)
        for (int i = 0; i < SIM_ROLE_WAITS && c->roles[r].waits[i].clocks > 0; i++)
            fprintf(out, "  role %u, a warp waited %.0f clocks in a CTA at %s\n", r,
                    c->roles[r].waits[i].clocks * c->cluster / (double)(c->roles[r].n * c->n_ctas),
                    c->roles[r].waits[i].place);
}
static void table_of_products(const struct sim_counted *c, FILE *out) {
    char text[32], part[32], number[32];
    if (c->counts.n_products)
        fprintf(out, "  %-14s %-20s %15s %9s %9s %18s %16s\n", "products", "types", "M x N x K", "CTAs", "A", "number",
                c->kernel ? "a CTA" : "");
    for (uint32_t i = 0; i < c->counts.n_products; i++) {
        const struct sim_product *p = &c->counts.products[i];
        const double n = (double)p->parts / sim_product_parts(p);
        snprintf(number, sizeof number, "%u x %u x %u", p->m, p->n, p->k);
        fprintf(out, "  %-14s %-20s %15s %9u %9s %18s %16s\n", kinds[p->kind], p->types, number, p->ctas,
                place_of_a(p->a), grouped(n, text), share(c, n, part));
    }
}
static void table_of_clocks(const struct sim_counted *c, FILE *out) {
    const struct sim_rates *r = rates_of(c);
    double clocks[SIM_N_UNITS];
    char text[32], part[32];
    if (!r) {
        fprintf(out, "  no rates are known of %s\n", c->profile ? c->profile->word : "this device");
        return;
    }
    const enum sim_unit_number largest = sim_clocks(r, &c->counts, clocks);
    fprintf(out, "  %-18s %24s %16s %9s\n", "unit", "clocks x multiprocessors", c->kernel ? "a CTA" : "", "share");
    for (int i = 0; i < SIM_N_UNITS; i++)
        if (clocks[i] > 0)
            fprintf(out, "  %-18s %24s %16s %8.0f%%  %s\n", sim_units[i].name, grouped(clocks[i], text),
                    share(c, clocks[i], part), 100 * clocks[i] / clocks[largest], sim_units[i].words);
    fprintf(out, "  largest: %s, %.4g us if %d multiprocessors at %.3f GHz did nothing else and shared it evenly\n",
            sim_units[largest].name, clocks[largest] / c->profile->n_sms / r->ghz * 1e-3, c->profile->n_sms, r->ghz);
}

void sim_count_table(const struct sim_counted *c, FILE *out) {
    if (c->kernel)
        fprintf(out, "%s: grid %ux%ux%u of %u threads, clusters of %u, as %s; counted, not timed%s\n", c->kernel,
                c->grid[0], c->grid[1], c->grid[2], c->n_threads, c->cluster, c->profile ? c->profile->word : "?",
                c->failed ? "; it ended early" : "");
    else
        fprintf(out, "sum of %" PRIu64 " launches; counted, not timed\n", c->n_launches);
    for (uint32_t r = 0; r < c->n_roles && c->n_roles > 1; r++) fprintf(out, "  role %u: %s\n", r, c->roles[r].name);
    table_of_counts(c, out);
    table_of_waits(c, out);
    table_of_products(c, out);
    table_of_clocks(c, out);
}

/* ---- JSON ---- */

static void json_counts(const struct sim_counts *c, FILE *out) {
    fputs("\"counts\":{", out);
    for (int i = 0; i < SIM_N_COUNTS; i++)
        fprintf(out, "%s\"%s\":%" PRIu64, i ? "," : "", sim_count_rows[i].name, c->v[i]);
    fputs("},\"products\":[", out);
    for (uint32_t i = 0; i < c->n_products; i++) {
        const struct sim_product *p = &c->products[i];
        fprintf(
            out,
            "%s{\"kind\":\"%s\",\"types\":\"%s\",\"m\":%u,\"n\":%u,\"k\":%u,\"ctas\":%u,\"a\":\"%s\",\"number\":%.15g}",
            i ? "," : "", kinds[p->kind], p->types, p->m, p->n, p->k, p->ctas, place_of_a(p->a),
            (double)p->parts / sim_product_parts(p));
    }
    fputc(']', out);
}
static void json_clocks(const struct sim_counted *c, FILE *out) {
    const struct sim_rates *r = rates_of(c);
    double clocks[SIM_N_UNITS];
    if (!r) {
        fputs(",\"clocks\":null,\"largest\":null", out);
        return;
    }
    const enum sim_unit_number largest = sim_clocks(r, &c->counts, clocks);
    fputs(",\"clocks\":{", out);
    for (int i = 0; i < SIM_N_UNITS; i++) fprintf(out, "%s\"%s\":%.10g", i ? "," : "", sim_units[i].name, clocks[i]);
    fprintf(out, "},\"largest\":\"%s\"", sim_units[largest].name);
}
void sim_count_json(const struct sim_counted *c, FILE *out) {
    if (c->kernel)
        fprintf(out, "{\"kernel\":\"%s\",\"number\":%" PRIu64 ",\"grid\":[%u,%u,%u],\"threads\":%u,\"cluster\":%u,",
                c->kernel, c->number, c->grid[0], c->grid[1], c->grid[2], c->n_threads, c->cluster);
    else
        fprintf(out, "{\"launches\":%" PRIu64 ",", c->n_launches);
    fprintf(out, "\"gpu\":\"%s\",\"ctas\":%" PRIu64 ",\"complete\":%s,", c->profile ? c->profile->word : "", c->n_ctas,
            c->failed ? "false" : "true");
    json_counts(&c->counts, out);
    json_clocks(c, out);
    if (c->kernel) fputs(",\"roles\":[", out);
    for (uint32_t i = 0; i < c->n_roles; i++) {
        fprintf(out, "%s{\"role\":\"%s\",\"warps\":%u,", i ? "," : "", c->roles[i].name, c->roles[i].n);
        json_counts(&c->roles[i].counts, out);
        fputs(",\"waits\":[", out);
        for (int k = 0; k < SIM_ROLE_WAITS && c->roles[i].waits[k].clocks > 0; k++)
            fprintf(out, "%s{\"place\":\"%s\",\"clocks\":%.0f}", k ? "," : "", c->roles[i].waits[k].place,
                    c->roles[i].waits[k].clocks);
        fputs("]}", out);
    }
    fputs(c->kernel ? "]}" : "}", out);
}
