/* SPDX-License-Identifier: Apache-2.0
 *
 * Random cases.
 */
#include "divergence.h"

#include <math.h>

/* Sizes on and next to the edges where loops begin and end, or any size below. */
static int64_t edge_size(struct kit_random *r, int64_t most)
{
    static const int64_t edges[] = {1,  2,   4,   6,   8,   12,  16,  24,  32,   48,  64,
                                    96, 128, 192, 252, 256, 384, 504, 512, 1000, 2048};
    int64_t size = kit_chance(r, 3) ? kit_between(r, 1, most) : KIT_PICK(r, edges) + kit_between(r, -1, 1);
    return size < 1 ? 1 : size > most ? 1 + size % most : size;
}

static int64_t divisor_of(struct kit_random *r, int64_t n)
{
    int64_t d = kit_between(r, 1, n);
    while (n % d != 0) d--;
    return d;
}

/* The cost is near the product, so at most one of the sizes is large. */
static void draw_sizes(struct kit_random *r, struct kit_case *c)
{
    int large = (int)kit_between(r, 0, 3);
    c->rows = edge_size(r, large == 0 ? 530 : 70);
    c->cols = edge_size(r, large == 1 ? kit_chance(r, 4) ? 2050 : 530 : 140);
    for (int side = 0; side < 2; side++) c->dim[side] = edge_size(r, large == 2 ? 530 : 70);
    c->batch = large == 3 ? kit_between(r, 1, 3) : 1, c->heads = large == 3 ? kit_between(r, 1, 6) : 1;
    if (kit_chance(r, 3))
        c->pad[S] = kit_between(r, 0, 70), c->pad[T] = kit_between(r, 0, 70);
}

static void draw_sides(struct kit_random *r, struct kit_case *c)
{
    static const double caps[] = {0, 0, 3, 20};
    for (int side = 0; side < 2; side++) {
        c->dtype[side] = (int)kit_between(r, SKL_F32, SKL_F16);
        c->scale[side] = kit_chance(r, 3) ? (kit_uniform(r) + 0.5) * (kit_chance(r, 4) ? -0.3 : 0.3) : 0;
        c->softcap[side] = KIT_PICK(r, caps);
        if (c->use == SKL_ATTENTION)
            c->key_heads[side] = divisor_of(r, c->heads);
        else
            c->bias[side] = kit_chance(r, 2) ? 0 : 1 + (int)kit_between(r, SKL_F32, SKL_F16);
    }
}

/* Any but total variation, whose gradient is open where p and q are equal to rounding; with its numbers. */
static void draw_divergence(struct kit_random *r, struct kit_case *c)
{
    static const double betas[] = {0.5, 0.1, 0.9}, skews[] = {0.1, 0.5, 0.9};
    static const double exponents[][2] = {{0.2, 0.7}, {1, 1}, {0, 1}, {1, 0}, {2, 0.5}, {0.5, 0.5}};
    const double *two = KIT_PICK(r, exponents);
    c->beta = KIT_PICK(r, betas);
    kit_set_smooth(c, (int)kit_between(r, 0, KIT_SMOOTH_COUNT - 1));
    if (c->skew > 0)
        c->skew = KIT_PICK(r, skews);
    if (c->divergence == SKL_ALPHA_BETA)
        c->alpha = two[0], c->beta = two[1];
}

