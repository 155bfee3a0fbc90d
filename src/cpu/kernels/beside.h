/* SPDX-License-Identifier: Apache-2.0
 *
 * Logits of a panel, and beside them push_kl of the panel before: one pass over both, no byte more. Between the steps of a
 * product come single columns of the push, so that each has the other's waiting time: the one waits for loads and for the
 * ends of sums, the other for results of long chains. Same operations in the same order as logits() and push_kl(), hence the
 * same bits. A panel has as many lane groups as there are sides: the products of a side go with the group of its number.
 */
static inline __attribute__((always_inline)) void logits_pushing(int n, int k, struct skl_columns tile, int first,
                                                                 const void *panel, struct skl_soon soon, float *y,
                                                                 const struct skl_push *push, int v, enum skl_keep keep)
{
    const int64_t ld = tile.ld;
    const float *columns = (const float *)tile.at + first * ld, *rows = panel;
    float *x_p = push->x[0] + v * VL, *x_q = push->x[1] + v * VL;
    int step = (k + MR - 1) / MR, lines = lines_each(&soon, (n + MR - 1) / MR), done = 0;
    struct kl_sums s = kl_begin(push->n, push->x[0], push->x[1], v, push->unit, push->state);
    for (int j = 0; j < n; j += MR) {
        vf c[MR][NV];
        clear_c(c);
        ask(&soon, lines);
        if (j + MR <= push->n) {
            _Pragma("GCC unroll 1") for (int k0 = 0; k0 < k; k0 += step)
            {
                kl_column(x_p + done * NR, x_q + done * NR, push->unit, keep, &s);
                done++;
                micro_kernel(k - k0 < step ? k - k0 : step, columns + j * ld + k0, ld, 1, rows + k0 * NR, NULL, 0, c);
            }
            if (done % SHORT_SUM == 0)
                kl_end_short(&s);
        } else {
            micro_kernel(k, columns + j * ld, ld, 1, rows, NULL, 0, c);
        }
        store_c(c, y + j * NR, NR);
    }
    for (int end; done < push->n; done = end) { /* the panel before saw more columns */
        end = short_sum_end(done / SHORT_SUM * SHORT_SUM, push->n);
        for (int i = done; i < end; i++) kl_column(x_p + i * NR, x_q + i * NR, push->unit, keep, &s);
        kl_end_short(&s);
    }
    kl_end_short(&s);
    kl_end(&s, v, push->state);
}

static void logits_beside(int n, int k, struct skl_columns columns, int first, const void *panel, struct skl_soon soon,
                          float *y, const struct skl_push *push, int side)
{
    if (push->keep == SKL_KEEP_EXP_Q)
        logits_pushing(n, k, columns, first, panel, soon, y, push, side, SKL_KEEP_EXP_Q);
    else if (push->keep == SKL_KEEP_EXP_P)
        logits_pushing(n, k, columns, first, panel, soon, y, push, side, SKL_KEEP_EXP_P);
    else
        logits_pushing(n, k, columns, first, panel, soon, y, push, side, SKL_KEEP_NOTHING);
}
