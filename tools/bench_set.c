/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

enum { MAX_WORKS = 64 };

static struct bench works[MAX_WORKS];
static int works_count;

static struct work attention(int64_t heads, int64_t rows, int64_t cols, int64_t dim)
{
    struct work w = work_default(SKL_ATTENTION);
    w.heads = w.kv_heads_s = w.kv_heads_t = heads;
    w.rows = rows, w.cols = cols;
    w.dim_s = w.dim_t = dim;
    return w;
}

static struct work linear(int64_t rows, int64_t vocabulary, int64_t dim_s, int64_t dim_t, int dtype)
{
    struct work w = work_default(SKL_LINEAR);
    w.rows = rows, w.cols = vocabulary;
    w.dim_s = dim_s, w.dim_t = dim_t;
    w.dtype_s = w.dtype_t = dtype;
    return w;
}

static void add(struct work work, enum pass pass)
{
    if (works_count < MAX_WORKS)
        works[works_count++] = (struct bench){work, pass};
}

static void add_attention(void)
{
    for (int64_t dim = 128; dim >= 64; dim /= 2)
        for (int pass = PASS_VALUE; pass <= PASS_BACKWARD; pass++) add(attention(4, 4096, 4096, dim), (enum pass)pass);
    struct work w = attention(4, 4096, 4096, 128);
    for (w.dtype_s = w.dtype_t = SKL_BF16; w.dtype_s <= SKL_F16; w.dtype_t = ++w.dtype_s) {
        add(w, PASS_VALUE);
        add(w, PASS_VALUE_AND_GRAD);
    }
    w = attention(4, 4096, 4096, 128);
    w.causal = 1;
    add(w, PASS_VALUE);
    add(w, PASS_VALUE_AND_GRAD);
    w.causal = 0;
    for (w.divergence = SKL_REVERSE_KL; w.divergence <= SKL_JSD; w.divergence++) {
        add(w, PASS_VALUE);
        add(w, PASS_VALUE_AND_GRAD);
    }
    w = attention(4, 4096, 4096, 128);
    w.threads = 1;
    add(w, PASS_VALUE);
    add(attention(1, 8192, 8192, 128), PASS_VALUE);
}

static void add_few_rows(void)
{
    add(attention(4, 1, 131072, 128), PASS_VALUE);
    add(attention(4, 16, 131072, 128), PASS_VALUE);
    add(attention(1, 128, 128, 64), PASS_VALUE);
}

/* Enough to fill a GPU; 16-bit operands, which its tensor cores take, and f32 once. */
static void add_for_device(int full)
{
    for (int64_t dim = 128; dim >= 64; dim /= 2) {
        struct work w = attention(32, 4096, 4096, dim);
        w.dtype_s = w.dtype_t = SKL_BF16;
        for (int pass = PASS_VALUE; pass <= PASS_BACKWARD; pass++) add(w, (enum pass)pass);
    }
    struct work w = attention(32, 4096, 4096, 128);
    w.dtype_s = w.dtype_t = SKL_F16;
    add(w, PASS_VALUE), add(w, PASS_VALUE_AND_GRAD);
    w.dtype_s = w.dtype_t = SKL_BF16;
    for (w.divergence = SKL_REVERSE_KL; w.divergence <= SKL_JSD; w.divergence++)
        add(w, PASS_VALUE), add(w, PASS_VALUE_AND_GRAD);
    w.divergence = SKL_FORWARD_KL, w.causal = 1;
    add(w, PASS_VALUE), add(w, PASS_VALUE_AND_GRAD);
    w.causal = 0, w.heads = 8, w.dtype_s = w.dtype_t = SKL_F32;
    w.kv_heads_s = w.kv_heads_t = 8;
    add(w, PASS_VALUE), add(w, PASS_VALUE_AND_GRAD);
    w = attention(8, 16, 131072, 128);
    w.dtype_s = w.dtype_t = SKL_BF16;
    add(w, PASS_VALUE);
    add(linear(4096, 32000, 4096, 4096, SKL_BF16), PASS_VALUE);
    add(linear(4096, 32000, 4096, 4096, SKL_BF16), PASS_VALUE_AND_GRAD);
    if (full) {
        add(linear(8192, 152064, 3584, 5120, SKL_BF16), PASS_VALUE);
        add(linear(8192, 152064, 3584, 5120, SKL_BF16), PASS_VALUE_AND_GRAD);
    }
}

const struct bench *bench_set(int full, int device, int *count)
{
    works_count = 0;
    if (device == SKL_CUDA) {
        add_for_device(full);
        *count = works_count;
        return works;
    }
    add_attention();
    /* Long context: the default takes the last block of its rows. */
    struct work w = attention(1, full ? 65536 : 1024, 65536, 128);
    w.causal = 1;
    add(w, PASS_VALUE);
    add_few_rows();
    int64_t tokens = full ? 1024 : 256;
    for (int dtype = SKL_F32; dtype <= SKL_BF16; dtype++) {
        add(linear(tokens, 32000, 2048, 2048, dtype), PASS_VALUE);
        add(linear(tokens, 32000, 2048, 2048, dtype), PASS_VALUE_AND_GRAD);
    }
    if (full) {
        add(linear(512, 152064, 3584, 5120, SKL_BF16), PASS_VALUE);
        add(linear(512, 152064, 3584, 5120, SKL_BF16), PASS_VALUE_AND_GRAD);
    }
    *count = works_count;
    return works;
}
