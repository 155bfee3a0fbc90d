/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules by which skl_problem and skl_outputs grow: a smaller size means defaults and nothing behind it is read, a
 * larger one works when what is unknown is 0, anything else is refused with a sentence and nothing is written.
 */
#include "first_sizes.h"
#include "../test.h"

#include <streamkl/streamkl.h>

enum { ROWS = 3, COLUMNS = 5, DIM = 2 };
enum { VALUE, GRAD, BACKWARD, PARTIAL, FINISH, SIZE, CALLS };
static const char *const names[CALLS] = {"value", "value_and_grad", "backward", "partial", "finish", "workspace_size"};

static float a[ROWS * DIM], b[COLUMNS * DIM], saved_rows[2][ROWS];

/* What a call writes. */
static struct {
    float loss[ROWS], da[ROWS * DIM], part[4][ROWS];
    struct skl_state state[ROWS];
    double value;
    size_t bytes;
} to, before;

static struct skl_problem problem(void)
{
    struct skl_tensor x = skl_matrix(SKL_F32, a, ROWS, DIM), w = skl_matrix(SKL_F32, b, COLUMNS, DIM);
    struct skl_problem p = skl_linear(x, w, x, w);
    p.t.scale = 2;
    return p;
}

static struct skl_outputs outputs(int call)
{
    struct skl_outputs out = skl_no_outputs();
    if (call == GRAD || call == BACKWARD)
        out.s.a = skl_matrix(SKL_F32, to.da, ROWS, DIM);
    if (call != BACKWARD) {
        out.loss = skl_vector(SKL_F32, to.loss, ROWS);
        out.value = &to.value;
    }
    return out;
}

static struct skl_outputs saved(void)
{
    struct skl_outputs out = skl_no_outputs();
    out.lse_s = skl_vector(SKL_F32, saved_rows[0], ROWS);
    out.lse_t = skl_vector(SKL_F32, saved_rows[1], ROWS);
    return out;
}

/* Every call with these structures, which may be of any size. */
static enum skl_status run(int call, const void *p, const void *from, const void *out)
{
    memset(&to, KIT_CANARY, sizeof to);
    for (int i = 0; i < ROWS; i++) to.state[i] = (struct skl_state){0, 1, 0, 0, 1, 0};
    memcpy(&before, &to, sizeof to);
    switch (call) {
    case VALUE: return skl_value(p, out);
    case GRAD: return skl_value_and_grad(p, out);
    case BACKWARD: return skl_backward(p, from, out);
    case PARTIAL: return skl_partial(p, NULL, to.state);
    case FINISH: return skl_finish(p, to.state, out);
    default: return skl_workspace_size(SKL_CALL_VALUE, p, out, &to.bytes);
    }
}

static void refused(enum skl_status status, const char *name)
{
    const char *said = skl_last_error();
    CHECK(status == SKL_BAD_ARGUMENT, "gave \"%s\" (%s)", skl_status_string(status), said);
    CHECK(!strncmp(said, "cannot use ", 11) && strstr(said, name) && strchr(said, ':'), "the sentence is \"%s\"", said);
    CHECK(!memcmp(&to, &before, sizeof to), "something was written");
}

/* ------------------------------------------------------------------------------------------------ structures --- */

/* A structure at the end of readable memory, of 'size' bytes: what fits of 'from', then zeros. */
static void *grown(struct kit_buffer *memory, const void *from, size_t now, size_t size)
{
    *memory = test_alloc(size, 1, KIT_AT_END);
    memset(memory->data, 0, size);
    memcpy(memory->data, from, size < now ? size : now);
    memcpy(memory->data, &size, sizeof size);
    return memory->data;
}

/* The three structures of a call; one of them is replaced by one of another size. */
enum { PROBLEM, SAVED, OUT, STRUCTURES };
static const char *const structure_names[STRUCTURES] = {"problem", "saved", "out"};
static const size_t sizes[STRUCTURES] = {sizeof(struct skl_problem), sizeof(struct skl_outputs),
                                         sizeof(struct skl_outputs)};
static const size_t first_sizes[STRUCTURES] = {FIRST_PROBLEM, FIRST_OUTPUTS, FIRST_OUTPUTS};

static int takes(int call, int which)
{
    return which == PROBLEM || (which == SAVED ? call == BACKWARD : call != PARTIAL);
}

