/* SPDX-License-Identifier: MIT
 * The demo's file: attention tensors of a language model run on a text, with the tokens (examples/README.md). */
#ifndef ATTN_CLI_DEMO_MODEL_H
#define ATTN_CLI_DEMO_MODEL_H
#include "io/io.h"

enum { ATTN_CLI_DEMO_LAYERS = 64 };

struct attn_cli_demo_layer {
    const struct attn_cli_array *q, *k, *v, *out; /* f32 [heads, tokens, width]; out is what the model computed */
};
struct attn_cli_demo_model {
    struct attn_cli_archive archive;
    int64_t layers, heads, tokens, width;
    struct attn_cli_demo_layer layer[ATTN_CLI_DEMO_LAYERS];
    char **labels; /* one token text per position */
    char *name, *text;
};
/* 0, or -1 with the reason. The file is refused unless every layer has q, k, v, out of one shape. */
int attn_cli_demo_model_read(const char *path, struct attn_cli_demo_model *out, struct attn_cli_fault *fault);
void attn_cli_demo_model_free(struct attn_cli_demo_model *model);
#endif
