/* SPDX-License-Identifier: Apache-2.0
 *
 * Public calls on a device: workspaces of the caller's, launches that fail, nothing to do, partial rows, weights that
 * are no numbers, and which bytes are written.
 */
#include "families.h"

#include "../../src/cuda/args.h"
#include "../../src/cuda/host/device.h"

/* A caller's workspace of exactly the bytes that skl_workspace_size() says will do, and the call allocates nothing; one
 * byte less is refused before anything is written. */
static void own_workspace(void)
{
    static const enum skl_call calls[] = {SKL_CALL_VALUE, SKL_CALL_VALUE_AND_GRAD, SKL_CALL_BACKWARD};
    for (int k = 0; k < 6; k++)
        for (int i = 0; i < COUNT(calls); i++) {
            enum skl_call call = calls[i];
            struct kit_case c = k % 2 ? kit_linear_case(70, 150, 24) : kit_attention_case(70, 150, 20);
            struct kit_fixture f;
            size_t bytes = 0;
            c.dtype[S] = c.dtype[T] = k % 2 ? SKL_BF16 : SKL_F32, c.divergence = k % 3, c.own = k / 3,
            c.place = KIT_ALIGNED;
            c.bias[S] = k % 2;
            family_begin(&f, &c, 0, 3);
            test_context("own workspace, case %d, call %d", k, (int)call);
            struct skl_outputs saved = kit_outputs(&f, 1, 0);
            saved.value = NULL;
            CHECK_STATUS(skl_value(&f.p, &saved), SKL_OK);
            struct skl_outputs out = call == SKL_CALL_BACKWARD ? skl_no_outputs() : kit_outputs(&f, 1, 0);
            if (call != SKL_CALL_VALUE) {
                struct skl_outputs grads = kit_outputs(&f, 0, KIT_GRAD_ALL);
                out.s = grads.s, out.t = grads.t;
            }
            CHECK_STATUS(skl_workspace_size(call, &f.p, &out, &bytes), SKL_OK);
            int before = emu_allocations() + 1;
            f.p.workspace = emu_allocate(bytes), f.p.workspace_bytes = bytes - 1;
            test_device_reset();
            for (int enough = 0; enough < 2; enough++, f.p.workspace_bytes++) {
                enum skl_status want = enough ? SKL_OK : SKL_BAD_ARGUMENT;
                CHECK_STATUS(call == SKL_CALL_VALUE            ? skl_value(&f.p, &out)
                             : call == SKL_CALL_VALUE_AND_GRAD ? skl_value_and_grad(&f.p, &out)
                                                               : skl_backward(&f.p, &saved, &out),
                             want);
                if (enough)
                    continue;
                CHECK(test_device.launches == 0, "a launch without a workspace");
                char number[32];
                snprintf(number, sizeof number, "%zu", bytes);
                CHECK(strstr(skl_last_error(), number), "\"%s\" does not name %s", skl_last_error(), number);
            }
            CHECK(emu_allocations() == before, "%d allocations", emu_allocations() - before);
            test_compare(&f, &out, "own workspace");
            test_device_clean("own workspace");
            emu_release(f.p.workspace);
            family_end(&f);
        }
}

