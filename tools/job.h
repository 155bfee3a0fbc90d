/* SPDX-License-Identifier: Apache-2.0
 *
 * A job: a short description of some work, and the problem, random operands and output buffers made from it. check,
 * demo and bench all run their work through this.
 */
#ifndef TOOL_JOB_H
#define TOOL_JOB_H

#include <streamkl/streamkl.h>

enum pass { PASS_VALUE, PASS_VALUE_AND_GRAD, PASS_BACKWARD };
extern const char *const pass_names[], *const use_names[];

/* Which gradients; bits. */
enum { GRAD_A_S = 1, GRAD_B_S = 2, GRAD_BIAS_S = 4, GRAD_A_T = 8, GRAD_B_T = 16, GRAD_STUDENT = GRAD_A_S | GRAD_B_S };

struct work {
    int use, divergence;
    int dtype_s, dtype_t, dtype_grad; /* of the student's operands, the teacher's, and all gradients */
    int64_t batch, heads, kv_heads_s, kv_heads_t, rows, cols; /* linear: batch and heads 1, cols the vocabulary */
    int64_t pad_s, pad_t;                                     /* linear: rows of W beyond cols */
    int64_t dim_s, dim_t;
    int causal;
    int64_t window_left, window_right;
    int bias, ranges, weights; /* flags: column bias, random begin and end, random weights with zeros among them */
    int reduction;
    double softcap, temperature, beta;
    double spread; /* standard deviation of the logits before softcap and temperature */
    double skip_below;
    int gradients;
    int device; /* enum skl_device */
    int threads, isa;
    size_t workspace_limit;
    uint64_t seed;
};

/* Forward KL, f32, one row and column, no masks, student gradients. */
struct work work_default(int use);

/* Everything on the host: operands, and results as they are compared with the reference. A job on a device has a copy
 * of it there, which runs. */
struct job {
    struct work work;
    struct skl_problem problem;
    struct skl_outputs value; /* the reduced loss, loss, LSEs, kl_s and kl_t */
    struct skl_outputs all;   /* the same buffers, and gradients */
    double reduced;
    void *owned[32];
    int count;
    struct {
        struct skl_problem problem;
        struct skl_outputs value, all;
        void *owned[40];
        int count;
    } on_device;
};

void job_make(struct job *job, const struct work *work);
void job_free(struct job *job);

/* What is given to the library: of the host, or of the device. */
struct skl_problem *job_problem(struct job *job);
struct skl_outputs *job_value(struct job *job);
struct skl_outputs *job_all(struct job *job);

/* PASS_BACKWARD needs the results of an earlier PASS_VALUE. On a device, start returns before it is done; run waits. */
enum skl_status job_start(struct job *job, enum pass pass);
enum skl_status job_run(struct job *job, enum pass pass);

/* Fetches the results of a device, to be compared. */
void job_fetch(struct job *job);

/* Device memory for this pass, so that repeated runs do not allocate. Returns its size. */
size_t job_reserve(struct job *job, enum pass pass);

/* job_run, but a failure is a sentence and an exit; with EXIT_INTERRUPTED when the progress callback cancelled it. */
void job_must(struct job *job, enum pass pass);

/* Fills every output with NaN, so that a result left from an earlier run cannot pass for this one's. */
void job_spoil(struct job *job);

/* (row, column) pairs that lie within the row ranges. */
double job_elements(const struct job *job);

/* Floating-point operations of the matrix products alone: two for a value, four with the student's gradients. */
double job_flops(const struct job *job, enum pass pass);

#endif
