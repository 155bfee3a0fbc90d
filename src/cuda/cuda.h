/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA back end's entry: a checked work on device tensors, run on its stream. none.c answers in builds without
 * CUDA.
 */
#ifndef SKL_CUDA_H
#define SKL_CUDA_H

#include "../work.h"

/* value, value_and_grad, backward and partial. state: device memory, for SKL_CALL_PARTIAL; second_sweep: of two, from
 * the saved LSEs in the work. */
enum skl_status skl_cuda_run(enum skl_call call, const struct skl_work *w, struct skl_state *state, int second_sweep);

/* Bytes of device memory the call takes. */
enum skl_status skl_cuda_workspace(enum skl_call call, const struct skl_work *w, size_t *bytes);

/* skl_finish() on device states. */
enum skl_status skl_cuda_finish(const struct skl_work *w, const struct skl_state *state);

#endif
