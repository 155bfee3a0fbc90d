/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

enum { MOST = 64 };

static struct bench set[MOST];
static int count_of_set;

static struct kit_case attention(int64_t heads, int64_t rows, int64_t cols, int64_t dim)
{
    struct kit_case c = usual_case(SKL_ATTENTION, rows, cols, dim);
    c.heads = c.key_heads[S] = c.key_heads[T] = heads;
    return c;
}

static struct kit_case linear(int64_t rows, int64_t vocabulary, int64_t dim_s, int64_t dim_t, int dtype)
{
    struct kit_case c = usual_case(SKL_LINEAR, rows, vocabulary, dim_s);
    c.dim[T] = dim_t, c.key_heads[S] = c.key_heads[T] = 1;
    c.dtype[S] = c.dtype[T] = dtype;
    return c;
}

static void add(struct kit_case c, enum skl_call call)
{
    if (count_of_set < MOST)
        set[count_of_set++] = (struct bench){.c = c, .call = call};
}

static void add_attention(void)
{
    for (int64_t dim = 128; dim >= 64; dim /= 2)
        for (int call = SKL_CALL_VALUE; call <= SKL_CALL_BACKWARD; call++)
            add(attention(4, 4096, 4096, dim), (enum skl_call)call);
    struct kit_case c = attention(4, 4096, 4096, 128);
    for (c.dtype[S] = c.dtype[T] = SKL_BF16; c.dtype[S] <= SKL_F16; c.dtype[T] = ++c.dtype[S]) {
        add(c, SKL_CALL_VALUE);
        add(c, SKL_CALL_VALUE_AND_GRAD);
    }
    c = attention(4, 4096, 4096, 128);
    c.causal = 1;
    add(c, SKL_CALL_VALUE);
    add(c, SKL_CALL_VALUE_AND_GRAD);
    c.causal = 0;
    for (c.divergence = SKL_REVERSE_KL; c.divergence <= SKL_JSD; c.divergence++) {
        add(c, SKL_CALL_VALUE);
        add(c, SKL_CALL_VALUE_AND_GRAD);
    }
    c = attention(4, 4096, 4096, 128);
    c.threads = 1;
    add(c, SKL_CALL_VALUE);
    add(attention(1, 8192, 8192, 128), SKL_CALL_VALUE);
}

static void add_few_rows(void)
{
    add(attention(4, 1, 131072, 128), SKL_CALL_VALUE);
    add(attention(4, 16, 131072, 128), SKL_CALL_VALUE);
    add(attention(1, 128, 128, 64), SKL_CALL_VALUE);
}

/* Enough to fill a GPU; 16-bit operands, which its tensor cores take, and f32 once. */
static void add_for_device(int full)
{
    for (int64_t dim = 128; dim >= 64; dim /= 2) {
        struct kit_case c = attention(32, 4096, 4096, dim);
        c.dtype[S] = c.dtype[T] = SKL_BF16;
        for (int call = SKL_CALL_VALUE; call <= SKL_CALL_BACKWARD; call++) add(c, (enum skl_call)call);
    }
    struct kit_case c = attention(32, 4096, 4096, 128);
    c.dtype[S] = c.dtype[T] = SKL_F16;
    add(c, SKL_CALL_VALUE), add(c, SKL_CALL_VALUE_AND_GRAD);
    c.dtype[S] = c.dtype[T] = SKL_BF16;
    for (c.divergence = SKL_REVERSE_KL; c.divergence <= SKL_JSD; c.divergence++)
        add(c, SKL_CALL_VALUE), add(c, SKL_CALL_VALUE_AND_GRAD);
    c.divergence = SKL_FORWARD_KL, c.causal = 1;
    add(c, SKL_CALL_VALUE), add(c, SKL_CALL_VALUE_AND_GRAD);
    c.causal = 0, c.heads = 8, c.dtype[S] = c.dtype[T] = SKL_F32;
    c.key_heads[S] = c.key_heads[T] = 8;
    add(c, SKL_CALL_VALUE), add(c, SKL_CALL_VALUE_AND_GRAD);
    c = attention(8, 16, 131072, 128);
    c.dtype[S] = c.dtype[T] = SKL_BF16;
    add(c, SKL_CALL_VALUE);
    add(linear(4096, 32000, 4096, 4096, SKL_BF16), SKL_CALL_VALUE);
    add(linear(4096, 32000, 4096, 4096, SKL_BF16), SKL_CALL_VALUE_AND_GRAD);
    if (full) {
        add(linear(8192, 152064, 3584, 5120, SKL_BF16), SKL_CALL_VALUE);
        add(linear(8192, 152064, 3584, 5120, SKL_BF16), SKL_CALL_VALUE_AND_GRAD);
    }
}

const struct bench *bench_set(int full, int device, int *count)
{
    count_of_set = 0;
    if (device == SKL_CUDA) {
        add_for_device(full);
        *count = count_of_set;
        return set;
    }
    add_attention();
    /* Long context: the default takes the last block of its rows. */
    struct kit_case c = attention(1, full ? 65536 : 1024, 65536, 128);
    c.causal = 1;
    add(c, SKL_CALL_VALUE);
    add_few_rows();
    int64_t tokens = full ? 1024 : 256;
    for (int dtype = SKL_F32; dtype <= SKL_BF16; dtype++) {
        add(linear(tokens, 32000, 2048, 2048, dtype), SKL_CALL_VALUE);
        add(linear(tokens, 32000, 2048, 2048, dtype), SKL_CALL_VALUE_AND_GRAD);
    }
    if (full) {
        add(linear(512, 152064, 3584, 5120, SKL_BF16), SKL_CALL_VALUE);
        add(linear(512, 152064, 3584, 5120, SKL_BF16), SKL_CALL_VALUE_AND_GRAD);
    }
    *count = count_of_set;
    return set;
}
