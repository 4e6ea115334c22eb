/* SPDX-License-Identifier: MIT
 * What the programs share: a call that must not fail, a value that must be right. */
#pragma once
#include <cstdio>
#include <cstdlib>

#define CALL(call)                                                                                                     \
    do {                                                                                                               \
        const cudaError_t error_ = (call);                                                                             \
        if (error_ != cudaSuccess) {                                                                                   \
            std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_));                     \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (0)
#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            std::printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                                        \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (0)