struct kit_case kit_random_case(struct kit_random *r)
{
    static const double temperatures[] = {1, 1, 0.5, 2.5}, spreads[] = {1.5, 1.5, 0.3, 2.5};
    static const unsigned grads[] = {KIT_GRAD_ALL, KIT_GRAD_STUDENT | KIT_GRAD_BIAS_S, 0}; /* 0: any */
    struct kit_case c = kit_chance(r, 2) ? kit_attention_case(1, 1, 1) : kit_linear_case(1, 1, 1);
    draw_sizes(r, &c);
    draw_sides(r, &c);
    draw_divergence(r, &c);
    c.reduction = (int)kit_between(r, SKL_MEAN, SKL_SUM);
    if (c.use == SKL_ATTENTION) {
        c.causal = kit_chance(r, 2);
        c.left = kit_chance(r, 3) ? edge_size(r, 300) : -1, c.right = kit_chance(r, 3) ? edge_size(r, 300) - 1 : -1;
    } else {
        c.lead = (int)kit_between(r, 1, 3);
    }
    c.temperature = KIT_PICK(r, temperatures), c.spread = KIT_PICK(r, spreads);
    c.ranges = kit_chance(r, 3);
    if (c.use == SKL_ATTENTION && kit_chance(r, 3))
        c.batch = 1, c.packed = (int)kit_between(r, 1, 9);
    if (c.use == SKL_ATTENTION && kit_chance(r, 4)) {
        c.support = edge_size(r, 300), c.support_block = kit_chance(r, 3) ? kit_between(r, 1, 70) : 0;
        c.heads = kit_chance(r, 2) ? c.heads : kit_between(r, 1, 40); /* as many as fill a panel, and more */
        c.key_heads[S] = divisor_of(r, c.heads), c.key_heads[T] = divisor_of(r, c.heads);
    }
    c.weights = kit_chance(r, 2) ? KIT_UNWEIGHTED : (int)kit_between(r, KIT_POSITIVE, KIT_ALL_ZERO);
    if (c.weights == KIT_SIGNED)
        c.reduction = SKL_SUM; /* a mean by weights that may cancel is not a mean */
    c.layout = (int)kit_between(r, 0, KIT_LAYOUTS - 1), c.place = (int)kit_between(r, 0, KIT_PLACES - 1);
    c.grads = KIT_PICK(r, grads);
    if (!c.grads)
        c.grads = (unsigned)kit_between(r, 1, KIT_GRAD_ALL);
    c.own = kit_chance(r, 2), c.threads = kit_chance(r, 8) ? (int)kit_between(r, 0, 3) : 1;
    return c;
}

struct kit_case kit_random_mixture(struct kit_random *r)
{
    static const int divergences[] = {SKL_FORWARD_KL, SKL_FORWARD_KL,      SKL_FORWARD_KL,
                                      SKL_JSD,        SKL_SKEW_FORWARD_KL, SKL_SKEW_REVERSE_KL};
    struct kit_case c;
    do c = kit_random_case(r);
    while (c.use != SKL_ATTENTION);
    kit_set_divergence(&c, KIT_PICK(r, divergences));
    c.alpha = 0;
    c.mix = kit_between(r, 0, 5), c.lses = kit_chance(r, 2), c.raw = c.lses && kit_chance(r, 2);
    c.map = kit_chance(r, 3) ? kit_between(r, 1, 7) : 0;
    if (c.raw)
        kit_set_divergence(&c, SKL_FORWARD_KL);
    if (!c.mix && !c.map && !c.lses)
        c.mix = 1;
    c.key_heads[T] = divisor_of(r, kit_teacher_heads(&c));
    c.grads = (unsigned)kit_between(r, 1, KIT_GRAD_STUDENT);
    return c;
}

struct kit_case kit_random_sinks(struct kit_random *r)
{
    struct kit_case c;
    int mixed = kit_chance(r, 3);
    do c = mixed ? kit_random_mixture(r) : kit_random_case(r);
    while (c.use != SKL_ATTENTION);
    c.sinks = 1 + (int)kit_between(r, SKL_F32, SKL_F16), c.support = 0; /* lists have none */
    c.details = kit_chance(r, 2), c.mass_ids = kit_chance(r, 3) ? kit_between(r, 1, 9) : 0;
    if (mixed && kit_chance(r, 2))
        c.grads |= KIT_GRAD_SINK_S;
    return c;
}

