/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes that cross every edge at which a loop, a panel, a tile or a block begins or ends: rows, columns and widths in
 * turn, each in all ways, for every divergence, on every instruction set here.
 */
#include "cases.h"

/* 1, and n-1, n, n+1 for every n that a micro-kernel, a panel, a tile or a block may have. */
static const int64_t small[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 23, 24, 25, 31, 32, 33, 47, 48, 49};
static const int64_t large[] = {63,  64,  65,  95,  96,  97,  127, 128, 129, 191, 192, 193, 251, 252, 253, 255, 256,
                                257, 287, 288, 289, 383, 384, 385, 503, 504, 505, 511, 512, 513, 575, 576, 577, 769};

static void run(int64_t rows, int64_t cols, int64_t dim, int k)
{
    struct kit_case c = k % 2 ? kit_linear_case(rows, cols, dim) : kit_attention_case(rows, cols, dim);
    kit_set_smooth(&c, k);
    c.place = k / 2 % KIT_PLACES;
    c.causal = k % 2 == 0 && k / 3 % 2;
    c.bias[S] = c.bias[T] = k % 2;
    test_all_ways(&c);
}

/* One size goes through 'sizes', the others stay on awkward values. */
static void sweep(const int64_t *sizes, int n)
{
    int every = test_quick() ? 5 : 1;
    for (int k = 0; k < n; k += every) {
        run(sizes[k], 37, 19, k), run(sizes[k], 37, 19, k + 1);
        run(11, sizes[k], 19, k + 1), run(11, sizes[k], 19, k + 2);
        run(11, 37, sizes[k], k + 2), run(11, 37, sizes[k], k + 3);
    }
}

/* Two sizes at their edges at once: where a tail meets a tail. */
static void corners(void)
{
    static const int64_t edges[] = {1, 7, 8, 9, 16, 17, 33};
    int every = test_quick() ? 7 : 1;
    for (int k = 0; k < COUNT(edges) * COUNT(edges) * COUNT(edges); k += every)
        run(edges[k % COUNT(edges)], edges[k / COUNT(edges) % COUNT(edges)], edges[k / COUNT(edges) / COUNT(edges)], k);
}

/* Blocks of rows and tiles of columns and of width all more than one. */
static void several_blocks(void)
{
    static const int64_t shapes[][3] = {{257, 129, 33}, {513, 131, 17}, {300, 700, 40}, {65, 1030, 257},
                                        {70, 140, 513}, {9, 1920, 8},   {40, 2881, 8},  {3, 6145, 5}};
    for (int k = 0; k < COUNT(shapes); k++)
        for (int d = 0; d < (test_quick() ? 1 : 3); d++) run(shapes[k][0], shapes[k][1], shapes[k][2], 4 * k + d);
}

/* Many tiles in one running state, whose maxima rise on the way: few rows and many columns, or many heads at once. */
static void long_rows(void)
{
    for (int k = 0; k < KIT_SMOOTH_COUNT; k++) {
        struct kit_case c = kit_attention_case(3, 13000, 4);
        kit_set_smooth(&c, k);
        test_all_ways(&c);
        c = kit_attention_case(2, 3100, 3);
        c.heads = 8, c.key_heads[S] = 4, c.causal = 1;
        kit_set_smooth(&c, k);
        test_all_ways(&c);
    }
}

int main(void)
{
    test_begin("test_sizes");
    sweep(small, COUNT(small));
    sweep(large, COUNT(large));
    corners();
    several_blocks();
    long_rows();
    return test_end();
}
