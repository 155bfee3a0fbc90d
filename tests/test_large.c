/* SPDX-License-Identifier: Apache-2.0
 *
 * Offsets beyond 32 bits: rows x columns above 2^31, and operands, gradients and row tensors whose elements lie more
 * than 2^32 elements apart, on mappings that are never filled.
 */
#define _GNU_SOURCE
#include "cases.h"

#include <sys/mman.h>

/* 70000 x 40000 logits, most rows without weight; the last and the first are compared. */
static void many_logits(void)
{
    for (int d = 0; d < 3; d++) {
        struct kit_fixture f;
        struct kit_case c = kit_linear_case(70000, 40000, 2);
        c.divergence = d, c.weights = KIT_POSITIVE, c.reduction = SKL_SUM, c.bias[S] = 1;
        c.grads = KIT_GRAD_A_S | KIT_GRAD_B_S | KIT_GRAD_BIAS_S | KIT_GRAD_A_T;
        test_build(&f, &c);
        for (int64_t i = 1; i < c.rows - 2; i++) kit_set(&f.in[KIT_INPUT_WEIGHT].t, i, 0);
        kit_expect(&f);
        test_context("70000 x 40000, divergence %d", d);
        double before = test_cpu_seconds();
        for (int way = 0; way < KIT_WAYS; way++) test_run(&f, way);
        double seconds = test_cpu_seconds() - before;
        CHECK(seconds < 60, "rows of weight 0 cost nothing, yet this took %.1f s", seconds);
        test_destroy(&f);
    }
}

/* A tensor of the same shape whose outermost dimensions have huge strides. */
struct sparse {
    struct skl_tensor t;
    size_t size;
    void *map;
};

static int spread_out(struct sparse *s, const struct skl_tensor *like, int64_t step)
{
    s->t = *like;
    s->map = NULL, s->t.data = NULL;
    if (!like->data)
        return 1;
    int64_t reach = 0;
    for (int k = 0; k < like->ndim; k++) {
        int last = k == like->ndim - 1 && like->ndim > 1 && like->stride[k] == 1;
        if (!last) /* each outer dimension steps over all of the inner ones */
            s->t.stride[k] = step >> 6 * k;
        reach += s->t.stride[k] * (like->shape[k] - 1);
    }
    s->size = (size_t)(reach + 1) * kit_element_size(like->dtype);
    s->map = mmap(NULL, s->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s->map == MAP_FAILED)
        return 0;
    s->t.data = s->map;
    for (int64_t i = 0; i < kit_count(like); i++) kit_set(&s->t, i, kit_get(like, i));
    return 1;
}

static int same(const struct skl_tensor *x, const struct skl_tensor *y)
{
    int equal = 1;
    for (int64_t i = 0; x->data && i < kit_count(x); i++) equal &= kit_get(x, i) == kit_get(y, i);
    return equal;
}

/* The same problem dense and spread out gives the same bits. */
static void far_apart(struct kit_case c, int64_t step)
{
    struct kit_fixture f;
    enum { INPUTS = 9 }; /* those of every call */
    static const enum kit_input place[INPUTS] = {KIT_INPUT_A_S,   KIT_INPUT_B_S, KIT_INPUT_BIAS_S,
                                                 KIT_INPUT_A_T,   KIT_INPUT_B_T, KIT_INPUT_BIAS_T,
                                                 KIT_INPUT_BEGIN, KIT_INPUT_END, KIT_INPUT_WEIGHT};
    struct sparse in[INPUTS], out[KIT_RESULTS];
    int mapped = 1;
    c.weights = KIT_POSITIVE, c.ranges = 1;
    test_build(&f, &c);
    struct skl_outputs dense = kit_outputs(&f, 1, KIT_GRAD_ALL), wide = dense;
    struct skl_problem p = f.p;
    struct skl_tensor *const inputs[INPUTS] = {&p.s.a,    &p.s.b,   &p.s.bias, &p.t.a,   &p.t.b,
                                               &p.t.bias, &p.begin, &p.end,    &p.weight};
    for (int k = 0; k < INPUTS; k++) {
        mapped &= spread_out(&in[k], &f.in[place[k]].t, k == 2 || k == 5 ? step / 8 : step);
        *inputs[k] = in[k].t;
    }
    for (int k = 0; k < KIT_RESULTS; k++) {
        mapped &= spread_out(&out[k], &f.out[k].t, k == KIT_BIAS_S || k == KIT_BIAS_T ? step / 8 : step);
        *kit_slot(&wide, k) = out[k].t;
    }
    test_context("%s, divergence %d", c.use ? "linear" : "attention", c.divergence);
    if (!mapped) {
        printf("test_large: cannot map sparse memory here; offsets beyond 2^32 not tested\n");
    } else {
        double value = NAN;
        wide.value = &value;
        CHECK_STATUS(skl_value_and_grad(&f.p, &dense), SKL_OK);
        CHECK_STATUS(skl_value_and_grad(&p, &wide), SKL_OK);
        CHECK(value == f.value, "value %.17g and %.17g", value, f.value);
        for (int k = 0; k < KIT_RESULTS; k++) CHECK(same(&f.out[k].t, &out[k].t), "%s differs", kit_results[k].name);
    }
    for (int k = 0; k < INPUTS; k++)
        if (in[k].map && in[k].map != MAP_FAILED)
            munmap(in[k].map, in[k].size);
    for (int k = 0; k < KIT_RESULTS; k++)
        if (out[k].map && out[k].map != MAP_FAILED)
            munmap(out[k].map, out[k].size);
    test_destroy(&f);
}

int main(void)
{
    test_begin("test_large");
    if (test_quick())
        return test_skip("too much memory for valgrind and emulators");
    many_logits();
    for (int d = 0; d < 3; d++) {
        struct kit_case c = kit_linear_case(7, 130, 5);
        c.divergence = d, c.bias[S] = c.bias[T] = 1;
        far_apart(c, (int64_t)1 << 30); /* the seventh row is 6 x 2^30 elements away, the last column 129 x 2^30 */
        c = kit_attention_case(6, 20, 5);
        c.divergence = d, c.batch = 3, c.heads = 2, c.dtype[S] = SKL_BF16, c.own = 1;
        far_apart(c, (int64_t)1 << 33);
    }
    return test_end();
}