struct kit_case kit_random_labels(struct kit_random *r)
{
    static const double weights[] = {1, 0.5, 0, -0.3}, kl_weights[] = {1, 0.5, 4, 0};
    struct kit_case c;
    do c = kit_random_case(r);
    while (c.use != SKL_LINEAR);
    c.details = kit_chance(r, 2), c.mass_ids = kit_chance(r, 2) ? kit_between(r, 1, 20) : 0;
    if (c.details && kit_chance(r, 3))
        return c;
    c.labels = kit_chance(r, 2) ? SKL_I32 : SKL_I64;
    c.label_weight = KIT_PICK(r, weights), c.kl_weight = KIT_PICK(r, kl_weights);
    c.lse_weight = kit_chance(r, 4) ? 0.2 : 0;
    c.smoothing = kit_chance(r, 3) ? 0.1 : 0, c.z_loss = kit_chance(r, 3) ? 1e-2 : 0;
    c.num_items = kit_chance(r, 4) ? 17 : 0;
    c.alone = kit_chance(r, 4);
    c.ranges = 0; /* a label may lie outside of what its row sees */
    if (c.alone) {
        kit_set_divergence(&c, SKL_FORWARD_KL);
        c.grads &= KIT_GRAD_STUDENT | KIT_GRAD_BIAS_S;
        c.grads |= KIT_GRAD_A_S;
    }
    return c;
}

/* Mostly in one 16-bit type and aligned, as tensor cores want it. */
void kit_for_device(struct kit_case *c, struct kit_random *r)
{
    c->support = c->support_block = 0; /* kit_random_device_keys() has them */
    if (!kit_chance(r, 4)) {
        c->dtype[S] = c->dtype[T] = kit_chance(r, 2) ? SKL_BF16 : SKL_F16;
        for (int side = 0; side < 2; side++) {
            c->dim[side] = (c->dim[side] + 7) / 8 * 8;
            c->scale[side] = fabs(c->scale[side]);
        }
        c->place = KIT_ALIGNED, c->layout = kit_chance(r, 3) ? c->layout : KIT_DENSE;
    }
    if (c->layout == KIT_BROADCAST && c->grads)
        c->layout = KIT_GAPS;
}

struct kit_case kit_random_device_case(struct kit_random *r)
{
    struct kit_case c = kit_random_case(r);
    kit_for_device(&c, r);
    return c;
}

struct kit_case kit_random_device_keys(struct kit_random *r)
{
    struct kit_case c;
    do c = kit_random_case(r);
    while (!c.support);
    int64_t support = c.support < 60 ? c.support : 60, block = c.support_block;
    kit_for_device(&c, r);
    c.support = support, c.support_block = block;
    return c;
}

struct kit_case kit_random_device_mixture(struct kit_random *r)
{
    struct kit_case c = kit_random_mixture(r);
    kit_for_device(&c, r);
    return c;
}

struct kit_case kit_random_device_sinks(struct kit_random *r)
{
    struct kit_case c = kit_random_sinks(r);
    if (c.mix > 1)
        c.details = 0, c.mass_ids = 0; /* it does not tell all of them */
    kit_for_device(&c, r);
    return c;
}

/* A multiple of 8 stays one. */
static int64_t half(int64_t dim)
{
    return dim % 8 == 0 ? dim / 16 * 8 : dim / 2;
}

void kit_shrink(struct kit_case *c, double multiplications)
{
    while ((double)(kit_case_rows(c) * c->cols) * (double)(c->dim[S] + c->dim[T]) > multiplications) {
        if (c->rows > 40)
            c->rows /= 2;
        else if (c->cols > 100)
            c->cols /= 2;
        else if (c->dim[T] > 40)
            c->dim[T] = half(c->dim[T]);
        else if (c->dim[S] > 40)
            c->dim[S] = half(c->dim[S]);
        else if (c->batch > 1)
            c->batch = 1;
        else if (c->heads > 1)
            c->heads = c->key_heads[S] = c->key_heads[T] = 1;
        else
            c->rows = (c->rows + 1) / 2, c->cols = (c->cols + 1) / 2;
    }
}
