#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Are the tests able to see a wrong kernel? Breaks the CUDA sources in one place at a time, compiles the PTX of one
unit from the broken copy and runs the tests of the kernels with it: they must fail. test_mutants.c does the same for
the synchronising instructions.

usage: source_mutants.py NVCC TEST_KERNELS PTX_DIR [FILTER]
       source_mutants.py --fits       only: is every text that a mutant replaces in its file?
When it passes, test_sinks, test_exact, test_plan, test_calls, test_rounding, test_labels, test_details, test_lists, test_topk and test_keys from
the same directory are run; of what OWN_TESTS names, that test alone: the cases of make test, then all of make test-long. FILTER: part of a unit's name or of
what is broken. JOBS mutants at once, or one for each processor. Prints a table; exit code 1 if a mutant survives, does not compile or no
longer fits the source."""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCES = os.path.join(ROOT, 'src')
# File, unit, text, what stands there instead, what is broken. The first occurrence of the text is replaced.
MUTANTS = [
    # Tiles in shared memory
    ('tile.cuh', 'sweep_narrow_bf16_64', '((c ^ (r & 7)) << 4)', '(c << 4)', 'no swizzle'),
    ('tile.cuh', 'sweep_narrow_bf16_128', 'k / SKL_ADDRESSES * 128', '0', 'all steps at the first four addresses'),
    ('tile.cuh', 'sweep_narrow_bf16_256', 'tile ^ 64 : tile', 'tile : tile', 'swizzle of every other 4 rows'),
    ('tile.cuh', 'sweep_narrow_bf16_64', 'WHOLE || source_row(row()) + source_row(step) < valid ? bytes : 0', 'bytes',
     'rows behind the last are copied'),
    ('tile.cuh', 'sweep_wide_bf16', 'WHOLE || source_row(row()) + source_row(step) < valid ? bytes : 0', 'bytes',
     'rows behind the last are copied'),
    ('tile.cuh', 'sweep_narrow_bf16_64', '8 * chunk() < dim ? 16 : 0', '16', 'entries behind the dimension are not 0'),
    ('tile.cuh', 'sweep_wide_bf16', '8 * chunk() < dim ? 16 : 0', '16', 'entries behind the dimension are not 0'),
    ('ptx.cuh', 'sweep_narrow_bf16_64', '"r"(b0), "r"(b1)', '"r"(b1), "r"(b0)', 'operands of mma exchanged'),
    ('ptx.cuh', 'grad_pair_bf16_64', '"f"(hi), "f"(lo)', '"f"(lo), "f"(hi)', 'pairs of dx exchanged'),
    # Which rows and columns
    ('tile.cuh', 'sweep_narrow_bf16_64', 'at.valid = min(ROWS, p.n - at.i)', 'at.valid = ROWS',
     'every tile has all its rows'),
    ('tile.cuh', 'sweep_narrow_bf16_64', 'h / s.share * s.b.stride[1]', 'h * s.b.stride[1]',
     'no sharing of key heads'),
    ('tile.cuh', 'sweep_narrow_bf16_64', 's.all_hi = min(s.all_hi, r.hi)', 's.all_hi = max(s.all_hi, r.hi)',
     'tiles that not all rows see, at their end'),
    ('tile.cuh', 'sweep_narrow_bf16_64', 's.all_lo = max(s.all_lo, r.lo)', 's.all_lo = 0',
     'tiles that not all rows see, at their begin'),
    ('tile.cuh', 'sweep_wide_bf16', 's.all_hi = 0;', ';', 'a bias is left out where all rows see the tile'),
    ('push.cuh', 'sweep_narrow_bf16_64', 'column < r.hi', 'column <= r.hi', 'mask: one column too many'),
    ('push.cuh', 'sweep_narrow_bf16_64', 'r.lo <= column', 'r.lo < column', 'mask: the first column is missing'),
    ('push.cuh', 'sweep_wide_bf16', 'q + bias_q', 'q', "Q's bias"),
    ('../../row.h', 'row_kernels', 'r.hi = diagonal + right + 1', 'r.hi = diagonal + right', 'the diagonal itself'),
    ('../../row.h', 'row_kernels', 'r.lo = diagonal - left', 'r.lo = diagonal - left + 1', 'the window is one column short'),
    ('row_kernels.cu', 'row_kernels', ' || row_weight(args.weight, row, args.heads, args.n) == 0', '',
     'rows of weight 0 are not left out'),
    ('sweep_narrow.cu', 'sweep_narrow_bf16_64', 'min(seen.hi, split + args.split_columns)', 'seen.hi',
     'a split has the columns of the next'),
    ('sweep_narrow.cu', 'sweep_narrow_bf16_64', 'max(seen.lo, split)', 'seen.lo', 'a split has the columns of those before'),
    ('stream.cuh', 'sweep_wide_bf16', 'min(seen.hi, split + args.split_columns)', 'seen.hi',
     'a split has the columns of the next'),
    ('plain.cuh', 'sweep_any', 'min(seen.hi, split + args.split_columns)', 'seen.hi', 'a split has the columns of the next'),
    # States
    ('state.cuh', 'sweep_narrow_bf16_64', 's.l[0] * f_p', 's.l[0]', "P's l is not rescaled when m is raised"),
    ('state.cuh', 'sweep_narrow_bf16_64', 's.l[1] * f_q', 's.l[1]', "Q's l is not rescaled when m is raised"),
    ('state.cuh', 'sweep_narrow_bf16_64', 's.acc) * f_p', 's.acc)', 'acc is not rescaled when m is raised'),
    ('state.cuh', 'sweep_any', 's.acc) * f_p', 's.acc)', 'acc is not rescaled when m is raised'),
    ('state.cuh', 'sweep_narrow_bf16_64', 'fmaf(s.l[0], move_p - move_q, s.acc)', 's.acc', 'acc does not move with m'),
    ('state.cuh', 'sweep_wide_bf16', 'move_p - move_q', 'move_p', "acc does not move with Q's m"),
    ('state.cuh', 'sweep_any', 'move_p - move_q', 'move_p + move_q', "acc moves with Q's m, the wrong way"),
    ('state.cuh', 'sweep_any', 'power_of_two(fmaxf(move_p, -126))', 'power_of_two(move_p)',
     'an infinite acc times 0'),
    ('state.cuh', 'sweep_narrow_bf16_64', 'fmaxf(relative(s.m[1], m[1], factor[1]), SKL_FARTHEST)',
     'relative(s.m[1], m[1], factor[1])', 'the move of a state without columns is infinite'),
    ('state.cuh', 'sweep_narrow_bf16_64', 'other = moved_state(b, m, factor)', 'other = b', 'one state is not moved in a merge'),
    ('ptx.cuh', 'sweep_any', '__fmul_rn(x - m, factor)', 'fmaf(x, factor, -m * factor)', 'scores are scaled before m is subtracted'),
    ('ptx.cuh', 'sweep_narrow_bf16_64', '__fmul_rn(x - m, factor)', '(x - m) * factor', 'y_P - y_Q by a multiply-add'),
    ('tile.cuh', 'sweep_any', '__fmul_rn(s.cap, tanhf(s.inner * x))', 's.cap * tanhf(s.inner * x)',
     'a softcap is not rounded before m is subtracted'),
    ('state.cuh', 'sweep_narrow_bf16_64', 'step < LANES; step *= 2', 'step < LANES / 2; step *= 2',
     'half of the lanes are merged'),
    ('state.cuh', 'sweep_narrow_bf16_64', 'd = EDGE && p == 0 ? 0 : d;', '', '0 (-inf) is formed'),
    ('push.cuh', 'sweep_narrow_bf16_64', '__any_sync(~0u, top > SKL_RAISE)', 'false', 'm is never raised'),
    ('push.cuh', 'sweep_narrow_bf16_64', 'if ((threadIdx.x & 3) == 0 && row < at.valid)', 'if (row < at.valid)',
     'all lanes of a row write its state'),
    ('push.cuh', 'sweep_narrow_bf16_64', 'sum += __shfl_xor_sync(~0u, sum, 2);', '', "JSD's sums of two lanes of four"),
    ('divergence.cuh', 'sweep_narrow_bf16_64', 'mass != 0 ? mass * over_m[i] : 0', 'mass * over_m[i]',
     'JSD: 0 (inf) is formed'),
    ('plain.cuh', 'sweep_any', 'step < 16; step *= 2', 'step < 8; step *= 2', 'half of a row is merged'),
    ('../../row.h', 'row_kernels', 'm == to ? 1 : exp(m - to)', '1', 'splits are not rescaled'),
    ('../../row.h', 'row_kernels', '(acc + l_p * shift) * factor', 'acc * factor', "a split's acc does not move"),
    ('../../row.h', 'row_kernels', '(log(q->l) - log(p->l))', '(skl_lse_of(q) - skl_lse_of(p))', 'KL by LSEs'),
    ('row_kernels.cu', 'row_kernels', '(float)-log_l[0], (float)-log_l[1]', '(float)-log_l[1], (float)-log_l[1]', "P has Q's l"),
    ('row_kernels.cu', 'row_kernels', 'any = w != 0 ? 1 : any', 'any = largest', 'a mean of rows whose weights are NaN'),
    # Second sweeps
    ('column.cuh', 'sweep_any', 'fmaf(c.x, SKL_LN2, -log_large)', '-log_large', 'skewed KL: log(p/m) where q is larger'),
    ('column.cuh', 'sweep_any', 'mean - u', '-u', "skewed KL: Q's dz without its mean"),
    ('column.cuh', 'sweep_wide_bf16', '-c.sign * a.of[1]', 'c.sign * a.of[1]', 'skewed KL: the sign of p/m - 1'),
    ('column.cuh', 'sweep_any', 'd > 0 ? -1 : d < 0 ? 1 : 0', 'd > 0 ? -1 : 1', 'total variation: the sign of 0'),
    ('column.cuh', 'sweep_any', 'c.mass[1] * (-c.sign - mean)', 'c.mass[1] * (c.sign - mean)', "total variation: Q's sign"),
    ('column.cuh', 'sweep_any', 'power_of_two(c.log_large * (a.of[0] + a.of[1]))', 'power_of_two(c.log_large)',
     'alpha-beta: the power of the larger'),
    ('column.cuh', 'sweep_any', 'SKL_LN2 * c.x : expm1f', 'c.x : expm1f', 'alpha-beta: the limit 0'),
    ('column.cuh', 'sweep_any', '(float)skl_slope(FORM, exact, of) * ', '', 'the slope of dz'),
    ('../../divergence.h', 'row_kernels', 'r.c[0] = acc_p + param[1] * acc_q', 'r.c[0] = acc_p', 'what skewed KL subtracts'),
    ('../../divergence.h', 'row_kernels', 'r.c[0] = (param[0] + param[1]) * acc_p - acc_q', 'r.c[0] = acc_p - acc_q',
     'what alpha-beta subtracts'),
    # Pipelines
    ('sweep_narrow.cu', 'sweep_narrow_bf16_64', 'shared + (1 - stage) * 2 * S::B', 'shared + stage * 2 * S::B',
     'the next tile goes into the stage in use'),
    ('stream.cuh', 'sweep_wide_bf16', 'blockIdx.y * WARPS_ACROSS + across', 'blockIdx.y * WARPS_ACROSS',
     'two warps write one state'),
    ('stream.cuh', 'sweep_wide_bf16', 'column += PARTS::last(p, part) ? COLUMNS : 0', 'column += COLUMNS', "Q's tile is the one after P's"),
    # dz and gradients
    ('divergence.cuh', 'sweep_any', 'f.r * g.spread * dz', 'g.spread * dz', "a row's weight (slabs)"),
    ('divergence.cuh', 'sweep_any', '(1 - tanh * tanh)', '1', "the softcap's slope"),
    ('divergence.cuh', 'sweep_any', '((y_p - y_q) - c)', '(y_p - y_q)', "P's dz without its mean"),
    ('divergence.cuh', 'sweep_any', 'fmaf(x - (side ? t.m[1] : t.m[0])', 'fmaf(x', 'probabilities without m'),
    ('divergence.cuh', 'sweep_any', 'd > 0 ? fmaf(-SKL_LN2, d, l) : l', 'l', 'log(p/m) where q is larger'),
    ('plain.cuh', 'sweep_any', 'i < valid && d0 + d < dim', 'i < valid', 'entries behind the dimension are not 0'),
    ('tile.cuh', 'sweep_any', 'x == -INFINITY ? x : s.inner * x', 's.inner * x', 'no mass under a negative scale'),
    ('tile.cuh', 'sweep_any', 'x == -INFINITY ? x : s.inner * x', 'x', 'the sign of the scale'),
    ('stream.cuh', 'sweep_wide_bf16', 'row_of_slab * args.ld - args.first_column', 'row_of_slab * args.ld',
     'slabs after the first, in columns'),
    ('row_kernels.cu', 'row_kernels', ' + (log_l[0] - log_l[1])', '', 'c is the loss'),
    ('row_kernels.cu', 'row_kernels', ' / args.scalars->largest : 1', ' : 1', 'weights are not divided by the largest'),
    ('../../row.h', 'row_kernels', 'any_weight ? sum / weight_sum', 'any_weight ? sum', 'the mean is a sum'),
    ('row_kernels.cu', 'row_kernels', '(args.first + i) * args.to.stride[2]', 'i * args.to.stride[2]',
     'padding is cleared from row 0 on'),
    ('row_kernels.cu', 'row_kernels', '(args.add ? args.sum[j] : 0) + ', '', "a bias's gradient is the last slab's"),
    ('grad.cuh', 'grad_pair_bf16_64', '16 * streamed)', '16 * (streamed ^ 1))', 'references of the neighbouring row'),
    ('grad.cuh', 'grad_pair_bf16_64', 'd[e] *= f.r;', ';', "a row's weight (db)"),
    ('grad.cuh', 'grad_pair_bf16_64', 'f *= args.factors[((int64_t)at.b * p.heads + at.h) * p.n + at.own + i].r;', '',
     "a row's weight (da)"),
    ('grad.cuh', 'grad_pair_bf16_64', 'load_matrices_transposed(v, step_at(', 'load_matrices(v, step_at(',
     'streamed vectors are not transposed'),
    ('grad_tiles.cuh', 'grad_pair_bf16_64', '+ row / 64]', '+ row / 128]', 'which tiles of rows see a column'),
    ('grad.cuh', 'grad_pair_bf16_64', 'r[i].hi >= to', 'true', 'mask of db'),
    ('row_kernels.cu', 'row_kernels', 'unit * args.chain[1] / args.spread', 'unit * args.chain[1]', 'the spread of f16 dx'),
    # Packed sequences, targets that are not divided by their sum
    ('row_kernels.cu', 'row_kernels', 'first + (int)r.lo, first + (int)r.hi', '(int)r.lo, (int)r.hi',
     'every sequence sees the first columns'),
    ('rows.cuh', 'row_kernels', 'if (first_row(p, middle) <= i)', 'if (first_row(p, middle) < i)',
     'the first row of a sequence is of the one before'),
    ('row_kernels.cu', 'row_kernels', ' || first_row(p, p.count) != n', '', 'offsets that end before the rows do'),
    ('row_kernels.cu', 'row_kernels', 'return {0, -1}', 'return {0, 0}', 'bad offsets are no rows'),
    ('row_kernels.cu', 'row_kernels', 'r.loss = skl_raw_loss(&r);', '', 'the loss of a target with another sum'),
    ('row_kernels.cu', 'row_kernels', 'f.r *= (float)exp(log_sum_of_target(args.raw, row, heads, n, lse));', '',
     'the gradient of a target with another sum'),
    # Labels
    ('label_kernels.cu', 'label_kernels', 'id == l.ignore ? IGNORED', 'false ? IGNORED', 'ignored labels count'),
    ('label_kernels.cu', 'label_kernels', 'id < 0 || id >= l.columns', 'id < 0', 'a label behind the last column'),
    ('label_kernels.cu', 'label_kernels', 'l.weight.data ? row_value(l.weight, row, l.heads, l.n) :', '',
     'weights beside labels'),
    ('scores.cuh', 'label_kernels', 'for (int step = 16; step', 'for (int step = 8; step', "half of a label's score"),
    ('scores.cuh', 'label_kernels', 'x += element(s.bias.data', 'x -= element(s.bias.data', "the label's bias"),
    ('scores.cuh', 'label_kernels', 's.cap * tanhf(s.inner * x)', 's.inner * x', "the softcap of the label's score"),
    ('label_kernels.cu', 'label_kernels', 'only ? lse : ', '', "the only column's logit"),
    ('label_kernels.cu', 'label_kernels', 'dz = only_dz(args, row);', ';', "dz of the only column"),
    ('label_kernels.cu', 'label_kernels', 'l.diverges && work', 'work && false', 'the divergence beside labels'),
    ('label_kernels.cu', 'label_kernels', 's.m_s - s.acc_t / s.l_t', 's.m_s + s.acc_t / s.l_t', 'the sign of mean z'),
    ('label_kernels.cu', 'label_kernels', 'l.lse_weight != 0 && labelled', 'l.lse_weight != 0', 'LSE of an ignored label'),
    ('label_kernels.cu', 'label_kernels', '(1 + 2 * l.z_loss * lse)', '(1 + l.z_loss * lse)', "z_loss's slope"),
    ('label_kernels.cu', 'label_kernels', 'f.r *= (float)(l.kl_weight / args.norm)', 'f.r *= (float)(1 / args.norm)',
     "the divergence's weight in dz"),
    ('label_kernels.cu', 'label_kernels', 'mass_of((l.kl_weight + own) / args.norm)', 'mass_of(l.kl_weight / args.norm)',
     "q's mass beside a KL"),
    ('label_kernels.cu', 'label_kernels', 'other, x) - f.c', 'other, x)', "the label's own entry"),
    ('label_kernels.cu', 'label_kernels', 'mass_of(sign * flat)', 'SKL_NO_MASS', "smoothing's mass"),
    ('label_kernels.cu', 'label_kernels', 'sign * l.temperature / args.norm', 'sign / args.norm', "labels' temperature"),
    # Details
    ('detail_kernels.cu', 'detail_kernels', 'best.column -= counted_from', 'best.column -= 0 * counted_from',
     'the largest of a packed sequence, counted from the first'),
    ('detail_kernels.cu', 'detail_kernels', 'column = first + id', 'column = id', "the mass of another sequence's columns"),
    ('detail_kernels.cu', 'detail_kernels', 'log(p.l) - p.acc / p.l', 'log(p.l)', 'the moment of an entropy'),
    ('detail_kernels.cu', 'detail_kernels', '(p.acc + q.acc) / 2', 'p.acc', 'the second half of a JSD'),
    ('detail_kernels.cu', 'detail_kernels', 't.x == best.x && t.column < best.column', 'false', 'a tie between splits'),
    ('detail_kernels.cu', 'detail_kernels', 'args.limits[(1 - side) * args.rows + row]', 'args.limits[side * args.rows + row]',
     "the other side's score"),
    ('detail_kernels.cu', 'detail_kernels', 'id < -1 || id >= args.columns ? NAN', 'false ? NAN', 'the mass of no column'),
    ('detail_kernels.cu', 'detail_kernels', 'column >= r.lo && column < r.hi', 'id < args.columns',
     'the mass of a column that the row does not see'),
    ('detail_kernels.cu', 'detail_kernels', '(float)sum / l : 0', '(float)sum : 0', 'a mass is not divided'),
    ('detail_kernels.cu', 'detail_kernels', 'p.l == 0 ? 0 : log(p.l)', 'log(p.l)', 'the entropy of a row without columns'),
    ('detail_kernels.cu', 'detail_kernels', 'skl_finish_kl(&p, &q)', 'skl_finish_kl(&q, &p)', 'the direction of the other KL'),
    ('detail_kernels.cu', 'detail_kernels', 'case SKL_DETAIL_TV: x = p.acc', 'case SKL_DETAIL_TV: x = q.acc', 'total variation by the other sum'),
    ('detail_kernels.cu', 'detail_kernels', 'above += t.column;', 'above = t.column;', 'the rank of the last split'),
    ('detail_kernels.cu', 'detail_kernels', 't.x > best.x ||', 't.x >= best.x ||', 'a tie between splits, the higher column'),
    ('detail_kernels.cu', 'detail_kernels', 'args.limits ? best.column : above', 'best.column', 'a rank is a column'),
    ('detail_kernels.cu', 'detail_kernels', 'k % 32 == lane && x', 'k == lane && x', 'ids behind the first 32'),
    ('detail_kernels.cu', 'detail_kernels', 'for (int step = 16; step', 'for (int step = 8; step', 'half of the lanes of a mass'),
    ('detail_kernels.cu', 'detail_kernels', 'args.unit * ((double)x - (double)m)', '(double)x - (double)m', "a mass's temperature"),
    ('detail_kernels.cu', 'detail_kernels', 'r.lo < r.hi && l != 0 ?', 'true ?', 'the mass of a row without columns'),
    ('top.cuh', 'sweep_any', 'x[k][j] > side[k].x', 'x[k][j] >= side[k].x', 'a tie within a lane'),
    ('top.cuh', 'sweep_wide_bf16', 'x[k][j] > side[k].x', 'x[k][j] >= side[k].x', 'a tie within a lane'),
    ('top.cuh', 'sweep_wide_bf16', 'other.x == best.x && other.column < best.column', 'false', 'a tie between lanes'),
    ('top.cuh', 'sweep_any', 'x[1 - k][j]', 'x[k][j]', "the other side's score"),
    # Lists
    ('list_kernels.cu', 'list_kernels', 'logp = log_sum(logp, logp_of(keys[i]))', 'logp = logp_of(keys[i])',
     'the mass of a column that is listed twice'),
    ('list_kernels.cu', 'list_kernels', 'k == 0 || column[k - 1] != column[k]', 'true', 'equal columns are listed twice'),
    ('sort.cuh', 'list_kernels', '(i & size) == 0', 'true', 'the sort'),
    ('list_kernels.cu', 'list_kernels', '!own && n < l.columns;', '!own;', 'a rest where every column is listed'),
    ('list_kernels.cu', 'list_kernels', 'of_first<0>(power * rest)', 'of_first<0>(rest)', "the rest's temperature"),
    ('list_kernels.cu', 'list_kernels', 'wrong ? NAN : to.mass', 'to.mass', 'an id that is no column'),
    ('list_kernels.cu', 'list_kernels', 'l.range[list.row] = {0, 0};', ';', 'rows that list nothing'),
    ('list_kernels.cu', 'list_kernels', 'renormalise ? on : all', 'all', 'renormalise over all columns'),
    ('list_kernels.cu', 'list_kernels', 'r.l_rest * exp(r.m_rest - m)', 'r.l_rest', 'the rest under another m'),
    ('list_kernels.cu', 'list_kernels', 'r.m = renormalise ? top : m;', 'r.m = m;', 'a list far below the other columns'),
    ('list_kernels.cu', 'list_kernels', 'on * exp(r.m - m)', 'on', 'a list under an m of its own'),
    ('list_kernels.cu', 'list_kernels', 'row.mass * q - exp(log_p)', 'q - exp(log_p)', "the teacher's mass in dz"),
    ('list_kernels.cu', 'list_kernels', '(log_q - log_p - row.d)', '(log_q - log_p)', 'the mean of a reverse KL'),
    ('list_kernels.cu', 'list_kernels', 'r.off < 0 ? -share : share', 'share', 'the sign off the list'),
    ('list_kernels.cu', 'list_kernels', ' - log2(r.l_rest)', '', 'l off the list'),
    ('list_kernels.cu', 'list_kernels', '(1 - (double)tanh * tanh)', '1', 'the softcap of an entry'),
    ('list_kernels.cu', 'list_kernels', 'scale * list.entry[k].dz);', 'list.entry[k].dz);', "a row's weight (entries)"),
    ('list_kernels.cu', 'list_kernels', 'place[i]; list.column[k] < last', 'place[i] + 1; list.column[k] < last',
     'db without its first entry'),
    ('list_kernels.cu', 'list_kernels', 'meet(); /* the last rows are done with */', ';', 'places of the next rows'),
    ('list_kernels.cu', 'list_kernels', 'bits >> 31 ? ~bits : bits | 0x80000000u', 'bits', 'the order of masses'),
    ('list_kernels.cu', 'list_kernels', 'first && sum < 1 ? log(1 - sum)', 'first ? log(1 - sum)', 'a sum above 1'),
    ('list_kernels.cu', 'list_kernels', 'if (missing && l.rest.data)', 'if (false)', "the given rest"),
    ('list_kernels.cu', 'list_kernels', 'double x = first ? exp(to.rest - high) : 0', 'double x = 0', 'the rest in the new sum'),
    ('list_kernels.cu', 'list_kernels', 'exp(to.rest) + list.sum<2>', 'list.sum<2>', "the rest in the teacher's mass"),
    ('list_kernels.cu', 'list_kernels', 'high = x > y ? x : y, low = x > y ? y : x', 'high = x, low = y', 'the sum of logarithms'),
    ('list_kernels.cu', 'list_kernels', 'work && k < l.ids.count', 'k < l.ids.count', 'lists of rows without weight'),
    ('list_kernels.cu', 'list_kernels', 'k < l.ids.count ? id_at', 'true ? id_at', 'slots behind the list'),
    ('list_kernels.cu', 'list_kernels', 'for (int k = threadIdx.x; k <= l.room; k += 128)',
     'for (int k = threadIdx.x; k < l.room; k += 128)', 'nothing stands behind the list'),
    ('list_kernels.cu', 'list_kernels', 'x == -INFINITY ? 0 : exp(l.unit * x - r.m)', 'exp(l.unit * x)', "the list's m"),
    ('list_kernels.cu', 'list_kernels', 'r.m_rest = l.unit * list.value(l.saved_m), r.l_rest = list.value(l.saved_l);',
     'r.m_rest = list.value(l.saved_m), r.l_rest = list.value(l.saved_l);', "the unit of what was saved"),
    ('list_kernels.cu', 'list_kernels', 'if (l.tail == SKL_TAIL_BUCKET)', 'if (false)', "the bucket's term"),
    ('list_kernels.cu', 'list_kernels', '(r.m_rest - r.m) + (log(r.l_rest) - r.log_l)', 'log(r.l_rest) - r.log_l', "q of the rest"),
    ('list_kernels.cu', 'list_kernels', 'r.lo < r.hi ? (float)(args.kl_weight / args.norm) * w : 0',
     '(float)(args.kl_weight / args.norm) * w', 'no row has any weight'),
    ('list_kernels.cu', 'list_kernels', 'r.l_rest == 0 || renormalise ? -HUGE_VAL', 'r.l_rest == 0 ? -HUGE_VAL', 'off a list that is all there is'),
    ('list_kernels.cu', 'list_kernels', 'list.value(args.weight) / args.scalars->largest', 'list.value(args.weight)', 'the largest weight'),
    ('list_kernels.cu', 'list_kernels', 'j >= 0 && j < args.slab.columns', 'j >= 0', 'entries behind a slab'),
    ('list_kernels.cu', 'list_kernels', 'args.slab.first_row + i);', 'i);', 'slabs after the first, in rows'),
    ('list_kernels.cu', 'list_kernels', 'list.column[k] != NO_COLUMN; k++', 'list.column[k + 1] != NO_COLUMN; k++', 'da without its last entry'),
    ('list_kernels.cu', 'list_kernels', 'if (dz != 0) /*', 'if (true) /*', '0 times what is not finite (da)'),
    ('list_kernels.cu', 'list_kernels', 'if (dz == 0 || scale == 0)', 'if (false)', '0 times what is not finite (db)'),
    ('list_kernels.cu', 'list_kernels', 'blockIdx.y * DB_ENTRIES + threadIdx.x', 'threadIdx.x', 'db behind its first 256 entries'),
    ('list_kernels.cu', 'list_kernels', 'bias += threadIdx.x == j ?', 'bias += threadIdx.x <= j ?', "a bias's gradient"),
    ('listed.cuh', 'list_kernels', 'column[middle] < first', 'column[middle] <= first', 'the place of a column'),
    ('scores.cuh', 'list_kernels', 'x += element(s.bias.data', 'x -= element(s.bias.data', "an entry's bias"),
    ('rest.cuh', 'sweep_wide_bf16', 'column[j] == listed ? -INFINITY : x[1][j]', 'x[1][j]', 'listed columns are not left out'),
    ('rest.cuh', 'sweep_any', 'listed = *++next', 'listed = (++next, *next + 1)', 'the column behind a listed one'),
    ('listed.cuh', 'sweep_any', 'column[middle] < first', 'column[middle] <= first', 'the first column of a split, if listed'),
    ('rest.cuh', 'sweep_wide_bf16', 'move(top), other.move(top);', 'm = top;',
     'lanes under different m'),
    # Lists of keys, indexers
    ('keys.cuh', 'key_kernels', 'lo - args.block + 1', 'lo', 'blocks that begin before the range'),
    ('keys.cuh', 'key_kernels', 'again || column < row.range.lo', 'column < row.range.lo', 'keys that are listed twice'),
    ('keys.cuh', 'key_kernels', ' || column >= row.range.hi ? -1', ' ? -1', 'keys behind the range'),
    ('keys.cuh', 'key_kernels', '!s.identity && x < 0', 'x < 0', 'ReLU instead of the identity'),
    ('keys.cuh', 'key_kernels', 'lane == whose ? x : mine', 'x', "every lane has the last one's score"),
    ('keys.cuh', 'key_kernels', 'member[k * p.rows + number]', 'member[number]', 'all heads under the first LSE'),
    ('mixture.cuh', 'key_kernels', 'h * m.members + k', 'h * m.members', 'the first head alone'),
    ('keys.cuh', 'key_kernels', '? s.sign * sum', '? sum', 'a negative scale'),
    ('key_kernels.cu', 'key_kernels', 'start + (int)from', '(int)from', "where a packed sequence's keys start"),
    ('key_kernels.cu', 'key_kernels', '{0, bad ? -1 : 0}', '{0, 0}', 'ids that are no keys'),
    ('key_kernels.cu', 'key_kernels', 'm.side, m.alone', 'm.side, 0', 'the LSE of the first head alone'),
    ('key_kernels.cu', 'key_kernels', '? dx * activation(s, x) : 0', '? dx * x : 0', 'dw without its ReLU'),
    ('key_kernels.cu', 'key_kernels', ' && slope_of_activation(s, x) != 0', '', 'the derivative of ReLU'),
    ('key_kernels.cu', 'key_kernels', '__shfl_sync(~0u, row, r * COLUMNS)', 'row', "every lane's own row in db"),
    ('key_kernels.cu', 'key_kernels', 'known ? sum[e]', 'true ? sum[e]', 'da of a row with a wrong id'),
    # Lists of the largest logits
    ('topk_kernels.cu', 'topk_kernels', '<< 32 | (uint32_t)column', '<< 32 | ~(uint32_t)column', 'ties go to the higher column'),
    ('topk_kernels.cu', 'topk_kernels', '__fadd_rn(x, 0.0f)', 'x', 'the two zeros are not equal'),
    ('topk_kernels.cu', 'topk_kernels', 'isnan(x) ? INFINITY : ', '', 'NaN among the ids'),
    ('topk_kernels.cu', 'topk_kernels', 'if (x == -INFINITY)\n            return;', '', 'columns of -inf in the sum'),
    ('topk_kernels.cu', 'topk_kernels', 'l *= power_of_two(relative(m, x, factor)), m = x', 'm = x', 'the sum is not rescaled'),
    ('topk_kernels.cu', 'topk_kernels', 'other_l != 0 ? other_l *', 'other_l != 0 && m != high ? other_l *', 'sums of equal m are not merged'),
    ('topk_kernels.cu', 'topk_kernels', 'turn ^= 1;', ';', 'one count for all turns'),
    ('topk_kernels.cu', 'topk_kernels', 'at += w < warp ? kept[w] : 0', 'at += 0', 'warps write over each other'),
    ('topk_kernels.cu', 'topk_kernels', 'before += lane >= step ? other : 0', 'before += other', 'counts of the first lanes'),
    ('topk_kernels.cu', 'topk_kernels', 's.left = k - before', 's.left = k', 'keys with smaller digits'),
    ('topk_kernels.cu', 'topk_kernels', 'shift == 56 || key[i] >> (shift + 8) == found', 'true', 'keys with other digits'),
    ('topk_kernels.cu', 'topk_kernels', '((found + 1) << shift) - 1', 'found << shift', 'the last key of those that share its digits'),
    ('topk_kernels.cu', 'topk_kernels', 'if (i < all && !stays)\n                rest.add', 'if (false)\n                rest.add',
     'picks that are dropped are lost to the sum'),
    ('topk_kernels.cu', 'topk_kernels', 'if (column < end && !stays)', 'if (false)', 'columns that never join are lost to the sum'),
    ('topk_kernels.cu', 'topk_kernels', 'rest.m = m, rest.l = l;', 'rest.m = -INFINITY, rest.l = 0;', 'the sum of the slabs before'),
    ('topk_kernels.cu', 'topk_kernels', 'if (args.slab.first_column > 0)', 'if (false)', 'the picks of the slabs before'),
    ('topk_kernels.cu', 'topk_kernels', 'max(r.lo, slab.first_column)', 'slab.first_column', 'columns that the row does not see'),
    ('topk_kernels.cu', 'topk_kernels', 'min(r.hi, slab.first_column + slab.columns)', 'slab.first_column + slab.columns',
     'columns behind those that the row sees'),
    ('topk_kernels.cu', 'topk_kernels', 'if (own.n > args.most)', 'if (false)', 'more picks than a list has'),
    ('topk_kernels.cu', 'topk_kernels', 'own.key[i] = ~(uint64_t)0', 'own.key[i] = 0', 'what stands behind the picks is sorted before them'),
    ('topk_kernels.cu', 'topk_kernels', '(int)(uint32_t)own.key[k] - start', '(int)(uint32_t)own.key[k]', 'ids of packed sequences'),
    ('topk_kernels.cu', 'topk_kernels', 'args.unit * (score_of(own.key[k]) - m)', '(score_of(own.key[k]) - m)', "a score's unit"),
    ('topk_kernels.cu', 'topk_kernels', '!(own.rest.l > 0) ? (double)NAN', 'false ? (double)NAN', 'the tail of a row without a softmax'),
    ('topk_kernels.cu', 'topk_kernels', 'r.hi < 0 ? (double)NAN : 0', '0', 'rows of which nobody knows what they see'),
    ('stream.cuh', 'sweep_wide_bf16', 'row_of_slab * args.ld - args.first_column;\n        float x', 'row_of_slab * args.ld;\n        float x',
     'scores of slabs after the first'),
    ('key_kernels.cu', 'key_kernels', 'blockIdx.x * slab.ld - slab.first_column', 'blockIdx.x * slab.ld', 'scores of slabs after the first'),
    ('key_kernels.cu', 'key_kernels', '(uint32_t)slab.head * slab.grad.problem.n', '0', 'scores of the first batch alone'),
    # Indexers on tensor cores
    ('tile.cuh', 'sweep_index_bf16', '(r & ~30) | (r >> 2 & 6) | (r << 2 & 24)', 'r', "columns in the order of the products"),
    ('stream.cuh', 'sweep_index_bf16', 'column + COLUMNS <= p.columns', 'true', 'columns behind the last are copied'),
    ('sweep_index.cu', 'sweep_index_bf16', ': (part - INDEX) / 2;', ': 0;', "the indexer's first head alone"),
    ('sweep_index.cu', 'sweep_index_bf16', 'index.w + k * f.p.rows', 'index.w', "all heads have the first one's weights"),
    ('sweep_index.cu', 'sweep_index_bf16', 'activation(x[group][tile][block][e], f.p.index.floor)', 'x[group][tile][block][e]', 'no ReLU'),
    ('sweep_index.cu', 'sweep_index_bf16', 't[j >> 1][i >> 1][j & 1]', 't[0][i >> 1][j & 1]', "the teacher's first columns alone"),
    ('sweep_index.cu', 'sweep_index_bf16', 'if (__all_sync(~0u, inside))', 'if (true)', 'every row sees every tile'),
    ('sweep_index.cu', 'sweep_index_bf16', 'c + COLUMNS <= r.hi', 'c < r.hi', 'tiles that not all rows see, at their end'),
    ('sweep_index.cu', 'sweep_index_bf16', 'c + (threadIdx.x & 3) * 8', 'c + (threadIdx.x & 3) * 2', 'masks in the order of the products'),
    ('sweep_index.cu', 'sweep_index_bf16', 'of[8 * i]', 'of[0]', "all of a lane's rows under the first weight"),
    ('sweep_index.cu', 'sweep_index_bf16', ': 3 - halves(p)', ': 2', 'the second half of a wide head is not copied'),
    ('stream.cuh', 'sweep_index_bf16', 'd + DEPTH < dim ? FIRST : GROUPS / 2 - FIRST', '0', 'the second half begins with the first'),
    ('sweep_index.cu', 'sweep_index_bf16', 'waiting.put(push.state);\n    }', '}', 'states of the last tile alone'),
    ('sweep_index.cu', 'sweep_index_bf16', 'own[i * THREADS]', 'own[0]', 'one state for all rows of a lane'),
    ('sweep_index.cu', 'sweep_index_bf16', 'g.factors[row].r * g.spread', 'g.spread', "a row's weight (slabs)"),
    ('sweep_index.cu', 'sweep_index_bf16', '8 * (2 * (i & 1) + e)', '8 * (2 * (i & 1) + 1 - e)',
     'the derivatives of ReLU of a pair exchanged'),
    ('sweep_index.cu', 'sweep_index_bf16', '+ e] <= floor)', '+ e] < floor)', 'the derivative of ReLU at 0'),
    ('sweep_index.cu', 'sweep_index_bf16', 'i & 1 ? 0xBBAA : 0x9988', '0x9988', "the derivatives of a row for two"),
    ('sweep_index.cu', 'sweep_index_bf16', '*(const uint2 *)next :', 'bits :', "all heads have the first one's derivatives"),
    ('sweep_index.cu', 'sweep_index_bf16', 'clear_tile(args, f, c);', ';', 'tiles that no row sees are not cleared'),
    ('sweep_index.cu', 'sweep_index_bf16', 'blockIdx.y * SKL_INDEX_TILES * COLUMNS', '0', 'all blocks have the first tiles'),
    ('sweep_index.cu', 'sweep_index_bf16', 'c - args.first_column) + (threadIdx', 'c) + (threadIdx', 'slabs after the first, in columns'),
    ('index_kernels.cu', 'index_kernels', 'args.sign * element(args.w.data', 'element(args.w.data', 'a negative scale'),
    ('index_kernels.cu', 'index_kernels', 'args.batch * args.n + i', 'i', "every batch has the first one's weights"),
    ('index_kernels.cu', 'index_kernels', 's != 0 ? w * s : 0', 's', 'da without w'),
    ('index_kernels.cu', 'index_kernels', 'for (int step = 16; step', 'for (int step = 8; step', 'half of dw'),
    ('index_kernels.cu', 'index_kernels', 'r.lo < r.hi ? w * element', 'true ? element', 'db without w'),
    # Sinks
    ('sink.cuh', 'row_kernels', 'x_p != -INFINITY', 'true', 'a sink without mass'),
    ('row_kernels.cu', 'row_kernels', 'args.partial_in || sink ?', 'args.partial_in ?', 'rows that see the sink alone'),
    ('row_kernels.cu', 'row_kernels', 'work && keys && split', 'work && !args.partial_in && split',
     'what a sweep leaves of rows that see no key'),
    ('row_kernels.cu', 'row_kernels', 'args.sinks.are && args.range[row].hi >= 0', 'false', 'no sink in the states'),
    ('sink_kernels.cu', 'sink_kernels', 'SKL_L_Q * p.rows + row] += sum[1]', 'SKL_L_Q * p.rows + row] += sum[0]',
     'sums of the second sweep exchanged'),
    ('sink_kernels.cu', 'sink_kernels', '(k / p.n * p.heads + h) * p.n', 'h * p.n', 'rows of the first batch alone'),
    ('sink_kernels.cu', 'sink_kernels', ' * args.sinks.temperature', '', 'no temperature in the gradient'),
    # Mixed heads
    ('mixture.cuh', 'sweep_mixed_bf16', 'row.shift', '0', 'heads are not divided by their sums'),
    ('mixture.cuh', 'mixed_any', 'h * m.members + k', 'h * m.members', 'the first head alone'),
    ('sweep_mixed.cu', 'sweep_mixed_bf16', 'last(p, part) ? 0 : part + 1', 'last(p, part) ? 0 : p.mixture.members',
     'copies of the first head alone'),
    ('mixed_tiles.cuh', 'sweep_mixed_bf16', 'mixture.member + k * f.p.rows', 'mixture.member', 'all heads under the first LSE'),
    ('mixed_tiles.cuh', 'sweep_mixed_bf16', 'of[8 * i]', 'of[0]', "all of a lane's rows under the first LSE"),
    ('mixed_tiles.cuh', 'sweep_mixed_bf16', 'v = 0;', '', 'a product is added to the one before'),
    ('mixed_tiles.cuh', 'sweep_mixed_bf16', 'next % STEPS << 5', '0', 'the last entries of b at one address'),
    ('mixed_tiles.cuh', 'sweep_mixed_bf16', 'v = member_score(m, v);', '', "the heads' softcap"),
    ('sweep_mixed.cu', 'sweep_mixed_bf16', 'l[i] = moved(l[i], m[i], to, factor), m[i] = to;', 'm[i] = to;',
     "a head's l is not rescaled when m is raised"),
    ('mixed_any.cu', 'mixed_any', 'm.side ? y[i >> 2][i & 3] : t[i >> 2][i & 3];', 't[i >> 2][i & 3];',
     'the mixture is P and Q'),
    ('mixture_kernels.cu', 'mixture_kernels', 's.l * args.mixture.members', 's.l', 'a sum of the heads, not their mean'),
    ('mixture_kernels.cu', 'mixture_kernels', 's.m * SKL_LOG2E_DOUBLE + ', '', 'LSEs without their m'),
    ('mixture_kernels.cu', 'mixture_kernels', 'split < args.splits', 'split < 1', 'the first split of a head alone'),
    ('mixture_kernels.cu', 'mixture_kernels', 'if (!is_head(args.mixture, h, args.member))', 'if (false)',
     'a map that names no head'),
    # A mixture that is nearly one side
    ('divergence.cuh', 'sweep_any', 'less < -0.5f', 'false', 'a mixture that is nearly one side'),
    ('divergence.cuh', 'sweep_wide_bf16', 'less < -0.5f', 'false', 'a mixture that is nearly one side'),
]

# What sees a mutant of these first, or alone.
OWN_TESTS = {'label_kernels': 'labels', 'detail_kernels': 'details', 'list_kernels': 'lists', 'top.cuh': 'details',
             'topk_kernels': 'topk', 'rest.cuh': 'lists', 'listed.cuh': 'lists', 'key_kernels': 'keys topk', 'sink_kernels': 'sinks', 'sink.cuh': 'sinks',
             'sweep_index_bf16': 'keys', 'index_kernels': 'keys', 'sweep_mixed_bf16': 'mixture', 'mixed_any': 'mixture', 'mixture_kernels': 'mixture'}


def compile_unit(nvcc, sources, unit, ptx):
    """Compiles sweep_narrow_bf16_64 as sweep_narrow.cu with -DSKL_TYPE=bf16 -DSKL_DIM=64. Returns the compiler's complaint."""
    source, kind, dim = re.fullmatch(r'(.*?)(?:_(b?f16)(?:_(\d+))?)?', unit).groups()
    define = [flag + part for flag, part in (('-DSKL_TYPE=', kind), ('-DSKL_DIM=', dim)) if part]
    command = [nvcc, '-std=c++17', '-O3', '-I' + os.path.join(ROOT, 'include'), '-arch=compute_80', '-ptx', *define,
               os.path.join(sources, 'cuda', 'kernels', source + '.cu'), '-o', ptx]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout + done.stderr if done.returncode else ''


