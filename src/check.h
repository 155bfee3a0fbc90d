/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of the border. skl_check() in check.c (declared in work.h) calls them one after the other; the first that
 * does not return SKL_OK has left a sentence.
 */
#ifndef SKL_CHECK_H
#define SKL_CHECK_H

#include "work.h"

#define TRY(call)                    \
    do {                             \
        enum skl_status s_ = (call); \
        if (s_ != SKL_OK)            \
            return s_;               \
    } while (0)

/* More entries or columns than any memory holds, and sizes computed from them cannot overflow. */
#define SKL_LONGEST ((int64_t)1 << 40)

/* Every tensor of a call by name: all must be on one device, and no output may share memory with another tensor. */
struct skl_named {
    const char *name;
    const struct skl_tensor *tensor;
};
enum { SKL_INPUTS = 21 };
int skl_name_inputs(const struct skl_problem *p, struct skl_named to[SKL_INPUTS]);

/* Tensors that are given are where s.a is. */
enum skl_status skl_check_devices(const struct skl_problem *p, const struct skl_named *each, int n);

/* A number for each row, if it is given. */
enum skl_status skl_check_rows(const char *name, const struct skl_tensor *t, const struct skl_problem *p, int dtype,
                               int output);

/* check_mixture.c: is the teacher more than one head for each of the student's? Then its rules. */
int skl_mixes_heads(const struct skl_problem *p);
enum skl_status skl_check_indexer(const struct skl_problem *p);
enum skl_status skl_check_pooled(const struct skl_problem *p);
enum skl_status skl_check_mixture(const struct skl_problem *p);
enum skl_status skl_check_head_map(const struct skl_problem *p); /* every entry is a head; the map may be read */
enum skl_status skl_check_mixture_outputs(const struct skl_work *w, const struct skl_outputs *out, int partial);

/* check_sink.c: sinks, if any, and their gradients. */
enum skl_status skl_check_sinks(const struct skl_problem *p, int partial);
enum skl_status skl_check_sink_outputs(const struct skl_problem *p, const struct skl_outputs *out);

/* check_labels.c: there are labels, or ids whose masses are wanted. The student's side has been checked. */
enum skl_status skl_check_labels(const struct skl_problem *p);
enum skl_status skl_check_mass_ids(const struct skl_problem *p);
/* Every id is a column, or says that there is none. The tensors may be read. */
enum skl_status skl_check_label_ids(const struct skl_problem *p, const struct skl_work *w);
enum skl_status skl_check_mass_columns(const struct skl_work *w);

/* check_listed.c: there is a list. The student's side has been checked. */
enum skl_status skl_check_listed(const struct skl_problem *p);
/* Every entry is a column or an empty slot, and together they are no more than everything. Tensors may be read. */
enum skl_status skl_check_listed_entries(const struct skl_problem *p, const struct skl_work *w);

/* check_support.c: lists of keys, if there are any; then what is in them, when the tensors may be read. */
enum skl_status skl_check_support(const struct skl_problem *p);
enum skl_status skl_check_support_entries(const struct skl_problem *p, const struct skl_work *w);

/* check_shard.c: there is a shard; of the first, labels too. */
enum skl_status skl_check_place(const struct skl_problem *p);
enum skl_status skl_check_shard(enum skl_call call, const struct skl_problem *p, const struct skl_state *state);

/* check_packed.c: offsets of sequences, if any; they are read. */
enum skl_status skl_check_packed(const struct skl_problem *p);

/* check_topk.c: what a problem has that lists are made of, and what they may be; other calls have none. */
enum skl_status skl_check_topk(const struct skl_problem *p);
enum skl_status skl_check_topk_outputs(enum skl_call call, const struct skl_problem *p, const struct skl_outputs *o);

/* check_outputs.c: what a call writes, and what it finds saved, into the work. */
enum skl_status skl_take_outputs(enum skl_call call, const struct skl_problem *p, const struct skl_outputs *out,
                                 struct skl_work *w);
enum skl_status skl_take_saved(const struct skl_problem *p, const struct skl_outputs *saved, struct skl_work *w);
/* States know the results of the first versions alone: of partial rows, and of shards. */
enum skl_status skl_check_finished(const struct skl_outputs *o, int shard, const char *why);
enum skl_status skl_check_backward_outputs(const struct skl_outputs *o);
/* out.value or the states. */
enum skl_status skl_check_doubles(const char *name, const void *data);
/* All outputs of the call, 'out' and perhaps the states of a skl_partial, against all its inputs, 'saved' and the
 * states of a skl_finish among them; each of these may be NULL. */
enum skl_status skl_check_overlap(const struct skl_problem *p, const struct skl_outputs *saved,
                                  const struct skl_outputs *out, const struct skl_state *state, int64_t rows);

#endif
