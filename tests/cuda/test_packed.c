/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed sequences on a device: no product is made that one call for each sequence would not make; and offsets that are
 * none, which nobody has looked at before the kernels run, lead to NaN and nowhere else. test_kernels has them against
 * the reference.
 */
#include "families.h"

enum { SEQUENCES = 5, LENGTH = 128 };

static struct kit_case packed_case(int64_t dim, int causal)
{
    struct kit_case c = kit_attention_case(SEQUENCES * LENGTH, SEQUENCES * LENGTH, dim);
    c.packed = SEQUENCES, c.causal = causal, c.heads = 2, c.key_heads[S] = c.key_heads[T] = 1;
    c.dtype[S] = c.dtype[T] = SKL_BF16, c.place = KIT_ALIGNED, c.grads = KIT_GRAD_STUDENT;
    return c;
}

static int32_t *offsets_of(struct kit_fixture *f, int input)
{
    return f->in[input].t.data;
}

/* [1, H, sequences n, ..] as a batch, [sequences, H, n, ..]. */
static struct skl_tensor as_batch(struct skl_tensor t)
{
    if (t.data)
        t.shape[0] = SEQUENCES, t.shape[2] /= SEQUENCES, t.stride[0] = t.stride[2] * t.shape[2];
    return t;
}

static uint64_t products_of(const struct skl_problem *p, const struct skl_outputs *out)
{
    test_device_reset();
    CHECK_STATUS(skl_value_and_grad(p, out), SKL_OK);
    test_device_clean("packed");
    return test_device.total.mma;
}

/* Sequences that end where tiles do: as many products as a batch of them takes, in every kernel. */
static void no_more_products(void)
{
    static const int64_t dims[] = {64, 128, 256};
    for (int k = 0; k < 6; k++) {
        struct kit_case c = packed_case(dims[k / 2], k % 2);
        struct kit_fixture f;
        test_context("%lld entries, causal %d", (long long)dims[k / 2], k % 2);
        test_build(&f, &c);
        for (int i = 0; i <= SEQUENCES; i++)
            offsets_of(&f, KIT_INPUT_CU_Q)[i] = offsets_of(&f, KIT_INPUT_CU_K)[i] = i * LENGTH;
        test_device_adopt(&f);
        f.p.any_order = dims[k / 2] < 256 && k % 2;
        struct skl_outputs out = kit_outputs(&f, 0, KIT_GRAD_STUDENT);
        uint64_t packed = products_of(&f.p, &out);
        struct skl_problem p = f.p;
        p.cu_seqlens_q = p.cu_seqlens_k = (struct skl_tensor){0};
        p.s.a = as_batch(p.s.a), p.s.b = as_batch(p.s.b), p.t.a = as_batch(p.t.a), p.t.b = as_batch(p.t.b);
        out.s.a = as_batch(out.s.a), out.s.b = as_batch(out.s.b);
        uint64_t batch = products_of(&p, &out);
        CHECK(packed == batch, "packed takes %llu products, as a batch %llu", (unsigned long long)packed,
              (unsigned long long)batch);
        test_device_release(&f);
        kit_destroy(&f); /* whose offsets the test has changed */
    }
}

/* Offsets as nobody may give them: every loss is NaN, gradients of keys are NaN, those of queries 0, and the emulator
 * has seen no access out of bounds. */
static void bad_offsets(void)
{
    static const struct {
        int input, at;
        int32_t x;
    } each[] = {{KIT_INPUT_CU_Q, 0, 1},           {KIT_INPUT_CU_Q, 2, 3},          {KIT_INPUT_CU_Q, 2, 1 << 30},
                {KIT_INPUT_CU_Q, SEQUENCES, 600}, {KIT_INPUT_CU_K, 1, -1},         {KIT_INPUT_CU_K, 0, -1000000},
                {KIT_INPUT_CU_K, 3, INT32_MAX},   {KIT_INPUT_CU_K, SEQUENCES, 600}};
    for (int k = 0; k < COUNT(each); k++) {
        static const int64_t dims[] = {64, 128, 256, 21};
        struct kit_case c = packed_case(dims[k % 4], k % 2);
        struct kit_fixture f;
        test_context("offset %d is %d", each[k].at, each[k].x);
        kit_set_divergence(&c, k % 2 ? SKL_JSD : SKL_FORWARD_KL);
        test_build(&f, &c);
        for (int i = 0; i <= SEQUENCES; i++)
            offsets_of(&f, KIT_INPUT_CU_Q)[i] = offsets_of(&f, KIT_INPUT_CU_K)[i] = i * LENGTH;
        offsets_of(&f, each[k].input)[each[k].at] = each[k].x;
        test_device_adopt(&f);
        f.p.any_order = k == 1;
        test_device_reset();
        struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_STUDENT);
        CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
        test_device_clean("bad offsets");
        CHECK(isnan(f.value), "the value is %g", f.value);
        int64_t numbers = 0;
        for (int64_t i = 0; i < kit_count(&f.out[KIT_LOSS].t); i++) numbers += !isnan(kit_get(&f.out[KIT_LOSS].t, i));
        for (int64_t i = 0; i < kit_count(&f.out[KIT_B_S].t); i++) numbers += !isnan(kit_get(&f.out[KIT_B_S].t, i));
        CHECK(numbers == 0, "%lld losses and gradients are numbers", (long long)numbers);
        test_device_release(&f);
        kit_destroy(&f); /* whose offsets the test has changed */
    }
}

int main(void)
{
    test_begin("test_packed");
    test_device_begin();
    no_more_products();
    bad_offsets();
    test_context("%s", "");
    CHECK(emu_allocations() == 0, "%d allocations are left", emu_allocations());
    return test_end();
}
