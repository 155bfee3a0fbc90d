/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor.h"

#include "error.h"
#include "work.h"

const char *skl_dtype_name(int dtype)
{
    static const char *const names[] = {"f32", "bf16", "f16", "i32", "i64"};
    return dtype >= 0 && dtype < 5 ? names[dtype] : "unknown";
}

static int empty(const struct skl_tensor *t)
{
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] == 0)
            return 1;
    return 0;
}

/* A dimension, and a tensor as dimensions sorted by stride with neighbours joined: [4][8] of strides 8, 1 is [32] of 1.
 */
struct dim {
    int64_t n, stride;
};

static int joined_dims(const struct skl_tensor *t, struct dim d[4])
{
    int k = 0, out = 0;
    for (int i = 0; i < t->ndim; i++) {
        struct dim x = {t->shape[i], t->stride[i] < 0 ? -t->stride[i] : t->stride[i]};
        int at = k;
        if (x.n == 1)
            continue;
        for (; at > 0 && d[at - 1].stride > x.stride; at--) d[at] = d[at - 1];
        d[at] = x, k++;
    }
    for (int i = 0; i < k; i++) {
        if (out && d[i].stride == d[out - 1].stride * d[out - 1].n)
            d[out - 1].n *= d[i].n;
        else
            d[out++] = d[i];
    }
    return out;
}

/* It does not if each dimension's stride steps over all that the dimensions of smaller stride reach. */
static int overlaps_itself(const struct skl_tensor *t)
{
    struct dim d[4];
    int k = joined_dims(t, d);
    int64_t reach = 1; /* elements from the first to past the last, of the dimensions so far */
    for (int i = 0; i < k; i++) {
        if (d[i].stride < reach)
            return 1;
        reach += d[i].stride * (d[i].n - 1);
    }
    return 0;
}

/* Lowest and past the highest byte. */
static void byte_range(const struct skl_tensor *t, intptr_t *first, intptr_t *last)
{
    int64_t size = skl_size_of(t->dtype), low = 0, high = 0;
    for (int i = 0; i < t->ndim; i++) *(t->stride[i] < 0 ? &low : &high) += t->stride[i] * (t->shape[i] - 1);
    *first = (intptr_t)t->data + (intptr_t)(low * size);
    *last = (intptr_t)t->data + (intptr_t)((high + 1) * size);
}

/* Interleaved views, as q, k and v of one packed buffer are. If all distances between the runs of contiguous bytes of
 * both views are multiples of a common pitch, the views share nothing when their runs lie at different places of the
 * pitch. */
static int interleaved(const struct skl_tensor *x, const struct skl_tensor *y, intptr_t x0, intptr_t y0)
{
    const struct skl_tensor *t[2] = {x, y};
    int64_t pitch = 0, run[2];
    for (int i = 0; i < 2; i++) {
        struct dim d[4];
        int k = joined_dims(t[i], d), contiguous = k > 0 && d[0].stride == 1;
        int64_t size = skl_size_of(t[i]->dtype);
        run[i] = contiguous ? d[0].n * size : size;
        for (int j = contiguous; j < k; j++) pitch = skl_gcd(pitch, d[j].stride * size);
    }
    if (pitch == 0)
        return 0;
    int64_t offset = (int64_t)(y0 - x0) % pitch;
    if (offset < 0)
        offset += pitch;
    return offset >= run[0] && offset + run[1] <= pitch;
}

int skl_disjoint(const struct skl_tensor *x, const struct skl_tensor *y)
{
    if (!x->data || !y->data || empty(x) || empty(y))
        return 1;
    intptr_t x0, x1, y0, y1;
    byte_range(x, &x0, &x1);
    byte_range(y, &y0, &y1);
    return x1 <= y0 || y1 <= x0 || interleaved(x, y, x0, y0);
}

