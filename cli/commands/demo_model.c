/* SPDX-License-Identifier: MIT
 * Reads the demo's safetensors file and its metadata (model name, text, tokens). */
#include "commands/demo_model.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *copy_text(const char *s) {
    char *copy = malloc(strlen(s) + 1);
    return copy ? strcpy(copy, s) : NULL;
}

/* Token labels from the metadata entry "tokens", a JSON list in a string. */
static int read_labels(struct attn_cli_demo_model *m, json_t *meta, struct attn_cli_fault *fault) {
    const char *tokens = json_string_value(json_object_get(meta, "tokens"));
    json_t *list = tokens ? json_loads(tokens, 0, NULL) : NULL;
    m->labels = calloc((size_t)m->tokens + 1, sizeof *m->labels);
    int bad = !list || !m->labels || (int64_t)json_array_size(list) != m->tokens;
    for (int64_t i = 0; !bad && i < m->tokens; i++) {
        const char *label = json_string_value(json_array_get(list, (size_t)i));
        m->labels[i] = label ? copy_text(label) : NULL;
        bad = !m->labels[i];
    }
    json_decref(list);
    if (bad) attn_cli_fault_set(fault, "metadata 'tokens' is not a list of %lld texts", (long long)m->tokens);
    return bad ? -1 : 0;
}

static int read_metadata(struct attn_cli_demo_model *m, const char *path, struct attn_cli_fault *fault) {
    void *file;
    size_t bytes;
    if (attn_cli_file_read(path, 0, &file, &bytes, fault)) return -1;
    uint64_t header = 0;
    memcpy(&header, file, bytes < 8 ? bytes : 8);
    if (bytes < 8 || header > bytes - 8) header = 0; /* changed since it was parsed */
    json_t *root = json_loadb((char *)file + 8, (size_t)header, 0, NULL);
    json_t *meta = json_object_get(root, "__metadata__");
    const char *name = json_string_value(json_object_get(meta, "model")),
               *text = json_string_value(json_object_get(meta, "text"));
    m->name = copy_text(name ? name : "unnamed model");
    m->text = copy_text(text ? text : "");
    int status = m->name && m->text ? read_labels(m, meta, fault) : -1;
    json_decref(root);
    free(file);
    return status;
}

static const struct attn_cli_array *find(const struct attn_cli_demo_model *m, int64_t layer, const char *part) {
    char name[32];
    snprintf(name, sizeof name, "layer%lld.%s", (long long)layer, part);
    return attn_cli_archive_find(&m->archive, name);
}

static int fits(const struct attn_cli_demo_model *m, const struct attn_cli_array *a) {
    return a && a->dtype == ATTN_F32 && a->rank == 3 && a->shape[0] == m->heads && a->shape[1] == m->tokens &&
           a->shape[2] == m->width;
}

int attn_cli_demo_model_read(const char *path, struct attn_cli_demo_model *m, struct attn_cli_fault *fault) {
    memset(m, 0, sizeof *m);
    if (attn_cli_safetensors_read(path, &m->archive, fault)) return -1;
    const struct attn_cli_array *first = find(m, 0, "q");
    if (!first || first->rank != 3) {
        attn_cli_fault_set(fault, "%s has no tensor layer0.q of rank 3", path);
        goto bad;
    }
    m->heads = first->shape[0];
    m->tokens = first->shape[1];
    m->width = first->shape[2];
    for (; m->layers < ATTN_CLI_DEMO_LAYERS && find(m, m->layers, "q"); m->layers++) {
        struct attn_cli_demo_layer *l = &m->layer[m->layers];
        *l = (struct attn_cli_demo_layer){find(m, m->layers, "q"), find(m, m->layers, "k"), find(m, m->layers, "v"),
                                          find(m, m->layers, "out")};
        if (!fits(m, l->q) || !fits(m, l->k) || !fits(m, l->v) || !fits(m, l->out)) {
            attn_cli_fault_set(fault, "%s: layer %lld lacks q, k, v or out of shape [%lld, %lld, %lld] in f32", path,
                               (long long)m->layers, (long long)m->heads, (long long)m->tokens, (long long)m->width);
            goto bad;
        }
    }
    if (!read_metadata(m, path, fault)) return 0;
bad:
    attn_cli_demo_model_free(m);
    return -1;
}

void attn_cli_demo_model_free(struct attn_cli_demo_model *m) {
    attn_cli_archive_free(&m->archive);
    for (int64_t i = 0; m->labels && i < m->tokens; i++) free(m->labels[i]);
    free(m->labels);
    free(m->name);
    free(m->text);
    memset(m, 0, sizeof *m);
}
