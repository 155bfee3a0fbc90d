/* SPDX-License-Identifier: Apache-2.0
 *
 * A case built into a problem: operands, outputs and, once kit_expect() has been called, what the outputs should hold
 * and how far off they may be. Everything is on the host; a fixture for a device has a copy of its memory there, too.
 */
#ifndef KIT_FIXTURE_H
#define KIT_FIXTURE_H

#include "case.h"
#include "reference.h"

enum kit_input {
    KIT_INPUT_A_S,
    KIT_INPUT_B_S,
    KIT_INPUT_BIAS_S,
    KIT_INPUT_A_T,
    KIT_INPUT_B_T,
    KIT_INPUT_BIAS_T,
    KIT_INPUT_SINK_S, /* so far in the order of the gradients */
    KIT_INPUT_SINK_T,
    KIT_INPUT_BEGIN,
    KIT_INPUT_END,
    KIT_INPUT_WEIGHT,
    KIT_INPUT_LSE,
    KIT_INPUT_MAP,
    KIT_INPUT_LABELS,
    KIT_INPUT_MASS,
    KIT_INPUT_CU_Q,
    KIT_INPUT_CU_K,
    KIT_INPUT_SUPPORT,
    KIT_INPUTS
};

/* How much is granted, beyond rounding an output to its dtype: see kit/bounds.h. */
struct kit_allowance {
    double rows;       /* multiple of the bounds of rows' results and of the logits' rounding: 1 on the CPU */
    int rounds_logits; /* a gradient may show the rounding of the logits */
    int rounds_dx;     /* each dx is rounded to b's dtype before the gradient products, as a device does */
};

struct kit_fixture {
    struct kit_case c;
    struct skl_problem p;                   /* of the host, which the reference reads */
    struct skl_labels labels, labels_there; /* to which p points, and what a device is given */
    struct kit_tensor in[KIT_INPUTS], out[KIT_RESULTS];
    double value, *value_there;
    const struct kit_memory *memory;
    struct kit_random *random;
    uint64_t checksum; /* of the inputs when they were last looked at: no call may change them */
    struct kit_allowance allow;
    int loss_alone; /* calls do not ask for kl_s and kl_t, which only a backward needs */
    /* From kit_expect(); contiguous, NULL: not asked for. */
    double *want[KIT_RESULTS], *bound[KIT_RESULTS], *got;
    double want_value, value_bound;
    /* Device memory given to a call. */
    void *workspace;
    size_t workspace_bytes;
};

/* Inputs and outputs. What is random is drawn from 'random', which must outlive the fixture. */
void kit_build(struct kit_fixture *f, const struct kit_case *c, const struct kit_memory *memory,
               struct kit_random *random);
void kit_destroy(struct kit_fixture *f);
uint64_t kit_checksum(const struct kit_fixture *f);

/* The inputs to the device again, after a change. */
void kit_send(struct kit_fixture *f);
/* What a call wrote, from the device. */
void kit_fetch(struct kit_fixture *f);

/* f->p as it is given to the library: with the device's tensors. */
struct skl_problem kit_problem(const struct kit_fixture *f);

/* What the fixture has of the outputs: those of the rows with the value, and of the gradients these (KIT_GRAD_...). */
struct skl_outputs kit_asked(struct kit_fixture *f, int with_rows, unsigned grads);
/* The same, each reset to the canary, the value to NaN. */
struct skl_outputs kit_outputs(struct kit_fixture *f, int with_rows, unsigned grads);

/* One of SKL_CALL_VALUE, _VALUE_AND_GRAD and _BACKWARD, on everything that the fixture has; BACKWARD starts from what
 * an earlier call wrote. On a device kit_start returns before it is done, kit_call waits. Nothing is reset. */
enum skl_status kit_start(struct kit_fixture *f, enum skl_call call);
enum skl_status kit_call(struct kit_fixture *f, enum skl_call call);

/* Device memory for this call, so that it need not allocate; kit_problem() then has it. Returns its size. */
size_t kit_reserve(struct kit_fixture *f, enum skl_call call);
void kit_give_back(struct kit_fixture *f);

#endif