/* Whichever launch fails, the caller hears of it, and the workspace is given back. */
static void failures(void)
{
    for (int k = 0; k < 4; k++) {
        struct kit_case c = k % 2 ? kit_linear_case(20, 30, 24) : kit_attention_case(20, 30, 24);
        struct kit_fixture f;
        c.dtype[S] = c.dtype[T] = k / 2 ? SKL_BF16 : SKL_F32, c.divergence = SKL_JSD, c.own = 1, c.place = KIT_ALIGNED;
        c.bias[S] = k % 2;
        family_begin(&f, &c, 0, 3);
        test_device_reset();
        test_context("failing launches, case %d", k);
        struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
        CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
        struct test_device all = test_device;
        CHECK(all.kernel_count > 5, "only %d kernels", all.kernel_count);
        for (int i = 0; i < all.kernel_count; i++) {
            int before = emu_allocations();
            test_device.fail = all.kernels[i];
            test_context("failing launches, case %d: %s", k, all.kernels[i]);
            CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_DEVICE_FAILED);
            CHECK(strstr(skl_last_error(), all.kernels[i]), "\"%s\" does not name %s", skl_last_error(),
                  all.kernels[i]);
            CHECK(emu_allocations() == before, "%d allocations are left", emu_allocations() - before);
        }
        test_device.fail = NULL;
        test_context("after failing launches, case %d", k);
        test_run(&f, KIT_TOGETHER);
        family_end(&f);
    }
}

/* No rows, or no columns: nothing to compute is not an error. Gradients that exist are 0. */
static void none(void)
{
    for (int k = 0; k < 12; k++) {
        int no_columns = k % 2, linear = k / 2 % 2, divergence = k / 4;
        struct kit_case c = linear ? kit_linear_case(70, 30, 24) : kit_attention_case(70, 30, 24);
        struct kit_fixture f;
        c.dtype[S] = c.dtype[T] = divergence == SKL_JSD ? SKL_F32 : SKL_BF16, c.divergence = divergence,
        c.place = KIT_ALIGNED;
        c.bias[S] = linear;
        test_build(&f, &c);
        test_device_adopt(&f);
        test_context("%s, %s, divergence %d", no_columns ? "no columns" : "no rows", linear ? "linear" : "attention",
                     divergence);
        struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
        struct skl_tensor *rows[] = {&f.p.s.a,   &f.p.t.a,   &out.s.a,  &out.t.a, &out.loss,
                                     &out.lse_s, &out.lse_t, &out.kl_s, &out.kl_t};
        struct skl_tensor *columns[] = {&f.p.s.b, &f.p.t.b, &out.s.b, &out.t.b, &f.p.s.bias, &out.s.bias};
        for (int i = 0; !no_columns && i < COUNT(rows); i++) rows[i]->shape[linear ? 0 : 2] = 0;
        for (int i = 0; no_columns && i < COUNT(columns); i++)
            columns[i]->shape[columns[i]->ndim == 1 ? 0 : linear ? 0 : 2] = 0;
        test_device_reset();
        CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
        test_device_clean("nothing");
        CHECK(f.value == 0, "value %g", f.value);
        for (int i = 0; i < KIT_RESULTS; i++) {
            struct skl_tensor *t = kit_slot(&out, i);
            double want = i == KIT_LSE_S || i == KIT_LSE_T ? -INFINITY : 0;
            for (int64_t j = 0; t->data && j < kit_count(t); j++)
                CHECK(kit_get(t, j) == want, "%s[%d] = %g", kit_results[i].name, (int)j, kit_get(t, j));
        }
        test_device_release(&f);
        test_destroy(&f);
    }
}

/* ------------------------------------------------------------------------------------------------- partial --- */

/* The states of two slices of columns, merged on the host: left in the first. */
static void sweep_slices(const struct skl_problem *slice, int64_t rows, const struct skl_outputs *saved,
                         struct skl_state **state)
{
    for (int k = 0; k < 2; k++) CHECK_STATUS(skl_partial(&slice[k], saved, state[k]), SKL_OK);
    CHECK_STATUS(skl_merge(rows, state[0], state[1]), SKL_OK);
}

