/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of everything that a call can write for each row, and the list of gradients. Outputs, reference, bounds and
 * comparison go by them: one more result of a row is one more line here, and its formula in reference.c.
 */
#ifndef KIT_RESULT_H
#define KIT_RESULT_H

#include <streamkl/streamkl.h>

/* X(field of skl_outputs and of the reference, identifier, whether every divergence has it, column in which
 * `streamkl check` shows it, how far off a number of it may be) */
#define KIT_ROW_RESULTS(X)                          \
    X(loss, LOSS, 1, KIT_IN_LOSS, kit_near)         \
    X(lse_s, LSE_S, 1, KIT_IN_LSE, kit_near_logits) \
    X(lse_t, LSE_T, 1, KIT_IN_LSE, kit_near_logits) \
    X(kl_s, KL_S, 0, KIT_IN_LOSS, kit_near)         \
    X(kl_t, KL_T, 0, KIT_IN_LOSS, kit_near)

/* X(side and operand: fields of skl_outputs and of the reference, identifier, column) */
#define KIT_GRADIENTS(X)              \
    X(s, a, A_S, KIT_IN_GRAD_A)       \
    X(s, b, B_S, KIT_IN_GRAD_B)       \
    X(s, bias, BIAS_S, KIT_IN_GRAD_B) \
    X(t, a, A_T, KIT_IN_GRAD_A)       \
    X(t, b, B_T, KIT_IN_GRAD_B)       \
    X(t, bias, BIAS_T, KIT_IN_GRAD_B)

enum kit_result {
#define ROW(field, id, always, column, bound) KIT_##id,
#define GRADIENT(side, operand, id, column) KIT_##id,
    KIT_ROW_RESULTS(ROW) KIT_GRADIENTS(GRADIENT)
#undef ROW
#undef GRADIENT
        KIT_RESULTS,
    KIT_FIRST_GRADIENT = KIT_A_S
};

/* Bits, to ask for some of the gradients. */
enum {
#define GRADIENT(side, operand, id, column) KIT_GRAD_##id = 1 << (KIT_##id - KIT_FIRST_GRADIENT),
    KIT_GRADIENTS(GRADIENT)
#undef GRADIENT
        KIT_GRAD_STUDENT = KIT_GRAD_A_S | KIT_GRAD_B_S,
    KIT_GRAD_ALL = (1 << (KIT_RESULTS - KIT_FIRST_GRADIENT)) - 1
};

enum kit_column { KIT_IN_LOSS, KIT_IN_LSE, KIT_IN_GRAD_A, KIT_IN_GRAD_B, KIT_COLUMNS };
extern const char *const kit_column_names[KIT_COLUMNS];

extern const struct kit_result_info {
    const char *name;
    size_t offset; /* of its tensor in struct skl_outputs */
    int always;    /* every divergence has it */
    enum kit_column column;
    double (*bound)(double want, double growth); /* rows' results only; growth is that of products of this width */
} kit_results[KIT_RESULTS];

struct skl_tensor *kit_slot(struct skl_outputs *out, int result);

/* A number of a row may be off by this much of itself, plus this much (docs/math.md, section 10). */
#define KIT_ROW_RELATIVE 2e-6
#define KIT_ROW_ABSOLUTE 1e-6
/* A gradient may be off by this much of the largest entry of its row, besides what kit/bounds.h adds. */
#define KIT_GRAD_RELATIVE 5e-6

/* A divergence: differences of logits, in which the rounding of the products cancels for the most part. */
double kit_near(double want, double growth);
/* An LSE, which may be a single logit: its rounding grows with the width of the products. */
double kit_near_logits(double want, double growth);

#endif