def cause(line):
    """What a failed check saw, in a few words."""
    counts = re.findall(r'(\d+) (races|out of bounds|not initialised|not in step|other)', line)
    kinds = [name for n, name in counts if int(n)]
    if kinds:
        return ', '.join(kinds)
    if 'bank conflicts' in line:
        return 'bank conflicts'
    if 'nan' in line:
        return 'NaN'
    return 'wrong' if 'expected' in line else line.strip()[-60:]


def run(program, ptx_dir, cases):
    """The first failure of a test program, or None. The program is stopped there."""
    env = dict(os.environ, STREAMKL_PTX=ptx_dir, STREAMKL_TEST_LONG='1')
    if cases == 'first':
        del env['STREAMKL_TEST_LONG']
    with subprocess.Popen([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) as p:
        for line in p.stdout:
            if 'FAILED' in line:
                p.kill()
                return cause(line)
        code = p.wait()
    return 'exit code %d' % code if code else None


def kill(programs, ptx_dir, cases):
    for program in programs:
        seen = run(program, ptx_dir, cases)
        if seen:
            return os.path.basename(program).replace('test_cuda_', 'test_'), seen
    return None


def kill_by_any(programs, ptx_dir):
    """By the cases of make test; by all of them, which take minutes, only where these see nothing."""
    killed = kill(programs, ptx_dir, 'first')
    if killed:
        return killed
    killed = kill(programs, ptx_dir, 'all')
    return killed and (killed[0], killed[1] + ', not with make test')


def path_of(file, sources=SOURCES):
    return os.path.join(sources, 'cuda', 'kernels', file)


def broken(mutant):
    """The source as the mutant has it, or None if it does not fit."""
    file, _, text, instead, _ = mutant
    with open(path_of(file)) as f:
        source = f.read()
    return source.replace(text, instead, 1) if text in source else None


def fate(mutant, nvcc, programs, ptx_dir):
    """(who failed, what it saw), or ('-', why nobody did)."""
    file, unit, text, _, _ = mutant
    source = broken(mutant)
    if source is None:
        return '-', 'NOT APPLIED: %s has no "%s"' % (file, text)
    with tempfile.TemporaryDirectory() as work:
        sources, ptx = os.path.join(work, 'src'), os.path.join(work, 'ptx')
        shutil.copytree(SOURCES, sources)
        os.mkdir(ptx)
        for name in os.listdir(ptx_dir):
            if name.endswith('.ptx') and name != unit + '.ptx':
                os.symlink(os.path.join(ptx_dir, name), os.path.join(ptx, name))
        with open(path_of(file, sources), 'w') as f:
            f.write(source)
        complaint = compile_unit(nvcc, sources, unit, os.path.join(ptx, unit + '.ptx'))
        if complaint:
            return '-', 'DOES NOT COMPILE: ' + complaint.strip().splitlines()[0]
        return kill_by_any(of_mutant(mutant, programs), ptx) or ('-', 'SURVIVES')


def of_mutant(mutant, programs):
    """The programs that may see it, in the order in which they are tried."""
    own = OWN_TESTS.get(mutant[1]) or OWN_TESTS.get(mutant[0])
    return [p for p in programs if not own or p.rpartition('test_cuda_')[2] in own.split()]


def fits():
    """Not to be found out after an hour of other mutants."""
    strangers = [m for m in MUTANTS if broken(m) is None]
    for file, _, text, _, what in strangers:
        print('FAILED: "%s": %s has no "%s"' % (what, file, text))
    print('%d of %d mutants fit the sources' % (len(MUTANTS) - len(strangers), len(MUTANTS)))
    return len(strangers) > 0


def main():
    if sys.argv[1:] == ['--fits']:
        return fits()
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    nvcc, kernels, ptx_dir = sys.argv[1], os.path.abspath(sys.argv[2]), os.path.abspath(sys.argv[3])
    wanted = sys.argv[4] if len(sys.argv) > 4 else ''
    names = ('kernels', 'packed', 'mixture', 'sinks', 'exact', 'plan', 'calls', 'rounding', 'labels', 'details', 'lists', 'topk', 'keys')
    programs = [re.sub('kernels$', name, kernels) for name in names]
    mutants = [m for m in MUTANTS if wanted in m[1] or wanted in m[4]]
    failed = kill([p for p in programs if any(p in of_mutant(m, programs) for m in mutants)], ptx_dir, 'first')
    if failed:
        print('%s fails without a mutant: %s' % failed)
        return 1

    def timed(mutant):
        start = time.time()
        return mutant, fate(mutant, nvcc, programs, ptx_dir), time.time() - start

    print('%-16s %-48s %-14s %s' % ('unit', 'broken', 'failed', 'seen'))
    survivors = 0
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get('JOBS') or os.cpu_count() or 1)) as pool:
        for (_, unit, _, _, what), (failed, seen), seconds in pool.map(timed, mutants):
            survivors += failed == '-'
            print('%-16s %-48s %-14s %s  (%.0f s)' % (unit, what, failed, seen, seconds), flush=True)
    print('%d of %d survive' % (survivors, len(mutants)))
    return survivors > 0


if __name__ == '__main__':
    sys.exit(main())