/* Two slices, as two machines would hold them, finish as skl_value does on the whole. */
static void partial(void)
{
    for (int k = 0; k < 3 * KIT_DIVERGENCE_COUNT; k++) {
        int32_t type = k % 3 == 0 ? SKL_F32 : SKL_BF16;
        struct kit_case c = k % 3 == 1 ? kit_attention_case(70, 150, 64)
                                       : kit_linear_case(70, 150, k % 3 == 2 ? 272 : 24);
        struct kit_fixture f;
        struct skl_problem slice[2];
        struct skl_state *state[2];
        c.dtype[S] = c.dtype[T] = type, c.place = KIT_ALIGNED, c.grads = 0;
        kit_set_divergence(&c, k / 3);
        c.bias[T] = c.use == SKL_LINEAR, c.weights = KIT_SOME_ZERO;
        family_begin(&f, &c, 0, 3);
        test_context("partial, case %d", k);
        for (int i = 0; i < 2; i++) {
            int64_t first = i ? 66 : 0, n = i ? 84 : 66;
            slice[i] = f.p;
            slice[i].s.b = kit_slice(f.p.s.b, first, n), slice[i].t.b = kit_slice(f.p.t.b, first, n);
            slice[i].t.bias = kit_slice(f.p.t.bias, first, n);
            state[i] = emu_allocate((size_t)c.rows * sizeof **state);
        }
        test_device_reset();
        struct skl_outputs whole = kit_outputs(&f, 1, 0);
        CHECK_STATUS(skl_value(&f.p, &whole), SKL_OK);
        double value = f.value;
        struct skl_outputs out = kit_outputs(&f, 1, 0), lse = skl_no_outputs(), rest = out;
        sweep_slices(slice, c.rows, NULL, state);
        if (kit_divergences[c.divergence].sweeps == 2) {
            lse.lse_s = out.lse_s, lse.lse_t = out.lse_t;
            rest.lse_s = rest.lse_t = (struct skl_tensor){0};
            CHECK_STATUS(skl_finish(&f.p, state[0], &lse), SKL_OK);
            sweep_slices(slice, c.rows, &lse, state);
        }
        CHECK_STATUS(skl_finish(&f.p, state[0], &rest), SKL_OK);
        CHECK_NEAR(f.value, value, f.value_bound, "the value of two slices");
        test_compare(&f, &out, "two slices");
        test_device_clean("two slices");
        emu_release(state[0]), emu_release(state[1]);
        family_end(&f);
    }
}

/* ---------------------------------------------------------------------------------------------- weights --- */

/* A weight that is not a number is a weight: a mean over such rows is not a number either, as on the CPU. */
static void weights_not_numbers(void)
{
    for (int all = 0; all < 2; all++) {
        struct kit_case c = kit_linear_case(9, 33, 24);
        struct kit_fixture f;
        c.weights = KIT_POSITIVE, c.reduction = SKL_MEAN, c.grads = 0;
        test_build(&f, &c);
        for (int64_t i = 0; i < (all ? c.rows : 1); i++) kit_set(&f.in[KIT_INPUT_WEIGHT].t, i, (double)NAN);
        f.checksum = kit_checksum(&f);
        test_device_adopt(&f);
        test_context("%s weight is NaN", all ? "every" : "a");
        struct skl_outputs out = kit_outputs(&f, 1, 0);
        f.value = 0;
        CHECK_STATUS(skl_value(&f.p, &out), SKL_OK);
        CHECK(isnan(f.value), "the value is %g", f.value);
        test_device_release(&f);
        test_destroy(&f);
    }
}

/* --------------------------------------------------------------------------------------------- what is written --- */

