/* SPDX-License-Identifier: Apache-2.0
 *
 * clang's fuzzer on small problems that are right: its bytes choose shapes, masks, dtypes, options and the way, as the
 * differential fuzzer's random numbers do. The library is held to the oracle's bounds, and the oracle to the library's
 * reference, which is in double as it is: they may differ by no more than a thousandth of a bound.
 */
#include "ways.h"

#include "../../kit/reference.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void agree(struct judge *j, const char *what, const struct numbers *n, const double *reference)
{
    for (int64_t i = 0; i < n->n; i++)
        if (isinf(n->want[i]) ? n->want[i] != reference[i]
                              : !(fabs(n->want[i] - reference[i]) <= 1e-3 * n->bound[i] + 1e-30))
            judge_fail(j, "reference: %s[%lld] = %.17g, the oracle has %.17g", what, (long long)i, reference[i],
                       n->want[i]);
}

static double *room(int64_t n)
{
    double *x = calloc((size_t)n + 1, sizeof *x);
    if (!x)
        abort();
    return x;
}

/* Logits of 1e30 are not for the reference: it takes LSEs out of them, in which ties are lost. Nor is an exact 0, so
 * the oracle is asked for bounds in which LSEs may be rounded: those it has for every row. */
static void check_reference(const struct call *c, struct judge *j)
{
    struct oracle o = oracle_of(c, 1);
    double *rows[5], *grads[GRADS];
    for (int k = 0; k < 5; k++) rows[k] = room(c->rows);
    for (int k = 0; k < GRADS; k++) grads[k] = room(o.grad[k].n);
    struct skl_reference r = {
        .loss = rows[LOSS], .lse_s = rows[LSE_S], .lse_t = rows[LSE_T], .kl_s = rows[KL_S], .kl_t = rows[KL_T]};
    r.s = (struct skl_reference_grads){.a = grads[0], .b = grads[1], .bias = c->side[0].C ? grads[2] : NULL};
    r.t = (struct skl_reference_grads){.a = grads[3], .b = grads[4], .bias = c->side[1].C ? grads[5] : NULL};
    if (skl_reference_run(&c->p, &r))
        abort();
    for (int k = 0; k < 5; k++)
        if ((k != KL_S && k != KL_T) || c->p.divergence == SKL_JSD)
            agree(j, "rows", &o.row[k], rows[k]);
    for (int k = 0; k < GRADS; k++) agree(j, "gradient", &o.grad[k], grads[k]);
    for (int k = 0; k < 5; k++) free(rows[k]);
    for (int k = 0; k < GRADS; k++) free(grads[k]);
    oracle_free(&o);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct call c;
    struct judge j = {.call = &c};
    struct rng random = {size, data, size};
    draw_call(&c, random);
    if (c.rows * c.columns * (c.side[0].dim + c.side[1].dim) < 300000) {
        way_run(&c, &j);
        if (c.kind != KIND_LARGE && !c.p.listed) /* of which the reference knows nothing */
            check_reference(&c, &j);
    }
    if (j.failures) {
        char text[1024];
        draw_describe(&c, text, sizeof text);
        fprintf(stderr, "%s\n", text);
        for (int i = 0; i < j.failures && i < 3; i++) fprintf(stderr, "    %s\n", j.said[i]);
        abort();
    }
    draw_free(&c);
    return 0;
}
