/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of everything that a call can write for each row, and the list of gradients. Outputs, reference, bounds and
 * comparison go by them: one more result of a row is one more line here, and its formula in reference.c.
 */
#ifndef KIT_RESULT_H
#define KIT_RESULT_H

#include <streamkl/streamkl.h>

/* What a case must have for a result. */
enum kit_need {
    KIT_ALWAYS = 0,
    KIT_NEEDS_TWO_SWEEPS = 1, /* a divergence of two sweeps */
    KIT_NEEDS_TEACHER = 2,
    KIT_NEEDS_LABELS = 4,
    KIT_NEEDS_DETAILS = 8,
    KIT_NEEDS_MASS = 16,
    KIT_NEEDS_SINKS = 32
};

/* X(field of skl_outputs and of the reference, identifier, what a case must have for it, column in which
 * `streamkl check` shows it, how far off a number of it may be) */
#define KIT_ROW_RESULTS(X)                                                                                         \
    X(loss, LOSS, KIT_ALWAYS, KIT_IN_LOSS, kit_near)                                                               \
    X(lse_s, LSE_S, KIT_ALWAYS, KIT_IN_LSE, kit_near_logits)                                                       \
    X(lse_t, LSE_T, KIT_NEEDS_TEACHER, KIT_IN_LSE, kit_near_logits)                                                \
    X(kl_s, KL_S, KIT_NEEDS_TWO_SWEEPS | KIT_NEEDS_TEACHER, KIT_IN_LOSS, kit_near)                                 \
    X(kl_t, KL_T, KIT_NEEDS_TWO_SWEEPS | KIT_NEEDS_TEACHER, KIT_IN_LOSS, kit_near)                                 \
    X(m_s, M_S, KIT_NEEDS_LABELS, KIT_IN_LSE, kit_open)                                                            \
    X(l_s, L_S, KIT_NEEDS_LABELS, KIT_IN_LSE, kit_open)                                                            \
    X(l1_s, L1_S, KIT_NEEDS_LABELS, KIT_IN_LSE, kit_open)                                                          \
    X(kl, KL, KIT_NEEDS_LABELS | KIT_NEEDS_TEACHER, KIT_IN_LOSS, kit_near)                                         \
    X(ce, CE, KIT_NEEDS_LABELS, KIT_IN_LOSS, kit_near_logits)                                                      \
    X(entropy_s, ENTROPY_S, KIT_NEEDS_DETAILS, KIT_IN_LOSS, kit_near)                                              \
    X(entropy_t, ENTROPY_T, KIT_NEEDS_DETAILS | KIT_NEEDS_TEACHER, KIT_IN_LOSS, kit_near)                          \
    X(logprob_s, LOGPROB_S, KIT_NEEDS_DETAILS | KIT_NEEDS_LABELS, KIT_IN_LSE, kit_near_logits)                     \
    X(logprob_t, LOGPROB_T, KIT_NEEDS_DETAILS | KIT_NEEDS_LABELS | KIT_NEEDS_TEACHER, KIT_IN_LSE, kit_near_logits) \
    X(top1_s, TOP1_S, KIT_NEEDS_DETAILS, KIT_IN_LOSS, kit_exact)                                                   \
    X(top1_t, TOP1_T, KIT_NEEDS_DETAILS | KIT_NEEDS_TEACHER, KIT_IN_LOSS, kit_exact)                               \
    X(reverse, REVERSE, KIT_NEEDS_DETAILS | KIT_NEEDS_TEACHER, KIT_IN_LOSS, kit_near)                              \
    X(jsd, JSD, KIT_NEEDS_DETAILS | KIT_NEEDS_TEACHER, KIT_IN_LOSS, kit_near)                                      \
    X(tv, TV, KIT_NEEDS_DETAILS | KIT_NEEDS_TEACHER, KIT_IN_LOSS, kit_near)                                        \
    X(mass_s, MASS_S, KIT_NEEDS_MASS, KIT_IN_LOSS, kit_near)                                                       \
    X(mass_t, MASS_T, KIT_NEEDS_MASS | KIT_NEEDS_TEACHER, KIT_IN_LOSS, kit_near)                                   \
    X(sink_mass_s, SINK_MASS_S, KIT_NEEDS_SINKS, KIT_IN_LOSS, kit_near)                                            \
    X(sink_mass_t, SINK_MASS_T, KIT_NEEDS_SINKS, KIT_IN_LOSS, kit_near)

/* X(side and operand: fields of the reference, identifier, field of skl_outputs, column) */
#define KIT_GRADIENTS(X)                           \
    X(s, a, A_S, s.a, KIT_IN_GRAD_A)               \
    X(s, b, B_S, s.b, KIT_IN_GRAD_B)               \
    X(s, bias, BIAS_S, s.bias, KIT_IN_GRAD_B)      \
    X(t, a, A_T, t.a, KIT_IN_GRAD_A)               \
    X(t, b, B_T, t.b, KIT_IN_GRAD_B)               \
    X(t, bias, BIAS_T, t.bias, KIT_IN_GRAD_B)      \
    X(s, sink, SINK_S, grad_sink_s, KIT_IN_GRAD_B) \
    X(t, sink, SINK_T, grad_sink_t, KIT_IN_GRAD_B)

enum kit_result {
#define ROW(field, id, needs, column, bound) KIT_##id,
#define GRADIENT(side, operand, id, field, column) KIT_##id,
    KIT_ROW_RESULTS(ROW) KIT_GRADIENTS(GRADIENT)
#undef ROW
#undef GRADIENT
        KIT_RESULTS,
    KIT_FIRST_GRADIENT = KIT_A_S
};

/* Bits, to ask for some of the gradients. */
enum {
#define GRADIENT(side, operand, id, field, column) KIT_GRAD_##id = 1 << (KIT_##id - KIT_FIRST_GRADIENT),
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
    int needs;     /* bits of enum kit_need */
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
/* A column's number. Where the two largest logits are equal to rounding, kit/bounds.c leaves it open. */
double kit_exact(double want, double growth);
/* What is only told from one call to the next: any number, but infinite where it should be. */
double kit_open(double want, double growth);

#endif