/* Every element of every output, and no byte between or beside them. */
static void written(void)
{
    for (int k = 0; k < 12; k++) {
        struct kit_case c = k % 2 ? kit_linear_case(9, 33, 24) : kit_attention_case(9, 33, 24);
        struct kit_fixture f;
        int32_t types[] = {SKL_F32, SKL_BF16, SKL_F16};
        c.dtype[S] = c.dtype[T] = types[k / 2 % 3], c.own = k / 6, c.divergence = k % 3;
        c.layout = k % 3 ? KIT_GAPS : KIT_DENSE, c.place = k % 3 ? KIT_AT_END : KIT_ALIGNED;
        c.batch = 2, c.heads = 2, c.lead = 3, c.causal = k % 2 == 0, c.weights = KIT_SOME_ZERO;
        c.pad[S] = 3, c.pad[T] = 5;
        c.bias[S] = c.bias[T] = k % 2;
        family_begin(&f, &c, 0, 3);
        test_context("what is written, case %d", k);
        struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
        for (int i = 0; i < KIT_RESULTS; i++)
            if (f.out[i].memory.data)
                emu_forget(f.out[i].memory.data, f.out[i].memory.size);
        CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
        for (int i = 0; i < KIT_RESULTS; i++) {
            const struct kit_tensor *t = &f.out[i];
            size_t size = kit_element_size(t->t.dtype), missing = 0;
            if (!t->memory.data)
                continue;
            for (int64_t j = 0; j < kit_count(&t->t); j++)
                missing += emu_unwritten((char *)t->t.data + (size_t)kit_offset(&t->t, j) * size, size);
            CHECK(missing == 0, "%zu bytes of %s were not written", missing, kit_results[i].name);
            size_t gaps = t->memory.size - (size_t)kit_count(&t->t) * size;
            CHECK(emu_unwritten(t->memory.data, t->memory.size) == gaps, "gaps of %s were written",
                  kit_results[i].name);
        }
        CHECK(emu_unwritten(&f.value, sizeof f.value) == 0, "the value was not written");
        test_compare(&f, &out, "value_and_grad");
        family_end(&f);
    }
}

/* convert, with more heads than a grid's second dimension has; by a block a row and by few blocks in turns. */
static void many_heads(void)
{
    enum { BATCH = 70, HEADS = 1000, ROWS = 2, FIRST = 1, STRIDE = ROWS + FIRST };
    int64_t all = (int64_t)BATCH * HEADS * ROWS;
    uint16_t *to = emu_allocate((size_t)(BATCH * HEADS * STRIDE) * sizeof *to);
    float *from = emu_allocate((size_t)all * sizeof *from);
    for (int64_t i = 0; i < all; i++) from[i] = (float)(i % 251 + 1);
    emu_written(from, (size_t)all * sizeof *from);
    for (int few = 0; few < 2; few++) {
        struct skl_gpu_convert args = {.to = {(char *)to, {HEADS * STRIDE, STRIDE, 1}, SKL_BF16, 0},
                                       .from = from,
                                       .rows = ROWS,
                                       .first = FIRST,
                                       .all = all,
                                       .heads = HEADS,
                                       .dim = 1};
        struct skl_gpu_launch l = {"convert", few ? 999 : all, 1, 128, 0, &args, sizeof args};
        struct skl_tensor view = skl_vector(SKL_BF16, to, BATCH * HEADS * STRIDE);
        int64_t wrong = 0;
        emu_forget(to, (size_t)(BATCH * HEADS * STRIDE) * sizeof *to);
        test_device_reset();
        test_context("70000 heads, %lld blocks", (long long)l.grid_x);
        CHECK_STATUS(skl_gpu->launch(&l, NULL), SKL_OK);
        test_device_clean("convert");
        for (int64_t i = 0; i < all; i++)
            wrong += !(kit_get(&view, i / ROWS * STRIDE + FIRST + i % ROWS) == (double)from[i]);
        CHECK(wrong == 0, "%lld rows are wrong", (long long)wrong);
        CHECK(emu_unwritten(to, (size_t)(BATCH * HEADS * STRIDE) * sizeof *to) == BATCH * HEADS * FIRST * sizeof *to,
              "gaps were written");
    }
    emu_release(to), emu_release(from);
}

int main(void)
{
    test_begin("test_calls");
    test_device_begin();
    own_workspace();
    failures();
    none();
    partial();
    weights_not_numbers();
    written();
    many_heads();
    test_context("%s", "");
    CHECK(emu_allocations() == 0, "%d allocations are left", emu_allocations());
    return test_end();
}
