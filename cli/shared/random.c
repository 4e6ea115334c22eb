/* SPDX-License-Identifier: MIT
 * Random numbers that are the same on every machine (normal ones but for the last bit of its log): xoshiro256++
 * (Blackman and Vigna 2019), seeded by splitmix64. */
#include "shared/cli.h"

#include <math.h>

static uint64_t rotate(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

void attn_cli_rng_seed(struct attn_cli_rng *rng, uint64_t seed) {
    for (int i = 0; i < 4; i++) {
        uint64_t z = seed += UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        rng->s[i] = z ^ (z >> 31);
    }
}

uint64_t attn_cli_rng_u64(struct attn_cli_rng *rng) {
    uint64_t *s = rng->s, result = rotate(s[0] + s[3], 23) + s[0], t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

double attn_cli_rng_uniform(struct attn_cli_rng *rng) { return (double)(attn_cli_rng_u64(rng) >> 11) * 0x1p-53; }

int64_t attn_cli_rng_below(struct attn_cli_rng *rng, int64_t n) {
    if (n < 1) return 0;
    /* Values from the incomplete last round of n are drawn again. */
    uint64_t range = (uint64_t)n, first = (UINT64_MAX - range + 1) % range, x;
    do x = attn_cli_rng_u64(rng);
    while (x < first);
    return (int64_t)(x % range);
}

double attn_cli_rng_normal(struct attn_cli_rng *rng) {
    /* Marsaglia's polar method without keeping the second number, so that the state is the four words alone. */
    double u, v, s;
    do {
        u = 2 * attn_cli_rng_uniform(rng) - 1;
        v = 2 * attn_cli_rng_uniform(rng) - 1;
        s = u * u + v * v;
    } while (s >= 1 || s == 0);
    return u * sqrt(-2 * log(s) / s);
}
