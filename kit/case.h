/* SPDX-License-Identifier: Apache-2.0
 *
 * A case: everything that describes a problem, in one line of a table. kit/fixture.h builds it.
 */
#ifndef KIT_CASE_H
#define KIT_CASE_H

#include "random.h"
#include "result.h"
#include "tensor.h"

enum { S = 0, T = 1 }; /* index of a side */

enum kit_weights { KIT_UNWEIGHTED, KIT_POSITIVE, KIT_SOME_ZERO, KIT_SIGNED, KIT_ALL_ZERO, KIT_WEIGHTINGS };

struct kit_case {
    int use, divergence, reduction;
    int64_t batch, heads, rows, cols; /* linear: leading dimensions, as many as 'lead' from the right */
    int lead;
    int64_t key_heads[2]; /* 0: as many as heads */
    int64_t pad[2];       /* rows of b after the valid columns */
    int64_t dim[2];
    int dtype[2];
    int bias[2]; /* 0: none, otherwise 1 + its dtype */
    double scale[2], softcap[2];
    double beta, skew, alpha,
        temperature; /* beta of alpha-beta, too; skew and alpha only where the divergence has them */
    double spread;   /* standard deviation of the logits, but for softcap */
    int quick;       /* operands of nearly normal numbers, without outliers: for large ones */
    int causal;
    int64_t left, right;
    int ranges; /* random begin and end, some empty, some out of range */
    int packed; /* so many sequences of random lengths, 0 among them, in the one batch; 0: not packed */
    int64_t support, support_block; /* lists of so many keys, or blocks of keys, for each query; 0: none */
    int weights, layout;
    int place; /* enum kit_place */
    unsigned grads;
    int own; /* gradients in the operand's dtype instead of f32 */
    double skip_below;
    int round_dz;
    int threads, isa;
    /* The teacher's heads: so many for each of the student's (0: one, as everywhere), by a map [H] or [H, mix] if it
     * has 'map' of them, with given LSEs, and t as it stands. */
    int64_t mix, map;
    int lses, raw;
    /* Linear: labels of this dtype (0: none), with struct skl_labels' numbers, and no teacher if 'alone'. */
    int labels, alone;
    double label_weight, kl_weight, lse_weight, smoothing, z_loss, num_items;
    int details;      /* everything that rows tell */
    int64_t mass_ids; /* so many for each row; 0: none */
    int sinks;        /* attention: of both sides, 1 + their dtype; 0: none */
};

/* Everything at its default, all gradients asked for, on one thread: small problems are faster so. */
struct kit_case kit_attention_case(int64_t rows, int64_t cols, int64_t dim);
struct kit_case kit_linear_case(int64_t rows, int64_t cols, int64_t dim);

/* Any of the product of all options, sizes around the edges of tiles. */
struct kit_case kit_random_case(struct kit_random *r);
/* Attention whose teacher is a mixture of heads. */
struct kit_case kit_random_mixture(struct kit_random *r);
/* Attention with sinks; sometimes with mixed heads, details or both. */
struct kit_case kit_random_sinks(struct kit_random *r);
/* A vocabulary with labels, details or both; sometimes without a teacher. */
struct kit_case kit_random_labels(struct kit_random *r);
/* A random case made one for a device: three in four have one 16-bit type, widths of whole vectors and memory without
 * gaps, so that they meet tensor cores. */
void kit_for_device(struct kit_case *c, struct kit_random *r);
struct kit_case kit_random_device_case(struct kit_random *r);
/* ... of teachers whose heads are not what they are elsewhere. */
struct kit_case kit_random_device_mixture(struct kit_random *r);
/* ... with lists of keys. */
struct kit_case kit_random_device_keys(struct kit_random *r);
/* ... with sinks, and whatever else of kit_random_sinks() a device has. */
struct kit_case kit_random_device_sinks(struct kit_random *r);
/* Fewer of whatever there is most of, until both sides' logits take no more multiplications than this. */
void kit_shrink(struct kit_case *c, double multiplications);

/* Number of rows in all. */
/* Heads of the teacher's a. */
int64_t kit_teacher_heads(const struct kit_case *c);
int64_t kit_case_rows(const struct kit_case *c);
/* |scale|, or the default. */
double kit_case_scale(const struct kit_case *c, int side);

void kit_describe(const struct kit_case *c, char *text, size_t size);
extern const char *const kit_use_names[]; /* positions are those of enum skl_use; ends with NULL */

#endif
