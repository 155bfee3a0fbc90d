/* SPDX-License-Identifier: Apache-2.0
 * The smallest program that proves an installed library works: one row, two columns, KL = 0.8 log 9. */
#include <streamkl/streamkl.h>

#include <stdio.h>

int main(void)
{
    float x[2] = {1, 0}, w_s[4] = {0, 0, 2.1972246f, 0}, w_t[4] = {2.1972246f, 0, 0, 0}; /* log 9 */
    struct skl_problem p = skl_linear(skl_matrix(SKL_F32, x, 1, 2), skl_matrix(SKL_F32, w_s, 2, 2),
                                      skl_matrix(SKL_F32, x, 1, 2), skl_matrix(SKL_F32, w_t, 2, 2));
    struct skl_outputs out = skl_no_outputs();
    double value = 0;
    out.value = &value;
    if (skl_value(&p, &out) != SKL_OK) {
        printf("%s\n", skl_last_error());
        return 1;
    }
    printf("streamkl %s: %.6f\n", skl_version(), value);
    return !(value > 1.757779 && value < 1.757781);
}
