/* SPDX-License-Identifier: Apache-2.0
 * The CUDA back end of a build without CUDA: it says so. */
#include "../../error.h"
#include "../cuda.h"

#define WITHOUT "streamkl was built without CUDA; build it with -DSTREAMKL_CUDA=ON where nvcc is installed"

static enum skl_status without(void)
{
    return skl_fail(SKL_UNSUPPORTED, "cannot use CUDA tensors: " WITHOUT);
}

int skl_cuda_built(void)
{
    return 0;
}

int skl_cuda_devices(void)
{
    skl_fail(SKL_UNSUPPORTED, WITHOUT);
    return 0;
}

enum skl_status skl_cuda_run(enum skl_call call, const struct skl_work *w, struct skl_state *state, int second_sweep)
{
    (void)call, (void)w, (void)state, (void)second_sweep;
    return without();
}

enum skl_status skl_cuda_workspace(enum skl_call call, const struct skl_work *w, size_t *bytes)
{
    (void)call, (void)w, (void)bytes;
    return without();
}

enum skl_status skl_cuda_finish(const struct skl_work *w, const struct skl_state *state)
{
    (void)w, (void)state;
    return without();
}