/* With structure 'which' of this size. 'byte' of it, if not 0, is set to 1. */
static enum skl_status run_sized(int call, int which, size_t size, size_t byte)
{
    struct skl_problem p = problem();
    struct skl_outputs from = saved(), out = outputs(call);
    const void *all[STRUCTURES] = {&p, &from, &out};
    struct kit_buffer memory;
    unsigned char *other = grown(&memory, all[which], sizes[which], size);
    if (byte)
        other[byte] = 1;
    all[which] = other;
    enum skl_status status = run(call, all[PROBLEM], all[SAVED], all[OUT]);
    test_free(&memory);
    return status;
}

/* ---------------------------------------------------------------------------------------------------- rules --- */

static void accepted_sizes(int call, int which)
{
    size_t now = sizes[which], each[] = {first_sizes[which], now, now + 1, now + 8, now + 104, now + 4000};
    CHECK_STATUS(run_sized(call, which, now, 0), SKL_OK);
    unsigned char want[sizeof to];
    memcpy(want, &to, sizeof to);
    CHECK(call == PARTIAL || memcmp(&to, &before, sizeof to) != 0, "nothing was written");
    for (int i = 0; i < COUNT(each); i++) {
        test_context("%s, %s of %zu bytes", names[call], structure_names[which], each[i]);
        CHECK_STATUS(run_sized(call, which, each[i], 0), SKL_OK);
        CHECK(!memcmp(&to, want, sizeof to), "other results than with today's size");
    }
}

static void unknown_bytes(int call, int which)
{
    size_t now = sizes[which], bytes[] = {0, 1, 7, 8, 103, 3999};
    for (int i = 0; i < COUNT(bytes); i++) {
        test_context("%s, %s with byte %zu after its end set", names[call], structure_names[which], bytes[i]);
        enum skl_status status = run_sized(call, which, now + bytes[i] + 1, now + bytes[i]);
        refused(status, structure_names[which]);
        char number[24];
        snprintf(number, sizeof number, "byte %zu", now + bytes[i]);
        CHECK(strstr(skl_last_error(), number), "the sentence \"%s\" does not name %s", skl_last_error(), number);
    }
}

/* Sizes that no version had or will have. Only the size itself may be read: nothing else is there. */
static void absurd_sizes(int call, int which)
{
    size_t each[] = {
        0, 1, 7, 8, first_sizes[which] - 1, (1 << 16) + 1, (size_t)1 << 40, SIZE_MAX / 2 + 1, SIZE_MAX - 7, SIZE_MAX};
    struct kit_buffer memory = test_alloc(sizeof(size_t), sizeof(size_t), KIT_AT_END);
    for (int i = 0; i < COUNT(each); i++) {
        struct skl_problem p = problem();
        struct skl_outputs from = saved(), out = outputs(call);
        const void *all[STRUCTURES] = {&p, &from, &out};
        test_context("%s, %s of %zu bytes", names[call], structure_names[which], each[i]);
        memcpy(memory.data, &each[i], sizeof each[i]);
        all[which] = memory.data;
        enum skl_status status = run(call, all[PROBLEM], all[SAVED], all[OUT]);
        refused(status, "struct_size");
    }
    test_free(&memory);
}

/* Fields behind the caller's size do not exist, whatever lies there. */
static void newer_fields_unseen(void)
{
    struct skl_problem p = problem();
    struct skl_outputs out = outputs(VALUE);
    struct skl_tensor *part[4] = {&out.m_s, &out.m_t, &out.l_s, &out.l_t};
    for (int i = 0; i < 4; i++) *part[i] = skl_vector(SKL_F32, to.part[i], ROWS);
    test_context("outputs of version 0.1.0 with newer fields behind them");
    out.struct_size = FIRST_OUTPUTS;
    CHECK_STATUS(run(VALUE, &p, NULL, &out), SKL_OK);
    CHECK(!memcmp(to.part, before.part, sizeof to.part), "written to fields that the caller does not have");
    test_context("and with them");
    out.struct_size = sizeof out;
    CHECK_STATUS(run(VALUE, &p, NULL, &out), SKL_OK);
    CHECK(memcmp(to.part, before.part, sizeof to.part) != 0, "m and l were not written");
}

int main(void)
{
    test_begin("test_growth");
    for (int i = 0; i < COUNT(a); i++) a[i] = (float)test_normal();
    for (int i = 0; i < COUNT(b); i++) b[i] = (float)test_normal();
    for (int call = 0; call < CALLS; call++)
        for (int which = 0; which < STRUCTURES; which++) {
            if (!takes(call, which))
                continue;
            accepted_sizes(call, which);
            unknown_bytes(call, which);
            absurd_sizes(call, which);
        }
    newer_fields_unseen();
    return test_end();
}