/* Every offset must fit, with room to count bytes: |stride| (n - 1) summed below 2^60. */
static int reach_fits(const struct skl_tensor *t)
{
    int64_t reach = 0, limit = (int64_t)1 << 60, count = 1;
    for (int i = 0; i < t->ndim; i++) {
        if (t->stride[i] == INT64_MIN)
            return 0;
        int64_t n, stride = t->stride[i] < 0 ? -t->stride[i] : t->stride[i];
        if (__builtin_mul_overflow(stride, t->shape[i] > 0 ? t->shape[i] - 1 : 0, &n) ||
            __builtin_add_overflow(reach, n, &reach) || reach > limit)
            return 0;
        if (__builtin_mul_overflow(count, t->shape[i], &count) || count > limit)
            return 0;
    }
    return 1;
}

static enum skl_status bad_dim(const struct skl_rule *r, int i, int64_t n, const char *rule, long long want)
{
    return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.shape[%d] = %lld: %s %lld", r->name, i, (long long)n, rule, want);
}

enum skl_status skl_check_tensor(const struct skl_tensor *t, const struct skl_rule *r)
{
    if (t->dtype < 0 || t->dtype > SKL_I64 || !(r->dtypes & 1 << t->dtype)) {
        int only_i32 = r->dtypes == 1 << SKL_I32, only_f32 = r->dtypes == 1 << SKL_F32;
        int integers = r->dtypes == (1 << SKL_I32 | 1 << SKL_I64);
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.dtype = %d (%s): it must be %s", r->name, (int)t->dtype,
                        skl_dtype_name(t->dtype),
                        only_i32    ? "i32"
                        : integers  ? "i32 or i64"
                        : only_f32  ? "f32"
                        : r->output ? "f32 or the dtype of what it is the gradient of"
                                    : "f32, bf16 or f16");
    }
    if (t->device != SKL_CPU && t->device != SKL_CUDA)
        return skl_fail(SKL_UNSUPPORTED, "cannot use %s.device = %d: it must be SKL_CPU (%d) or SKL_CUDA (%d)", r->name,
                        (int)t->device, SKL_CPU, SKL_CUDA);
    if (t->device == SKL_CPU ? t->device_index != 0 : t->device_index < 0)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.device_index = %d: it must be %s", r->name,
                        (int)t->device_index, t->device == SKL_CPU ? "0 on the CPU" : "the number of a CUDA device");
    if (r->ndim ? t->ndim != r->ndim : t->ndim < 2 || t->ndim > 4)
        return r->ndim
                   ? skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.ndim = %d: it must be %d", r->name, (int)t->ndim,
                              r->ndim)
                   : skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.ndim = %d: it must be 2, 3 or 4", r->name, (int)t->ndim);
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 0)
            return bad_dim(r, i, t->shape[i], "a size must be at least", 0);
        if (r->shape && r->shape[i] >= 0 && t->shape[i] != r->shape[i])
            return bad_dim(r, i, t->shape[i], "it must be", (long long)r->shape[i]);
    }
    int last = t->ndim - 1;
    if (r->last_contiguous && t->shape[last] > 1 && t->stride[last] != 1)
        return skl_fail(SKL_BAD_ARGUMENT,
                        "cannot use %s.stride[%d] = %lld: the last dimension must be contiguous, stride 1", r->name,
                        last, (long long)t->stride[last]);
    if (!reach_fits(t))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s of shape[0] = %lld, stride[0] = %lld: its offsets overflow",
                        r->name, (long long)t->shape[0], (long long)t->stride[0]);
    if (!t->data && !empty(t))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.data = NULL: it must point to the elements", r->name);
    if (!empty(t) && (uintptr_t)t->data % (uintptr_t)skl_size_of(t->dtype))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.data = %p: it must be aligned to its elements of %d bytes",
                        r->name, t->data, (int)skl_size_of(t->dtype));
    if (r->output && !empty(t) && overlaps_itself(t))
        return skl_fail(SKL_BAD_ARGUMENT,
                        "cannot use %s.stride[0] = %lld: the elements of an output must not share memory", r->name,
                        (long long)t->stride[0]);
    return SKL_OK;
}
