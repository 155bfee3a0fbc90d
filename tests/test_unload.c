/* SPDX-License-Identifier: Apache-2.0
 *
 * The shared library loaded, used on several threads, and unloaded again and again: its threads end, nothing of it is
 * left in the process, and a fork finds no handler of it.
 *
 * usage: test_unload LIBRARY.so
 */
#define _GNU_SOURCE
#include "streamkl/streamkl.h"
#include "test.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROWS = 200, COLUMNS = 700, DIM = 32, THREADS = 4 };

typedef enum skl_status value_function(const struct skl_problem *p, const struct skl_outputs *out);

/* Threads of this process; 0 where that cannot be told. */
static int tasks(void)
{
    int n = 0;
#if !defined(__SANITIZE_THREAD__) /* which has a thread of its own */
    DIR *all = opendir("/proc/self/task");
    for (struct dirent *one; all && (one = readdir(all));) n += one->d_name[0] != '.';
    if (all)
        closedir(all);
#endif
    return n;
}

/* More threads than 'before', when those that have ended are gone: joined, a thread is listed for a moment longer. */
static int tasks_left(int before)
{
    for (int k = 0; k < 2000 && tasks() != before; k++) usleep(1000);
    return tasks() - before;
}

static double call(void *library)
{
    static float x[COLUMNS * DIM];
    double value = NAN;
    value_function *skl = (value_function *)(uintptr_t)dlsym(library, "skl_value");
    for (int i = 0; i < COLUMNS * DIM; i++) x[i] = (float)(i % 61) / 61;
    struct skl_tensor a = skl_matrix(SKL_F32, x, ROWS, DIM), b = skl_matrix(SKL_F32, x, COLUMNS, DIM);
    struct skl_problem p = skl_linear(a, b, a, b);
    struct skl_outputs out = skl_no_outputs();
    p.threads = THREADS, p.temperature = 2;
    out.value = &value;
    if (skl(&p, &out))
        return NAN;
    return value;
}

int main(int argc, char **argv)
{
    test_begin("test_unload");
    if (argc != 2)
        return 2;
    int before = tasks();
    for (int k = 0; k < 20; k++) {
        test_context("time %d", k);
        void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (!CHECK(library, "%s", dlerror()) || !library)
            break;
        CHECK(call(library) == 0, "equal sides have a divergence");
        CHECK(!before || tasks() == before + THREADS - 1, "%d threads", tasks());
        CHECK(dlclose(library) == 0, "%s", dlerror());
        int left = tasks_left(before);
        CHECK(left == 0, "%d threads are left", left);
        CHECK(!dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD), "the library is still there");
        fflush(NULL);
        pid_t child = fork();
        int status;
        if (child == 0)
            _exit(0);
        CHECK(waitpid(child, &status, 0) == child && status == 0, "a fork afterwards ended with %#x", (unsigned)status);
    }
    return test_end();
}
